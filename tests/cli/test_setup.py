"""`tidemark setup`: the SQL for the owner, complete and minimal, and what a role may do itself."""

import json

import pytest

from harness.database import MIRROR, OWNER, PASSWORD, Database, create_database
from tests.conftest import Start
from tidemark.cli.main import run
from tidemark.errors import ExitCode

pytestmark = pytest.mark.quick


def tables(db: Database) -> None:
    db.run(
        "create table keyed (id int primary key)",
        "create table keyless (a int)",
        'create schema "Two Words"',
        'create table "Two Words"."t" (id int primary key)',
        f'revoke all on keyed, "Two Words"."t" from {MIRROR}',
        f'revoke all on schema "Two Words" from {MIRROR}',
    )


def printed(db: Database, capsys: pytest.CaptureFixture[str], *options: str, user: str = MIRROR) -> list[str]:
    capsys.readouterr()
    assert run(["setup", db.dsn(user).reveal(), "--print", "--name", db.name, *options]) == ExitCode.OK
    out = capsys.readouterr().out
    assert PASSWORD not in out
    lines = (line.split("  -- ")[0].rstrip(";") for line in out.splitlines() if not line.startswith("--"))
    return [line for line in lines if line not in ("begin", "commit")]


def diagnosed(db: Database, capsys: pytest.CaptureFixture[str]) -> tuple[str | None, list[str]]:
    """The mode that doctor reports, and the SQL of its checks."""
    capsys.readouterr()
    run(["doctor", db.dsn().reveal(), "--name", db.name, "--json"])
    report = json.loads(capsys.readouterr().out)
    return report["mode"], [line for check in report["checks"] for line in check["fix"].splitlines()]


def test_the_printed_sql_is_complete_and_minimal(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    db.admin(f"alter role {MIRROR} noreplication")
    try:
        statements = printed(db, capsys)
        assert len(statements) == 6
        for left_out in statements:
            for statement in statements:
                if statement != left_out:
                    db.admin(statement)
            mode, fixes = diagnosed(db, capsys)
            assert [each for each in statements if f"{each};" in fixes] == [left_out], "doctor prints the same SQL"
            assert mode == ("logical" if left_out.startswith("grant") else "poll")
            assert printed(db, capsys) == [left_out]
            db.admin(left_out)
            mode, fixes = diagnosed(db, capsys)
            assert mode == "logical"
            assert not any(f"{each};" in fixes for each in statements)
            undo(db)
    finally:
        db.admin(f"alter role {MIRROR} replication")


def undo(db: Database) -> None:
    db.admin(
        f"drop publication {db.names.publication}",
        f"drop publication {db.names.inserts_publication}",
        f"alter role {MIRROR} noreplication",
    )
    db.run(f'revoke all on keyed, "Two Words"."t" from {MIRROR}', f'revoke all on schema "Two Words" from {MIRROR}')


def test_printing_changes_nothing(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    assert printed(db, capsys, user=OWNER) == printed(db, capsys, user=OWNER)
    assert db.admin("select count(*) from pg_publication") == [(0,)]


def test_the_owner_runs_what_it_may_and_is_told_the_rest(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    db.admin(f"alter role {MIRROR} noreplication")
    try:
        asked = ["setup", db.dsn(OWNER).reveal(), "--role", MIRROR, "--name", db.name]
        assert run(asked) == ExitCode.CHECKS_FAILED
        out = capsys.readouterr().out
        assert out.count("done  ") >= 4
        assert f'\nalter role "{MIRROR}" replication;' in out
        db.admin(f"alter role {MIRROR} replication")
        run(asked)
        assert diagnosed(db, capsys)[0] == "logical"
    finally:
        db.admin(f"alter role {MIRROR} replication")


def test_run_again_it_verifies_and_does_nothing(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    asked = ["setup", db.server.dsn("postgres", db.name), "--role", MIRROR, "--name", db.name]
    assert run(asked) == ExitCode.OK
    capsys.readouterr()
    assert run(asked) == ExitCode.OK
    out = capsys.readouterr().out
    assert "done" not in out
    assert f'has everything that role "{MIRROR}" needs to mirror it' in out


def test_a_role_that_does_not_exist_is_created(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    name = f"mirror_of_{db.name}"
    statements = printed(db, capsys, "--role", name, user=OWNER)
    assert statements[0] == f'create role "{name}" login replication'
    try:
        for statement in statements:
            db.admin(statement)
        assert printed(db, capsys, "--role", name, user=OWNER) == []
    finally:
        db.admin(f"drop owned by {name}", f"drop role {name}")


def test_a_role_that_may_not_log_in_or_connect(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"shut_{db.name}"
    db.admin(f"create role {name} replication", f"revoke connect on database {db.name} from public")
    try:
        statements = printed(db, capsys, "--role", name, user=OWNER)
        assert statements == [f'alter role "{name}" login', f'grant connect on database "{db.name}" to "{name}"']
        db.admin(*statements)
        assert printed(db, capsys, "--role", name, user=OWNER) == []
    finally:
        db.admin(f"grant connect on database {db.name} to public", f"drop owned by {name}", f"drop role {name}")


def test_a_name_with_a_line_break_does_not_leave_its_comment(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    run(["setup", db.dsn(OWNER).reveal(), "--print", "--role", "x\n;drop table keyed;--"])
    header = capsys.readouterr().out.split("begin;")[0]
    assert all(line.startswith("--") for line in header.splitlines())


def test_on_a_standby_with_nothing_to_run_it_runs_nothing(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    db = create_database(start())
    tables(db)
    run(["setup", db.server.dsn("postgres", db.name), "--role", MIRROR])
    standby = db.server.standby()
    try:
        capsys.readouterr()
        assert run(["setup", standby.dsn("postgres", db.name), "--role", MIRROR]) == ExitCode.OK
        out = capsys.readouterr().out
        assert "Give the host and port of the primary." in out
        assert all(line.startswith("--") for line in out.splitlines())
    finally:
        standby.remove()


@pytest.mark.parametrize(
    "typed",
    [
        ["doctor", "host=h", "user=u", f"password={PASSWORD}"],
        [f"postgresql://u:{PASSWORD}@h/d"],
        ["doctor", "host=h", "--name", f"postgresql://u:{PASSWORD}@h/d"],
        ["doctor", "host=h", "--table", f"postgresql://u:{PASSWORD}@h/d."],
        ["setup", "host=h", f"--nmae=postgresql://u:{PASSWORD}@h/d"],
        ["doctor", f"host=h password={PASSWORD}\udcff"],
    ],
)
def test_a_slip_of_the_hand_does_not_print_a_password(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert PASSWORD not in printed.out + printed.err


def test_patterns_choose_tables_and_leaves_follow_their_root(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    db.run(
        "create table root (a int primary key) partition by range (a)",
        "create table leaf1 partition of root for values from (0) to (10)",
        "create table leaf2 partition of root for values from (10) to (20)",
    )
    chosen = printed(db, capsys, "--table", "root", "--table", "Two Words.*", "--exclude", "leaf2")
    (publication,) = [s for s in chosen if s.startswith("create publication")]
    assert 'for table only "Two Words"."t", only "public"."leaf1" with' in publication
    without = printed(db, capsys, "--exclude", "root", "--exclude", "key*", "--exclude", '"Two Words".t')
    assert without == [], "an excluded root excludes its leaves"


def test_a_chosen_parent_brings_what_inherits_from_it_and_an_excluded_one_does_not(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    db.run(
        "create table parent (a int primary key)",
        "create table child (primary key (a)) inherits (parent)",
        "create table grandchild (primary key (a)) inherits (child)",
        "create table other (a int primary key)",
    )
    for chosen, listed in (
        (["--table", "parent"], ["child", "grandchild", "parent"]),
        (["--table", "parent", "--exclude", "child"], ["grandchild", "parent"]),
        (["--exclude", "parent"], ["child", "grandchild", "other"]),
    ):
        (publication,) = [each for each in printed(db, capsys, *chosen) if each.startswith("create publication")]
        assert "for table " + ", ".join(f'only "public"."{name}"' for name in listed) + " with" in publication


def test_in_double_quotes_a_pattern_means_itself(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    db.run(*(f'create table "{name}" (i int primary key)' for name in ("a[b]", "a*", "abc")))
    for pattern, listed in {'"a*"': ["a*"], "a*": ["a*", "a[b]", "abc"], "a[b]": ["a[b]"], "a?c": ["abc"]}.items():
        (publication,) = [s for s in printed(db, capsys, "--table", pattern) if s.startswith("create publication")]
        assert [name for name in ("a*", "a[b]", "abc") if f'"{name}"' in publication] == listed
    assert run(["setup", db.dsn().reveal(), "--table", "a.b.c"]) == ExitCode.USAGE


def test_a_pattern_that_matches_nothing_is_an_error(db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    tables(db)
    assert run(["setup", db.dsn().reveal(), "--print", "--table", "ordres"]) == ExitCode.USAGE
    assert "no table matches 'ordres'" in capsys.readouterr().err


def test_what_needs_a_restart_is_printed_apart_and_never_run(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    db = create_database(start(wal_level="replica", max_replication_slots=1, max_wal_senders=1))
    tables(db)
    asked = ["setup", db.server.dsn("postgres", db.name), "--role", MIRROR, "--name", db.name]
    assert run(asked) == ExitCode.CHECKS_FAILED
    out = capsys.readouterr().out
    assert "take effect when the server is restarted:\nalter system set wal_level = logical;" in out
    assert "-- Optional: 1 of 1 replication slots is free, and copies use one more. If left: " in out
    assert db.admin("select count(*) from pg_file_settings where sourcefile like '%auto.conf'") == [(0,)]
    for statement in printed(db, capsys):
        db.admin(statement)
    db.server.forget("wal_level", "max_replication_slots", "max_wal_senders")
    db.server.restart()
    assert diagnosed(db, capsys)[0] == "logical"


@pytest.mark.parametrize("name", ["", "Upper", "with space", "x" * 41, "semi;colon", "ü", "main_inserts", "snapshot_x"])
def test_a_name_that_cannot_name_a_slot_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["setup", "host=/nowhere", "--name", name]) == ExitCode.USAGE
    assert "invalid mirror name" in capsys.readouterr().err


def test_a_bad_connection_string_is_refused_without_showing_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["setup", f"postgresql://u:{PASSWORD}%zz@h/d"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert PASSWORD not in error
    assert "%25" in error


def test_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == ExitCode.OK
    out = capsys.readouterr().out
    for code in ExitCode:
        assert f"{code.value:>3}  {code.description}" in out
