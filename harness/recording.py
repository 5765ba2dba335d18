"""A sink that records what the pipeline writes, in memory: tables are `(id int primary key, v text)`."""

# ruff: noqa: ARG002 - the parameters are those of a sink

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LakeInUse
from tidemark.lake.registers import Cycle, Seen
from tidemark.lake.rows import DELETED, INSERTED, POSTIMAGE, TRUNCATED
from tidemark.lake.shared import SharedFolder, shared_folder
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.pgoutput.frames import DELETE, INSERT, TRUNCATE
from tidemark.pipeline.sinks.sink import KIND, ChangeStamp, Hold, PolledChanges, TableCopy, Written
from tidemark.postgres.identity import Identity
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableHistory
from tidemark.schema.relation import Relation
from tidemark.schema.table import Column
from tidemark.values.cells import DecodedColumn
from tidemark.values.copy import CopyBatch
from tidemark.values.types import Types

Row = tuple[int, str | None]


@dataclass(frozen=True, order=True)
class Change:
    """A change: its place in the order of all changes, its kind, the row before or its key, and the row after."""

    lsn: Lsn
    ordinal: int
    kind: str = field(compare=False)
    old: Row | None = field(compare=False)
    new: Row | None = field(compare=False)


@dataclass(frozen=True)
class Recorded:
    """What a task wrote for one table."""

    oid: int
    changes: tuple[Change, ...] = ()
    copied: tuple[Row, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.changes) + len(self.copied)

    @property
    def truncated(self) -> Lsn | None:
        """The commit LSN of the last TRUNCATE."""
        return max((change.lsn for change in self.changes if change.kind == TRUNCATED), default=None)


@dataclass
class RecordingWriter:
    """Collects what a task writes, and sends it to the driver."""

    target: RecordingTarget
    changes: dict[int, list[Change]] = field(default_factory=dict)
    copied: dict[int, list[Row]] = field(default_factory=dict)

    def write(self, batch: Any) -> None:
        """Collect a batch of any of the three kinds."""
        if isinstance(batch, ChangeBatch):
            oid = batch.relation.oid
            self.changes.setdefault(oid, []).extend(
                change for change in _streamed(batch) if change.lsn > self.target.applied_lsn(oid)
            )
        elif isinstance(batch, PolledChanges):
            assert self.target.stamp is not None
            self.changes.setdefault(self.target.oid, []).extend(_polled(batch, self.target.stamp.lsn))
        else:
            assert isinstance(batch, CopyBatch)
            self.copied.setdefault(self.target.oid, []).extend(_rows(batch.columns))

    def finished(self) -> list[Recorded]:
        """What was collected for each table."""
        streamed = [Recorded(oid, tuple(found)) for oid, found in self.changes.items() if found]
        return streamed + [Recorded(oid, (), tuple(found)) for oid, found in self.copied.items()]

    def discard(self) -> None:
        """Forget what was collected."""
        self.changes, self.copied = {}, {}


@dataclass(frozen=True)
class RecordingTarget:
    """The target of anything. It is sent to the executors."""

    oid: int = 0
    relations: frozenset[Relation] = frozenset()
    applied: Mapping[int, Lsn] = field(default_factory=dict)
    stamp: ChangeStamp | None = None

    def open(self) -> RecordingWriter:
        """Open a writer."""
        return RecordingWriter(self)

    def accepts(self, relation: Relation) -> bool:
        """Whether a relation is known."""
        return relation in self.relations

    def applied_lsn(self, oid: int) -> Lsn:
        """The LSN up to which a table has its changes."""
        return self.applied.get(oid, Lsn.ZERO)


@dataclass
class RecordingHold:
    """A hold, until it is closed."""

    sink: RecordingSink
    lsn: Lsn

    def close(self) -> None:
        """Release it."""
        self.sink.holds.remove(self)


@dataclass(eq=False)
class RecordingSink:
    """The tables of a mirror, by path: copies, changes, events and cycles in the order in which they were written."""

    folder: Path
    version_num: int
    copies: dict[str, TableCopy] = field(default_factory=dict)
    committed: dict[str, list[tuple[Lsn, Sequence[Recorded]]]] = field(default_factory=dict)
    recorded: list[TableEvent] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=lambda: [Cycle(Lsn.ZERO, Lsn.ZERO)])
    holds: list[RecordingHold] = field(default_factory=list)
    published: int = 0
    refused: set[str] = field(default_factory=set)
    closed: bool = False

    def contents(self, path: str) -> dict[int, Row]:
        """The rows of a table at the last recorded cycle, by key."""
        copy, upto = self.copies.get(path), self.cycle.applied_lsn
        base = copy.base if copy is not None else Boundary(Lsn.ZERO)
        copied = [row for each in (copy.written if copy is not None else ()) for row in _of(each).copied]
        rows = {row[0]: row for row in copied}
        every = [change for _, written in self.committed.get(path, []) for each in written for change in each.changes]
        for change in sorted(change for change in every if base.lsn < change.lsn <= upto):
            if change.kind == TRUNCATED:
                rows.clear()
            for gone in (change.old, change.new if change.kind == DELETED else None):
                if gone is not None:
                    rows.pop(gone[0])
            if change.kind in (INSERTED, POSTIMAGE) and change.new is not None:
                rows[change.new[0]] = change.new
        return rows

    @property
    def cycle(self) -> Cycle:
        """The last recorded cycle."""
        return self.cycles[-1]

    @property
    def shared(self) -> SharedFolder:
        """A directory for staging."""
        return shared_folder(self.folder)

    def require_own(self, identity: Identity) -> None:
        """Accept every source."""

    def require_reach(self, spark: SparkSession, *others: SharedFolder) -> None:
        """Accept every executor: results are sent to the driver."""

    def events(self) -> list[TableEvent]:
        """All recorded events."""
        return list(self.recorded)

    def record_events(self, events: Sequence[TableEvent]) -> None:
        """Record events."""
        self.recorded += events

    def forget(self, retained: Lsn) -> frozenset[int]:
        """Keep everything, because nothing expires."""
        return frozenset()

    def applied_lsn(self, path: str) -> Lsn:
        """The LSN of the last commit to a table."""
        return max((lsn for lsn, _ in self.committed.get(path, [])), default=Lsn.ZERO)

    def change_target(self, relations: Mapping[Relation, tuple[str, Fingerprint]], types: Types) -> RecordingTarget:
        """The target of these relations' changes."""
        applied = {relation.oid: self.applied_lsn(path) for relation, (path, _) in relations.items()}
        return RecordingTarget(relations=frozenset(relations), applied=applied)

    def commit(self, written: Mapping[str, Sequence[Written]], upto: Lsn) -> None:
        """Record changes."""
        for path, results in written.items():
            self.committed.setdefault(path, []).append((upto, [_of(each) for each in results]))

    def record(self, cycle: Cycle) -> None:
        """Record a cycle."""
        self.cycles.append(cycle)

    def publish(self, *, at_once: bool = False) -> None:
        """Count."""
        self.published += 1

    def copy_target(
        self, history: TableHistory, fingerprint: Fingerprint, types: Types, base: Boundary, size_bytes: int
    ) -> RecordingTarget:
        """The target of a copy."""
        return RecordingTarget(fingerprint.oid)

    def describe_copied(self, written: Written) -> Mapping[str, Any]:
        """Rows in the memory of a test cannot be continued."""
        raise NotImplementedError

    def described_copied(self, oid: int, path: str, plain: Mapping[str, Any]) -> Written | None:
        """Rows in the memory of a test cannot be continued."""
        raise NotImplementedError

    def adopt(self, path: str, copy: TableCopy) -> None:
        """Record a copy, at the second attempt."""
        if path not in self.refused:
            self.refused.add(path)
            raise LakeInUse(f"another commit to {path} came first", "Retry.")
        self.copies[path] = copy

    def retained_lsn(self) -> Lsn:
        """Nothing expires."""
        return Lsn.ZERO

    def hold(self, lsn: Lsn) -> Hold:
        """Record a hold."""
        self.holds.append(RecordingHold(self, lsn))
        return self.holds[-1]

    def log_needed_from(self, applied_lsn: Lsn) -> Lsn:
        """No reader needs the log."""
        return applied_lsn

    def seen(self) -> Seen | None:
        """The state that the last cycle read."""
        return self.cycle.seen

    def rows(
        self, spark: SparkSession, history: TableHistory, fingerprint: Fingerprint, types: Types, lsn: Lsn
    ) -> DataFrame:
        """The rows of a table."""
        return spark.createDataFrame(list(self.contents(history.path).values()), "id int, v string")

    def polled_target(
        self, path: str, oid: int, columns: Sequence[Column], types: Types, stamp: ChangeStamp
    ) -> RecordingTarget:
        """The target of a table's changes."""
        return RecordingTarget(oid, stamp=stamp)

    def discard_above(self, histories: Sequence[TableHistory], applied_lsn: Lsn) -> Lsn:
        """Remove changes above an LSN."""
        highest = max([applied_lsn, *(self.applied_lsn(history.path) for history in histories)])
        for path, commits in self.committed.items():
            self.committed[path] = [each for each in commits if each[0] <= applied_lsn]
        return highest

    def close(self) -> None:
        """End."""
        self.closed = True


def _of(written: Written) -> Recorded:
    assert isinstance(written, Recorded)
    return written


def _streamed(batch: ChangeBatch) -> Iterator[Change]:
    new, old = list(_rows(batch.new)), list(_rows(batch.old))
    old_of = {int(at): old[index] for index, at in enumerate(batch.old_of)}
    for at in range(len(batch)):
        lsn, ordinal, letter = Lsn(int(batch.commit_lsns[at])), int(batch.ordinals[at]), batch.kinds[at]
        if letter == TRUNCATE:
            yield Change(lsn, ordinal, TRUNCATED, None, None)
        elif letter == DELETE:
            yield Change(lsn, ordinal, DELETED, old_of[at], None)
        else:
            kind = INSERTED if letter == INSERT else POSTIMAGE
            yield Change(lsn, ordinal, kind, old_of.get(at), new[at])


def _polled(batch: PolledChanges, lsn: Lsn) -> Iterator[Change]:
    if batch.rows is None:
        yield Change(lsn, batch.first, TRUNCATED, None, None)
        return
    cells = [batch.rows.column(name).to_pylist() for name in ("v1", "v2", KIND)]
    for at, (key, value, kind) in enumerate(zip(*cells, strict=True)):
        yield Change(lsn, batch.first + at, kind, None, (key, value))


def _rows(columns: Sequence[DecodedColumn]) -> Iterator[Row]:
    return zip(*(column.array.to_pylist() for column in columns), strict=True)
