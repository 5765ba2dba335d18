"""Every runbook is executed on real servers: `status` shows its symptom, and its steps lead to equal tables."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from pyspark.sql import SparkSession

from harness.database import MIRROR, OWNER, PASSWORD, Database, create_database
from harness.mirrored import eventually, pipeline_state
from harness.operating import LIMIT_S, running, until
from harness.shell import here
from harness.small_disk import CannotMount, fill, small_disk
from tests.conftest import NEWEST, WITH_TLS, Start
from tests.documentation.runbooks import Runbook, Step, runbooks
from tidemark.clock import Lsn
from tidemark.lake.pipeline_state import State
from tidemark.lake.status import READABLE, status_of
from tidemark.pipeline.events import SyncEnded

pytestmark = [pytest.mark.full, pytest.mark.spark]


class Scene:
    """A database, its mirror, and the operator's commands; a scenario breaks something, and a runbook repairs it."""

    def __init__(self, start: Start, folder: Path, spark: SparkSession) -> None:
        self.start_server, self.folder, self.spark = start, folder, spark
        self.lake = folder / "lake"
        self.held = ExitStack()
        self._sync: ExitStack | None = None
        self._ended: Future[SyncEnded] | None = None

    def create(self, **settings: str | int | bool) -> None:
        """Start a server with a database. The mirror's role may do what the application may."""
        self.server = self.start_server(**settings)
        self.db = create_database(self.server)
        self.db.admin(
            f"grant {OWNER} to {MIRROR}",
            f"grant create on database {self.db.name} to {MIRROR}",
        )
        self.source = self.db.dsn().reveal()
        self.db.run("create table orders (id int primary key, v text)")
        self.work()

    def work(self, rows: int = 100) -> None:
        """Insert, update and delete some rows."""
        (first,) = self.db.run("select coalesce(max(id), 0) + 1 from orders")[0]
        self.db.run(
            f"insert into orders select i, '{uuid4()}' from generate_series({first}, {first + rows}) i",
            f"update orders set v = 'changed' where id % 7 = {first % 7}",
            f"delete from orders where id = {first}",
        )

    def sync(self) -> None:
        """Start `sync`, unless it runs."""
        if self._ended is not None and not self._ended.done():
            return
        self.stop()
        self._sync = ExitStack()
        self._ended = self._sync.enter_context(running(self.source, self.lake, self.spark))

    def begin(self) -> None:
        """Start `sync`, and wait until it follows and has everything."""
        self.sync()
        assert self._ended is not None
        until(self.lake, State.FOLLOWING, self._ended)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the mirror has applied everything."""
        self._wait_for_all(lambda: False)

    def catch_up_or_end(self) -> None:
        """Wait until the mirror has applied everything, or `sync` has ended."""
        assert self._ended is not None
        self._wait_for_all(self._ended.done)

    def _wait_for_all(self, has_ended: Callable[[], bool]) -> None:
        position = Lsn.parse(self.db.admin("select pg_current_wal_insert_lsn()::text")[0][0])
        eventually(
            lambda: has_ended() or (pipeline_state(self.lake).applied_lsn or Lsn.ZERO) >= position,
            LIMIT_S,
        )

    def stop(self) -> None:
        """End `sync`."""
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    def status(self) -> str:
        return here("status", str(self.lake)).stdout

    def follow(self, step: Step, status: str) -> None:
        """Run a step as the document has it; `status` is what the operator has seen."""
        text = step.text.strip()
        for name, pattern in (("LSN", r"up to ([0-9A-F]+/[0-9A-F]+)"), ("PID", r"ended: pid (\d+)")):
            if re.search(rf"\b{name}\b", text):
                found = re.search(pattern, status)
                assert found is not None, status
                text = re.sub(rf"\b{name}\b", found[1], text)
        if step.language == "sql":
            self.db.admin(text)
            return
        for line in text.splitlines():
            program, *words = shlex.split(line)
            assert program == "tidemark"
            if words == ["sync", "SOURCE", "LAKE"]:
                self.sync()
            else:
                done = here(*({"SOURCE": self.source, "LAKE": str(self.lake)}.get(word, word) for word in words))
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def require_well(self, *tables: str) -> None:
        """Require that the mirror follows, is judged to be well, and equals the source."""
        self.work()
        eventually(lambda: here("status", str(self.lake), "--check").stdout.startswith("ok: following"), LIMIT_S)
        eventually(lambda: all(each.state == READABLE for each in status_of(self.lake).tables), LIMIT_S)
        compared = here("compare", str(self.lake), "--source", self.source, "--wait", "1min")
        assert compared.returncode == 0, compared.stdout + compared.stderr
        assert all(table in compared.stdout for table in ("orders", *tables)), compared.stdout

    def close(self) -> None:
        """End `sync` and what the scenario holds."""
        self.stop()
        self.held.close()


def slot_dropped(scene: Scene) -> Iterator[None]:
    scene.create()
    scene.begin()
    slot = scene.db.names.slot
    for _ in range(100):
        scene.db.admin(f"select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '{slot}'")
        with suppress(psycopg.errors.ObjectInUse):
            scene.db.admin(f"select pg_drop_replication_slot('{slot}')")
            break
    scene.work()
    yield


def slot_invalidated(scene: Scene) -> Iterator[None]:
    scene.create(max_slot_wal_keep_size="1MB")
    scene.begin()
    scene.stop()
    for _ in range(4):
        scene.db.admin("select pg_logical_emit_message(true, 'x', 'y')", "select pg_switch_wal()")
    scene.db.admin("checkpoint")
    scene.sync()
    yield


def failed_over(scene: Scene) -> Iterator[None]:
    scene.create()
    primary = scene.server
    primary.sql("select pg_create_physical_replication_slot('standby')")
    standby = primary.standby(
        {"hot_standby_feedback": True, "primary_slot_name": "standby", "sync_replication_slots": True}
    )
    scene.held.callback(standby.remove)
    primary.sql("alter system set synchronized_standby_slots = 'standby'", "select pg_reload_conf()")
    scene.source = (
        f"host=127.0.0.1,127.0.0.1 port={primary.port},{standby.port} dbname={scene.db.name} user={MIRROR} "
        f"password={PASSWORD} target_session_attrs=read-write"
    )
    scene.begin()
    slot = scene.db.names.slot
    is_there = f"select from pg_replication_slots where slot_name = '{slot}' and synced and not temporary"

    def is_synced() -> bool:
        primary.sql("select pg_log_standby_snapshot()")
        return bool(standby.sql(is_there))

    eventually(is_synced, LIMIT_S)
    scene.work()
    scene.catch_up()
    primary.stop("immediate")
    scene.db = Database(standby, scene.db.name)
    yield


def restored(scene: Scene) -> Iterator[None]:
    scene.create()
    scene.begin()
    backup = scene.server.standby()
    scene.held.callback(backup.remove)
    backup.stop()
    scene.work()
    scene.catch_up()
    scene.stop()
    scene.server.stop("immediate")
    backup.start()
    backup.promote()
    scene.db = Database(backup, scene.db.name)
    scene.source = scene.db.dsn().reveal()
    scene.sync()
    yield


def mirror_disk_full(scene: Scene) -> Iterator[None]:
    small = scene.held.enter_context(small_disk(scene.folder / "small", 400 << 20))
    scene.lake = small / "lake"
    scene.create()
    scene.begin()
    ballast = fill(small)
    scene.work(200_000)
    yield
    ballast.unlink()
    scene.catch_up_or_end()


def log_lost(scene: Scene) -> Iterator[None]:
    scene.create()
    scene.begin()
    scene.stop()
    shutil.rmtree(scene.lake / "_log")
    scene.work()
    scene.sync()
    yield


def source_disk_full(scene: Scene) -> Iterator[None]:
    scene.create()
    small = scene.held.enter_context(small_disk(scene.server.folder / "small", 200 << 20))
    scene.server.move_wal(small / "wal")
    scene.begin()
    ballast = fill(small)
    with suppress(psycopg.Error):
        while True:
            scene.work(50_000)
    yield
    ballast.unlink()
    scene.server.stop()
    scene.server.start()


def password_changed(scene: Scene) -> Iterator[None]:
    scene.create()
    file = scene.folder / "passfile"

    def write(password: str) -> None:
        file.write_text(f"*:*:*:{MIRROR}:{password}\n")
        file.chmod(0o600)

    write(PASSWORD)
    scene.source = scene.server.dsn(MIRROR, scene.db.name, passfile=file)
    scene.begin()
    scene.db.admin(f"alter role {MIRROR} password 'another'")
    yield
    write("another")


def certificate_expired(scene: Scene) -> Iterator[None]:
    scene.create()
    valid, expired = (certificate(scene.folder / name, dates) for name, dates in VALIDITY.items())
    roots = scene.folder / "roots"
    roots.write_bytes(valid.read_bytes() + expired.read_bytes())

    def install(found: Path) -> None:
        for name in ("cert", "key"):
            scene.server.put(found.with_name(name), f"server.{name}")

    install(valid)
    scene.server.restart(settings={"ssl": True, "ssl_cert_file": "server.cert", "ssl_key_file": "server.key"})
    scene.source = f"{scene.db.dsn().reveal()} sslmode=verify-ca sslrootcert={roots}"
    scene.begin()
    install(expired)
    scene.db.admin("select pg_reload_conf()")
    yield
    install(valid)


VALIDITY = {"valid": ("20260101000000Z", "20760101000000Z"), "expired": ("20200101000000Z", "20210101000000Z")}


def certificate(folder: Path, dates: tuple[str, str]) -> Path:
    """A certificate that signs itself, `cert`, and its `key`."""
    folder.mkdir()
    (folder / "index").touch()
    (folder / "config").write_text(
        "[ca]\ndefault_ca = self\n[self]\ndatabase = index\nserial = serial\nnew_certs_dir = .\ndefault_md = sha256\n"
        "policy = names\nx509_extensions = root\n[names]\ncommonName = supplied\n[root]\nbasicConstraints = CA:TRUE\n"
    )
    request = f"req -new -newkey rsa:2048 -nodes -subj /CN={folder.name} -keyout key -out csr"
    begin, end = dates
    sign = "ca -selfsign -batch -notext -config config -create_serial -keyfile key -in csr -out cert"
    for command in (request, f"{sign} -startdate {begin} -enddate {end}"):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    return folder / "cert"


def publication_altered(scene: Scene) -> Iterator[None]:
    scene.create()
    scene.begin()
    scene.db.admin(f"alter publication {scene.db.names.publication} set (publish = 'insert')")
    scene.work()
    yield


def without_identity(scene: Scene) -> Iterator[None]:
    scene.create()
    scene.db.run("create table events (at int)", "insert into events values (1), (1)")
    scene.begin()
    yield


def long_transaction(scene: Scene) -> Iterator[None]:
    scene.create()
    scene.begin()
    session = scene.held.enter_context(closing(scene.db.connect()))
    session.execute("begin")
    session.execute("insert into orders values (-1, 'open')")
    scene.db.run("create table events (id int primary key)", "insert into events values (1)")
    yield


SCENARIOS: dict[str, Callable[[Scene], Iterator[None]]] = {
    "The replication slot was dropped": slot_dropped,
    "The replication slot was invalidated": slot_invalidated,
    "The source failed over to a standby": failed_over,
    "The source was restored to an earlier point": restored,
    "The disk of the mirror is full": mirror_disk_full,
    "The log was lost": log_lost,
    "The disk of the source is full": source_disk_full,
    "The password was changed": password_changed,
    "The publication was altered": publication_altered,
    "A table has no replica identity": without_identity,
    "A long transaction blocks a copy": long_transaction,
}
CERTIFICATE = "A certificate has expired"
ALSO = {"A table has no replica identity": ["events"], "A long transaction blocks a copy": ["events"]}


def test_every_runbook_has_a_scenario() -> None:
    assert {*SCENARIOS, CERTIFICATE} == runbooks().keys()


@NEWEST
@pytest.mark.parametrize("title", SCENARIOS)
def test_the_steps_of_a_runbook_lead_to_an_equal_mirror(
    title: str, start: Start, spark: SparkSession, tmp_path: Path
) -> None:
    with closing(Scene(start, tmp_path, spark)) as scene:
        execute(runbooks()[title], SCENARIOS[title](scene), scene)


@WITH_TLS
def test_a_new_certificate_leads_to_an_equal_mirror(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    with closing(Scene(start, tmp_path, spark)) as scene:
        execute(runbooks()[CERTIFICATE], certificate_expired(scene), scene)


def execute(book: Runbook, scenario: Iterator[None], scene: Scene) -> None:
    """Break something, look for the symptom, do what a person does, and follow the steps."""
    try:
        next(scenario)
    except CannotMount as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    seen = ""

    def is_shown() -> bool:
        nonlocal seen
        seen = scene.status()
        return not book.missing(seen, scene.db.name)

    try:
        eventually(is_shown, LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"status lacks {book.missing(seen, scene.db.name)}:\n{seen}") from error
    next(scenario, None)
    for step in book.steps:
        scene.follow(step, seen)
    scene.require_well(*ALSO.get(book.title, []))
