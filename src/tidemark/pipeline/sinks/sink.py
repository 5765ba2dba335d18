"""The interface between the pipeline and what it writes: a sink has the tables of a mirror up to one LSN.

Tasks write changes and copied rows through targets, which Spark sends to the executors. What a task has written belongs
to no table until the driver passes it to `commit` or `adopt`. Readers see changes when the cycle is recorded, and a
copy when its table event is. So after a crash at any point, readers get the state before a step or the state after it,
and every step can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.lake.registers import Cycle, Seen
from tidemark.lake.shared import SharedFolder
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.postgres.identity import Identity
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEvent, TableHistory
from tidemark.schema.relation import Relation
from tidemark.schema.table import Column
from tidemark.schema.tracker import SchemaTracker
from tidemark.values.copy import CopyBatch
from tidemark.values.types import Types

KIND, STAGING = "kind", "_staging"
FORGET_S = 3600.0  # between two times that a running mirror forgets
Batch = TypeVar("Batch", contravariant=True)


class Written(Protocol):
    """Rows that a task has written for one table. It is sent to the driver."""

    @property
    def oid(self) -> int:
        """The OID of the table."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    @property
    def truncated(self) -> Lsn | None:
        """The commit LSN of the last TRUNCATE among them."""


class TaskWriter(Protocol[Batch]):
    """Writes batches in a task."""

    def write(self, batch: Batch) -> None:
        """Write a batch."""

    def finished(self) -> Sequence[Written]:
        """End writing; what was written is durable."""

    def discard(self) -> None:
        """Remove what was written, because the task failed."""


class Target(Protocol[Batch]):
    """Opens a writer in a task. It is sent to the executors."""

    def open(self) -> TaskWriter[Batch]:
        """Open a writer, for one or several tables."""


class ChangeTarget(Target[ChangeBatch], Protocol):
    """The target of a cycle's changes from the stream."""

    def accepts(self, relation: Relation) -> bool:
        """Whether the changes of a relation can be written: it fits a definition of its table."""

    def applied_lsn(self, oid: int) -> Lsn:
        """The LSN up to which a table already has its changes; the writer drops those."""


@dataclass(frozen=True, slots=True)
class PolledChanges:
    """Changes that a poll found, by cells (`v3`, `t3`) with a `kind`, numbered from `first`; None is a TRUNCATE."""

    rows: pa.RecordBatch | None
    first: int


@dataclass(frozen=True, slots=True)
class ChangeStamp:
    """The position and time of a poll's changes."""

    lsn: Lsn
    time: datetime


@dataclass(frozen=True, slots=True)
class TableCopy:
    """The rows of a table at `base`, which tasks have written through `target`, and which belong to no table yet.

    `fingerprint` is the table's definition at `base`, and `snapshot` the snapshot that the copy used.
    """

    fingerprint: Fingerprint
    base: Boundary
    snapshot: Snapshot
    target: Target[CopyBatch]
    written: tuple[Written, ...]

    @property
    def name(self) -> str:
        """The name of the table for messages."""
        return self.fingerprint.qualified

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(each.rows for each in self.written)


class Hold(Protocol):
    """Keeps changes above an LSN from expiring until it is closed."""

    def close(self) -> None:
        """Release the changes."""


class Sink(Protocol):
    """Has the tables of a mirror. One process at a time writes it.

    `path` is the path of a table in the sink, from its history. One thread calls `record_events`, `forget`,
    `applied_lsn`, `change_target`, `commit`, `record`, `publish`, `adopt` and `close`. Any thread may call the others.
    """

    @property
    def version_num(self) -> int:
        """The version of the source's server."""

    @property
    def cycle(self) -> Cycle:
        """The position: the watermarks as last recorded."""

    @property
    def shared(self) -> SharedFolder:
        """A directory that the executors share; data from the source that belongs to no table is in `STAGING`."""

    def require_own(self, identity: Identity) -> None:
        """Raise an error if the sink is the mirror of another source."""

    def require_reach(self, spark: SparkSession, *others: SharedFolder) -> None:
        """Raise an error if an executor cannot write to the sink, or cannot read these directories of the driver."""

    def events(self) -> Sequence[TableEvent]:
        """All recorded table events, in order."""

    def record_events(self, events: Sequence[TableEvent]) -> None:
        """Record table events."""

    def forget(self, retained: Lsn) -> frozenset[int]:
        """Delete the events that no read at or above an LSN needs; return the OIDs of tables that are forgotten.

        These were dropped below it, and the sink has no data of them. The caller calls `forget` of its tracker.
        """

    def applied_lsn(self, path: str) -> Lsn:
        """The LSN up to which a table has its changes, according to its own last commit."""

    def change_target(self, relations: Mapping[Relation, tuple[str, Fingerprint]], types: Types) -> ChangeTarget:
        """The target of the changes of these relations, each with the path and the definition of its table."""

    def commit(self, written: Mapping[str, Sequence[Written]], upto: Lsn) -> None:
        """Commit changes to their tables, by path; each table is then complete up to an LSN."""

    def record(self, cycle: Cycle) -> None:
        """Record the watermarks, after everything up to them is committed: readers see it from now on."""

    def publish(self, *, at_once: bool = False) -> None:
        """Bring the catalog for other programs up to date; unless `at_once`, only if that is not too expensive now."""

    def copy_target(
        self, history: TableHistory, fingerprint: Fingerprint, types: Types, base: Boundary, size_bytes: int
    ) -> Target[CopyBatch]:
        """The target of a copy of a table, whose definition and size in the copy's snapshot are given."""

    def describe_copied(self, written: Written) -> Mapping[str, Any]:
        """Return what a task has written for a copy as JSON, so that another process can continue the copy."""

    def described_copied(self, oid: int, path: str, plain: Mapping[str, Any]) -> Written | None:
        """Return what a task has written from the result of `describe_copied`; None if it no longer exists."""

    def adopt(self, path: str, copy: TableCopy) -> None:
        """Start a table with the rows of a copy, and the changes that are not visible at its base.

        Some of these may be committed already: everything above the floor of the base that the sink holds counts.
        Raises LakeInUse if another process committed to the table at the same time, and the caller retries.
        """

    def retained_lsn(self) -> Lsn:
        """The LSN below which changes have expired."""

    def hold(self, lsn: Lsn) -> Hold:
        """Keep the changes above an LSN from expiring."""

    def log_needed_from(self, applied_lsn: Lsn) -> Lsn:
        """The LSN above which readers need the log, if everything up to `applied_lsn` is applied."""

    def close(self) -> None:
        """End writing."""


class PolledSink(Sink, Protocol):
    """A sink that polls can write: its rows can be read, to compare them with those of the source."""

    def seen(self) -> Seen | None:
        """The state of the source that the last cycle read, if it was a poll."""

    def rows(
        self, spark: SparkSession, history: TableHistory, fingerprint: Fingerprint, types: Types, lsn: Lsn
    ) -> DataFrame:
        """The rows of a table at a recorded LSN, which the caller holds, under this definition.

        Columns have the names for readers, and text fallbacks are beside them as `name~text`.
        """

    def polled_target(
        self, path: str, oid: int, columns: Sequence[Column], types: Types, stamp: ChangeStamp
    ) -> Target[PolledChanges]:
        """The target of a table's changes."""

    def discard_above(self, histories: Sequence[TableHistory], applied_lsn: Lsn) -> Lsn:
        """Remove changes above the applied LSN, left by an interrupted cycle; return the highest LSN of any table."""


class Forgetting:
    """Makes a sink and its tracker forget the same. It is used by the thread that writes to the sink."""

    def __init__(self, sink: Sink, tables: SchemaTracker) -> None:
        self._sink, self._tables = sink, tables
        self._next = 0.0

    def keep_up(self) -> None:
        """Forget what is below the retained LSN, the first time and then every hour."""
        now = time.monotonic()
        if now >= self._next:
            retained = self._sink.retained_lsn()
            self._tables.forget(retained, self._sink.forget(retained))
            self._next = now + FORGET_S
