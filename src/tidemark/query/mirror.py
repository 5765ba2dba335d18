"""The mirror as one reads it: `tidemark.open(lake).at(lsn).table("public.orders")`.

A handle stands at one boundary, and all it gives stands there, however far the mirror has moved on. Handles know
nothing of each other. What they give are ordinary DataFrames, on a Spark session of one's own or on one that is made.

`at("now")` is what a session on the source sees at this moment, `at(snapshot=…, lsn=…)` what one saw that read both in
one statement. What makes either unanswerable may pass in a moment: then `now` is taken again.

A mirror that is polled knows what polls saw, and no more: there is no now, and every moment says what it was `observed`
by.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Lease
from tidemark.lake.polls import Poll, read_polls
from tidemark.log.reader import LogReader
from tidemark.query.gate import LIMIT_S, Passed, pass_gate
from tidemark.query.moment import Moment
from tidemark.query.present import Present
from tidemark.query.snapshot import LakeView, log_reader
from tidemark.query.times import LATEST, Committed, position_of, time_of
from tidemark.source.dsn import Dsn
from tidemark.source.look import Look
from tidemark.spark import SparkOptions, require_pinned, spark_session

NOW = "now"
_PAUSE_S = 0.05
_PAGE_HEADER_BYTES = 40


class Mirror:
    """A lake that can be read."""

    def __init__(self, lake: Path, spark: SparkSession, source: Dsn | None = None) -> None:
        require_pinned(spark)
        self.lake = Lake.open(lake)
        self.spark = spark
        self._reader = log_reader(self.lake)
        self._present = Present(source, self.lake, self._reader) if source is not None else None
        self._streamed_above: Lsn | None = None

    def at(
        self,
        when: str | Lsn | datetime | Boundary = LATEST,
        *,
        snapshot: str | Snapshot | None = None,
        lsn: str | Lsn | None = None,
        limit_s: float = LIMIT_S,
    ) -> Moment:
        """A handle at a position: an LSN, a time, a Boundary, the latest at which all is known, or now.

        Or at a snapshot, as pg_current_snapshot() prints it, with the pg_current_wal_insert_lsn() of the same
        statement. These and now are waited for, at most so long; latest asks nobody.
        """
        if snapshot is not None or lsn is not None:
            if snapshot is None or lsn is None or when != LATEST:
                raise InvalidValue("a snapshot and its LSN stand together and alone", "at(snapshot=…, lsn=…)")
            self._require_stream()
            return self._at_snapshot(
                Snapshot.parse(snapshot) if isinstance(snapshot, str) else snapshot,
                Lsn.parse(lsn) if isinstance(lsn, str) else lsn,
                limit_s,
            )
        if when == NOW:
            self._require_stream()
            return self.seen_by(self._now, limit_s)
        boundary = when if isinstance(when, Boundary) else Boundary(position_of(when, self.view()))
        return self._moment(boundary)

    def close(self) -> None:
        """Let go of the source, if it was asked."""
        if self._present is not None:
            self._present.close()

    def table(self, name: str) -> DataFrame:
        """A table as it was latest."""
        return self.at().table(name)

    def sql(self, statement: str) -> DataFrame:
        """A query, every table as it was latest."""
        return self.at().sql(statement)

    def changes(self, name: str, start: str | Lsn, end: str | Lsn = LATEST) -> DataFrame:
        """What was changed in a table by commits from `start` to `end`, both included."""
        moment = self.at(end)
        return moment.changes(name, start)

    def diff(self, name: str, start: str | Lsn | datetime, end: str | Lsn | datetime = LATEST) -> DataFrame:
        """What became of a table between two positions, as the net of all changes."""
        return self.at(end).diff(name, start)

    def time_of(self, lsn: str | Lsn) -> Committed:
        """When the last commit at or below a position was, and whose; `latest` is the time to read at for all of it."""
        return time_of(Lsn.parse(lsn) if isinstance(lsn, str) else lsn, self.view())

    @property
    def last_poll(self) -> Poll | None:
        """What it shows latest, if it is polled."""
        return read_polls(self.lake.path).last

    @property
    def streamed_above(self) -> Lsn | None:
        """Where the stream took over from polls, if there were any; None while it is polled, or nothing was told.

        A mirror that follows the stream stays so: all polls and cycles are read until then, and not again.
        """
        if self._streamed_above is None:
            polls = read_polls(self.lake.path)
            if len(polls) and polls.last is None:
                self._streamed_above = polls.handed_over[0] if polls.handed_over is not None else Lsn.ZERO
        return self._streamed_above

    def view(self) -> LakeView:
        """The lake and the log as they are now."""
        return LakeView(self.lake, self._reader)

    def seen_by(
        self, looking: Callable[[], Look], limit_s: float = LIMIT_S, forget: Callable[[Look], None] = lambda _: None
    ) -> Moment:
        """What a session sees that looks; it looks again while that cannot be answered for a reason that may pass.

        If it does not pass in time, the tables that it concerns are refused, and all others are read. `forget` is told
        of looks that are not needed any more.
        """
        reader = self._log()
        until = time.monotonic() + limit_s
        taken: Moment | None = None
        while True:
            look = looking()
            try:
                passed = pass_gate(reader, self.lake.log, _needed(look), max(0.0, until - time.monotonic()))
            except NotAnswerable:
                if taken is None:
                    raise
                return taken
            try:
                moment = self._moment(_boundary(reader, look, passed), look, passed, _surely_seen(look))
            except NotAnswerable:  # it does not see a commit that lies below the window, or does not say what it sees
                if time.monotonic() >= until:
                    raise
                forget(look)
            else:
                if taken is not None and taken.look is not None:
                    taken.close()
                    forget(taken.look)
                if not moment.unclear or time.monotonic() >= until:
                    return moment
                taken = moment
            time.sleep(_PAUSE_S)

    def _now(self) -> Look:
        if self._present is None:
            raise InvalidValue(
                "now is the source's, and no source was named", "--source, or tidemark.open(…, source=…)"
            )
        return self._present.look()

    def _at_snapshot(self, snapshot: Snapshot, lsn: Lsn, limit_s: float) -> Moment:
        """What a session saw elsewhere. How tables were defined there is known when the mirror has looked."""
        reader = self._log()
        until = time.monotonic() + limit_s
        passed = pass_gate(reader, self.lake.log, lsn, limit_s)
        boundary = reader.given(snapshot, passed.lsn)
        while self.view().answerable < boundary.lsn and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        return self._moment(boundary, passed=passed, snapshot=snapshot)

    def _moment(
        self,
        boundary: Boundary,
        look: Look | None = None,
        passed: Passed | None = None,
        snapshot: Snapshot | None = None,
    ) -> Moment:
        view = self.view()  # how far the mirror has come only grows; what it lets go of is looked at under the lease
        # How a table is defined above what is known may be told later as of there: nothing above it is let go either.
        lease = Lease(self.lake.path, boundary.floor if look is None else min(boundary.floor, view.cycle.known))
        try:
            view.require(boundary, defined=look is not None)
            return Moment(self, boundary, lease, view.cycle.safe, look, passed, snapshot)
        except BaseException:
            lease.close()
            raise

    def _require_stream(self) -> None:
        """Refuse what only the stream can tell."""
        if self.streamed_above is None and (poll := self.last_poll) is not None:
            raise NotAnswerable(
                f"this mirror is polled: it knows what polls saw, last {poll}, and not what others see",
                "--at latest, an LSN or a time; after tidemark sync for what is newer",
            )

    def _log(self) -> LogReader:
        self._reader = self._reader or log_reader(self.lake)  # a mirror that was polled may have one by now
        if self._reader is None:
            raise NotAnswerable(f"the log at {self.lake.log} cannot be reached, and it knows who committed", "an LSN")
        return self._reader


def _needed(look: Look) -> Lsn:
    """How far the log must come to tell what a look sees: on a standby beyond the record that it may be replaying."""
    return look.lsn if look.replayed is None else Lsn(look.lsn.value + _PAGE_HEADER_BYTES + 1)


def _surely_seen(look: Look) -> Snapshot:
    """What a session sees for certain: a standby's snapshot does not list who was running."""
    return look.snapshot if look.replayed is None else Snapshot(look.snapshot.xmin, look.snapshot.xmin)


def _boundary(reader: LogReader, look: Look, passed: Passed) -> Boundary:
    if look.replayed is None:
        return reader.boundary(look.snapshot, passed.lsn)
    found = reader.boundary_on_standby(look.snapshot, look.replayed, look.lsn)
    if found is None:
        raise NotAnswerable(
            f"a standby's snapshot {look.snapshot} does not tell which commits it sees around {look.lsn}", "again"
        )
    return found


def open_mirror(
    lake: str | Path,
    spark: SparkSession | None = None,
    options: SparkOptions | None = None,
    source: str | Dsn | None = None,
) -> Mirror:
    """Open a lake for reading, on this Spark session, on the active one, or on a new one with these options.

    `source` is for reads at now: the connection string of the database that the lake mirrors.
    """
    dsn = Dsn(source) if isinstance(source, str) else source
    return Mirror(Path(lake), spark if spark is not None else spark_session(options), dsn)
