"""Conversion of decoded changes to rows of `changes`.

    I  insert
    U  update_preimage, if the old row or its key was sent, and update_postimage
    D  delete, with the old row or its key
    T  truncate

An unchanged TOAST value is taken from the old row if that was sent in full; otherwise its column is listed in
`_unchanged`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidemark.clock.epoch import EPOCH_MICROS
from tidemark.lake.columns import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ORDINAL,
    OURS,
    TRUNCATE,
    UNCHANGED,
    XID,
    StoredColumn,
)
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.pgoutput.frames import DELETE, INSERT, UPDATE
from tidemark.values.kernels import Flags, Longs

INSERTED, DELETED, PREIMAGE, POSTIMAGE, TRUNCATED = (
    *("insert", "delete", "update_preimage", "update_postimage", "truncate"),
)
_TYPES = pa.array([INSERTED, DELETED, PREIMAGE, POSTIMAGE, TRUNCATED])
_INSERTED, _DELETED, _PREIMAGE, _POSTIMAGE, _TRUNCATED = range(5)


class _Order:
    """The rows of a batch: for each row the index of its change, and the index of its old row, or -1 for a new row."""

    def __init__(self, batch: ChangeBatch) -> None:
        kinds = batch.kinds
        old = np.full(len(batch), -1, np.int64)
        old[batch.old_of] = np.arange(len(batch.old_of))
        updated = kinds == UPDATE
        pairs = updated & (old >= 0)
        self.change: Longs = np.repeat(np.arange(len(batch)), 1 + pairs)
        first = np.diff(self.change, prepend=-1) > 0
        self.old: Longs = np.where(first & (pairs | (kinds == DELETE))[self.change], old[self.change], -1)
        kind = np.full(len(self.change), _TRUNCATED, np.int32)
        kind[(kinds == INSERT)[self.change]] = _INSERTED
        kind[(kinds == DELETE)[self.change]] = _DELETED
        kind[updated[self.change]] = np.where(self.old[updated[self.change]] >= 0, _PREIMAGE, _POSTIMAGE)
        self.kind = kind
        self.plain = len(batch.old_of) == 0


def change_rows(batch: ChangeBatch, columns: Sequence[StoredColumn], keep: Flags | None = None) -> pa.Table:
    """Return the rows of a batch under their stored names, only those of the changes in `keep` if that is given."""
    order = _Order(batch)
    full = np.zeros(len(batch), bool)
    full[batch.old_of[batch.old_full]] = True
    arrays: dict[str, pa.Array] = {}
    fields: list[pa.Field] = []
    for at, column in enumerate(columns):
        indices = _indices(batch, order, at, full)
        arrays[column.name] = _taken(batch, at, indices, column.type, text=False)
        fields.append(column.field())
        if _has_text(batch, at):
            arrays[column.fallback_column().name] = _taken(batch, at, indices, pa.string(), text=True)
            fields.append(column.fallback_column().field())
    arrays |= _ours(batch, order, _unchanged(batch, order, columns, full))
    rows = pa.table(list(arrays.values()), schema=pa.schema([*fields, *OURS]))
    return rows if keep is None else rows.filter(pa.array(keep[order.change]))


def _indices(batch: ChangeBatch, order: _Order, at: int, full: Flags) -> pa.Array | None:
    """Return the index of each row's value among the new rows followed by the old rows; None if all rows are new."""
    if order.plain:
        return None
    chosen = np.where(order.old >= 0, len(batch) + order.old, order.change)
    unchanged = batch.unchanged[at]
    if unchanged is not None:
        old_of = np.full(len(batch), -1, np.int64)
        old_of[batch.old_of] = np.arange(len(batch.old_of))
        from_old = (order.old < 0) & (unchanged & full)[order.change]
        chosen = np.where(from_old, len(batch) + old_of[order.change], chosen)
    return pa.array(chosen)


def _taken(batch: ChangeBatch, at: int, indices: pa.Array | None, kind: pa.DataType, *, text: bool) -> pa.Array:
    new = batch.new[at].fallback if text else batch.new[at].array
    if indices is None:
        return new
    old = batch.old[at].fallback if text else batch.old[at].array
    new = pa.nulls(len(batch), kind) if new is None else new
    old = pa.nulls(len(batch.old_of), kind) if old is None else old
    return pa.concat_arrays([new, old]).take(indices)


def _has_text(batch: ChangeBatch, at: int) -> bool:
    return batch.new[at].fallback is not None or (len(batch.old_of) > 0 and batch.old[at].fallback is not None)


def _unchanged(batch: ChangeBatch, order: _Order, columns: Sequence[StoredColumn], full: Flags) -> pa.Array:
    """Return the text of `_unchanged` for each row. There are few distinct patterns, so each is formatted once."""
    places = [at for at in range(len(columns)) if batch.unchanged[at] is not None]
    if not places:
        return pa.nulls(len(order.change), pa.string())
    flags = np.stack([np.asarray(batch.unchanged[at], bool) for at in places], axis=1) & ~full[:, None]
    patterns, which = np.unique(flags, axis=0, return_inverse=True)
    texts = [
        f",{','.join(str(columns[at].attnum) for at, there in zip(places, pattern, strict=True) if there)},"
        if pattern.any()
        else None
        for pattern in patterns
    ]
    chosen = np.where(order.old >= 0, len(texts), which.reshape(-1)[order.change])
    return pa.array([*texts, None], pa.string()).take(pa.array(chosen))


def _ours(batch: ChangeBatch, order: _Order, unchanged: pa.Array) -> Mapping[str, pa.Array]:
    change = order.change
    micros = pa.array(batch.commit_micros[change] + EPOCH_MICROS).cast(pa.timestamp("us", "UTC"))
    options = batch.truncate_options[change].astype(np.int32)
    return {
        CHANGE_TYPE: _TYPES.take(pa.array(order.kind)),
        COMMIT_VERSION: pa.array(batch.commit_lsns[change].astype(np.int64)),
        COMMIT_TIMESTAMP: micros,
        ORDINAL: pa.array(batch.ordinals[change]),
        XID: pa.array(batch.xids[change]),
        UNCHANGED: unchanged,
        TRUNCATE: pa.array(options, mask=order.kind != _TRUNCATED),
    }
