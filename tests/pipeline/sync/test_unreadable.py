"""A value that cannot be decoded ends its own table, with the reason, and no other; without it the table comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, OWNER, Database, create_database
from harness.lake import by_postgres, require_rows
from harness.polled import polling
from harness.postgres import Server
from harness.syncing import Synced, syncing
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable, SourceError
from tidemark.lake.status import status_of
from tidemark.mirror.compare.comparison import CompareOptions, Comparison
from tidemark.mirror.compare.narrowing import Verdict
from tidemark.pipeline.events import SyncEnded, SyncEvent
from tidemark.postgres.catalog import read_catalog
from tidemark.schema.selection import Selection, choose

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]

BAD = r"E'caf\351'"  # é in LATIN1
TABLES = (
    "create table t (id int primary key, v text)",
    "create table other (id int primary key, v text)",
    "insert into t values (1, 'é')",
    "insert into other values (1, 'ü')",
)


@pytest.fixture
def ascii_db(server: Server) -> Iterator[Database]:
    """A database without an encoding: it takes any bytes."""
    database = create_database(server, "SQL_ASCII")
    yield database
    database.drop()


def refusal(synced: Synced, lsn: Lsn, table: str = "t") -> str:
    with (
        tidemark.open(synced.options.lake, synced.spark).at(lsn) as moment,
        pytest.raises(NotAnswerable) as refused,
    ):
        moment.table(table)
    return str(refused.value)


def commit_of(db: Database, statement: str) -> Lsn:
    """The position just after a statement of the application."""
    db.run(statement)
    return Lsn.parse(db.admin("select pg_current_wal_insert_lsn()::text")[0][0])


def test_a_value_that_is_not_utf_8_ends_its_table_there_and_the_table_comes_back_without_it(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        db.run("insert into t values (2, 'ö')")
        before = synced.note("t", "other")
        bad = commit_of(db, f"insert into t values (3, {BAD})")
        db.run("insert into other values (2, 'later')", "update t set v = 'later' where id = 1")
        after = synced.note("other")
        synced.require_noted()
        message = refusal(synced, bad)
        assert "column v: invalid value of type text in UTF-8 (4 bytes" in message
        assert "63 61 66 e9, committed at " in message
        assert "tidemark resync" in message
        assert refusal(synced, after).partition(": ")[2] == message.partition(": ")[2]
        named = Lsn.parse(message.partition("committed at ")[2].splitlines()[0])
        assert before < named <= bad
        synced.notes = synced.notes[:1]
        synced.notes[0] = type(synced.notes[0])(Lsn(named.value - 1), synced.notes[0].tables)
        assert synced.require_noted_here() == 2  # to the last position below that commit
        (status,) = [each for each in status_of(synced.options.lake).tables if each.name == "public.t"]
        assert status.state == "gap"
        assert "column v" in status.reason
        db.run("delete from t where id = 3")
        synced.resync("t")
        db.run("insert into t values (4, 'again')")
        synced.require_equal("t", "other")


def test_a_read_at_now_of_other_tables_is_exact_while_the_value_is_only_in_the_log(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        synced.catch_up()
        db.run(f"update t set v = {BAD}", "insert into other values (2, 'later')")
        mirror = tidemark.open(synced.options.lake, spark, source=db.dsn(MIRROR))
        with closing(mirror), mirror.at("now") as moment:
            rows = moment.table("other").collect()
            assert sorted((row.id, row.v) for row in rows) == [(1, "ü"), (2, "later")]
            with pytest.raises(NotAnswerable, match=r"public.t cannot be read at or above .*: column v: "):
                moment.table("t")


def test_a_handle_from_before_the_value_was_applied_does_not_leave_it_out(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        synced.catch_up()
        writer = synced.replication.applier
        bad = commit_of(db, f"insert into t values (2, {BAD})")
        db.run("insert into other values (2, 'later')")
        synced.until_known(bad)
        with tidemark.open(synced.options.lake, spark).at(bad) as moment:
            assert writer.cycle.applied_lsn < bad
            synced.catch_up()
            with pytest.raises(NotAnswerable, match="column v: invalid value of type text in UTF-8"):
                moment.table("t")
            assert moment.table("other").count() == 1


def test_a_value_that_is_there_before_the_copy_is_reported_and_copied_once_it_is_gone(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(*TABLES, f"insert into t values (2, {BAD})")
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.until(lambda: synced.replication.unable and any("public.other: copied" in each for each in synced.said))
        db.run("insert into other values (2, 'streamed')")
        synced.require_equal("other")
        message = refusal(synced, synced.catch_up())
        assert "column v: invalid value of type text in UTF-8" in message
        assert "tidemark resync" in message
        db.run("update t set v = 'mended' where id = 2")
        synced.resync("t")
        synced.require_equal("t", "other")


def test_another_bad_value_while_it_is_copied_anew_spoils_that_copy(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        db.run(f"insert into t values (2, {BAD})")
        synced.catch_up()
        db.run("delete from t where id = 2", f"insert into t values (3, {BAD})", "delete from t where id = 3")
        synced.resync("t")
        db.run("alter table t replica identity full", f"update t set v = {BAD}", "update t set v = 'mended'")
        synced.catch_up()
        synced.resync("t")
        synced.require_equal("t", "other")


def test_a_table_that_is_emptied_begins_anew_by_itself(ascii_db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        db.run(f"insert into t values (2, {BAD})")
        synced.catch_up()
        (oid,) = [oid for oid, each in synced.replication.applier.tables.histories.items() if each.in_gap]
        for _ in range(2):
            db.run("truncate t")
            synced.replication.applier.read_catalog()
            db.run(f"insert into t values (3, {BAD})")
            synced.catch_up()
        assert synced.replication.applier.tables.history(oid).in_gap
        db.run("truncate t")
        synced.until(lambda: synced.replication.applier.tables.history(oid).live)
        db.run("insert into t values (1, 'new')")
        synced.require_equal("t", "other")


def test_a_table_that_is_altered_while_it_has_a_gap_is_exact_where_it_can_be_read(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        known = synced.note("t")
        synced.catch_up(known)
        db.run("alter table t add column w int default 7")
        altered = synced.note("t")
        db.run(f"insert into t values (3, {BAD})", "delete from t where id = 3")
        synced.copy_all()
        synced.resync("t")
        synced.notes = synced.notes[:1]
        synced.note("t")
        synced.require_noted()
        try:
            with tidemark.open(synced.options.lake, spark).at(altered) as moment:
                frame = moment.table("t")
        except NotAnswerable:
            return
        require_rows(frame, ("id", "v", "w"), type(synced.notes[0].tables["t"][1])([("1", "é", "7")]), "altered")


def test_names_that_are_not_utf_8_leave_their_tables_out_and_no_others(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(
        *TABLES,
        r"""do $$ begin execute E'create type "m\351" as enum (''\351'', ''ok'')'; end $$""",
        r"""do $$ begin execute E'create table "t\351" (id int primary key)'; end $$""",
        r"""do $$ begin execute E'create table c (id int primary key, "c\351" int)'; end $$""",
        r"""do $$ begin execute E'alter table other add m "m\351"'; end $$""",
        'create table "é" (id int primary key, "ü" text)',
    )
    with db.session() as session, session.transaction():
        chosen = choose(read_catalog(session), Selection())
    assert {each.table.name: each.reason for each in chosen.skipped} == {
        "c": r"the name of column c\xe9, c\xe9, is not valid UTF-8",
        r"t\xe9": r"its name, t\xe9, is not valid UTF-8",
    }
    with syncing(db, tmp_path, spark, "t", "other", '"é"', "c") as synced:
        synced.copy_all()
        db.run(
            "insert into other values (2, 'x', 'ok')",
            r"select pg_logical_emit_message(true, E'p\351', 'x')",
            "insert into c values (1)",
            "insert into \"é\" values (1, 'ß')",
        )
        synced.require_equal("t", "other", '"é"')
        db.run(r"""do $$ begin execute E'alter table t rename v to "v\351"'; end $$""", "insert into t values (5, 'x')")
        db.run("insert into other values (3, 'y', 'ok')")
        synced.require_equal("other", '"é"')
        assert r"the name of column v\xe9" in refusal(synced, synced.catch_up())
        db.run(r"""do $$ begin execute E'alter table t rename "v\351" to v'; end $$""")
        synced.catch_up()
        synced.copy_all()
        synced.require_equal("t", "other")


def test_a_default_that_is_not_utf_8_ends_its_table(ascii_db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        db.run(f"alter table t add column w text default {BAD}", "insert into other values (2, 'later')")
        synced.require_equal("other")
        assert r"the default of column w, caf\xe9, is not valid UTF-8" in refusal(synced, synced.catch_up())


def test_polls_leave_out_a_table_with_a_bad_value_until_it_is_gone(
    ascii_db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db = ascii_db
    db.run(*TABLES, "create table u (id int primary key, v text)", f"insert into u values (1, {BAD})")
    with polling(db, tmp_path, spark) as polled:
        polled.require_news("t", "other")
        assert any("table public.u: skipped: column v: invalid value of type text" in each for each in polled.said)
        db.run(f"insert into t values (2, {BAD})", "insert into other values (2, 'later')")
        polled.require_news("other")
        db.run("insert into other values (3, 'later')")
        polled.require_news("other")
        assert len([each for each in polled.said if ": skipped: " in each]) == 2
        with tidemark.open(polled.options.lake, spark).at("latest") as moment:
            for table in ("t", "u"):
                with pytest.raises(NotAnswerable, match="column v: invalid value of type text in UTF-8"):
                    moment.table(table)
        db.run("delete from t where id = 2", "update u set v = 'mended'")
        polled.resync("t", "u")
        polled.require_news("t", "u", "other")


def test_polls_leave_out_a_table_with_a_character_that_has_no_equivalent_in_utf_8(
    server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    db = create_database(server, "WIN1252")
    try:
        db.run(*TABLES)
        with polling(db, tmp_path, spark) as polled:
            polled.require_news("t", "other")
            db.run(r"insert into t values (2, E'\201')", "insert into other values (2, 'ü')")  # no character at 0x81
            polled.require_news("other")
            with (
                tidemark.open(polled.options.lake, spark).at("latest") as moment,
                pytest.raises(NotAnswerable, match=r"(?s)0x81 in encoding .WIN1252..*tidemark resync"),
            ):
                moment.table("t")
            db.run("delete from t where id = 2")
            polled.resync("t")
            polled.require_news("t", "other")
    finally:
        db.drop()


def test_a_character_without_an_equivalent_in_utf_8_ends_its_table_and_no_other(
    server: Server, spark: SparkSession, tmp_path: Path
) -> None:
    db = create_database(server, "WIN1252")
    try:
        db.run(*TABLES)
        with syncing(db, tmp_path, spark, "t", "other") as synced:
            synced.copy_all()
            db.run(r"insert into t values (2, E'\303\201')", "insert into other values (2, 'Größe')")  # none at 0x81
            synced.require_equal("other")
            assert "column v: invalid value of type text in UTF-8" in refusal(synced, synced.catch_up())
            db.run("delete from t where id = 2")
            synced.resync("t")
            synced.require_equal("t", "other")
    finally:
        db.drop()


def test_compare_goes_on_past_a_table_with_a_bad_value(ascii_db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db = ascii_db
    db.run(*TABLES)
    with syncing(db, tmp_path, spark, "t", "other") as synced:
        synced.copy_all()
        db.run(f"insert into t values (2, {BAD})", "insert into other values (2, 'later')")
        synced.catch_up()
        source = db.dsn(MIRROR)
        mirror = tidemark.open(synced.options.lake, spark, source=source)
        with closing(mirror):
            found = {each.table: each for each in Comparison(mirror, source, CompareOptions()).run()}
        assert found["public.other"].verdict is Verdict.EQUAL
        assert found["public.t"].verdict is Verdict.NOT_COMPARED
        assert "column v" in found["public.t"].reason


@pytest.mark.parametrize("mode", ["logical", "poll"])
def test_a_sync_with_an_end_fails_if_a_table_cannot_be_read_and_mirrors_the_others(
    ascii_db: Database, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    db, lake, events = ascii_db, tmp_path / "lake", list[SyncEvent]()
    db.run(*TABLES, f"insert into t values (2, {BAD})")
    db.admin(f"alter role {OWNER} replication", f"grant create on database {db.name} to {OWNER}")
    try:
        with pytest.raises(SourceError) as failed:
            tidemark.sync(db.dsn(OWNER), lake, mode=mode, once=True, spark=spark, on_event=events.append)
    finally:
        db.admin(f"alter role {OWNER} noreplication")
    assert failed.value.message.startswith("table public.t cannot be read: ")
    assert "column v: invalid value of type text in UTF-8" in failed.value.message
    assert failed.value.hint.startswith("Update or delete the value at the source")
    assert isinstance(events[-1], SyncEnded)
    with tidemark.open(lake, spark) as mirror:
        require_rows(mirror.table("other"), *by_postgres(db, "other"), mode)
