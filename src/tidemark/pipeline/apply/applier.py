"""The applier of the stream: reads catalog snapshots, applies the received log to a sink and records its progress.

It needs the source only for catalog snapshots. While the source cannot be reached it continues to apply, but changes
above the schema LSN are not visible to readers.

A cycle is large, because large cycles are cheaper, but not larger than can be applied in time: changes become visible
when their cycle ends. So a slow machine, or tables with many columns, get smaller cycles.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import (
    Blocker,
    LakeInUse,
    LogBehind,
    LogTrimmed,
    ReceiveFailed,
    Retry,
    SourceError,
    policy_of,
)
from tidemark.lake.registers import Cycle
from tidemark.lake.shared import shared_folder
from tidemark.log.disk import Disk
from tidemark.log.mapped import descriptions
from tidemark.log.mirror import read_mirror
from tidemark.log.reader import LogReader
from tidemark.log.slices import plan
from tidemark.logs import fields
from tidemark.pgoutput.rows import RELATIONS, joined_rows
from tidemark.pipeline.apply.cycle import Applied, run_cycle
from tidemark.pipeline.apply.options import ApplyOptions
from tidemark.pipeline.sinks.sink import Forgetting, Sink, TableCopy
from tidemark.postgres.blockers import ending, named, older_than
from tidemark.postgres.catalog_reading import read_catalog_snapshot
from tidemark.postgres.session import Session
from tidemark.receive.client import ReceiveClient
from tidemark.schema.reasons import open_transactions
from tidemark.schema.stream_tracker import StreamTracker
from tidemark.schema.tracker import SchemaLsns
from tidemark.spark import require_pinned
from tidemark.storage.fail_points import FailPoint, fail_point

BLOCKING_S = 2.0
_PATIENCE = 20
_LOGGER = logging.getLogger("tidemark.pipeline")


class Pace:
    """The size of the next cycle in bytes, computed from the duration of the previous ones."""

    def __init__(self, most_bytes: int, least_bytes: int, limit_s: float) -> None:
        self._most, self._least, self._limit_s = most_bytes, min(least_bytes, most_bytes), limit_s
        self.size_bytes = most_bytes

    def took(self, size_bytes: int, seconds: float) -> None:
        """Record the duration of a cycle. One that is small because the log ended does not increase the next size."""
        fits = size_bytes * self._limit_s / max(seconds, 1e-9)
        if seconds > self._limit_s or size_bytes >= self.size_bytes:
            self.size_bytes = int(min(self._most, max(self._least, min(fits, 2 * self.size_bytes))))


class StreamApplier:
    """Applies a log to a sink, which it closes at the end.

    `uncopied` are the tables that cannot be copied at present; None if this process copies no tables. After a restart
    of the mirror the schema LSN stays in place, and readers get the state before the restart, until every other table
    has begun again.
    """

    def __init__(self, options: ApplyOptions, spark: SparkSession, sink: Sink) -> None:
        self._options, self._spark, self.sink = options, spark, sink
        self._session: Session | None = None
        with ExitStack() as held:
            held.callback(sink.close)
            require_pinned(spark)
            self.cycle = sink.cycle
            sink.require_reach(spark, shared_folder(options.log))
            lsns = SchemaLsns(self.cycle.schema_lsn, self.cycle.behind)
            self.tables = StreamTracker(
                sink.events(), sink.record_events, options.names.publication, lsns, self.cycle.applied_lsn
            )
            self._forgetting = Forgetting(sink, self.tables)
            self._forgetting.keep_up()
            sink.publish(at_once=True)
            self.reader = LogReader(options.log)
            self._recall()
            self._pace = Pace(options.cycle_bytes, options.slice_bytes, options.cycle_s)
            self._next_catalog_read = self._recorded_at = 0.0
            self._blocking: dict[Blocker, float] = {}
            self._blockers = ""  # as last logged
            self._source_times: list[tuple[Lsn, datetime]] = []
            self.source_position: tuple[Lsn, datetime] | None = None  # as of the last catalog snapshot
            self._client: ReceiveClient | None = None
            self.uncopied: frozenset[int] | None = None
            held.pop_all()

    def step(self) -> Applied | None:
        """Read a catalog snapshot if it is time, apply what was received, record progress; return what was applied."""
        if time.monotonic() >= self._next_catalog_read:
            self.read_catalog()
        if self.tables.wanted_lsn > self.reader.received:
            self._wait_for_log(self.tables.wanted_lsn, 0.5)
        applied = self.apply()
        if applied is None and time.monotonic() - self._recorded_at >= self._options.idle_interval_s:
            self.record_progress()
        self._forgetting.keep_up()
        self.sink.publish()
        return applied

    def read_catalog(self) -> bool:
        """Read a catalog snapshot; False if the source cannot be read now, which is retried later.

        However large the catalog is, at most a twentieth of the time is spent on it.
        """
        begin = time.monotonic()
        try:
            if self._session is None:
                self._session = Session.open(self._options.source, "apply")
            catalog = read_catalog_snapshot(
                self._session, self._options.names, self.tables.watched, self.tables.to_check_for_rows
            )
            took_s = time.monotonic() - begin
            self.tables.observe(catalog)
            self._name_blockers(self._session)
        except SourceError as error:
            if policy_of(error).retry is Retry.NEVER:
                raise
            self._disconnect()
            _LOGGER.warning("cannot read the source's catalog: %s", " ".join(error.message.split()))
            self._next_catalog_read = time.monotonic() + self._options.catalog_interval_s
            return False
        self._next_catalog_read = time.monotonic() + max(self._options.catalog_interval_s, _PATIENCE * took_s)
        self.source_position = catalog.lsn, catalog.time
        if self._source_times and self._source_times[-1][0] == catalog.lsn:
            self._source_times.pop()  # a source without WAL would add an entry with every catalog snapshot
        self._source_times.append(self.source_position)
        fail_point(FailPoint.CATALOG_READ)
        return True

    def apply(self) -> Applied | None:
        """Apply a cycle of what was received; None if there was no transaction to apply."""
        self.reader.refresh()
        limit = self.tables.pending_lsn
        upto = min(self.reader.received, limit) if limit is not None else self.reader.received
        applied = None
        if upto > self.cycle.applied_lsn:
            options = self._options
            begin = time.monotonic()
            planned = plan(self.reader, self.cycle.applied_lsn, upto, self._pace.size_bytes, options.slice_bytes)
            relations = descriptions(planned.relations, options.log)
            if any(self.tables.fingerprint_of(each) is None for each in relations) and not self.read_catalog():
                return None  # a table was altered, and its definition cannot be read now
            self.tables.describe(descriptions(planned.sent, options.log), planned.last)
            if planned.transactions:
                applied = run_cycle(self._spark, self.sink, options.log, planned, relations, self.tables)
                self._record_cycle(planned.upto, applied)
                self._pace.took(planned.size_bytes, time.monotonic() - begin)
            else:
                self.cycle = replace(self.cycle, applied_lsn=upto)
        self._settle()
        self._begin_truncated()
        return applied

    def _settle(self) -> None:
        """Record the events that are certain. Nothing expires while it is recorded that tables can be read."""
        changed_at = {oid: self.sink.applied_lsn(self.tables.path(oid)) for oid in self.tables.pending}
        with ExitStack() as held:
            retained = Lsn.ZERO
            if self.tables.is_beginning:
                held.enter_context(closing(self.sink.hold(Lsn.ZERO)))
                retained = self.sink.retained_lsn()
            self.tables.settle(self.cycle.applied_lsn, changed_at, self.reader, retained)

    def _begin_truncated(self) -> None:
        """Record that tables which were truncated while they were copied can be read from the TRUNCATE on."""
        for oid, lsn in self.tables.truncated().items():
            if lsn > self.cycle.applied_lsn:
                continue
            with closing(self.sink.hold(lsn.before())):
                if self.sink.retained_lsn() >= lsn:
                    continue
                self.tables.begin_truncated(oid, lsn)
                table = self.tables.history(oid).fingerprint
                name = table.qualified
                message = "table %s: readable from %s on, where it was truncated"
                _LOGGER.info(message, name, lsn, extra=fields(table=name, lsn=lsn))

    def take(self, copies: Iterable[TableCopy]) -> Iterator[tuple[TableCopy, bool]]:
        """Add copies to the sink; yield each copy that could be checked, and whether it was accepted.

        A copy is accepted if the table still has the copied definition, everything up to the copy's position is
        applied, and no change above its floor has expired.
        """
        ready = [each for each in copies if self.cycle.applied_lsn >= each.base.lsn]
        if ready and self.read_catalog():
            yield from ((each, taken) for each in ready if (taken := self._take(each)) is not None)

    def _take(self, copy: TableCopy) -> bool | None:
        """Add one copy, after a catalog snapshot; None if it has to be added later."""
        oid, base = copy.fingerprint.oid, copy.base
        if not self.tables.accepts(copy.fingerprint, base) or self.sink.retained_lsn() > base.floor:
            return False
        try:
            self.sink.adopt(self.tables.path(oid), copy)
        except LakeInUse:
            return None
        self.tables.add_copy(copy.fingerprint, base, copy.snapshot)
        return True

    def record_progress(self) -> None:
        """Record the applied LSN and the schema LSN, if they have changed."""
        self._record_cycle(self.cycle.applied_lsn)

    def catch_up(self, upto: Lsn) -> None:
        """Apply until everything up to a position can be read, with the definitions of all tables."""
        while self.cycle.complete < upto:
            self.read_catalog()
            self._wait_for_log(upto, 10)
            while self.apply() is not None and self.cycle.applied_lsn < upto:
                pass
            self.record_progress()
        self.sink.publish(at_once=True)

    def close(self) -> None:
        """Close the connections and the sink."""
        self._disconnect()
        self._leave_receiver()
        self.sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is None:
                self.sink.publish(at_once=True)
        finally:
            self.close()

    def _recall(self) -> None:
        """Read the descriptions above the schema LSNs that an earlier process applied, if the log still has them."""
        mirror = read_mirror(self._options.log, Disk())
        if mirror is None or mirror.start is None:
            return
        least = max(mirror.start, self.sink.retained_lsn())
        for since in dict.fromkeys((self.tables.lsns.complete, self.tables.lsns.mirror)):
            if since >= least and self._recalled(since):
                return

    def _recalled(self, since: Lsn) -> bool:
        """Read the applied descriptions above an LSN; False if the log no longer has them."""
        applied_lsn = self.cycle.applied_lsn
        try:
            parts = [part.relations for part in self.reader.transactions(since, applied_lsn)]
            relations = descriptions(joined_rows(parts, RELATIONS), self._options.log)
        except (LogBehind, LogTrimmed) as error:
            _LOGGER.warning("the log between %s and %s cannot be read: %s", since, applied_lsn, error.message)
            return False
        self.tables.describe_applied(relations, since, applied_lsn)
        return True

    def _name_blockers(self, session: Session) -> None:
        """Report the transactions that have kept tables from beginning for `BLOCKING_S` or longer."""
        unripe, now = self.tables.unripe(), time.monotonic()
        found = older_than(session, max(unripe.values())) if unripe else ()
        self._blocking = {each: self._blocking.get(each, now) for each in found}
        lasting = [each for each, since in self._blocking.items() if now - since >= BLOCKING_S]
        if lasting:
            self.tables.wait(unripe, open_transactions({each: ending(each) for each in lasting}))
        blockers = named(lasting) if lasting else ""
        if blockers and blockers != self._blockers:
            _LOGGER.warning("tables cannot be copied until these transactions end: %s", blockers)
        self._blockers = blockers

    def _wait_for_log(self, upto: Lsn, limit_s: float) -> None:
        """Wait until the log reaches a position, if a receiver is running."""
        try:
            if self._client is None:
                self._client = ReceiveClient(self._options.log)
            self._client.wait(upto, limit_s)
        except ReceiveFailed:
            self._leave_receiver()
        except LogBehind:
            _LOGGER.info("waiting for the receiver to reach %s", upto, extra=fields(lsn=upto))

    def _record_cycle(self, applied_lsn: Lsn, applied: Applied | None = None) -> None:
        waited_for = self.tables.restarting - self.uncopied if self.uncopied is not None else None
        last = self.sink.cycle
        known = last.schema_lsn if waited_for else self.tables.lsns.mirror
        behind = {oid: lsn for oid, lsn in self.tables.lsns.behind.items() if lsn < known}
        if (applied_lsn, known, behind) == (last.applied_lsn, last.schema_lsn, last.behind):
            return
        passed = [moment for lsn, moment in self._source_times if lsn <= known]
        self._source_times = [each for each in self._source_times if each[0] >= known]
        self.cycle = Cycle(
            applied_lsn,
            known,
            passed[-1] if passed else None,
            applied.changes if applied else 0,
            applied.tables if applied else 0,
            behind=behind,
        )
        self.sink.record(self.cycle)
        self._recorded_at = time.monotonic()
        self._report_applied(applied_lsn)

    def _report_applied(self, applied_lsn: Lsn) -> None:
        """Report to the receiver, if one is running, which log segments are needed, so that it removes the others."""
        try:
            if self._client is None:
                self._client = ReceiveClient(self._options.log)
            self._client.applied(applied_lsn, self.sink.log_needed_from(applied_lsn))
        except ReceiveFailed:
            self._leave_receiver()

    def _leave_receiver(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
