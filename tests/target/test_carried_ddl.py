"""Columns that are added, dropped, renamed or widened at the source are changed at the target where the stream is."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from harness.mirrored import eventually, receiving
from tests.conftest import NEWEST
from tests.target.following import Cloned
from tests.target.load import contents
from tidemark.clock import Lsn
from tidemark.errors import SourceAltered
from tidemark.schema.fingerprint import Effect, compare
from tidemark.target.alterations import obstacle
from tidemark.target.follow import follow
from tidemark.target.source_rows import read_definition
from tidemark.target.source_tables import Carrying
from tidemark.target.state import CloneRecord

pytestmark = [pytest.mark.quick, NEWEST]
COLUMNS = """
    select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid)
    from pg_class c join pg_attribute a on a.attrelid = c.oid
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
    order by c.relname, a.attnum
"""


def carried(cloned: Cloned, carrying: Carrying | None = None) -> Lsn:
    """Follow up to the present."""
    options = replace(cloned.options(), carrying=carrying or Carrying(cloned.source.dsn()))
    return follow(options, cloned.position(), lambda: False)


def require_equal(cloned: Cloned) -> None:
    assert cloned.target.admin(COLUMNS) == cloned.source.admin(COLUMNS)
    assert contents(cloned.target) == contents(cloned.source)
    with cloned.target.session() as session, cloned.source.session() as source:
        session.connection.execute("reset role")
        for oid, table in CloneRecord(session, "c").existing(cloned.identity).tables.items():
            now = read_definition(source, oid)
            assert now is not None
            assert compare(table.definition, now.definition).effect is Effect.SAME


ROWS = "insert into keyed (id) select coalesce(max(id), 0) + 1 from keyed"
ALTERED = (
    "insert into keyed select i, 'v' || i, i from generate_series(1, 3) i",
    "alter table keyed add a int default 5, add b text not null default 'it''s', add tags text[] default '{\"x y\",z}'",
    "update keyed set a = 6 where id = 2",
    "insert into keyed values (4, 'four', 4, 7, 'b', null)",
    "alter table keyed alter a set default 9",
    ROWS,
    "alter table keyed rename v to w",
    "update keyed set w = 'renamed' where id = 1",
    "alter table keyed drop n",
    "delete from keyed where id = 3",
    "alter table keyed add moment timestamptz default '2020-02-02 00:00:00+00'",
    "update keyed set w = 'moved', id = id + 100 where id > 1",
    "alter table paired add v varchar(5)",
    "insert into paired values (1, 'b', 2, 'short')",
    "alter table paired alter v type varchar(50)",
    "insert into paired values (2, 'b', 2, 'longer than five')",
    "alter table plain add more int default 3",
    "insert into plain values (1, 'x', 1, 1), (1, 'x', 1, 3)",
    "delete from plain where more = 3",
    "alter table large add z int default 1",
    "insert into large values (1, repeat('x', 5000), 1, 2)",
    "update large set z = 3",
)


@pytest.mark.parametrize("together", [pytest.param(True, marks=pytest.mark.full), False])
def test_changes_of_columns_are_carried(cloned: Cloned, *, together: bool) -> None:
    with receiving(cloned.mirror):
        if together:  # the catalog is far ahead of the stream; it no longer has the type before the last one
            cloned.source.run(*(each for each in ALTERED if "'short'" not in each))
        for statement in () if together else ALTERED:
            cloned.source.run(statement)
            if "paired" in statement and not statement.startswith("alter"):
                carried(cloned)
        carried(cloned)
    require_equal(cloned)


REFUSED = {
    "a value for each row": ("alter table keyed add r float8 default random()", "rewritten and altered"),
    "another type": ("alter table keyed alter id type bigint", "changed its type"),
    "a column that came and went": (
        "alter table keyed add x int; alter table keyed drop x; alter table keyed add x int",
        "added and dropped",
    ),
    "a column that is gone": (
        "alter table keyed add x int; insert into keyed values (3); alter table keyed drop x",
        "several times",
    ),
    "names that are exchanged": (
        "alter table keyed rename v to x; alter table keyed rename n to v; alter table keyed rename x to n",
        "another column than before",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("refused", REFUSED)
def test_other_changes_stop_it_and_are_named(cloned: Cloned, refused: str) -> None:
    statement, reason = REFUSED[refused]
    with receiving(cloned.mirror):
        cloned.source.run("insert into keyed values (1, 'a', 1)")
        carried(cloned)
        cloned.source.run(*statement.split("; "), "insert into keyed (id) values (2)")
        with pytest.raises(SourceAltered, match=rf"public.keyed.*{reason}") as raised:
            carried(cloned)
        assert "clone again" in raised.value.hint
    assert cloned.target.run("select k::text from keyed k") == [("(1,a,1)",)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("alter table keyed add g int generated always as (id * 2) virtual", "column 'g' added, which is generated"),
        ("alter table keyed drop n, add n numeric", "column 'n' is another column than before"),
        ("alter table keyed rename to other", "renamed from public.keyed to public.other"),
        (
            "alter table keyed add b box default '(1,1),(0,0)'",
            "column 'b' added, with a default of type pg_catalog.box",
        ),
        ("create table child () inherits (keyed)", "its child tables changed"),
        ("drop table keyed", "the table was dropped"),
    ],
)
def test_a_change_that_the_stream_may_not_show_is_an_obstacle(cloned: Cloned, statement: str, reason: str) -> None:
    (oid,) = _oids(cloned, "keyed")
    with cloned.source.session() as session:
        before = read_definition(session, oid)
        cloned.source.run(statement)
        assert before is not None
        assert obstacle(before.definition, before) is None
        assert obstacle(before.definition, read_definition(session, oid)) == reason


@pytest.mark.full
def test_a_table_without_changes_is_altered_when_the_stream_has_passed(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.source.run("insert into keyed values (1, 'a', 1)", "alter table keyed add x int default 3")
        with cloned.source.session() as session:
            found = read_definition(session, _oids(cloned, "keyed")[0])
        assert found is not None
        carrying = Carrying(cloned.source.dsn(), altered={found.definition.oid: found})
        cloned.source.run("insert into only_key values (1)")
        carried(cloned, carrying)
        assert carrying.altered == {}
    require_equal(cloned)


def _oids(cloned: Cloned, *names: str) -> list[int]:
    return [cloned.source.admin(f"select '{name}'::regclass::oid::bigint")[0][0] for name in names]


@pytest.mark.full
def test_an_alteration_is_rolled_back_with_its_batch(cloned: Cloned) -> None:
    with receiving(cloned.mirror):
        cloned.source.run("insert into keyed values (1, 'a', 1)", "alter table keyed add x int default 3")
        cloned.source.run("insert into keyed values (2, 'b', 2, 4)", "insert into only_key values (1)")
        with cloned.target.connect() as blocking:
            blocking.execute("begin; lock table only_key in share mode")
            thread = threading.Thread(target=carried, args=[cloned])
            thread.start()
            waiting = "datname = current_database() and wait_event_type = 'Lock'"
            ended = f"select pg_terminate_backend(pid, 10000) from pg_stat_activity where {waiting}"
            for _ in range(2):
                eventually(lambda: cloned.target.admin(ended))
                assert cloned.target.run("select count(*) from keyed") == [(0,)]
        thread.join()
    require_equal(cloned)


@pytest.mark.full
def test_a_column_that_the_completion_uses_is_not_renamed(cloned: Cloned) -> None:
    later = "ALTER TABLE ONLY public.keyed ADD CONSTRAINT f FOREIGN KEY (n) REFERENCES public.exact(n);"
    with receiving(cloned.mirror):
        cloned.source.run("alter table keyed rename n to m", "insert into keyed values (1)")
        with pytest.raises(SourceAltered, match=r"column 'n' of table public.keyed was renamed or dropped"):
            carried(cloned, Carrying(cloned.source.dsn(), lambda: later))
    assert cloned.target.run("select count(n) from keyed") == [(0,)]


@pytest.mark.full
def test_a_target_that_cannot_be_altered_is_reported_with_the_statement(cloned: Cloned) -> None:
    cloned.target.run("create view names as select v from keyed")
    with receiving(cloned.mirror):
        cloned.source.run("alter table keyed drop v", "insert into keyed values (1)")
        with pytest.raises(SourceAltered, match=r"other objects depend on it") as raised:
            carried(cloned)
    assert 'alter table "public"."keyed" drop column "v"' in raised.value.hint
