"""The poller: each cycle takes a snapshot of the source and writes all changes since the last one to the lake.

Every step can be repeated. The files of a cycle belong to no table until they are committed to their tables, and
changes above the last recorded cycle are removed from the tables before the next one: the row in `_cycles`, which
contains the snapshot of the cycle, is written last. A crash at any point therefore leaves a lake that reads as before
the cycle or as after it, and all tables of a cycle become readable at once.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from tidemark.clock import Lsn
from tidemark.errors import LakeInUse, LakeMissing, ObjectMissing, SourceBusy, TableChanged
from tidemark.lake.catalog import CatalogUpdates
from tidemark.lake.changes import read_changes
from tidemark.lake.commits import remove_files
from tidemark.lake.lake import Lake
from tidemark.lake.lock import WRITING, LakeLock
from tidemark.lake.paths import CHANGES
from tidemark.lake.registers import Cycle, Cycles, Seen, Tables, read_events, read_seen
from tidemark.lake.requests import Requests
from tidemark.lake.shared import shared_folder
from tidemark.lake.versions import VERSIONS, Generation, VersionTable
from tidemark.logs import fields
from tidemark.pipeline.apply.cycle import COMMITTERS, ChangeTables
from tidemark.pipeline.apply.job import Written, require_reach
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.pipeline.copy.sources import STAGING
from tidemark.pipeline.poll.cycle import PollResult, Setting, Task, run_cycle
from tidemark.pipeline.poll.following import NeedsWhole
from tidemark.pipeline.poll.horizon import Horizon
from tidemark.pipeline.poll.mirrored import Kept
from tidemark.pipeline.poll.options import LOG, PollOptions
from tidemark.pipeline.poll.snapshot_session import PollSnapshot, open_poll_snapshot
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
    """Owns the lake's write lock from its creation until `close`."""

    def __init__(self, options: PollOptions, spark: SparkSession, stopping: Callable[[], bool] = lambda: False) -> None:
        require_pinned(spark)
        self._options = options
        self.lake = self._made()
        with ExitStack() as taken:  # a constructor that fails releases the lock
            self._lock = taken.enter_context(LakeLock(options.lake, WRITING))
            fail_point(FailPoint.LOCKED)
            require_reach(spark, shared_folder(options.lake))
            self._cycles = Cycles(options.lake)
            register = Tables(options.lake)
            self.tables = PollTracker(read_events(options.lake), register.append)
            self._catalog = CatalogUpdates(options.lake, register)
            self._catalog.keep_up(self._cycles.last, at_once=True)
            self.progress = CopyProgress()
            self._changes = ChangeTables(options.lake)
            self._setting = Setting(options, spark, self.lake, self._changes, self.progress, stopping)
            self._requests = Requests(options.lake)
            self.seen = read_seen(options.lake)
            self._last: PollSnapshot | None = None
            self._had: dict[int, Kept | RowDigest] = {}
            self._whole: dict[int | None, str] = {}
            self._unreadable: dict[int, tuple[Reason, float]] = {}
            behind = self.seen is not None and self.seen.reconciled < self.cycle.applied_lsn
            self._unreconciled = 1 if behind else 0
            self._asked: list[int] = []
            self._recorded_at = 0.0
            taken.pop_all()

    @property
    def cycle(self) -> Cycle:
        """The last recorded cycle, with the lake's watermarks."""
        return self._cycles.last

    def step(self, shown: Callable[[PollSnapshot, Lsn], None] = lambda _, __: None) -> Polled | None:
        """Run one cycle; return None if nothing became visible since the last one.

        `shown` is called with the source snapshot that the mirror shows now and its position in the mirror, while the
        snapshot is still open.
        """
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
        """Release the lake's write lock."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()

    def _made(self) -> Lake:
        """Open the lake; the first run creates it."""
        options = self._options
        try:
            return Lake.open(options.lake)
        except LakeMissing:
            with open_poll_snapshot(options.source) as seen:
                identity = seen.identity
                lake = Lake(
                    options.lake,
                    options.names.mirror,
                    identity.system_identifier,
                    identity.database_oid,
                    identity.database,
                    seen.version_num,
                    options.lake / LOG,
                )
            lake.create()
            return lake

    def _require_own(self, seen: PollSnapshot) -> None:
        """Raise an error for another source, and for a standby that lags, which is retried.

        All tables are copied if `xmin` does not show what changed: after logical decoding, a restore of the source to
        an earlier state, a timeline change, or 2^32 transactions since the last poll.
        """
        identity, last = seen.identity, self.seen
        self.lake.require_own(identity)
        if last is None:
            if self.cycle.applied_lsn > Lsn.ZERO:
                self._whole[None] = "the mirror used logical decoding before"
            return
        if seen.lsn < last.lsn or seen.snapshot.xmax < last.snapshot.xmax:
            if seen.on_standby:
                raise SourceBusy(
                    f"the standby has replayed WAL up to {seen.lsn}, and the last poll was at {last.lsn}",
                    "Retry the command when the standby has caught up.",
                )
            self._whole[None] = "the source was restored to an earlier state"
        elif identity.timeline != last.timeline:
            self._whole[None] = f"the timeline of the source changed from {last.timeline} to {identity.timeline}"
        elif Horizon.between(last.snapshot, seen.snapshot) is None:
            self._whole[None] = "too many transactions since the last poll"

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
            self._cycles.record(Cycle(applied_lsn, applied_lsn, seen.time, seen=self.seen))
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
        self._last, self._whole = seen, {}
        while self._asked:
            self._requests.fulfilled(self._asked.pop())
        return polled

    def _cycled(
        self, seen: PollSnapshot, had: Mapping[int, Kept | RowDigest], published: Mapping[int, Fingerprint] | None
    ) -> Polled:
        last = published is not None
        shutil.rmtree(self._options.lake / STAGING, ignore_errors=True)
        applied_lsn = self.cycle.applied_lsn
        highest = self._take_away_above(applied_lsn)
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
            name = f"{history.fingerprint.schema}.{history.fingerprint.name}"
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
        """Commit changes and generations to their tables; readers ignore them until the cycle is recorded."""
        by_table = [(self.tables.path(oid), written.files) for oid, written in found.written.items()]
        with ThreadPoolExecutor(COMMITTERS) as pool:
            list(pool.map(lambda item: self._append(item[0], item[1], here.lsn), by_table))
        for generation in found.generations:
            self._begin(generation, here)

    def _append(self, path: str, written: Sequence[Written], lsn: Lsn) -> None:
        table = self._changes.find(path) or self._changes.create(path, written)
        table.require_columns([column for each in written for column in each.columns])
        table.append([each.file for each in written], lsn)
        fail_point(FailPoint.TABLE_COMMITTED)

    def _begin(self, generation: Generation, here: PollPosition) -> None:
        folder = self._options.lake / self.tables.copied(generation.fingerprint, here).path / VERSIONS
        for attempt in range(_ATTEMPTS):
            table = VersionTable.create(folder, generation.columns)
            try:
                table.rewrite(generation.files, generation.columns, here.lsn, here.lsn, anew=True)
            except LakeInUse:  # a fold has committed at the same time
                if attempt + 1 == _ATTEMPTS:
                    raise
            else:
                fail_point(FailPoint.GENERATION_COMMITTED)
                return

    def _record_events(self, here: PollPosition, plan: PollPlan, found: PollResult, more: Sequence[TableEvent]) -> None:
        events = [*plan.events, *(self.tables.copied(each.fingerprint, here) for each in found.generations), *more]
        filenodes = {oid: shown.filenode for oid, (_, shown) in plan.followed.items()}
        filenodes |= {each.fingerprint.oid: each.fingerprint.filenode for each in found.generations}
        self.tables.record(events, filenodes)

    def _recorded(
        self, seen: PollSnapshot, here: PollPosition, plan: PollPlan, found: PollResult, *, reconcile: bool, last: bool
    ) -> Polled:
        changes = sum(written.rows for written in found.written.values())
        before = self.seen.reconciled if self.seen is not None else Lsn.ZERO
        recorded = Seen(seen.snapshot, seen.lsn, seen.identity.timeline, here.lsn if reconcile else before)
        observed = None if last else recorded
        cycle = Cycle(here.lsn, here.lsn, seen.time, changes, len(found.written), observed)
        self._cycles.record(cycle)
        self._catalog.keep_up(cycle, at_once=True)
        self.seen, self._had, self._recorded_at = recorded, found.has, time.monotonic()
        self._unreconciled = 0 if reconcile else self._unreconciled + 1
        return Polled(here.lsn, len(plan.followed), changes, len(found.generations), reconcile)

    def _take_away_above(self, applied_lsn: Lsn) -> Lsn:
        """Remove changes above the applied LSN, left by an interrupted cycle; return the highest LSN of any table."""
        highest = applied_lsn
        for history in self.tables.histories.values():
            applied = self._changes.applied(history.path)
            highest = max(highest, applied, history.last.lsn)
            if applied > applied_lsn:
                files = read_changes(self._options.lake, history.path, applied_lsn).files
                left = [Path(file.path).name for file in files if file.least > applied_lsn]
                remove_files(self._options.lake / history.path / CHANGES, left)
        return highest
