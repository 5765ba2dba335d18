"""A mirror that goes on by itself in a thread, is ended and begun again, and has its past let go and tables copied."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from harness.database import MIRROR, Database
from harness.mirrored import eventually
from harness.postgres import Server
from harness.syncing import publish
from tidemark.lake.requests import request_resync
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold import background, change_files
from tidemark.pipeline.logical import LogicalReplication
from tidemark.pipeline.plan import PipelineOptions
from tidemark.storage import fail_points
from tidemark.storage.fail_points import AnyFailPoint, FailPoint

KEEP_S = 30.0  # longer than a snapshot waits to be compared
HIDDEN_S, SEEN_S = 0.6, 0.2
COMPACT_S, MANY = 5.0, 4  # so that small files of changes are merged all the time


@dataclass
class Following:
    """The mirror of a database, from `start` to `stop`, as often as one likes."""

    options: PipelineOptions
    spark: SparkSession
    said: list[str] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _stop: threading.Event = field(default_factory=threading.Event)
    _killed: threading.Event = field(default_factory=threading.Event)
    _running: Future[None] | None = None

    def start(self) -> None:
        """Have it go on."""
        self._stop.clear()
        self._running = self._pool.submit(self._run)

    def stop(self) -> None:
        """End it in good order; what it failed with, if it did."""
        self._stop.set()
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """End it, for good."""
        with self._pool:
            self.stop()

    def kill_receiving(self) -> None:
        """End the receiving process as a power failure would."""
        self._killed.set()

    def require_well(self) -> None:
        """Raise what it has failed with."""
        if self._running is not None and self._running.done():
            self._running.result()

    def until_said(self, *texts: str) -> None:
        """Wait until it has said all of this."""

        def has_said() -> bool:
            self.require_well()
            return all(any(text in each for each in self.said) for text in texts)

        eventually(has_said, 600)

    def _run(self) -> None:
        emit = lambda event: self.said.append(str(event))  # noqa: E731
        with LogicalReplication(self.options, self.spark, emit) as replication:
            while not self._stop.is_set():
                if self._killed.is_set():
                    self._killed.clear()
                    replication.kill_receiving()
                if replication.step() is None:
                    replication.rest()


@contextmanager
def following(
    db: Database, folder: Path, spark: SparkSession, tables: Sequence[str], **options: Any
) -> Iterator[Following]:
    """Mirror these tables until the context ends; all of them are copied when it begins."""
    made = Following(PipelineOptions(db.dsn(MIRROR), folder / "lake", publish(db, *tables), **options), spark)
    with _compacting(made.said):
        made.start()
        try:
            made.until_said(*(f"public.{table}: copied" for table in tables))
            yield made
        finally:
            made.close()


@contextmanager
def _compacting(said: list[str]) -> Iterator[None]:
    """Have mirrors compact often, and say so."""

    def observe(point: AnyFailPoint) -> None:
        if point is FailPoint.CHANGES_COMPACTED:
            said.append("compacted")

    usual = background.COMPACT_S, change_files.MANY
    background.COMPACT_S, change_files.MANY = COMPACT_S, MANY
    fail_points.attach(observe)
    try:
        yield
    finally:
        fail_points.detach(observe)
        background.COMPACT_S, change_files.MANY = usual


def chores(db: Database, mirror: Following, tables: Sequence[str]) -> Iterator[Callable[[], None]]:
    """What is done to a mirror while it is read, again and again: it lets go, copies anew, and is ended."""
    oids = cycle([db.admin(f"select 'public.{table}'::regclass::oid::int")[0][0] for table in tables])
    lake = mirror.options.lake

    def remove_files() -> None:
        mirror.said.append(f"vacuum: {len(expire_lake(lake, ExpireOptions(KEEP_S, grace_s=0)).removals)}")

    def copy() -> None:
        request_resync(lake, [next(oids)])

    def restart() -> None:
        mirror.stop()
        mirror.said.append("restart")
        mirror.start()

    def kill() -> None:
        mirror.said.append("kill")
        mirror.kill_receiving()

    return cycle([remove_files, copy, restart, remove_files, copy, kill])


@contextmanager
def commits_that_hang(server: Server) -> Iterator[None]:
    """Again and again, for a while, whoever commits synchronously is logged and not visible, and all others are."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            server.sql("alter system set synchronous_standby_names = 'ghost'", "select pg_reload_conf()")
            ended.wait(HIDDEN_S)
            server.sql("alter system reset synchronous_standby_names", "select pg_reload_conf()")
            ended.wait(SEEN_S)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            ended.set()
            running.result()
