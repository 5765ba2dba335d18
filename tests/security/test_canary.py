"""A password and a value of a table are searched for in everything that Tidemark prints, logs or stores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness.database import OWNER, PASSWORD, Database, create_database
from harness.mirrored import eventually, pipeline_state
from harness.postgres.server import free_port
from harness.served import Served
from harness.syncing import publish
from tests.conftest import NEWEST
from tests.target.clones import publish as publish_for_clone
from tests.target.schema_pairs import programs_for
from tidemark.errors import ExitCode, TidemarkError
from tidemark.lake.pipeline_state import State
from tidemark.log.segment import SEGMENT
from tidemark.target.state import read_clones

pytestmark = [pytest.mark.full, NEWEST]

CELL = "c4nary-of-a-cell"
COMMAND = [sys.executable, "-c", "from tidemark.cli.main import main; main()", "--log-level", "debug"]
LIMIT_S = 180


class Operator:
    """Runs commands with a directory of their own for temporary files, and keeps what they print."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.source, self.lake = folder, source, folder / "lake"
        self.printed = b""
        for name in ("tmp", "events"):
            (folder / name).mkdir()
        events = f"spark.eventLog.dir=file://{folder / 'events'}"
        self.spark = ("--conf", "spark.eventLog.enabled=true", "--conf", events, "--master", "local[2]")
        self.environment = {**os.environ, "TMPDIR": str(folder / "tmp")}

    def run(self, *words: str) -> int:
        """Run a command to its end."""
        done = subprocess.run(
            [*COMMAND, *words], env=self.environment, capture_output=True, timeout=LIMIT_S, check=False
        )
        self.printed += done.stdout + done.stderr
        return done.returncode

    @contextmanager
    def running(self, *words: str, end: signal.Signals = signal.SIGTERM) -> Iterator[None]:
        """Run a command until the context ends, and keep what it has printed."""
        printed = self.folder / f"out-{words[0]}"
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [*COMMAND, *words], env=self.environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield
        finally:
            os.killpg(process.pid, end)
            process.wait(LIMIT_S)
            self.printed += printed.read_bytes()

    def wait_for_state(self, lake: Path, state: State) -> None:
        """Wait until a mirror has a state."""
        eventually(lambda: (lake / "_pipeline.json").exists(), LIMIT_S)
        eventually(lambda: pipeline_state(lake).state is state, LIMIT_S)

    def require_silence(self, *secrets: Path) -> set[Path]:
        """Require that neither was printed, and no password stored but in these; return the files with a cell."""
        assert CELL.encode() not in self.printed
        assert PASSWORD.encode() not in self.printed
        stored = {path: path.read_bytes() for path in self.files() if path not in secrets}
        assert [path for path, data in stored.items() if PASSWORD.encode() in data] == []
        return {path for path, data in stored.items() if CELL.encode() in data}

    def files(self) -> Iterator[Path]:
        """Everything that is stored."""
        yield from (path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith("out-"))

    def may_have_rows(self, path: Path) -> bool:
        """Whether a file is a part of a table or of the log."""
        return "tables" in path.relative_to(self.folder).parts[1:2] or path.suffix == SEGMENT


def create_table(db: Database) -> None:
    """Create the table with the value."""
    db.run(
        "create table t (id int primary key, v text)",
        f"insert into t select i, '{CELL}' || i from generate_series(1, 50) i",
    )


def test_they_are_in_no_output_no_log_no_state_and_no_event(db: Database, tmp_path: Path) -> None:
    create_table(db)
    publish(db, "t")
    operator = Operator(tmp_path, db.dsn().reveal())
    source, lake = operator.source, str(operator.lake)
    with operator.running("sync", source, lake, "--json", *operator.spark, end=signal.SIGKILL):
        operator.wait_for_state(operator.lake, State.FOLLOWING)
    db.run("update t set v = v || '.' where id < 10", "delete from t where id = 50")
    assert operator.run("sync", source, lake, "--once", *operator.spark) == ExitCode.OK
    for words in (("status", lake), ("status", lake, "--json"), ("catalog", lake), ("log", f"{lake}/_log")):
        assert operator.run(*words) == ExitCode.OK, words
    assert operator.run("doctor", source) in (ExitCode.OK, ExitCode.CHECKS_FAILED)
    with operator.running("sync", source, lake, *operator.spark):
        eventually(lambda: operator.run("compare", lake, "--source", source, *operator.spark) == ExitCode.OK, LIMIT_S)
    assert operator.run("query", lake, f"select count(*) from t where v = '{CELL}1'", *operator.spark) == ExitCode.OK
    assert operator.run("sync", source.replace(PASSWORD, f"{PASSWORD}x"), lake, "--once") == ExitCode.REFUSED
    assert operator.run("sync", f"{source} port=1", lake, "--once") == ExitCode.UNREACHABLE
    assert len(list((tmp_path / "events").iterdir())) >= 3, "Spark logs events"
    operator.printed = operator.printed.replace(f"v = '{CELL}1'".encode(), b"")
    with_cell = operator.require_silence()
    assert any(operator.may_have_rows(path) for path in with_cell), "the search finds a value where it must be"
    queries = {path for path in with_cell if path.is_relative_to(tmp_path / "events")}
    found = [path.read_bytes() for path in queries]
    assert all(data.count(CELL.encode()) == data.count(f"{CELL}1".encode()) for data in found)
    assert [path for path in with_cell - queries if not operator.may_have_rows(path)] == []


def test_they_are_in_nothing_that_run_prints_and_stores(db: Database, tmp_path: Path) -> None:
    create_table(db)
    publish(db, "t")
    operator = Operator(tmp_path, db.dsn().reveal())
    words, secret, file = conninfo_to_dict(operator.source), tmp_path / "password", tmp_path / "tidemark.toml"
    secret.write_text(str(words.pop("password")))
    file.write_text(
        f"""[mirrors.shop]
        source = "{make_conninfo("", **words)}"
        password-file = "password"
        name = "{db.names.mirror}"
        lake = "lake"
        [spark]
        master = "local[2]"
        """
    )
    with operator.running("run", str(file)):
        operator.wait_for_state(operator.lake, State.FOLLOWING)
        db.run("update t set v = v || '.' where id < 10")
    assert operator.run("config", str(file)) == ExitCode.OK
    with_cell = operator.require_silence(secret)
    assert with_cell
    assert [path for path in with_cell if not operator.may_have_rows(path)] == []


@pytest.fixture
def target(db: Database) -> Iterator[Database]:
    """An empty database of the same server."""
    database = create_database(db.server)
    yield database
    database.drop()


def test_they_are_in_nothing_that_clone_prints_and_stores(db: Database, target: Database, tmp_path: Path) -> None:
    create_table(db)
    operator = Operator(tmp_path, db.dsn().reveal())
    names, programs = publish_for_clone(db, "t"), programs_for(db.server.install.major, db.server.install.major)
    to, state = target.dsn(OWNER).reveal(), str(tmp_path / "state")
    programs_of = ("--pg-bin", str(programs.pg_dump.parent))
    words = ("clone", operator.source, to, "--state", state, "--name", names.mirror, *programs_of)

    def is_followed() -> bool:
        try:
            with target.session(OWNER) as session:
                return any(each.is_followed and each.applied_lsn for each in read_clones(session))
        except TidemarkError:
            return False

    with operator.running(*words, "--follow"):
        eventually(is_followed, LIMIT_S)
        target.run(f"update t set v = '{CELL}' where id = 3", "delete from t where id = 4")
        assert operator.run("compare", operator.source, to) == ExitCode.DIFFERENT
        db.run("update t set v = v || '.' where id = 4")
        eventually(lambda: b"has no row with (id) = (4)" in (tmp_path / "out-clone").read_bytes(), LIMIT_S)
    assert operator.run("status", to) in (ExitCode.OK, ExitCode.CHECKS_FAILED)
    with_cell = operator.require_silence()
    assert with_cell
    assert [path for path in with_cell if not operator.may_have_rows(path)] == []


def test_they_are_in_nothing_that_serve_prints_and_stores(db: Database, tmp_path: Path) -> None:
    create_table(db)
    publish(db, "t")
    operator = Operator(tmp_path, db.dsn().reveal())
    running = Served(free_port(), free_port(), 0)
    listening = ("--listen", f"127.0.0.1:{running.port}", "--metrics", f"127.0.0.1:{running.monitored}")
    words = ("--source", operator.source, "--route", "auto", "--cost", "0", "--master", "local[2]", *listening)

    def is_ready() -> bool:
        try:
            return running.is_ready()
        except OSError:
            return False

    with operator.running("sync", operator.source, str(operator.lake), "--master", "local[2]"):
        operator.wait_for_state(operator.lake, State.FOLLOWING)
        with operator.running("serve", str(operator.lake), *words):
            eventually(is_ready, LIMIT_S)
            with psycopg.connect(running.dsn(db.dsn()), autocommit=True) as connection:
                connection.execute("set tidemark.route = mirror")
                connection.execute("set tidemark.wait = '60s'")
                for sql, parameters in (
                    (f"select count(*) from t where v = '{CELL}7'", None),
                    ("select count(*) from t where v = %s", [f"{CELL}7"]),
                    (f"select v, count(*) from t where v > '{CELL}' group by v order by v", None),
                ):
                    assert connection.execute(sql, parameters).fetchall(), sql
                    (last,) = connection.execute("show tidemark.last").fetchone() or ("",)
                    assert last.startswith("mirror: "), (sql, last)
                with pytest.raises(psycopg.Error, match="Spark did not compute"):
                    connection.execute("select sum(id * 1000000000) from t where v <> %s", [f"{CELL}0"])
                with pytest.raises(psycopg.Error, match=CELL):
                    connection.execute(f"select '{CELL}'::int from t")
    with_cell = operator.require_silence()
    assert [path for path in with_cell if not operator.may_have_rows(path)] == []
