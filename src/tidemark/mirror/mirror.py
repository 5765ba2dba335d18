"""A mirror that is open for reading: `tidemark.open(lake).at(lsn).table("public.orders")`.

A moment is at one boundary: everything it returns is read there, however far the mirror has advanced since. Moments are
independent of each other. They return ordinary DataFrames, on the caller's Spark session or on a new one.

`at("now")` is what a session on the source sees at this moment; `at(snapshot=…, lsn=…)` is what a session saw that read
both in one statement. The condition that makes either unanswerable may be temporary: then `now` takes a new snapshot.

A polled mirror contains only what the polls read: it cannot be read at `now`, and `observed` of every moment is the
poll that its rows are from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.lake import Lake
from tidemark.lake.leases import HOLD_S, Lease, require_hold
from tidemark.lake.paths import local_path
from tidemark.lake.status import TableStatus, tables_of
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.log.reader import LogReader
from tidemark.mirror.html import mirror_html
from tidemark.mirror.moment import Moment
from tidemark.mirror.open_lake import LIMIT_S, OpenLake, Passed, pass_gate
from tidemark.mirror.positions import LATEST, NOW, Duration, Position, parse_position, seconds_of
from tidemark.mirror.present import Present
from tidemark.mirror.sql import bind
from tidemark.mirror.times import Committed, position_of, time_of
from tidemark.postgres.dsn import Dsn
from tidemark.reads.names import names_at, oids_of
from tidemark.reads.snapshot import LakeView
from tidemark.schema.catalog_snapshot import CatalogSnapshot
from tidemark.schema.display import quoted
from tidemark.spark import SparkOptions, spark_session

_PAUSE_S = 0.05
_PAGE_HEADER_BYTES = 40


class Mirror:
    """A lake that is open for reading; `tidemark.open` returns one.

    Use it with `with`, or call `close` when you are done: it may hold a connection to the source.

        with tidemark.open("/data/lake") as mirror:
            mirror.sql("select count(*) from orders").show()
            mirror.at("-1h").table("orders").show()

    A position is an LSN (`"16/B374D848"`, an `Lsn`, or its number), a time (a `datetime`, or a text such as
    `"2026-01-31 09:00"`, `"-5m"` or `"yesterday 09:00"`), a `Boundary`, `"latest"` or `"now"`. Times without a zone are
    in UTC.
    """

    def __init__(
        self,
        lake: Path,
        spark: SparkSession | Callable[[], SparkSession],
        source: Dsn | None = None,
        hold_s: float = HOLD_S,
    ) -> None:
        self._hold_s = require_hold(hold_s)
        self._opened = OpenLake(lake, spark, source)
        self._present = Present(source, self._opened.lake, self._opened.reader) if source is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the source, if there is one. DataFrames stay usable."""
        if self._present is not None:
            self._present.close()

    def __repr__(self) -> str:
        return f"<Mirror of {self._opened}>"

    def _repr_html_(self) -> str:
        """The latest position and the tables, for notebooks."""
        latest = self._opened.view().answerable
        committed = self._opened.committed(latest)
        return mirror_html(self._opened.lake, latest, committed.time if committed is not None else None, self.tables)

    @property
    def path(self) -> Path:
        """The directory of the lake."""
        return self._opened.lake.path

    @property
    def spark(self) -> SparkSession:
        """The Spark session of all DataFrames."""
        return self._opened.spark

    @property
    def tables(self) -> tuple[TableStatus, ...]:
        """The tables of the mirror: whether each can be read, its columns, and otherwise the reason and the remedy."""
        return tuple(tables_of(self._opened.lake))

    def at(
        self,
        when: Position = LATEST,
        *,
        tables: Iterable[str] | None = None,
        snapshot: str | Snapshot | None = None,
        lsn: str | Lsn | None = None,
        wait: Duration = LIMIT_S,
    ) -> Moment:
        """The mirror at a position: every table and query of the returned `Moment` is read there.

            with mirror.at("2026-01-31 09:00") as moment:
                moment.sql("select sum(total) from orders").show()

        Instead of a position, `snapshot` is what pg_current_snapshot() returned in some session, and `lsn` the
        pg_current_wal_insert_lsn() of the same statement: the moment is then exactly what that session saw.

        `tables` are the tables that will be read, by default all. While a transaction at the source may be altering a
        table, its definition is known only up to an earlier position: `"latest"` is the latest position at
        which these tables can be read, and `"now"` waits for these tables only.

        `wait` limits how long the method waits for `"now"`, or for a snapshot, to be received: seconds, or a text such
        as `"30s"`. `"latest"` never waits.
        """
        limit_s = seconds_of(wait)
        if isinstance(when, str):
            when = parse_position(when, datetime.now(UTC))
        if snapshot is not None or lsn is not None:
            if snapshot is None or lsn is None or when != LATEST:
                raise InvalidValue(
                    "snapshot and lsn must be given together, and without another position",
                    "Call `mirror.at(snapshot=…, lsn=…)`.",
                )
            self._require_stream()
            return self._at_snapshot(
                Snapshot.parse(snapshot) if isinstance(snapshot, str) else snapshot,
                Lsn.parse(lsn) if isinstance(lsn, str) else lsn,
                limit_s,
                tables,
            )
        if when == NOW:
            self._require_stream()
            return self._seen_by(self._now, limit_s, tables=tables)
        if when == LATEST:
            return self._moment(Boundary(self._latest(self._opened.view(), tables)))
        boundary = when if isinstance(when, Boundary) else Boundary(position_of(when, self._opened.view()))
        return self._moment(boundary)

    def seen_by(self, snapshot: Snapshot, lsn: Lsn, tables: Iterable[str], wait: Duration = LIMIT_S) -> Moment:
        """What another session sees that has just read its snapshot and the insert LSN in one statement.

        As `at` with both, but it waits for the log alone: a catalog snapshot that is taken now shows whether the tables
        are still defined as the lake has them, if the schema LSN is not as far yet. The caller must compare their
        columns with those that the session sees, and none may have a type that can be altered, such as an enum.
        """
        self._require_stream()
        until, reader = time.monotonic() + seconds_of(wait), self._opened.log()
        passed = pass_gate(reader, self._opened.lake.log, lsn, seconds_of(wait))
        return self._once_defined(reader.given(snapshot, passed.lsn), passed, snapshot, tuple(tables), until)

    def seen_on_standby(
        self, snapshot: Snapshot, replayed: Lsn, lsn: Lsn, tables: Iterable[str], wait: Duration = LIMIT_S
    ) -> Moment:
        """What a session on a standby sees, from the LSNs replayed before and after it took its snapshot."""
        self._require_stream()
        until, reader = time.monotonic() + seconds_of(wait), self._opened.log()
        passed = pass_gate(reader, self._opened.lake.log, _beyond(lsn), seconds_of(wait))
        boundary = _boundary_on_standby(reader, snapshot, replayed, lsn)
        return self._once_defined(boundary, passed, Snapshot(snapshot.xmin, snapshot.xmin), tuple(tables), until)

    def _once_defined(
        self, boundary: Boundary, passed: Passed, seen: Snapshot, tables: Sequence[str], until: float
    ) -> Moment:
        """Return the moment of a snapshot; `seen` is what it certainly sees.

        A catalog snapshot that is taken now shows the definitions, if the schema LSN has not reached the boundary.
        """
        if self._present is None:
            return self._when_known(boundary, passed, seen, tables, until)
        if self._known_upto(tables) >= boundary.lsn:
            return self._moment(boundary, passed=passed, snapshot=seen)
        while True:
            catalog = self._present.read_catalog()
            if (catalog.lsn if catalog.replayed is None else catalog.replayed) >= boundary.lsn:
                return self._moment(boundary, catalog, passed, seen)
            if time.monotonic() >= until:
                raise NotAnswerable(
                    f"the session that reads the catalog is at {catalog.replayed}, before {boundary.lsn}",
                    "Retry the command later.",
                )
            time.sleep(_PAUSE_S)

    def require_database(self, system_identifier: int, database_oid: int) -> None:
        """Refuse a session in another database than the mirrored one: a copy has tables with the same OIDs."""
        lake = self._opened.lake
        if (system_identifier, database_oid) != (lake.system_identifier, lake.database_oid):
            raise NotAnswerable(
                f"the session is not in the mirrored database {lake.database}", "Connect to that database."
            )

    def require_timeline(self, timeline: int) -> None:
        """Refuse the snapshot of a session on another timeline than the log's: its commits may be others."""
        mirror = read_mirror(self._opened.lake.log, Disk())
        if mirror is None or mirror.identity.timeline != timeline:
            raise NotAnswerable(
                f"the session is on timeline {timeline}, which the log does not follow yet", "Retry the command later."
            )

    def named_in(self, statement: str) -> Iterator[str]:
        """The tables that a query in Spark's SQL names, for `tables` of `at`."""
        names = names_at(self._opened.lake.tables().values(), self._opened.view().answerable)
        for schema, name in bind(statement, list(names)).tables.values():
            yield f"{quoted(schema)}.{quoted(name)}"

    def _known_upto(self, tables: Iterable[str] | None) -> Lsn:
        """Return the latest position at which these tables can be read, or all tables."""
        view = self._opened.view()
        return min([view.answerable, *view.cycle.behind.values()]) if tables is None else self._latest(view, tables)

    def _latest(self, view: LakeView, tables: Iterable[str] | None) -> Lsn:
        """Return the latest position at which these tables can be read, or all tables that are not behind."""
        if tables is None or not view.cycle.behind:
            return view.answerable
        oids = oids_of(tables, self._opened.lake.tables(), view.answerable)
        return min([view.answerable, *(view.cycle.schema_lsn_of(oid) for oid in oids)])

    def table(self, name: str, *, only: bool = False, text: str | Iterable[str] = ()) -> DataFrame:
        """A table at the latest position; see `Moment.table`."""
        return self.at(tables=(name,)).table(name, only=only, text=text)

    def sql(self, statement: str, *, text: str | Iterable[str] = ()) -> DataFrame:
        """The result of a query in Spark's SQL at the latest position; see `Moment.sql`."""
        return self.at(tables=self.named_in(statement)).sql(statement, text=text)

    def changes(
        self,
        table: str,
        from_: Position | None = None,
        to: Position = LATEST,
        *,
        only: bool = False,
        text: str | Iterable[str] = (),
    ) -> DataFrame:
        """The changes of a table committed after `from_`, up to and including `to`; see `Moment.changes`.

        mirror.changes("orders", "yesterday", "today").groupBy("_change_type").count().show()
        """
        return self.at(to, tables=(table,)).changes(table, from_, only=only, text=text)

    def diff(
        self,
        table: str,
        from_: Position,
        to: Position = LATEST,
        *,
        only: bool = False,
        text: str | Iterable[str] = (),
    ) -> DataFrame:
        """The net difference of a table between two positions; see `Moment.diff`.

        mirror.diff("orders", "-1h").show()
        """
        return self.at(to, tables=(table,)).diff(table, from_, only=only, text=text)

    def history(
        self,
        table: str,
        key: object,
        at: Position = LATEST,
        *,
        only: bool = False,
        text: str | Iterable[str] = (),
    ) -> DataFrame:
        """Every version of one row up to a position, oldest first; see `Moment.history`.

        mirror.history("orders", 17).show()
        """
        return self.at(at, tables=(table,)).history(table, key, only=only, text=text)

    def time_of(self, when: Position) -> Committed:
        """The last commit at or before a position: its LSN, time and transaction id.

        Commit times are not in the order of LSNs. `latest` of the result is the greatest commit time up to there: a
        read at that time includes everything that a read at the position includes.
        """
        view = self._opened.view()
        return time_of(when.lsn if isinstance(when, Boundary) else position_of(when, view), view)

    def _seen_by(
        self,
        read_catalog: Callable[[], CatalogSnapshot],
        limit_s: float = LIMIT_S,
        forget: Callable[[CatalogSnapshot], None] = lambda _: None,
        tables: Iterable[str] | None = None,
    ) -> Moment:
        """Return the moment of a catalog snapshot; take a new one while a temporary condition makes it unanswerable.

        Only conditions that affect these tables count. If one lasts longer than `limit_s`, the tables that it affects
        are refused, and all others can be read. `forget` is called with each catalog snapshot that is no longer needed.
        """
        reader, asked = self._opened.log(), _Asked(tables)
        until = time.monotonic() + limit_s
        taken: Moment | None = None
        while True:
            catalog = read_catalog()
            try:
                passed = pass_gate(reader, self._opened.lake.log, _needed(catalog), max(0.0, until - time.monotonic()))
            except NotAnswerable:
                if taken is None:
                    raise
                return taken
            try:
                moment = self._moment(_boundary(reader, catalog, passed), catalog, passed, _surely_seen(catalog))
            except NotAnswerable:  # it excludes a commit older than the retention, or is ambiguous on a standby
                if time.monotonic() >= until:
                    raise
                forget(catalog)
            else:
                if taken is not None and taken._catalog is not None:
                    taken.close()
                    forget(taken._catalog)
                if not asked.concerns(moment._unclear, moment) or time.monotonic() >= until:
                    return moment
                taken = moment
            time.sleep(_PAUSE_S)

    def _now(self) -> CatalogSnapshot:
        if self._present is None:
            raise InvalidValue(
                "reading at `now` requires the source",
                "Use `--source` or the variable TIDEMARK_SOURCE; in Python `tidemark.open(lake, source=…)`.",
            )
        return self._present.read_catalog()

    def _at_snapshot(self, snapshot: Snapshot, lsn: Lsn, limit_s: float, tables: Iterable[str] | None) -> Moment:
        """Return what another session saw; wait until the schema LSN covers it, so that table definitions are known."""
        try:
            wanted = tuple(tables) if tables is not None else None
        except InvalidValue:  # perhaps a table that was created or renamed just before the snapshot
            wanted = None
        reader = self._opened.log()
        until = time.monotonic() + limit_s
        passed = pass_gate(reader, self._opened.lake.log, lsn, limit_s)
        return self._when_known(reader.given(snapshot, passed.lsn), passed, snapshot, wanted, until)

    def _when_known(
        self, boundary: Boundary, passed: Passed, seen: Snapshot, tables: Sequence[str] | None, until: float
    ) -> Moment:
        """Return the moment of a snapshot when the schema LSN has reached its boundary, or at the latest at `until`."""
        while self._known_upto(tables) < boundary.lsn and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        return self._moment(boundary, passed=passed, snapshot=seen)

    def _moment(
        self,
        boundary: Boundary,
        catalog: CatalogSnapshot | None = None,
        passed: Passed | None = None,
        snapshot: Snapshot | None = None,
    ) -> Moment:
        # The view is before the lease: watermarks only advance, and the retention is checked under the lease.
        view = self._opened.view()
        # A definition above the schema LSN may later be recorded as of the schema LSN: nothing above that may expire.
        certain = (view.cycle.schema_lsn, *view.cycle.behind.values()) if catalog is not None else ()
        needed = min([boundary.floor, *certain])
        lease = Lease(self._opened.lake.path, needed, self._hold_s)
        try:
            view.require(boundary, defined=catalog is not None)
            return Moment(self._opened, self.at, boundary, lease, view, catalog, passed, snapshot)
        except BaseException:
            lease.close()
            raise

    def _require_stream(self) -> None:
        """Refuse a read that requires the stream if the mirror is polled."""
        if (poll := self._opened.last_poll) is not None:
            raise NotAnswerable(
                f"the mirror is polled and cannot be read at `now` or at a snapshot; it has {poll}",
                "Use `latest`, an LSN or a time; `tidemark sync` polls the source again.",
            )


class _Asked:
    """The tables that will be read, None for all. They are found when it matters: a query must be parsed for that."""

    def __init__(self, tables: Iterable[str] | None) -> None:
        self._tables = tables
        self._names: tuple[str, ...] | None = None

    def concerns(self, oids: frozenset[int], moment: Moment) -> bool:
        """Whether one of these tables will be read."""
        if not oids or self._tables is None:
            return bool(oids)
        try:
            if self._names is None:
                self._names = tuple(self._tables)
            return not oids.isdisjoint(moment._oids(self._names))
        except InvalidValue:  # perhaps a table that was created or renamed just now
            self._tables = None
            return True


def _needed(catalog: CatalogSnapshot) -> Lsn:
    """Return the LSN that the log must reach to resolve a snapshot; on a standby, beyond the record being replayed."""
    return catalog.lsn if catalog.replayed is None else _beyond(catalog.lsn)


def _beyond(replayed: Lsn) -> Lsn:
    """Return an LSN after the record that a standby is replaying: its commit may be visible already."""
    return Lsn(replayed.value + _PAGE_HEADER_BYTES + 1)


def _surely_seen(catalog: CatalogSnapshot) -> Snapshot:
    """Return what a session certainly sees: the snapshot of a standby does not list the running transactions."""
    return catalog.snapshot if catalog.replayed is None else Snapshot(catalog.snapshot.xmin, catalog.snapshot.xmin)


def _boundary(reader: LogReader, catalog: CatalogSnapshot, passed: Passed) -> Boundary:
    if catalog.replayed is None:
        return reader.boundary(catalog.snapshot, passed.lsn)
    return _boundary_on_standby(reader, catalog.snapshot, catalog.replayed, catalog.lsn)


def _boundary_on_standby(reader: LogReader, snapshot: Snapshot, before: Lsn, after: Lsn) -> Boundary:
    found = reader.boundary_on_standby(snapshot, before, after)
    if found is None:
        raise NotAnswerable(
            f"the snapshot {snapshot} of the standby does not determine which commits it includes at {after}",
            "Retry the command, or connect to the primary.",
        )
    return found


def open_mirror(
    lake: str | Path,
    spark: SparkSession | None = None,
    options: SparkOptions | None = None,
    source: str | Dsn | None = None,
    hold_s: float = HOLD_S,
) -> Mirror:
    """Open a lake for reading.

        with tidemark.open("/data/lake") as mirror:
            mirror.sql("select * from orders").show()

    `spark` is the Spark session to use; by default the active one, or a new one with these `options`. `source` is the
    connection string of the mirrored database, for reads at `"now"`. For `hold_s` seconds `tidemark expire` keeps the
    files that a moment reads; after that the moment is refused.
    """
    dsn = Dsn(source) if isinstance(source, str) else source
    path = local_path(lake)
    Lake.open(path)  # fails before Spark is started
    return Mirror(path, spark if spark is not None else spark_session(options), dsn, hold_s)
