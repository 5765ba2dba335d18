"""A target that something else has written to is repaired: it becomes equal to its source, and each row is reported."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from harness.database import Database
from harness.mirrored import eventually, receiving
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.target.following import Cloned, cloned_tables
from tests.target.load import TABLES, contents, database_with_tables, hostile
from tidemark.clock import Lsn
from tidemark.errors import SourceAltered, TargetDiffers
from tidemark.target.follow import CloneFollower, FollowOptions, follow

pytestmark = [pytest.mark.quick, NEWEST]
Repaired = tuple[str, int, list[str], list[str]]


def repairing(cloned: Cloned) -> FollowOptions:
    return replace(cloned.options(), repair_from=cloned.source.dsn())


def follow_now(cloned: Cloned) -> Lsn:
    return follow(repairing(cloned), cloned.position(), lambda: False)


def repaired(cloned: Cloned) -> list[Repaired]:
    query = "select name, rows, missing, extra from tidemark.repairs order by lsn, name"
    return [(name, rows, missing, extra) for name, rows, missing, extra in cloned.target.admin(query)]


FILLED = (
    "insert into keyed select i, 'v' || i, i from generate_series(1, 9) i",
    "insert into paired select i, 'x', i from generate_series(1, 9) i",
    "insert into uniques (u, e, v) select i, int4range(i * 10, i * 10 + 1), i from generate_series(1, 9) i",
    "insert into large select i, repeat(md5(i::text), 200), i from generate_series(1, 9) i",
    "insert into summed (id, a) select i, i from generate_series(1, 9) i",
    "insert into plain select i % 3, 'b', 0 from generate_series(1, 9) i",
    "insert into only_key select generate_series(1, 9)",
)
# What something else does at the target, what the source does, and what is reported.
DIFFERENCES: tuple[tuple[str, str, Repaired], ...] = (
    (
        "delete from keyed where id in (2, 3)",
        "update keyed set v = 'new' where id in (1, 2); delete from keyed where id = 3",
        ("public.keyed", 2, ["(2)", "(3)"], []),
    ),
    (
        "insert into only_key values (20)",
        "insert into only_key values (20); update only_key set id = 21 where id = 1",
        ("public.only_key", 1, [], ["(20)"]),
    ),
    (
        "delete from paired where a = 4",
        "update paired set a = 40 where a = 4; update paired set b = 'y' where a = 40",
        ("public.paired", 1, ["(4, x)"], []),
    ),
    (
        "delete from large where id in (1, 2)",
        "update large set small = 100 where id = 1; update large set id = 200 where id = 2",
        ("public.large", 2, ["(1)", "(2)"], []),
    ),
    (
        "update uniques set u = 50 where u = 5; insert into uniques overriding system value values (500, 60, null, '')",
        "update uniques set u = 50 where u = 1; insert into uniques (u, v) values (60, 'ours')",
        ("public.uniques", 2, [], ["(5)", "(500)"]),
    ),
    (
        "delete from plain where a = 1 and ctid <> (select min(ctid) from plain where a = 1)",
        "delete from plain where ctid in (select ctid from plain where a = 1 limit 2)",
        ("public.plain", 2, ["(1,b,0)"], []),
    ),
    (
        "delete from summed where id = 7",
        "update summed set a = 70 where id = 7",
        ("public.summed", 1, ["(7)"], []),
    ),
)


def test_each_kind_of_difference_is_repaired_and_reported(cloned: Cloned, caplog: pytest.LogCaptureFixture) -> None:
    with receiving(cloned.mirror), caplog.at_level(logging.WARNING):
        cloned.source.run(*FILLED)
        follow_now(cloned)
        assert repaired(cloned) == []
        cloned.target.run(*(each[0] for each in DIFFERENCES))
        cloned.source.run(*(each[1] for each in DIFFERENCES))
        follow_now(cloned)
    assert contents(cloned.target) == contents(cloned.source)
    found = [(name, rows, sorted(missing), sorted(extra)) for name, rows, missing, extra in repaired(cloned)]
    assert found == sorted(each[2] for each in DIFFERENCES)
    assert "table public.keyed: repaired 2 rows: the target lacked (id) = (2), (3)" in caplog.text
    assert "table public.only_key: repaired 1 row: the target had rows that do not fit: (id) = (20)" in caplog.text


def test_rows_that_do_not_fit_are_named_and_no_others(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.source.run(*FILLED)
        follow(cloned.options(), cloned.position(), lambda: False)
        cloned.target.run("delete from keyed where id = 3", "delete from paired where a in (4, 5)")
        before = contents(cloned.target)
        cloned.source.run(
            "begin; delete from keyed where id < 6; insert into keyed values (4, 'again');"
            "update paired set a = a + 100 where a > 3; commit"
        )
        with pytest.raises(TargetDiffers) as raised:
            follow(cloned.options(), cloned.position(), lambda: False)
    assert raised.value.message == (
        "table public.keyed at the target has 4 of 5 rows that the source changed; "
        "public.keyed has no row with (id) = (3); public.paired has no row with (a, b) = (4, x), (5, x)"
    )
    assert contents(cloned.target) == before


def test_a_batch_after_a_repair_in_the_same_session_begins_with_empty_stages(cloned: Cloned) -> None:
    one_of = "delete from plain where ctid in (select ctid from plain where a = 1 limit 1)"
    with receiving(cloned.mirror):
        cloned.source.run(*FILLED)
        with CloneFollower.open(repairing(cloned)) as following:
            catch_up(following, cloned)
            for here, there in (
                ("delete from keyed where id = 3", "update keyed set v = 'new' where id = 3"),
                ("select", "delete from keyed where id = 3"),
                ("delete from keyed where id = 5", "update keyed set v = 'new' where id = 5"),
                ("delete from plain where a = 1", one_of),
                ("select", "insert into plain values (77, 'c', 1)"),
            ):
                cloned.target.run(here)
                cloned.source.run(there)
                catch_up(following, cloned)
    assert contents(cloned.target) == contents(cloned.source)


def catch_up(following: CloneFollower, cloned: Cloned) -> None:
    """Apply everything that the source has committed."""
    end = cloned.position()
    while following.applied_lsn < end:
        if following.step(end) is None:
            following.wait(end)


@pytest.mark.full
def test_a_row_that_blocks_by_an_exclusion_constraint_is_named(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.target.run("insert into uniques overriding system value values (500, 60, '[1,9)', 'mine')")
        cloned.source.run("insert into uniques (u, e) values (1, '[5,7)')")
        with pytest.raises(
            TargetDiffers, match=r"public.uniques.*\(e\)=\(\[5,7\)\) conflicts with .*\(e\)=\(\[1,9\)\)"
        ):
            follow_now(cloned)
    assert cloned.target.run("select id from uniques") == [(500,)]
    assert repaired(cloned) == []


@pytest.mark.full
def test_a_deferred_constraint_names_the_row_that_blocks(cloned: Cloned) -> None:
    for database in (cloned.source, cloned.target):
        alter = "alter table uniques drop constraint uniques_u_key, add unique (u) deferrable initially deferred"
        database.run(alter)
    with receiving(cloned.mirror):
        cloned.target.run("insert into uniques overriding system value values (500, 60, null, 'mine')")
        cloned.source.run("insert into uniques (u) values (60)")
        with pytest.raises(TargetDiffers, match=r"\(u\)=\(60\) already exists"):
            follow_now(cloned)
    assert cloned.target.run("select id from uniques") == [(500,)]


@pytest.mark.full
def test_an_end_before_the_state_of_the_source_is_refused(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.source.run("insert into keyed values (1, 'a')")
        follow_now(cloned)
        cloned.target.run("delete from keyed")
        cloned.source.run("update keyed set v = 'b'")
        endpos = cloned.position()
        cloned.source.run("update keyed set v = 'c'")
        with pytest.raises(TargetDiffers, match=r"no row with \(id\) = \(1\)") as raised:
            follow(repairing(cloned), endpos, lambda: False)
        assert "--follow" in raised.value.hint
        assert cloned.target.run("select count(*) from keyed") == [(0,)]
        follow_now(cloned)
    assert contents(cloned.target) == contents(cloned.source)


@pytest.mark.full
def test_a_table_that_was_altered_is_not_repaired(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.source.run("insert into keyed values (1, 'a')")
        follow_now(cloned)
        cloned.target.run("delete from keyed")
        cloned.source.run("update keyed set n = 1", "alter table keyed alter v type text using upper(v)")
        with pytest.raises(SourceAltered, match=r"public.keyed at the target differs and cannot be repaired"):
            follow_now(cloned)
    assert cloned.target.run("select count(*) from keyed") == [(0,)]


VANDALS = (
    "delete from keyed where id % 3 = {n} % 3",
    "delete from exact where n::int % 3 = {n} % 3",
    "insert into paired select {n} % 5, 'a', 0 on conflict do nothing",
    "delete from paired where a = {n} % 5",
    "delete from uniques where u % 3 = {n} % 3",
    "update uniques set u = {n} where u = (select min(u) from uniques where {n} not in (select u from uniques))",
    "delete from plain where ctid in (select ctid from plain where a = {n} % 4 limit 2)",
    "delete from large where id % 2 = {n} % 2",
    "delete from summed where id % 3 = {n} % 3",
    "insert into only_key values ({n}) on conflict do nothing",
    "delete from only_key where id % 3 = {n} % 3",
)
# At the end every row, and every key that a vandal may have used, is changed.
TOUCHED = (
    "insert into only_key select generate_series(0, 29) on conflict do nothing",
    "update keyed set v = coalesce(v, '') || '.'",
    "update exact set v = coalesce(v, '') || '.'",
    "insert into paired select i / 3, substr('abC', i % 3 + 1, 1) from generate_series(0, 14) i on conflict do nothing",
    "update paired set c = c + 1",
    "insert into uniques (u) select generate_series(0, 29) on conflict do nothing",
    "update uniques set v = coalesce(v, '') || '.'",
    "update plain set f = 1",
    "update large set small = small + 1",
    "update summed set a = a + 1",
    "update only_key set id = id + 100",
)


@pytest.mark.parametrize("slice_bytes", [500, 32 << 20])
@pytest.mark.full
def test_a_target_that_is_written_to_again_and_again_is_repaired(
    cloned: Cloned, monkeypatch: pytest.MonkeyPatch, short: bool, slice_bytes: int
) -> None:
    monkeypatch.setattr("tidemark.target.follow.BATCH_BYTES", 5000)
    monkeypatch.setattr("tidemark.target.follow.SLICE_BYTES", slice_bytes)
    chance = Random(3)  # noqa: S311 - to be repeated
    with receiving(cloned.mirror), cloned.source.connect() as connection:
        connection.autocommit = True
        for _ in range(6 if short else 15):
            hostile(connection, chance, 40)
            for statement in chance.sample(VANDALS, 5):
                cloned.target.run(statement.format(n=chance.randrange(30)))
            follow_now(cloned)
        for statement in TOUCHED:  # one by one: the net effect of an insert and a delete would be nothing
            cloned.source.run(statement)
            follow_now(cloned)
    assert contents(cloned.target) == contents(cloned.source)
    assert len({name for name, *_ in repaired(cloned)}) == len(TABLES)


@pytest.mark.full
def test_a_repair_that_is_cut_off_before_its_commit_is_repeated_and_reported_once(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.source.run(*FILLED)
        follow_now(cloned)
        cloned.target.run("delete from large where id < 5", "delete from plain")
        cloned.source.run("update large set small = 0", "update plain set f = 1")
        with cloned.target.connect() as blocking:
            blocking.execute("begin; lock table tidemark.repairs in share mode")
            thread = threading.Thread(target=follow_now, args=[cloned])
            thread.start()
            for _ in range(3):
                _end_recording(cloned.target)
        thread.join()
    assert contents(cloned.target) == contents(cloned.source)
    assert [(name, rows) for name, rows, *_ in repaired(cloned)] == [("public.large", 4), ("public.plain", 9)]


def _end_recording(target: Database) -> None:
    """End the session that records a repair, and waits for a lock."""
    recording = "query like 'insert into tidemark.repairs%' and wait_event_type = 'Lock'"
    ended = f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where {recording}"
    eventually(lambda: target.admin(ended))


CODE = (
    "create type code",
    "create function code_in(cstring) returns code language internal immutable strict as 'int4in'",
    "create function code_out(code) returns cstring language internal immutable strict as 'int4out'",
    "create type code (input = code_in, output = code_out, like = int)",
    *(
        f"create function code_{name}(code, code) returns {kind} language internal immutable strict as '{of}'"
        for name, kind, of in (
            *((name, "bool", f"int4{name}") for name in ("lt", "le", "eq", "ge", "gt")),
            ("cmp", "int", "btint4cmp"),
        )
    ),
    *(
        f"create operator {sign} (leftarg = code, rightarg = code, function = code_{name})"
        for sign, name in {"<": "lt", "<=": "le", "=": "eq", ">=": "ge", ">": "gt"}.items()
    ),
    """create operator class codes default for type code using btree
       as operator 1 <, operator 2 <=, operator 3 =, operator 4 >=, operator 5 >, function 1 code_cmp(code, code)""",
    "alter table keyed alter id type code using id::text::code",
)


@pytest.mark.full
def test_keys_of_a_type_whose_operators_are_not_those_of_postgresql(server: Server, tmp_path: Path) -> None:
    """As those of ltree and isn: sessions have an empty search_path."""
    for source in database_with_tables(server):
        for target in database_with_tables(server):
            for database in (source, target):
                database.admin("; ".join(("set search_path = public", *CODE)))
            cloned = cloned_tables(source, target, tmp_path)
            with receiving(cloned.mirror):
                source.run("insert into keyed values ('1', 'a'), ('2', 'b'), ('3', 'c')")
                follow_now(cloned)
                source.run(
                    "update keyed set v = 'x' where id = '1'",
                    "update keyed set id = '5' where id = '2'",
                    "delete from keyed where id = '3'",
                )
                follow_now(cloned)
                assert repaired(cloned) == []
                target.run("delete from keyed where id = '1'")
                source.run("update keyed set n = 7 where id = '1'")
                follow_now(cloned)
            assert contents(target) == contents(source)
            assert repaired(cloned) == [("public.keyed", 1, ["(1)"], [])]


@pytest.mark.full
def test_names_with_percent_signs_are_repaired(server: Server, tmp_path: Path) -> None:
    for source in database_with_tables(server):
        for target in database_with_tables(server):
            for database in (source, target):
                database.run('alter table plain rename a to "a%b"', 'alter table keyed rename v to "%s"')
            cloned = cloned_tables(source, target, tmp_path)
            with receiving(cloned.mirror):
                source.run("insert into plain values (1, E'b\\\\''')", "insert into keyed values (1, 'a')")
                follow_now(cloned)
                target.run("delete from plain", "delete from keyed")
                source.run("delete from plain", "update keyed set n = 1")
                follow_now(cloned)
            assert contents(target) == contents(source)
            assert len(repaired(cloned)) == 2
