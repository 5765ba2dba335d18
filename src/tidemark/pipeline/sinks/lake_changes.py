"""The writers of change files in a lake, for changes from the stream and for changes that polls found.

A task writes one file for each table and set of columns. The files are not part of the lake until the driver commits
them. If Spark runs a task twice, both attempts write files, but only those of one attempt are committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.clock import Lsn
from tidemark.lake.changes import change_writer
from tidemark.lake.columns import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ORDINAL,
    OURS,
    TRUNCATE,
    UNCHANGED,
    XID,
    Layout,
    StoredColumn,
    stored_columns,
)
from tidemark.lake.files import DataFile, FileWriter
from tidemark.lake.paths import CHANGES
from tidemark.lake.rows import TRUNCATED, change_rows
from tidemark.lake.shared import SharedFolder
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.pipeline.sinks.sink import KIND, ChangeStamp, PolledChanges
from tidemark.schema.relation import Relation
from tidemark.storage.fail_points import FailPoint, fail_point

GATHERED_BYTES = 128 << 20  # rows that all tables of a task buffer before they are written as row groups


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task has written for a table, and the columns in it."""

    oid: int
    file: DataFile
    columns: tuple[StoredColumn, ...]
    truncated: Lsn | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.file.rows


@dataclass(slots=True)
class _OpenFile:
    writer: FileWriter
    columns: tuple[StoredColumn, ...]
    truncated: Lsn | None = None


@dataclass(slots=True)
class OpenChangeFiles:
    """The files that a task is writing: one for each table and set of columns."""

    lake: SharedFolder
    _files: dict[tuple[int, str, tuple[str, ...]], _OpenFile] = field(default_factory=dict)

    def add(self, oid: int, path: str, rows: pa.Table) -> None:
        """Write changes of a table."""
        key = oid, path, tuple(rows.column_names)
        if key not in self._files:
            folder = self.lake.verified() / path / CHANGES
            folder.mkdir(parents=True, exist_ok=True)
            self._files[key] = _OpenFile(change_writer(folder, rows.schema), stored_columns(rows.schema))
        file = self._files[key]
        file.writer.write(rows)
        file.truncated = max(filter(None, (file.truncated, _last_truncate(rows))), default=None)
        writers = [each.writer for each in self._files.values()]
        if sum(writer.gathered_bytes for writer in writers) > GATHERED_BYTES:
            max(writers, key=lambda writer: writer.gathered_bytes).flush()

    def finished(self) -> list[WrittenFile]:
        """Close the files; each is durable then."""
        found = []
        for (oid, _, _), each in self._files.items():
            found.append(WrittenFile(oid, each.writer.close(), each.columns, each.truncated))
            fail_point(FailPoint.FILE_WRITTEN)
        return found

    def discard(self) -> None:
        """Discard the files."""
        for each in self._files.values():
            each.writer.discard()


def _last_truncate(rows: pa.Table) -> Lsn | None:
    """The commit LSN of the last TRUNCATE among changes."""
    if rows[TRUNCATE].null_count == len(rows):
        return None
    return Lsn(pc.max(rows.filter(pc.field(TRUNCATE).is_valid())[COMMIT_VERSION]).as_py())


@dataclass(frozen=True, slots=True)
class LakeChangeTarget:
    """Where the changes of relations are stored, and the applied LSN of each table."""

    lake: SharedFolder
    layouts: Mapping[Relation, Layout]
    applied: Mapping[int, Lsn]

    def accepts(self, relation: Relation) -> bool:
        """Whether the relation fits a definition of its table."""
        return relation in self.layouts

    def applied_lsn(self, oid: int) -> Lsn:
        """The LSN up to which a table already has its changes."""
        return self.applied.get(oid, Lsn.ZERO)

    def open(self) -> StreamedChangeWriter:
        """Open a writer."""
        self.lake.verified()
        return StreamedChangeWriter(OpenChangeFiles(self.lake), self)


@dataclass(frozen=True, slots=True)
class StreamedChangeWriter:
    """Writes changes from the stream."""

    files: OpenChangeFiles
    target: LakeChangeTarget

    def write(self, batch: ChangeBatch) -> None:
        """Write the changes above the applied LSN of the table, which already has the others."""
        layout = self.target.layouts[batch.relation]
        keep = batch.commit_lsns > np.uint64(self.target.applied_lsn(layout.oid).value)
        rows = change_rows(batch, layout.columns, None if keep.all() else keep)
        if len(rows):
            self.files.add(layout.oid, layout.path, rows)

    def finished(self) -> list[WrittenFile]:
        """Close the files."""
        return self.files.finished()

    def discard(self) -> None:
        """Discard the files."""
        self.files.discard()


@dataclass(frozen=True, slots=True)
class LakePollTarget:
    """Where the changes of one table are written, and the stored column of each attnum."""

    lake: SharedFolder
    oid: int
    path: str
    columns: Mapping[int, StoredColumn]
    stamp: ChangeStamp

    def open(self) -> PolledChangeWriter:
        """Open a writer."""
        return PolledChangeWriter(OpenChangeFiles(self.lake), self)


@dataclass(frozen=True, slots=True)
class PolledChangeWriter:
    """Writes changes that a poll found, with the position of the poll."""

    files: OpenChangeFiles
    target: LakePollTarget

    def write(self, batch: PolledChanges) -> None:
        """Write changes."""
        rows = self._truncate(batch) if batch.rows is None else self._changes(batch.rows, batch.first)
        self.files.add(self.target.oid, self.target.path, rows)

    def finished(self) -> list[WrittenFile]:
        """Close the files."""
        return self.files.finished()

    def discard(self) -> None:
        """Discard the files."""
        self.files.discard()

    def _truncate(self, batch: PolledChanges) -> pa.Table:
        ours = self._ours(pa.array([TRUNCATED]), np.array([batch.first]))
        return pa.table({**ours, TRUNCATE: pa.array([0], pa.int32())}, schema=OURS)

    def _changes(self, batch: pa.RecordBatch, first: int) -> pa.Table:
        """The changes under their stored names; text fallbacks only for columns that have any."""
        arrays: list[pa.Array] = []
        fields: list[pa.Field] = []
        for attnum, column in self.target.columns.items():
            arrays.append(batch.column(f"v{attnum}").cast(column.type))
            fields.append(column.field())
            beside = f"t{attnum}"
            if beside in batch.schema.names and batch.column(beside).null_count < batch.num_rows:
                arrays.append(batch.column(beside).cast(pa.string()))
                fields.append(column.fallback_column().field())
        ours = self._ours(batch.column(KIND).cast(pa.string()), np.arange(first, first + batch.num_rows))
        return pa.table([*arrays, *ours.values()], schema=pa.schema([*fields, *OURS]))

    def _ours(self, kinds: pa.Array, ordinals: np.ndarray) -> dict[str, pa.Array]:
        rows, stamp = len(kinds), self.target.stamp
        return {
            CHANGE_TYPE: kinds,
            COMMIT_VERSION: pa.array(np.full(rows, stamp.lsn.value, np.int64)),
            COMMIT_TIMESTAMP: pa.array([stamp.time] * rows, pa.timestamp("us", "UTC")),
            ORDINAL: pa.array(ordinals, pa.int64()),
            XID: pa.nulls(rows, pa.int64()),
            UNCHANGED: pa.nulls(rows, pa.string()),
            TRUNCATE: pa.nulls(rows, pa.int32()),
        }
