"""A clone that follows is compared with its source at one LSN, while the source is written to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.database import OWNER, Database
from harness.mirrored import eventually
from harness.postgres import Server
from tests.conftest import NEWEST
from tests.documentation.keys import require_documented
from tests.target.clones import clone_options, clones, followed
from tests.target.load import TABLES, contents, database_with_tables, writing
from tidemark.cli.main import run
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, TargetBehind, TargetInUse
from tidemark.postgres.session import Session, Timeouts
from tidemark.target.clone import Clone
from tidemark.target.compare.aligned import aligned_snapshots, compared_snapshots, wait_for
from tidemark.target.options import CloneOptions
from tidemark.target.state import CloneHold, ClonePhase, CloneRecord

Command = Callable[..., tuple[int, str]]
pytestmark = [pytest.mark.quick, NEWEST]


@pytest.fixture
def source(server: Server) -> Iterator[Database]:
    for database in database_with_tables(server):
        database.run("insert into keyed values (1, 'one')", "create unlogged table fast (id int primary key)")
        yield database


@pytest.fixture
def options(source: Database, target: Database, tmp_path: Path) -> CloneOptions:
    return clone_options(source, target, tmp_path)


@pytest.fixture
def command(options: CloneOptions, capsys: pytest.CaptureFixture[str]) -> Command:
    """`tidemark compare` of both servers; returns the exit code and what it printed."""

    def compare(*more: str) -> tuple[int, str]:
        code = run(["compare", options.source.reveal(), options.target.reveal(), *more])
        printed = capsys.readouterr()
        return code, printed.out if code in (ExitCode.OK, ExitCode.DIFFERENT, ExitCode.NOT_ANSWERABLE) else printed.err

    return compare


@pytest.mark.full
def test_the_command_compares_at_one_lsn_while_the_clone_follows(
    source: Database, target: Database, options: CloneOptions, command: Command
) -> None:
    with followed(options):
        with writing(source, 2):
            while True:
                code, output = command(*(f"public.{name}" for name in TABLES))
                if code != ExitCode.NOT_ANSWERABLE:  # no table was truncated before it was read
                    break
        assert (code, output.count("equal ")) == (ExitCode.OK, len(TABLES)), output
        assert " at " in output.splitlines()[0]
        code, output = command("fast", "--json")
        assert code == ExitCode.NOT_ANSWERABLE
        (found,) = map(json.loads, output.splitlines())
        assert Lsn.parse(found["lsn"]) > Lsn.ZERO
        assert "copied again when the clone is completed" in found["reason"]
        assert "sequences are set when" in command("--sequences")[1]
        source.run("insert into keyed values (-1, 'lost')")
        eventually(lambda: target.run("delete from keyed where id = -1 returning id"))
        code, output = command("keyed")
        assert code == ExitCode.DIFFERENT
        assert "missing in the target" in output
        target.run("insert into keyed values (-1, 'lost')")


@pytest.mark.full
def test_nothing_needs_to_be_written_at_the_source(options: CloneOptions, capsys: pytest.CaptureFixture[str]) -> None:
    with followed(options):
        (clone,) = clones(options)
        assert run(["status", options.target.reveal(), "--json"]) == ExitCode.OK
        shown = json.loads(capsys.readouterr().out)
        require_documented("status TARGET", shown)
        assert (shown["clone"], shown["phase"], shown["running"]) == (options.names.mirror, "follow", True)
        assert {"name": "public.keyed", "copied": True, "rows": 1} in shown["tables"]
        lsns = list[Lsn]()
        for _ in range(3):
            with aligned_snapshots(options.source, options.target, clone, Timeouts(), 60) as taken:
                assert taken.lsn is not None
                lsns.append(taken.lsn)
    assert lsns == sorted(lsns)
    assert run(["status", options.target.reveal()]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert "Phase:         follow: changes are applied" in lines
    assert "Process:       not running" in lines
    assert f"Tables:        {len(TABLES) + 1} of {len(TABLES) + 1} copied, 1 rows" in lines
    assert run(["status", options.source.reveal()]) == ExitCode.REFUSED
    assert "there is no clone at" in capsys.readouterr().err


def test_a_comparison_that_is_killed_holds_nothing(source: Database, target: Database, options: CloneOptions) -> None:
    with followed(options):
        (clone,) = clones(options)
        with Session.open(options.target, "test") as session:
            hold = CloneHold(session, clone.name)
            with Session.open(options.target, "test") as other, pytest.raises(TargetInUse, match="another comparison"):
                CloneHold(other, clone.name)
            held = hold.at_once()
            source.run("insert into keyed values (2, 'held back')")
            with pytest.raises(TargetBehind, match=r"clone .* did not reach"):
                wait_for(hold, clone.name, Lsn.parse(source.admin("select pg_current_wal_lsn()::text")[0][0]), 1.5)
            assert hold.applied_lsn() == held
            assert target.run("select id from keyed") == [(1,)]
            target.admin(f"select pg_terminate_backend({session.connection.info.backend_pid})")
        eventually(lambda: target.run("select count(*) from keyed") == [(2,)])


@pytest.mark.full
def test_a_clone_that_no_process_follows_is_compared_as_it_is(
    source: Database, target: Database, options: CloneOptions, command: Command
) -> None:
    with followed(options):
        pass
    code, output = command()
    assert code == ExitCode.OK, output
    assert "as they are: no process follows the source for clone" in output.splitlines()[0]
    source.run("insert into keyed values (2, 'new')", "insert into fast values (1)")
    assert command()[0] == ExitCode.DIFFERENT
    assert Clone(options, lambda: None).run().phase is ClonePhase.COMPLETE
    code, output = command()
    assert (code, "as they are" in output) == (ExitCode.OK, False), output
    assert contents(target) == contents(source)
    assert target.run("select * from fast") == [(1,)]


@pytest.mark.full
def test_a_clone_that_is_not_copied_yet_is_refused(options: CloneOptions, target: Database) -> None:
    with followed(options):
        pass
    with target.session(OWNER) as session:
        CloneRecord(session, options.names.mirror).set_phase(ClonePhase.COPY)
    with (
        pytest.raises(TargetBehind, match="not all of its tables are copied"),
        compared_snapshots(options.source, options.target, 60, 1),
    ):
        pass
