"""A lake that is open for reading, with its log and a Spark session: all that a mirror and its moments share.

A read at a position passes the gate when the log contains everything up to it; how long that took is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import LogBehind, NotAnswerable, ReceiveFailed, TidemarkError
from tidemark.lake.lake import Lake
from tidemark.lake.polls import Poll, Polls, read_polls
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.log.reader import LogReader
from tidemark.mirror.times import Committed, time_of
from tidemark.postgres.dsn import Dsn
from tidemark.reads.snapshot import LakeView, log_reader
from tidemark.receive.client import ReceiveClient
from tidemark.spark import require_pinned
from tidemark.units import format_size

LIMIT_S = 10.0
_LOGGER = logging.getLogger("tidemark.mirror")


class OpenLake:
    """The lake, the reader of its log, if the log is accessible, and the Spark session of all DataFrames.

    If `spark` is a function, it is called when the session is needed: the local engine reads without one. `source` is
    where statements in PostgreSQL's dialect are finished.
    """

    def __init__(self, path: Path, spark: SparkSession | Callable[[], SparkSession], source: Dsn | None = None) -> None:
        self._start = spark if callable(spark) else partial(_given, spark)
        self.source = source
        self.lake = Lake.open(path)
        if not callable(spark):
            require_pinned(spark)
        self.reader = log_reader(self.lake)
        self._streamed: tuple[Lsn, Polls] | None = None

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session."""
        session = self._start()
        require_pinned(session)
        return session

    def __str__(self) -> str:
        return f"database {self.lake.database} in {self.lake.path}"

    def view(self) -> LakeView:
        """The lake and the log as they are now."""
        return LakeView(self.lake, self.reader)

    def log(self) -> LogReader:
        """The reader of the log; raise NotAnswerable if the log cannot be read."""
        self.reader = self.reader or log_reader(self.lake)  # a mirror that was polled may have a log by now
        if self.reader is None:
            raise NotAnswerable(
                f"the log directory {self.lake.log} cannot be read, and `now` and snapshots require it",
                "Use `latest`, or run the command on the host of the log.",
            )
        return self.reader

    def committed(self, lsn: Lsn) -> Committed | None:
        """The last commit at or before a position, if its time is known."""
        try:
            return time_of(lsn, self.view())
        except NotAnswerable:
            return None

    @property
    def last_poll(self) -> Poll | None:
        """The last poll, or None if the mirror is not polled."""
        return self._polls.last

    def polled_upto(self, lsn: Lsn) -> Lsn:
        """The last position at or below an LSN whose rows were polled, zero if there is none."""
        return self._polls.polled_upto(lsn)

    @property
    def _polls(self) -> Polls:
        """All polls. While the mirror follows the stream into the same log, it is not polled: they are read once."""
        start = self._log_start()
        if self._streamed is not None and self._streamed[0] == start:
            return self._streamed[1]
        polls = read_polls(self.lake.path)
        self._streamed = (start, polls) if start is not None and len(polls) and polls.last is None else None
        return polls

    def _log_start(self) -> Lsn | None:
        try:
            mirror = read_mirror(self.lake.log, Disk())
        except TidemarkError:
            return None
        return mirror.start if mirror is not None else None


def _given(session: SparkSession) -> SparkSession:
    return session


@dataclass(frozen=True, slots=True)
class Passed:
    """The position up to which the log is complete, the time waited, and the bytes of WAL missing at the start."""

    lsn: Lsn
    seconds: float
    behind_bytes: int


def pass_gate(reader: LogReader, log: Path, lsn: Lsn, limit_s: float = LIMIT_S) -> Passed:
    """Wait until everything up to `lsn` is in the log; raise NotAnswerable after `limit_s` or if no receiver runs.

    If `lsn` is just after the header of a WAL page, the log may end before that header. No commit is in between, so
    the position that was reached is equivalent and is returned.
    """
    begin = time.monotonic()
    reader.refresh()
    behind = max(0, lsn.value - reader.received.value)
    if behind:
        try:
            with ReceiveClient(log) as client:
                lsn = min(lsn, client.wait(lsn, limit_s))
        except LogBehind as error:
            raise NotAnswerable(
                f"{lsn} was not received within {limit_s:g} s: the log is {format_size(behind)} behind",
                "Retry the command with a longer `--wait`, or use `latest`.",
            ) from error
        except ReceiveFailed as error:
            raise NotAnswerable(
                f"{lsn} cannot be read: no process receives from the source, and the log ends at {reader.received}",
                "Run `tidemark sync`, or use `latest`.",
            ) from error
        reader.refresh()
    passed = Passed(lsn, time.monotonic() - begin, behind)
    _LOGGER.debug("waited %.1f ms for %s, %d bytes behind", passed.seconds * 1000, passed.lsn, passed.behind_bytes)
    return passed
