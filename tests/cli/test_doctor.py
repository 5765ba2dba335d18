"""`tidemark doctor` against servers that miss one requirement after the other."""

import json
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from harness.database import MIRROR, OWNER, PASSWORD, Database, create_database
from tests.conftest import Start
from tests.documentation.keys import require_documented
from tidemark.cli.main import run
from tidemark.errors import ExitCode, SlotInvalidated
from tidemark.postgres.capability import choose_mode
from tidemark.postgres.slot import SlotWait, create_slot
from tidemark.receive.checks import check_slot
from tidemark.schema.selection import Selection

pytestmark = pytest.mark.quick

Lines = dict[str, list[dict[str, Any]]]


def report_of(db: Database, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = run(["doctor", db.dsn().reveal(), "--name", db.name, "--json", *options])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    require_documented("doctor", report)
    assert code == (ExitCode.CHECKS_FAILED if report["mode"] is None else ExitCode.OK)
    statuses = {check["status"] for check in report["checks"]}
    assert report["status"] == next(each for each in ("fail", "warn", "pass") if each in statuses)
    assert ("fail" in statuses) == (report["mode"] is None)
    assert report["reason"]
    for check in report["checks"]:
        assert check["status"] == "pass" or check["consequence"], f"{check['name']} has no consequence"
    return code, report


def examine(db: Database, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[str | None, Lines]:
    _, report = report_of(db, capsys, *options)
    lines: Lines = {}
    for check in report["checks"]:
        lines.setdefault(check["name"], []).append(check)
    return report["mode"], lines


def prepared(db: Database) -> Database:
    """A database that has all a mirror needs: one keyed table, published."""
    db.run("create table t (a int primary key)")
    assert run(["setup", db.server.dsn("postgres", db.name), "--role", MIRROR, "--name", db.name]) == ExitCode.OK
    return db


def status(lines: Lines, name: str) -> str:
    assert len(lines[name]) == 1
    return str(lines[name][0]["status"])


def fix(db: Database, line: dict[str, Any]) -> None:
    """Run the SQL of a check as the superuser, without its comments."""
    for statement in filter(None, (part.split("--")[0].strip().rstrip(";") for part in line["fix"].splitlines())):
        for single in statement.split("; "):
            db.admin(single)


def test_a_source_that_has_everything_is_decoded(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    mode, lines = examine(db, capsys)
    assert mode == "logical"
    warned = {name for name, checks in lines.items() if checks[0]["status"] != "pass"}
    assert warned == {"retained WAL", "pg_read_all_stats"}, "a stock server bounds no slot and hides transactions"
    assert all(line["fix"] == "" for checks in lines.values() for line in checks if line["status"] == "pass")


def test_missing_privileges_are_reported_with_the_sql_that_grants_them(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(db)
    db.run("create table hidden (a int primary key)", f"revoke all on hidden from {MIRROR}")
    db.run("create schema room", "create table room.t (a int primary key)", f"revoke all on schema room from {MIRROR}")
    mode, lines = examine(db, capsys)
    assert (mode, status(lines, "SELECT privilege"), status(lines, "publication")) == ("poll", "warn", "warn")
    assert "may not read public.hidden, room.t" in lines["SELECT privilege"][0]["found"]
    assert "does not record the changes between two polls" in lines["publication"][0]["consequence"]
    assert (lines["SELECT privilege"][0]["modes"], lines["publication"][0]["modes"]) == ([], ["logical"])
    fix(db, lines["publication"][0])
    mode, lines = examine(db, capsys)
    assert (mode, status(lines, "SELECT privilege")) == ("logical", "warn"), "the other table is mirrored"
    fix(db, lines["SELECT privilege"][0])
    assert status(examine(db, capsys)[1], "SELECT privilege") == "pass"


def test_a_source_of_which_nothing_can_be_read_fails(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    db.run(f"revoke all on t from {MIRROR}")
    code, report = report_of(db, capsys)
    assert (code, report["mode"]) == (ExitCode.CHECKS_FAILED, None)
    assert report["reason"].startswith(f"role {MIRROR} may not read public.t (run `grant select on table")
    assert run(["doctor", db.dsn().reveal(), "--name", db.name]) == ExitCode.CHECKS_FAILED
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"`tidemark sync` cannot mirror this source: {report['reason']}"


def test_a_role_that_may_not_replicate(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    db.admin(f"alter role {MIRROR} noreplication")
    try:
        mode, lines = examine(db, capsys)
        assert (mode, status(lines, "replication privilege")) == ("poll", "warn")
        assert "replication connection" not in lines
        fix(db, lines["replication privilege"][0])
        mode, lines = examine(db, capsys)
        assert (mode, status(lines, "replication connection")) == ("logical", "pass")
    finally:
        db.admin(f"alter role {MIRROR} replication")


def test_the_privilege_is_granted_as_the_service_gives_it(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    db.admin(f"alter role {MIRROR} noreplication", "create role rds_replication")
    try:
        line = examine(db, capsys)[1]["replication privilege"][0]
        assert line["fix"] == f'grant "rds_replication" to "{MIRROR}";'
        fix(db, line)
        mode, lines = examine(db, capsys)
        assert (mode, status(lines, "replication privilege")) == ("poll", "pass")
        assert status(lines, "replication connection") == "warn", "this server does not honour that role"
    finally:
        db.admin(f"alter role {MIRROR} replication", "drop role rds_replication")


def test_a_source_that_may_not_be_identified_is_decoded_and_not_polled(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(db)
    db.admin("revoke execute on function pg_control_system() from public")
    mode, lines = examine(db, capsys)
    assert (mode, status(lines, "control data"), lines["control data"][0]["modes"]) == ("logical", "warn", ["poll"])
    db.admin(f"alter role {MIRROR} noreplication")
    try:
        mode, lines = examine(db, capsys)
        assert (mode, status(lines, "control data"), status(lines, "replication privilege")) == (None, "fail", "fail")
        fix(db, lines["control data"][0])
        assert examine(db, capsys)[0] == "poll"
    finally:
        db.admin(f"alter role {MIRROR} replication")


def test_row_security_that_hides_rows(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    db.run("alter table t enable row level security")
    try:
        mode, lines = examine(db, capsys)
        assert (mode, status(lines, "row security")) == (None, "fail"), "it is the only table"
        db.run("create table open (a int primary key)")
        mode, lines = examine(db, capsys)
        assert (mode, status(lines, "row security")) == ("poll", "warn")
        fix(db, lines["row security"][0])
        assert status(examine(db, capsys)[1], "row security") == "pass"
    finally:
        db.admin(f"alter role {MIRROR} nobypassrls")


def test_a_table_that_lost_its_identity_is_in_the_wrong_publication(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(db)
    db.run("alter table t drop constraint t_pkey")
    _, lines = examine(db, capsys)
    assert status(lines, "replica identity") == "warn"
    assert [line["status"] for line in lines["publication"]] == ["warn", "warn"]
    with pytest.raises(psycopg.Error, match="replica identity"):
        db.run("insert into t values (1)", "update t set a = 2")
    for line in lines["publication"]:
        fix(db, line)
    assert examine(db, capsys)[0] == "logical"
    db.run("update t set a = 3")


def test_tables_that_cannot_be_mirrored_are_named(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.run(
        "create unlogged table u (a int)",
        "create table g (a int primary key, b int generated always as (a) stored)",
        *(f"create view v{n} as select a from g" for n in range(1, 7)),
        "create materialized view mv as select a from g",
        "create table serial (id serial primary key)",
        "create sequence s",
    )
    _, lines = examine(db, capsys)
    found = [line["found"] for line in lines["not mirrored"]]
    assert found == [
        "1 materialized view (public.mv): logical decoding does not send its rows",
        "2 sequences (public.s, public.serial_id_seq): logical decoding does not send its values",
        "1 table (public.u): an unlogged table: its changes are not in the WAL",
        "6 views (public.v1, public.v2, public.v3, public.v4, public.v5 and 1 more): no rows of its own",
    ]
    assert ("generated columns" in lines) == (db.server.install.major < 18)
    if db.server.install.major >= 18:
        db.run("create table v (a int primary key, b int generated always as (a) virtual)")
        assert "virtual" in examine(db, capsys)[1]["generated columns"][0]["found"]


def test_a_transaction_that_would_hold_up_a_copy(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    prepared(db)
    with db.connect() as writer:
        writer.execute("begin; insert into t values (1); prepare transaction 'stuck'")
        _, lines = examine(db, capsys)
        assert status(lines, "running transactions") == "warn"
        assert "prepared transaction 'stuck' of app" in lines["running transactions"][0]["found"]
        fix(db, lines["running transactions"][0])
        assert status(examine(db, capsys)[1], "running transactions") == "pass"


def test_a_server_without_logical_wal_slots_or_senders(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(wal_level="replica", max_replication_slots=1, max_wal_senders=1, max_slot_wal_keep_size="64MB")
    db = prepared_but_for_restart(create_database(server))
    mode, lines = examine(db, capsys)
    assert mode == "poll"
    names = ("wal_level", "max_replication_slots", "max_wal_senders")
    assert [(status(lines, name), lines[name][0]["modes"]) for name in names] == [
        ("warn", ["logical"]),
        ("warn", []),
        ("warn", []),
    ], "one slot and one sender are enough, and copies do without"
    assert status(lines, "retained WAL") == "pass"
    with monkeypatch.context() as managed:
        managed.setattr("tidemark.postgres.facts.SWITCHES", ("track_io_timing",))
        assert "Turn on track_io_timing" in examine(db, capsys)[1]["wal_level"][0]["fix"]
    for name in names:
        fix(db, lines[name][0])
    server.forget("wal_level", "max_replication_slots", "max_wal_senders")
    server.restart()
    mode, lines = examine(db, capsys)
    assert mode == "logical"
    assert [status(lines, name) for name in names] == ["pass"] * 3


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
    _, lines = examine(db, capsys)
    assert (status(lines, "wal_level"), status(lines, "wal_level after a restart")) == ("pass", "warn")
    assert "does not start" in lines["wal_level after a restart"][0]["consequence"]
    assert status(lines, "slot") == "pass"
    server.sql("alter system reset wal_level", "select pg_reload_conf()", "select pg_sleep(0.2)")
    assert "wal_level after a restart" not in examine(db, capsys)[1]


def test_an_invalidated_slot(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    db = prepared(create_database(server))
    create_slot(db.dsn(), db.names.slot, SlotWait(10))
    db.run("insert into t select generate_series(1, 100000)")
    for _ in range(6):
        server.sql("select pg_switch_wal()", "checkpoint")
        db.run("insert into t values (-1)", "delete from t where a = -1")
    mode, lines = examine(db, capsys)
    assert (mode, status(lines, "slot")) == (None, "fail"), "a mirror that has a slot is not polled"
    assert "was invalidated" in lines["slot"][0]["found"]
    with db.session() as session:
        with pytest.raises(SlotInvalidated, match="was invalidated"):
            choose_mode(session, db.dsn(), db.names, Selection())
        with pytest.raises(SlotInvalidated, match="was invalidated"):
            check_slot(session, db.names, None)
    drop = lines["slot"][0]["fix"].rpartition("drop it: ")[2]
    db.admin(drop)
    mode, lines = examine(db, capsys)
    assert (mode, status(lines, "slot")) == ("logical", "pass")


def test_a_standby(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    db = prepared(create_database(server))
    standby = server.standby()
    try:
        mode, lines = examine(Database(standby, db.name), capsys)
        assert (mode, status(lines, "primary")) == ("poll", "warn")
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
        assert "3600 s" in lines["idle_replication_slot_timeout"][0]["found"]
    else:
        assert "idle_replication_slot_timeout" not in examine(create_database(server), capsys)[1]


def test_a_role_that_may_not_emit_messages(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    db = create_database(start())
    signature = "boolean, text, text, boolean" if db.server.install.major >= 17 else "boolean, text, text"
    for kind in (signature, signature.replace("text, text", "text, bytea")):
        db.admin(f"revoke execute on function pg_logical_emit_message({kind}) from public")
    _, lines = examine(db, capsys)
    assert status(lines, "pg_logical_emit_message") == "warn"
    fix(db, lines["pg_logical_emit_message"][0])
    assert status(examine(db, capsys)[1], "pg_logical_emit_message") == "pass"


def test_a_slot_of_that_name_that_is_someone_elses(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    server = start()
    db, other = prepared(create_database(server)), create_database(server)
    name = db.names.slot
    makings = {
        f"belongs to database '{other.name}'": (other, f"pg_create_logical_replication_slot('{name}', 'pgoutput')"),
        "is a physical slot": (db, f"pg_create_physical_replication_slot('{name}')"),
        "decodes prepared transactions": (db, f"pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)"),
    }
    for reason, (where, call) in makings.items():
        where.admin(f"select {call}")
        mode, lines = examine(db, capsys)
        assert (mode, status(lines, "slot")) == ("poll", "warn")
        assert reason in lines["slot"][0]["found"]
        where.admin(f"select pg_drop_replication_slot('{name}')")


def test_a_writer_whose_beginning_we_may_not_see_is_looked_at_twice(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    db.run("create table t (a int primary key)")
    with db.connect() as writer:
        writer.execute("begin; insert into t values (1)")
        _, lines = examine(db, capsys)
        assert status(lines, "running transactions") == "warn"
        assert f"pid {writer.info.backend_pid} of app" in lines["running transactions"][0]["found"]


def test_columns_that_print_other_objects_names(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.run("create type pair as (a int, r regclass[])", "create table t (a int primary key, p pair)")
    _, lines = examine(db, capsys)
    assert "columns of types such as regclass in public.t" in lines["names in values"][0]["found"]


def test_odd_databases_are_looked_at_like_any_other(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    mode, lines = examine(db, capsys)
    assert (mode, status(lines, "SELECT privilege"), status(lines, "publication")) == ("poll", "pass", "warn")
    assert lines["publication"][0]["found"].endswith("does not exist, and there is no table to publish")
    db.run("create table empty ()", 'create table "new\nline" (a int primary key)', "create table wide (a int)")
    mode, lines = examine(db, capsys)
    assert (mode, status(lines, "replica identity")) == ("poll", "warn")


def test_no_connection_is_an_exit_code_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "host=127.0.0.1 port=1 user=x"]) == ExitCode.UNREACHABLE
    error = capsys.readouterr().err
    assert error.startswith("tidemark: cannot connect to host=127.0.0.1 port=1 user=x: ")
    assert "\nHint: " in error


def test_on_a_terminal_each_check_is_a_line_and_the_last_line_is_the_mode(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    db.run("create table t (a int primary key)")
    assert run(["doctor", db.dsn().reveal(), "--name", db.name]) == ExitCode.OK
    out = capsys.readouterr().out
    missing = f"publication tidemark_{db.name} does not exist"
    assert f"warn  publication              {missing}\n" in out
    assert "consequence: changes of these tables are not streamed, and `tidemark sync` polls" in out
    assert "  create publication" in out
    assert out.splitlines()[-1].startswith(f"`tidemark sync` will use mode poll: {missing}")
    assert PASSWORD not in out


def test_what_the_connected_role_may_do_is_left_to_sync(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.run("create table t (a int primary key)")
    assert run(["doctor", db.server.dsn("postgres", db.name), "--name", db.name, "--json"]) == ExitCode.OK
    report = json.loads(capsys.readouterr().out)
    (publication,) = (check for check in report["checks"] if check["name"] == "publication")
    assert (report["mode"], publication["status"]) == ("logical", "pass")
    assert publication["found"].endswith("does not exist; `tidemark sync` corrects this")


def test_no_jvm_is_started_and_spark_is_not_even_imported(db: Database) -> None:
    program = (
        "import sys; from tidemark.cli.main import run; code = run(sys.argv[1:]);"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j'))); sys.exit(int(code))"
    )
    arguments = ["doctor", db.dsn().reveal(), "--name", db.name]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stderr == ""
