"""`tidemark doctor` against servers that lack each thing in turn."""

import json
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from harness.database import MIRROR, OWNER, PASSWORD, Database, create_database
from tests.conftest import Start
from tidemark.cli.main import run
from tidemark.errors import ExitCode
from tidemark.source.slot import SlotWait, create_slot

pytestmark = pytest.mark.quick

Lines = dict[str, list[dict[str, Any]]]


def examine(db: Database, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, Lines]:
    code = run(["doctor", db.dsn().reveal(), "--name", db.name, "--json", *options])
    report = json.loads(capsys.readouterr().out)
    lines: Lines = {}
    for check in report["checks"]:
        lines.setdefault(check["name"], []).append(check)
    worst = {line["status"] for checks in lines.values() for line in checks}
    assert report["verdict"] == ("fail" if "fail" in worst else "warn" if "warn" in worst else "pass")
    assert (code == ExitCode.CHECKS_FAILED) == (report["verdict"] == "fail")
    for checks in lines.values():
        for line in checks:
            assert line["status"] == "pass" or line["otherwise"], (
                f"{line['name']} does not say what happens if it is left"
            )
    return code, lines


def prepared(db: Database) -> Database:
    """A database that has all a mirror needs: one keyed table, published."""
    db.run("create table t (a int primary key)")
    assert run(["setup", db.server.dsn("postgres", db.name), "--role", MIRROR, "--name", db.name]) == ExitCode.OK
    return db


def status(lines: Lines, name: str) -> str:
    assert len(lines[name]) == 1
    return str(lines[name][0]["status"])


def mend(db: Database, line: dict[str, Any]) -> None:
    """Run what the line says, as the superuser, leaving out comments."""
    for statement in filter(None, (part.split("--")[0].strip().rstrip(";") for part in line["mend"].splitlines())):
        for single in statement.split("; "):
            db.admin(single)


def test_a_source_that_has_everything_fails_nothing(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    capsys.readouterr()
    code, lines = examine(db, capsys)
    assert code == ExitCode.OK
    warned = {name for name, checks in lines.items() if checks[0]["status"] != "pass"}
    assert warned == {"retained WAL", "activity"}, "a stock server bounds no slot and shows no others' transactions"


def test_lacking_rights_are_named_and_mended_by_the_sql_given(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    db.run("create table hidden (a int primary key)", f"revoke all on hidden from {MIRROR}")
    db.run("create schema room", "create table room.t (a int primary key)", f"revoke all on schema room from {MIRROR}")
    capsys.readouterr()
    _, lines = examine(db, capsys)
    assert (status(lines, "read rights"), status(lines, "publication")) == ("fail", "fail")
    assert "public.hidden, room.t cannot be read" in lines["read rights"][0]["finding"]
    for name in ("read rights", "publication"):
        mend(db, lines[name][0])
    assert examine(db, capsys)[0] == ExitCode.OK


def test_a_role_that_may_not_replicate(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    db.admin(f"alter role {MIRROR} noreplication")
    try:
        capsys.readouterr()
        _, lines = examine(db, capsys)
        assert status(lines, "replication right") == "fail"
        assert "replication connection" not in lines
        mend(db, lines["replication right"][0])
        assert status(examine(db, capsys)[1], "replication connection") == "pass"
    finally:
        db.admin(f"alter role {MIRROR} replication")


def test_the_right_is_asked_for_as_the_service_gives_it(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.admin(f"alter role {MIRROR} noreplication", "create role rds_replication")
    try:
        line = examine(db, capsys)[1]["replication right"][0]
        assert (line["status"], line["mend"]) == ("fail", f'grant "rds_replication" to "{MIRROR}";')
        mend(db, line)
        lines = examine(db, capsys)[1]
        assert status(lines, "replication right") == "pass"
        assert status(lines, "replication connection") == "fail", "this server does not go by that role"
    finally:
        db.admin(f"alter role {MIRROR} replication", "drop role rds_replication")


def test_row_security_that_hides_rows(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    db.run("alter table t enable row level security")
    capsys.readouterr()
    try:
        _, lines = examine(db, capsys)
        assert status(lines, "row security") == "fail"
        mend(db, lines["row security"][0])
        assert status(examine(db, capsys)[1], "row security") == "pass"
    finally:
        db.admin(f"alter role {MIRROR} nobypassrls")


def test_a_table_that_lost_its_identity_is_in_the_wrong_publication(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(db)
    db.run("alter table t drop constraint t_pkey")
    capsys.readouterr()
    _, lines = examine(db, capsys)
    assert status(lines, "replica identity") == "warn"
    assert [line["status"] for line in lines["publication"]] == ["fail", "fail"]
    with pytest.raises(psycopg.Error, match="replica identity"):
        db.run("insert into t values (1)", "update t set a = 2")
    for line in lines["publication"]:
        mend(db, line)
    assert examine(db, capsys)[0] == ExitCode.OK
    db.run("update t set a = 3")


def test_tables_that_cannot_be_mirrored_are_named(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.run(
        "create unlogged table u (a int)", "create table g (a int primary key, b int generated always as (a) stored)"
    )
    _, lines = examine(db, capsys)
    assert lines["skipped"][0]["finding"] == "public.u: an unlogged table: its changes are not in the WAL"
    assert ("generated columns" in lines) == (db.server.install.major < 18)
    if db.server.install.major >= 18:
        db.run("create table v (a int primary key, b int generated always as (a) virtual)")
        assert "virtual" in examine(db, capsys)[1]["generated columns"][0]["finding"]


def test_a_transaction_that_would_hold_up_a_copy(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    with db.connect() as writer:
        writer.execute("begin; insert into t values (1); prepare transaction 'stuck'")
        capsys.readouterr()
        _, lines = examine(db, capsys)
        assert status(lines, "running transactions") == "warn"
        assert "prepared transaction 'stuck' of app" in lines["running transactions"][0]["finding"]
        mend(db, lines["running transactions"][0])
        assert status(examine(db, capsys)[1], "running transactions") == "pass"


def test_a_server_without_logical_wal_slots_or_senders(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(wal_level="replica", max_replication_slots=1, max_wal_senders=1, max_slot_wal_keep_size="64MB")
    db = prepared_but_for_restart(create_database(server))
    capsys.readouterr()
    _, lines = examine(db, capsys)
    assert [status(lines, name) for name in ("wal_level", "free slots", "free senders")] == ["fail"] * 3
    assert status(lines, "retained WAL") == "pass"
    with monkeypatch.context() as managed:
        managed.setattr("tidemark.source.facts.SWITCHES", ("track_io_timing",))
        assert "turn on track_io_timing" in examine(db, capsys)[1]["wal_level"][0]["mend"]
    for name in ("wal_level", "free slots", "free senders"):
        mend(db, lines[name][0])
    server.forget("wal_level", "max_replication_slots", "max_wal_senders")
    server.restart()
    assert examine(db, capsys)[0] == ExitCode.OK


def prepared_but_for_restart(db: Database) -> Database:
    db.run("create table t (a int primary key)")
    run(["setup", db.server.dsn("postgres", db.name), "--role", MIRROR, "--name", db.name])
    return db


def test_lowering_wal_level_under_a_slot_would_stop_the_source_from_starting(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start()
    db = prepared(create_database(server))
    create_slot(db.dsn(), db.names.slot, SlotWait(10))
    server.sql("alter system set wal_level = replica", "select pg_reload_conf()", "select pg_sleep(0.2)")
    capsys.readouterr()
    _, lines = examine(db, capsys)
    assert status(lines, "wal_level") == "fail"
    assert "does not start at all" in lines["wal_level"][0]["otherwise"]
    assert status(lines, "slot") == "pass"
    server.sql("alter system reset wal_level", "select pg_reload_conf()", "select pg_sleep(0.2)")
    assert examine(db, capsys)[0] == ExitCode.OK


def test_an_invalidated_slot(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    db = prepared(create_database(server))
    create_slot(db.dsn(), db.names.slot, SlotWait(10))
    db.run("insert into t select generate_series(1, 100000)")
    for _ in range(6):
        server.sql("select pg_switch_wal()", "checkpoint")
        db.run("insert into t values (-1)", "delete from t where a = -1")
    capsys.readouterr()
    _, lines = examine(db, capsys)
    assert status(lines, "slot") == "fail"
    assert "is invalidated" in lines["slot"][0]["finding"]
    mend(db, lines["slot"][0])
    assert status(examine(db, capsys)[1], "slot") == "pass"


def test_a_standby(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    db = prepared(create_database(server))
    standby = server.standby()
    try:
        capsys.readouterr()
        _, lines = examine(Database(standby, db.name), capsys)
        assert status(lines, "primary") == ("warn" if server.install.major >= 16 else "fail")
    finally:
        standby.remove()


def test_a_database_without_an_encoding(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    server.sql(f"create database ascii owner {OWNER} template template0 encoding 'SQL_ASCII'")
    _, lines = examine(Database(server, "ascii"), capsys)
    assert status(lines, "encoding") == "warn"


def test_slots_that_time_out_when_idle(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    if server.install.major >= 18:
        server.sql(
            "alter system set idle_replication_slot_timeout = '1h'", "select pg_reload_conf()", "select pg_sleep(0.2)"
        )
        _, lines = examine(create_database(server), capsys)
        assert "3600 s" in lines["idle slots"][0]["finding"]
    else:
        assert "idle slots" not in examine(create_database(server), capsys)[1]


def test_a_role_that_may_not_emit_messages(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    db = create_database(start())
    signature = "boolean, text, text, boolean" if db.server.install.major >= 17 else "boolean, text, text"
    for kind in (signature, signature.replace("text, text", "text, bytea")):
        db.admin(f"revoke execute on function pg_logical_emit_message({kind}) from public")
    _, lines = examine(db, capsys)
    assert status(lines, "messages") == "warn"
    mend(db, lines["messages"][0])
    assert status(examine(db, capsys)[1], "messages") == "pass"


def test_a_slot_of_that_name_that_is_someone_elses(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    db, other = create_database(server), create_database(server)
    name = db.names.slot
    makings = {
        f"belongs to database '{other.name}'": (other, f"pg_create_logical_replication_slot('{name}', 'pgoutput')"),
        "is a physical slot": (db, f"pg_create_physical_replication_slot('{name}')"),
        "decodes prepared transactions": (db, f"pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)"),
    }
    for reason, (where, call) in makings.items():
        where.admin(f"select {call}")
        _, lines = examine(db, capsys)
        assert status(lines, "slot") == "fail"
        assert reason in lines["slot"][0]["finding"]
        where.admin(f"select pg_drop_replication_slot('{name}')")


def test_a_writer_whose_beginning_we_may_not_see_is_looked_at_twice(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    db.run("create table t (a int primary key)")
    with db.connect() as writer:
        writer.execute("begin; insert into t values (1)")
        _, lines = examine(db, capsys)
        assert status(lines, "running transactions") == "warn"
        assert f"pid {writer.info.backend_pid} of app" in lines["running transactions"][0]["finding"]


def test_columns_that_print_other_objects_names(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.run("create type pair as (a int, r regclass[])", "create table t (a int primary key, p pair)")
    _, lines = examine(db, capsys)
    assert "public.t have columns such as regclass" in lines["names in values"][0]["finding"]


def test_odd_databases_are_looked_at_like_any_other(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(examine(db, capsys)[1], "read rights") == "pass", "no tables at all"
    db.run("create table empty ()", 'create table "new\nline" (a int primary key)', "create table wide (a int)")
    code, lines = examine(db, capsys)
    assert code == ExitCode.CHECKS_FAILED
    assert status(lines, "replica identity") == "warn"


def test_no_connection_is_an_exit_code_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "host=127.0.0.1 port=1 user=x"]) == ExitCode.UNREACHABLE
    error = capsys.readouterr().err
    assert error.startswith("tidemark: cannot connect to host=127.0.0.1 port=1 user=x: ")
    assert "\nHint: " in error


def test_on_a_terminal_each_thing_is_a_line(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.run("create table t (a int primary key)")
    assert run(["doctor", db.dsn().reveal(), "--name", db.name]) == ExitCode.CHECKS_FAILED
    out = capsys.readouterr().out
    assert f"fail  publication             publication tidemark_{db.name} does not exist" in out
    assert "if left: changes of the tables concerned are not sent" in out
    assert PASSWORD not in out


def test_no_jvm_is_started_and_spark_is_not_even_imported(db: Database) -> None:
    program = (
        "import sys; from tidemark.cli.main import run; code = run(sys.argv[1:]);"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j'))); sys.exit(int(code))"
    )
    arguments = ["doctor", db.dsn().reveal(), "--name", db.name]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ""
