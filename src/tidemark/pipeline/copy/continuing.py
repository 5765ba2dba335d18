"""Continuing a large copy whose driver was killed: the parts that are complete are not copied again.

The copy continues in its snapshot, which a holder process keeps. If that has ended too, tables of which all parts are
complete are adopted nevertheless, since their rows and their base are known, and the others are copied again.

A table is continued if it has the recorded definition and no event since that affects what can be read: then every
change that is not visible in the snapshot is in the stream. A table with a gap is copied again, because its changes can
be skipped without another event.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemark.clock import Lsn, Snapshot
from tidemark.errors import ObjectMissing, TidemarkError
from tidemark.lake.copy_records import (
    CopyRecord,
    RecordedCopy,
    RecordedPart,
    RecordedTable,
    last_event,
    left_records,
)
from tidemark.logs import fields
from tidemark.pipeline.copy.holder import HeldCopy, SnapshotHolder
from tidemark.pipeline.copy.job import CopiedPart
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.copy.planning import CopyOptions, SnapshotCopy
from tidemark.pipeline.copy.snapshots import CopySnapshot
from tidemark.pipeline.sinks.sink import Sink, TableCopy
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.shared import SharedSnapshot
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableHistory
from tidemark.storage.fail_points import FailPoint, fail_point
from tidemark.values.types import Types

LARGE_BYTES = 256 << 20  # a table of less is copied again
_LOGGER = logging.getLogger("tidemark.pipeline")


class ContinuedCopy:
    """The record of a copy, and the process that holds its snapshot if this process started it.

    The record is removed when the copy has ended and every table that was reported is settled: until then it keeps the
    files from being deleted.
    """

    def __init__(
        self, record: CopyRecord, sink: Sink, tables: Iterable[int], holder: SnapshotHolder | None = None
    ) -> None:
        self._record, self._sink, self._tables, self._holder = record, sink, frozenset(tables), holder
        self._lock = threading.Lock()
        self._reported: set[int] = set()
        self._ended = False

    def add(self, part: CopiedPart) -> None:
        """Record a complete part of a large table. If that fails, the part would be copied again after a crash."""
        if part.part.oid not in self._tables:
            return
        files = [self._sink.describe_copied(each) for each in part.written]
        try:
            self._record.add(RecordedPart(part.part.oid, part.part.first, part.rows, files))
        except TidemarkError as error:
            _LOGGER.warning("a part of a copy is not recorded: %s", " ".join(error.message.split()))
        fail_point(FailPoint.PART_RECORDED)

    def report(self, oid: int) -> None:
        """Note that the copy of a table is complete and waits for the sink."""
        with self._lock:
            self._reported.add(oid)

    def settle(self, oid: int) -> None:
        """Note that the sink has adopted the copy of a table, or that it was rejected."""
        with self._lock:
            self._reported.discard(oid)
            self._remove_if_unused()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """End the copy."""
        with self._lock:
            self._ended = True
            self._remove_if_unused()

    def _remove_if_unused(self) -> None:
        if self._ended and not self._reported:
            try:
                self._record.remove()
            finally:
                if self._holder is not None:
                    self._holder.close()


def record_copy(
    options: CopyOptions, sink: Sink, planned: SnapshotCopy, histories: Mapping[int, TableHistory], held: ExitStack
) -> ContinuedCopy | None:
    """Record a copy of large tables, and start a process that holds its snapshot; None if no table is large.

    If that fails, the copy continues, and cannot be continued after a crash.
    """
    large = [oid for oid, parts in planned.missing.items() if len(parts) > 1 and planned.size_bytes(oid) >= LARGE_BYTES]
    name, lake = planned.sources.snapshot.name, sink.shared.path
    if not large or name is None:
        return None
    with ExitStack() as failing:
        try:
            record = CopyRecord(lake)
            failing.callback(record.remove)
            holder = SnapshotHolder(HeldCopy(options.source, name, lake, record.id))
            failing.callback(holder.close)
            tables = {
                oid: RecordedTable(
                    planned.work.tables[oid].fingerprint,
                    tuple((part.first, part.end, part.size_bytes) for part in planned.missing[oid]),
                    last_event(histories[oid]),
                )
                for oid in large
            }
            record.write(RecordedCopy(holder.snapshot_id, planned.snapshot, planned.base, tables))
        except (TidemarkError, OSError) as error:
            _LOGGER.warning("after a crash, the copy could not continue: %s", " ".join(str(error).split()))
            return None
        failing.pop_all()
    return held.enter_context(ContinuedCopy(record, sink, large, holder))


@dataclass(frozen=True, slots=True)
class LeftCopy:
    """A copy that a killed process has left, whose record is locked by this process."""

    record: CopyRecord
    copy: RecordedCopy
    parts: tuple[RecordedPart, ...]

    def continues(self, fingerprint: Fingerprint, history: TableHistory, log_start: Lsn | None) -> bool:
        """Whether the copy of a table can be continued with the changes in a log that starts at this LSN."""
        recorded = self.copy.tables.get(fingerprint.oid)
        if recorded is None or history.in_gap or log_start is None or log_start > self.copy.base.floor:
            return False
        return recorded.fingerprint == fingerprint and recorded.last_event == last_event(history)

    def snapshot(self, source: Dsn) -> CopySnapshot | None:
        """The snapshot, or None if no process holds it."""
        shared = SharedSnapshot(source, None, self.copy.snapshot_id)
        try:
            with shared.session("continue copy") as session:
                (found,) = session.row("select pg_current_snapshot()::text")
            if Snapshot.parse(found) != self.copy.snapshot:  # a server that was restarted uses the names again
                raise ObjectMissing(f"the source has another snapshot with the name {self.copy.snapshot_id}")
            return CopySnapshot(self.copy.base, shared)
        except TidemarkError as error:
            message = " ".join(error.message.split())
            _LOGGER.warning("the snapshot of an interrupted copy is lost: %s", message, extra=fields(reason=message))
            return None

    def copied(self, oid: int, sink: Sink, history: TableHistory) -> list[CopiedPart]:
        """The complete parts of a table whose files exist."""
        parts = {first: Part(oid, first, end, size) for first, end, size in self.copy.tables[oid].parts}
        found = []
        for each in self.parts:
            if each.oid == oid and each.first in parts:
                written = [sink.described_copied(oid, history.path, file) for file in each.files]
                if all(file is not None for file in written):
                    there = tuple(file for file in written if file is not None)
                    found.append(CopiedPart(parts[each.first], each.rows, there))
        return found

    def complete(self, oid: int, sink: Sink, history: TableHistory) -> TableCopy | None:
        """The copy of a table of which all parts are complete."""
        table, parts = self.copy.tables[oid], self.copied(oid, sink, history)
        if len(parts) < len(table.parts):
            return None
        known = {column.type.oid: column.type for column in table.fingerprint.columns}
        size = sum(size for _, _, size in table.parts)
        types = Types(known, sink.version_num)
        target = sink.copy_target(history, table.fingerprint, types, self.copy.base, size)
        written = tuple(each for part in parts for each in part.written)
        return TableCopy(table.fingerprint, self.copy.base, self.copy.snapshot, target, written)


def left_copies(lake: Path) -> list[LeftCopy]:
    """The copies that killed processes have left. The caller has the lake's write lock."""
    found = []
    for record in left_records(lake):
        copy = record.read()
        if copy is None:
            record.remove()
        else:
            found.append(LeftCopy(record, copy, tuple(record.parts())))
    return found
