"""The poller: each cycle takes a snapshot of the source and writes all changes since the last one to a sink.

Every step can be repeated. What a cycle writes belongs to no table until it is committed to its tables, and changes
above the last recorded cycle are removed from the tables before the next one: the cycle, with its snapshot, is recorded
last. A crash at any point therefore leaves a mirror that reads as before the cycle or as after it, and all tables of a
cycle become readable at once.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import LakeInUse, ObjectMissing, SourceBusy, TableChanged
from tidemark.lake.registers import Cycle, Seen
from tidemark.lake.requests import Requests, Restart, read_restart
from tidemark.logs import fields
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.poll.cycle import PollResult, Setting, Task, run_cycle
from tidemark.pipeline.poll.following import NeedsWhole
from tidemark.pipeline.poll.horizon import Horizon
from tidemark.pipeline.poll.mirrored import Kept
from tidemark.pipeline.poll.options import PollOptions
from tidemark.pipeline.poll.snapshot_session import PollSnapshot, open_poll_snapshot
from tidemark.pipeline.sinks.sink import STAGING, Forgetting, PolledSink, TableCopy
from tidemark.reads.digests import RowDigest
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent
from tidemark.schema.poll_tracker import PollPlan, PollPosition, PollTracker
from tidemark.schema.reasons import Reason, undecodable
from tidemark.spark import require_pinned
from tidemark.storage.fail_points import FailPoint, fail_point

IDLE_RECORD_S = 60.0
UNREADABLE_S = 3600.0  # until a table with a value that cannot be decoded is read again; a resync does not wait
_ATTEMPTS = 5
_LOGGER = logging.getLogger("tidemark.pipeline")


@dataclass(frozen=True, slots=True)
class Polled:
    """The result of a cycle."""

    upto: Lsn
    tables: int
    changes: int
    copied: int
    reconciled: bool


class Poller:
    """Polls a source and writes to a sink, which it closes at the end."""

    def __init__(
        self,
        options: PollOptions,
        spark: SparkSession,
        sink: PolledSink,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options, self._sink = options, sink
        with ExitStack() as held:
            held.callback(sink.close)
            require_pinned(spark)
            sink.require_reach(spark)
            self.tables = PollTracker(sink.events(), sink.record_events)
            self._forgetting = Forgetting(sink, self.tables)
            self._forgetting.keep_up()
            sink.publish(at_once=True)
            self.progress = CopyProgress()
            self._setting = Setting(options, spark, sink, self.progress, stopping)
            self._requests = Requests(options.lake)
            self.seen = sink.seen()
            self._last: PollSnapshot | None = None
            self._had: dict[int, Kept | RowDigest] = {}
            self._whole: dict[int | None, str] = {}
            self._unreadable: dict[int, tuple[Reason, float]] = {}
            behind = self.seen is not None and self.seen.reconciled < self.cycle.applied_lsn
            self._unreconciled = 1 if behind else 0
            self._asked: list[int] = []
            self._recorded_at = 0.0
            held.pop_all()

    @property
    def cycle(self) -> Cycle:
        """The last recorded cycle, with the watermarks."""
        return self._sink.cycle

    def step(self, shown: Callable[[PollSnapshot, Lsn], None] = lambda _, __: None) -> Polled | None:
        """Run one cycle; return None if nothing became visible since the last one.

        `shown` is called with the source snapshot that the mirror shows now and its position in the mirror, while the
        snapshot is still open.
        """
        self._forgetting.keep_up()
        self._asked += self._requests.new()
        self._whole |= dict.fromkeys(self._asked, "resync requested")
        for oid in self._asked:
            self._unreadable.pop(oid, None)
        with open_poll_snapshot(self._options.source) as seen:
            self._require_own(seen)
            if self._is_idle(seen):
                self._record_idle(seen)
                shown(seen, self.cycle.applied_lsn)
                return None
            polled = self._polled(seen)
            shown(seen, polled.upto)
            return polled

    def hand_over(self, seen: PollSnapshot, published: Mapping[int, Fingerprint]) -> Polled:
        """Run the last poll, in a snapshot at an exact LSN; the stream has every change above that LSN.

        `published` contains the tables as they were published before the snapshot was taken. A table that cannot be
        followed up to the snapshot is copied. From then on the lake follows the stream.
        """
        self._require_own(seen)
        return self._polled(seen, published)

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _require_own(self, seen: PollSnapshot) -> None:
        """Raise an error for another source, and for a standby that lags, which is retried.

        All tables are copied if `xmin` does not show what changed: after logical decoding, whose end is recorded as a
        restart, a restore of the source to an earlier state, a timeline change, or 2^32 transactions since the last
        poll.
        """
        identity, last = seen.identity, self.seen
        self._sink.require_own(identity)
        restart = read_restart(self._options.lake)
        if restart is not None:
            self._whole[None] = "the mirror followed the stream before"
        if last is None:
            if self.cycle.applied_lsn > Lsn.ZERO and (restart is None or restart.after is None):
                raise LakeInUse(f"{self._options.lake} follows the stream", "Retry the command.")
            return
        why = seen.unfollowable(last)
        if why is not None:
            self._whole[None] = why

    def _is_idle(self, seen: PollSnapshot) -> bool:
        if self._last is None or self._whole or not seen.is_same(self._last):
            return False
        return self._unreconciled == 0 or self._unreconciled + 1 < self._options.reconcile_every

    def _record_idle(self, seen: PollSnapshot) -> None:
        """Record every `IDLE_RECORD_S` seconds that nothing has changed up to the source's time.

        A standby does not prove that: it may not have replayed all commits of its primary up to its own time.
        """
        now = time.monotonic()
        if not seen.on_standby and self.seen is not None and now - self._recorded_at >= IDLE_RECORD_S:
            applied_lsn = self.cycle.applied_lsn
            self._sink.record(Cycle(applied_lsn, applied_lsn, seen.time, seen=self.seen))
            self._recorded_at = now

    def _polled(self, seen: PollSnapshot, published: Mapping[int, Fingerprint] | None = None) -> Polled:
        """Run a cycle; it is the last one if `published` is given."""
        had, self._had = self._had, {}
        try:
            polled = self._cycled(seen, had, published)
        except NeedsWhole as error:
            self._whole[error.oid] = error.why
            hint = "Retry the command."
            raise TableChanged(f"a table must be copied again by the next poll: {error.why}", hint) from error
        except ObjectMissing:
            seen.require_held()
            raise
        if None in self._whole:
            Restart.remove(self._options.lake)  # every table was copied, which is all that a restart does
        self._last, self._whole = seen, {}
        while self._asked:
            self._requests.fulfilled(self._asked.pop())
        return polled

    def _cycled(
        self, seen: PollSnapshot, had: Mapping[int, Kept | RowDigest], published: Mapping[int, Fingerprint] | None
    ) -> Polled:
        last = published is not None
        shutil.rmtree(self._sink.shared.path / STAGING, ignore_errors=True)
        applied_lsn = self.cycle.applied_lsn
        highest = self._sink.discard_above(list(self.tables.histories.values()), applied_lsn)
        here = PollPosition(
            Lsn(max(seen.lsn.value, applied_lsn.value + 1, highest.value + 1)), seen.snapshot, applied_lsn
        )
        if last and here.lsn != seen.lsn:
            raise SourceBusy(f"the source is at {seen.lsn}, and the mirror is at {highest}", "Retry the command later.")
        catalog = seen.catalog()
        plan = self.tables.plan(catalog, self._options.selection, here, self._whole, self._left_out())
        fail_point(FailPoint.CATALOG_READ)
        for message in plan.messages:
            _LOGGER.info("%s", message)
        for history, why in plan.copied.values():
            name = history.fingerprint.qualified
            _LOGGER.info("table %s: copying all rows: %s", name, why, extra=fields(table=name, reason=why))
        reconcile = last or not plan.followed or self._unreconciled + 1 >= self._options.reconcile_every
        horizon = Horizon.between(self.seen.snapshot, seen.snapshot) if self.seen is not None else None
        altered = {event.fingerprint.oid for event in plan.events}
        had = {oid: each for oid, each in had.items() if oid not in altered}
        fail_point(FailPoint.PLANNED)
        found = run_cycle(self._setting, Task(seen, here, plan, applied_lsn, horizon, had, reconcile))
        self._leave_out(plan, found, here)
        seen.wait_until_durable()
        fail_point(FailPoint.WRITTEN)
        self._commit(found, here)
        fail_point(FailPoint.ALL_COMMITTED)
        names, more = self._options.names, list[TableEvent]()
        if published is not None:
            more = self.tables.handed_over(plan, catalog, names.all_publications, published, here)
        self._record_events(here, plan, found, more)
        return self._recorded(seen, here, plan, found, reconcile=reconcile, last=last)

    def _left_out(self) -> dict[int, Reason]:
        """The tables that were found unreadable less than `UNREADABLE_S` seconds ago, with the reason."""
        now = time.monotonic()
        self._unreadable = {oid: each for oid, each in self._unreadable.items() if each[1] > now}
        return {oid: why for oid, (why, _) in self._unreadable.items()}

    def _leave_out(self, plan: PollPlan, found: PollResult, here: PollPosition) -> None:
        """Remove unreadable tables from the plan, and skip them for `UNREADABLE_S` seconds."""
        planned = {oid: each[0].fingerprint for oid, each in (*plan.copied.items(), *plan.followed.items())}
        reasons = {oid: undecodable(planned[oid], error.message) for oid, error in found.unreadable.items()}
        self._unreadable |= {oid: (why, time.monotonic() + UNREADABLE_S) for oid, why in reasons.items()}
        earlier = len(plan.messages)
        self.tables.leave_out(plan, reasons, here)
        for message in plan.messages[earlier:]:
            _LOGGER.warning("%s", message)

    def _commit(self, found: PollResult, here: PollPosition) -> None:
        """Commit changes and copies to their tables; readers ignore them until the cycle is recorded."""
        self._sink.commit({self.tables.path(oid): each.written for oid, each in found.written.items()}, here.lsn)
        for copy in found.copies:
            self._adopt(copy, here)

    def _adopt(self, copy: TableCopy, here: PollPosition) -> None:
        path = self.tables.copied(copy.fingerprint, here).path
        for attempt in range(_ATTEMPTS):
            try:
                return self._sink.adopt(path, copy)
            except LakeInUse:
                if attempt + 1 == _ATTEMPTS:
                    raise
        return None

    def _record_events(self, here: PollPosition, plan: PollPlan, found: PollResult, more: Sequence[TableEvent]) -> None:
        events = [*plan.events, *(self.tables.copied(each.fingerprint, here) for each in found.copies), *more]
        filenodes = {oid: shown.filenode for oid, (_, shown) in plan.followed.items()}
        filenodes |= {each.fingerprint.oid: each.fingerprint.filenode for each in found.copies}
        self.tables.record(events, filenodes)

    def _recorded(
        self, seen: PollSnapshot, here: PollPosition, plan: PollPlan, found: PollResult, *, reconcile: bool, last: bool
    ) -> Polled:
        changes = sum(written.rows for written in found.written.values())
        before = self.seen.reconciled if self.seen is not None else Lsn.ZERO
        recorded = Seen(seen.snapshot, seen.lsn, seen.identity.timeline, here.lsn if reconcile else before)
        observed = None if last else recorded
        cycle = Cycle(here.lsn, here.lsn, seen.time, changes, len(found.written), observed)
        self._sink.record(cycle)
        self._sink.publish(at_once=True)
        self.seen, self._had, self._recorded_at = recorded, found.has, time.monotonic()
        self._unreconciled = 0 if reconcile else self._unreconciled + 1
        return Polled(here.lsn, len(plan.followed), changes, len(found.copies), reconcile)
