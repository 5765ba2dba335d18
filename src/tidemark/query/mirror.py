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
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.decode.types import Types
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.columns import COMMIT_VERSION
from tidemark.lake.history import Kind, Span, TableHistory, types_of
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Lease
from tidemark.lake.polls import Poll, read_polls
from tidemark.lake.registers import read_retained
from tidemark.lake.versions import floor
from tidemark.log.reader import LogReader
from tidemark.query.biography import Biography, First
from tidemark.query.changes import guarded
from tidemark.query.difference import difference
from tidemark.query.gate import LIMIT_S, Passed, pass_gate
from tidemark.query.lives import BEFORE, COPIED
from tidemark.query.names import find, names_at, parsed
from tidemark.query.present import Present
from tidemark.query.reading import Reading
from tidemark.query.shown import is_alike, shape_of
from tidemark.query.snapshot import LakeView, log_reader
from tidemark.query.statement import Equalities, bind
from tidemark.query.times import LATEST, Committed, position_of, time_of
from tidemark.query.union import named, together
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.source.dsn import Dsn
from tidemark.source.look import Look
from tidemark.spark import SparkOptions, require_pinned, spark_session

NOW = "now"
_PAUSE_S = 0.05
_PAGE_HEADER_BYTES = 40
_LATER = "a later snapshot, and the LSN that was read in the statement that took it"


class Mirror:
    """A lake that can be read."""

    def __init__(self, lake: Path, spark: SparkSession, source: Dsn | None = None) -> None:
        require_pinned(spark)
        self.lake = Lake.open(lake)
        self.spark = spark
        self._reader = log_reader(self.lake)
        self._present = Present(source, self.lake, self._reader) if source is not None else None

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

    def view(self) -> LakeView:
        """The lake and the log as they are now."""
        return LakeView(self.lake, self._reader)

    def seen_by(self, looking: Callable[[], Look], limit_s: float = LIMIT_S) -> Moment:
        """What a session sees that looks; it looks again while that cannot be answered for a reason that may pass.

        If it does not pass in time, the tables that it concerns are refused, and all others are read.
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
            else:
                if taken is not None:
                    taken.close()
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
        # How a table is defined above what is known may be told later as of there: nothing above it is let go either.
        lowest = floor(boundary) if look is None else min(floor(boundary), self.view().cycle.known)
        lease = Lease(self.lake.path, lowest)
        try:
            self.view().require(boundary, defined=look is not None)
            return Moment(self, boundary, lease, look, passed, snapshot)
        except BaseException:
            lease.close()
            raise

    def _require_stream(self) -> None:
        """Refuse what only the stream can tell."""
        if (poll := self.last_poll) is not None:
            raise NotAnswerable(
                f"this mirror is polled: it knows what polls saw, last {poll}, and not what others see",
                "--at latest, an LSN or a time; after tidemark sync for what is newer",
            )

    def _log(self) -> LogReader:
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


class Moment:
    """One boundary. Every table and every query given by it stands there.

    Until it is closed, or forgotten, nothing is removed that it may need. DataFrames that it gives remember it; what is
    derived from them does not. `look` is what the session saw whose view this is, if it looked for us.
    """

    def __init__(
        self,
        mirror: Mirror,
        boundary: Boundary,
        lease: Lease,
        look: Look | None = None,
        passed: Passed | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.boundary, self.look, self.passed, self._snapshot = boundary, look, passed, snapshot
        self._mirror, self._lease = mirror, lease
        self._closing = weakref.finalize(self, lease.close)
        self._frames: dict[tuple[str, str], DataFrame] = {}
        self._histories = mirror.lake.tables()
        self._names = names_at(self._histories.values(), boundary.lsn)
        types, defined = types_of(self._histories.values()), look is not None
        self._reading = Reading(mirror.spark, mirror.view, types, boundary, lease, defined=defined)

    def close(self) -> None:
        """Need nothing any more."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    @property
    def lsn(self) -> Lsn:
        """Where it stands."""
        return self.boundary.lsn

    @cached_property
    def observed(self) -> Poll | None:
        """The poll that saw what stands here; None where the stream told it, so that it is exact at any position."""
        told = any(event.observed for history in self._histories.values() for event in history.events)
        return read_polls(self._mirror.lake.path).at(self.lsn) if told else None

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables there were, as schema.table."""
        return tuple(sorted(f"{schema}.{name}" for schema, name in self._names))

    @property
    def unclear(self) -> tuple[str, ...]:
        """The tables that the mirror follows and that cannot be answered here: a later boundary may answer them."""
        followed = [history for history in self._histories.values() if history.live]
        unclear = [history.fingerprint for history in followed if not self._is_clear(history)]
        return tuple(f"{each.schema}.{each.name}" for each in unclear)

    def table(self, name: str) -> DataFrame:
        """The rows of a table there."""
        return self._remembering(self._table(parsed(name)))

    def leaves(self, name: str | None = None) -> tuple[TableHistory, ...]:
        """The tables that hold the rows of one, or all that are followed: of partitioned ones their partitions."""
        if name is None:
            followed = (each for each in self._histories.values() if each.last.kind is not Kind.DROPPED)
            return tuple(sorted((each for each in followed if not each.is_union), key=lambda each: each.path))
        return tuple(self._leaves(find(self._names, parsed(name))))

    def exact(self, history: TableHistory) -> tuple[Fingerprint, DataFrame]:
        """A table as it is defined there, and its rows, with the texts of values without a twin beside them."""
        return history.at(self.lsn).fingerprint, self._remembering(self._frame(history, {}))

    def sql(self, statement: str) -> DataFrame:
        """The answer to a query in Spark's SQL, every table of it as it was there."""
        bound = bind(statement, list(self._names))
        frames: dict[str, Any] = {
            placeholder: self._kept(key, bound.lookups[placeholder]) for placeholder, key in bound.tables.items()
        }
        return self._remembering(self._mirror.spark.sql(bound.text, **frames))

    def changes(self, name: str, start: str | Lsn) -> DataFrame:
        """What was changed in a table by the commits from `start` up to here, in order of commit and ordinal.

        Columns are the table's as it is here. A value that was not sent because it did not change is null, and
        `_unchanged` names its column by attnum.
        """
        history = find(self._names, parsed(name))
        if history.is_union:
            raise NotAnswerable(f"{name} has no changes of its own", "the changes of its partitions")
        span = history.at(self.lsn)
        if (why := self._redefined(history, span)) is not None:
            raise NotAnswerable(f"{name} {why}", _LATER)
        first = Lsn.parse(start) if isinstance(start, str) else start
        if first < span.base.lsn and (span.copied or span.base != history.spans()[0].base):
            raise NotAnswerable(
                f"{name} began at {span.base.lsn}: what changed between {first} and there is not known whole",
                f"changes from {span.base.lsn} on",
            )
        rows = self._reading.changes(history, span)
        if first <= (retained := read_retained(self._mirror.lake.path)) and retained > Lsn.ZERO:
            raise NotAnswerable(
                f"changes of {name} from {first} on are not kept any more", f"changes from above {retained} on"
            )
        return self._remembering(guarded(rows).where(F.col(COMMIT_VERSION) >= first.value))

    def history(self, name: str, key: object) -> DataFrame:
        """Every version of one row that the mirror knows up to here, oldest first, with its interval of positions.

        `key` is a value, or several in the key's order or by their columns' names. Columns are the table's as it is
        here; a value without a twin is null, with its text beside it. What was there when the table was copied began
        as `copy`, what was there where the window begins as `before`: when and by whom is not known then.
        """
        history = find(self._names, parsed(name))
        if history.is_union:
            raise NotAnswerable(f"{name} has no history of its own", "the history of its partitions")
        span = history.at(self.lsn)
        if (why := self._hindrance(history, span)) is not None:
            raise NotAnswerable(f"{name} {why}", "a later snapshot")
        types = Types(types_of(self._histories.values()), self._mirror.lake.version_num)
        row = Biography(span.fingerprint, types, key)
        retained = read_retained(self._mirror.lake.path)
        if not span.copied and retained <= span.base.floor:
            first = First(span.base.floor, BEFORE, None)
            return row.versions(self._mirror.spark, first, self._reading.changes(history, span))
        lsn = max(span.base.lsn, retained)
        with self._mirror.at(Boundary(lsn, frozenset(each for each in self.boundary.excluded if each <= lsn))) as early:
            kind = COPIED if span.copied and lsn == span.base.lsn else BEFORE
            first = First(lsn, kind, early._reading.table(history, span, row.equalities))
            return row.versions(self._mirror.spark, first, self._reading.changes(history, span))

    def diff(self, name: str, start: str | Lsn | datetime | Boundary) -> DataFrame:
        """What became of a table since `start`: rows that are here and were not there, and the reverse.

        `_change_type` is Delta's: with a key also update_preimage and update_postimage, in the key's order. What was
        changed and is as it was is left out. A value without a twin is null, with its text beside it.
        """
        early = self._mirror.at(start)
        if early.lsn > self.lsn:
            raise InvalidValue(f"{early.lsn} lies above {self.lsn}", "the earlier position first")
        history = find(self._names, parsed(name))
        span, there = history.at(self.lsn), history.at(early.lsn)
        if not is_alike(there.fingerprint, span.fingerprint):
            since = history.alike_since(span, is_alike)
            raise NotAnswerable(f"{name} was altered between {early.lsn} and {since}", f"a diff from {since} on")
        rows = early._frame(history, {}), self._frame(history, {})
        changes = None
        if span.base == there.base and not history.is_union and not (self.boundary.excluded or early.boundary.excluded):
            changes = self._reading.changes(history, span).where(F.col(COMMIT_VERSION) > early.lsn.value)
        names = {column for frame in rows for column in frame.columns}
        shape = shape_of(span.fingerprint, self._mirror.lake.version_num, names)
        return self._remembering(difference(*rows, changes, shape), early)

    def _remembering(self, frame: DataFrame, *others: Moment) -> DataFrame:
        vars(frame)["_tidemark_moment"] = self, *others
        return frame

    def _kept(self, key: tuple[str, str], equalities: Equalities) -> DataFrame:
        """The same for every query of this handle: it is planned once. What asks for one key is planned for that."""
        if equalities:
            return self._table(key, equalities)
        if key not in self._frames:
            self._frames[key] = self._table(key)
        return self._frames[key]

    def _table(self, key: tuple[str, str], equalities: Equalities | None = None) -> DataFrame:
        return guarded(self._frame(find(self._names, key), equalities or {}))

    def _frame(self, history: TableHistory, equalities: Equalities) -> DataFrame:
        span = history.at(self.lsn)
        name = f"{span.fingerprint.schema}.{span.fingerprint.name}"
        if (why := self._hindrance(history, span)) is not None:
            raise NotAnswerable(f"{name} {why}", _LATER)
        if history.is_union:
            return self._union(name, span.fingerprint, equalities)
        return self._reading.table(history, span, equalities)

    def _is_clear(self, history: TableHistory) -> bool:
        try:
            return self._hindrance(history, history.at(self.lsn)) is None
        except NotAnswerable:
            return False

    def _hindrance(self, history: TableHistory, span: Span) -> str | None:
        """Why a table that can be read at this position cannot be at this boundary."""
        hidden = sorted(lsn for lsn in self.boundary.excluded if span.base.sees(lsn))
        if hidden and not history.is_union:
            return f"began at {span.base.lsn} with what was committed at {hidden[0]}, which this boundary does not see"
        return self._redefined(history, span)

    def _redefined(self, history: TableHistory, span: Span) -> str | None:
        """Why it is not known that a table is here as it is at this position, but for what the log tells."""
        if self._snapshot is not None and span.snapshot is not None and not self._snapshot.covers(span.snapshot):
            return f"was copied or altered up to {span.begin}, which this snapshot, older than its LSN, may not see"
        if self.look is not None:
            there = (self.look.roots if history.is_union else self.look.tables).get(span.fingerprint.oid)
            same = (
                there == span.fingerprint
                if history.is_union
                else compare(span.fingerprint, there).effect is Effect.SAME
            )
            if not same:
                return "was altered, or taken out of the publication, just before, and the mirror does not know yet how"
        elif span.begin > floor(self.boundary) and (history.is_union or span.begin > span.base.lsn):
            return f"was altered up to {span.begin}, and it is not known whether this boundary sees that"
        return None

    def _leaves(self, history: TableHistory) -> Iterator[TableHistory]:
        if not history.is_union:
            yield history
            return
        for oid in history.at(self.lsn).fingerprint.partitions:
            if oid in self._histories:
                yield from self._leaves(self._histories[oid])

    def _union(self, name: str, root: Fingerprint, equalities: Equalities) -> DataFrame:
        """The tables that a partitioned one consists of here. If one is not mirrored, nobody knows what that is."""
        version_num = self._mirror.lake.version_num
        frames = []
        for oid in root.partitions:
            history = self._histories.get(oid)
            if history is None:
                raise NotAnswerable(
                    f"{name} cannot be read at {self.lsn}: one of its partitions (oid {oid}) is not mirrored",
                    "tidemark sync, without excluding it; or the other partitions by their names",
                )
            part = history.at(self.lsn).fingerprint
            alike = named(part, version_num) == named(root, version_num)
            frames.append((part, self._frame(history, equalities if alike else {})))
        return together(self._mirror.spark, root, frames, version_num)


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
