"""Locate changes in a buffer of pgoutput messages, and the values in changes, without creating an object for either.

Insert   I [xid] int32 relation, N row
Update   U [xid] int32 relation, K key or O old row or neither, N row
Delete   D [xid] int32 relation, K key or O old row
row      int16 columns, then for each: n NULL, u unchanged TOAST value, t text or b binary with int32 length
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np

from tidemark.pgoutput.frames import (
    BEGIN,
    COMMIT,
    DELETE,
    HEAD,
    INSERT,
    MESSAGE,
    ORIGIN,
    RELATION,
    TRUNCATE,
    TYPE,
    UPDATE,
    frame_length,
)
from tidemark.values.cells import NULL, UNCHANGED
from tidemark.values.failure import bad_message
from tidemark.values.kernels import OK, Bytes, Flags, Ints, Longs, be16, be32, kernel


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in a buffer: start, length and letter of each, and the relation and row offset of each change."""

    buffer: Bytes
    starts: Longs
    lengths: Longs
    letters: Bytes
    xids: Longs
    relations: Longs
    bodies: Longs

    def __len__(self) -> int:
        return len(self.starts)

    def some(self, chosen: Any) -> Messages:
        """Return the messages selected by index, slice or mask."""
        return Messages(
            self.buffer,
            self.starts[chosen],
            self.lengths[chosen],
            self.letters[chosen],
            self.xids[chosen],
            self.relations[chosen],
            self.bodies[chosen],
        )

    @property
    def changes(self) -> Any:
        """A mask of the messages that change rows."""
        return (self.letters == INSERT) | (self.letters == UPDATE) | (self.letters == DELETE)


def scan(buffer: Bytes, starts: Longs, lengths: Longs, streamed: bool) -> Messages:
    """Classify messages by their letter. All belong to transactions; either all are from stream blocks or none is."""
    letters = buffer[starts]
    xids, relations, bodies = (np.zeros(len(starts), np.int64) for _ in range(3))
    bad = _classify(buffer, starts, lengths, letters, streamed, xids, relations, bodies)
    if bad != OK:
        bad_message("message unknown, too short or out of order", buffer, int(starts[bad]))
    return Messages(buffer, starts, lengths, letters, xids, relations, bodies)


def changed_tables(buffer: Bytes, starts: Longs, ends: Longs, streamed: Flags) -> frozenset[int]:
    """Return the OIDs of the tables that the frames of these pieces change, each piece from stream blocks or not.

    Changes that were rolled back to a savepoint count as well.
    """
    found = np.empty(int((ends - starts).sum()) // 4 + 1, np.int64)  # a message may consist of OIDs, almost
    count, bad = _changed(buffer, starts, ends, streamed, found)
    if bad != OK:
        bad_message("truncated or empty frame, or a message that is too short", buffer, int(bad))
    return frozenset(np.unique(found[:count]).tolist())


class Format(IntFlag):
    """The formats in which the values of a column were sent."""

    TEXT = 1
    BINARY = 2


@dataclass(frozen=True, slots=True)
class RowCells:
    """The locations of the values of one relation's changes, by column, and the formats that occur in each column.

    `old_kinds` is K (key columns), O (full old row) or 0 (none).
    """

    new_offsets: Longs
    new_lengths: Ints
    new_formats: Bytes
    old_offsets: Longs
    old_lengths: Ints
    old_formats: Bytes
    old_kinds: Bytes

    @classmethod
    def empty(cls, columns: int, count: int, old: int) -> RowCells:
        """Allocate `count` changes with all values NULL; `old` is `count`, or 0 if no change can have an old row."""
        return cls(
            np.zeros((columns, count), np.int64),
            np.full((columns, count), NULL, np.int32),
            np.zeros(columns, np.uint8),
            np.zeros((columns, old), np.int64),
            np.full((columns, old), NULL, np.int32),
            np.zeros(columns, np.uint8),
            np.zeros(count, np.uint8),
        )


def find_values(messages: Messages, columns: int) -> RowCells:
    """Locate the values of changes that all belong to one relation with this number of columns.

    A row has at least one byte for each column, so the allocation is bounded by the size of the messages.
    """
    short = np.flatnonzero(messages.lengths < columns)
    if len(short):
        bad_message(f"not a change of {columns} columns", messages.buffer, int(messages.starts[short[0]]))
    inserts = bool((messages.letters == INSERT).all())
    rows = RowCells.empty(columns, len(messages), 0 if inserts else len(messages))
    ends = messages.starts + messages.lengths
    bad = _walk(
        messages.buffer, messages.bodies, ends, messages.letters, rows.new_offsets, rows.new_lengths, rows.new_formats,
        rows.old_offsets, rows.old_lengths, rows.old_formats, rows.old_kinds,
    )  # fmt: skip
    if bad != OK:
        bad_message(f"not a change of {columns} columns", messages.buffer, int(messages.starts[bad]))
    return rows


@kernel
def _changed(buffer: Bytes, starts: Longs, ends: Longs, streamed: Flags, found: Longs) -> Any:
    """Fill `found` with OIDs, most of them once; return their number, and the offset of a bad message or OK."""
    count, recent = 0, np.zeros(1024, np.int64)  # by the last bits of the OID, the one that was found last
    for piece in range(len(starts)):
        at, end = starts[piece], ends[piece]
        while at < end:
            length = frame_length(buffer, at, end)
            if length < 0:
                return count, at
            letter, body = buffer[at + HEAD], at + HEAD + (5 if streamed[piece] else 1)
            at += HEAD + length
            oids: Any = np.int64(0)
            if letter == INSERT or letter == UPDATE or letter == DELETE:
                oids = np.int64(1)
            elif letter == TRUNCATE:
                if at - body < 5:
                    return count, body
                oids = np.int64(be32(buffer, body))
                body += 5
            if at - body < 4 * oids:
                return count, body
            for k in range(oids):
                oid = np.int64(be32(buffer, body + 4 * k))
                if recent[oid & 1023] != oid:
                    recent[oid & 1023] = oid
                    found[count] = oid
                    count += 1
    return count, OK


@kernel
def _classify(
    buffer: Bytes,
    starts: Longs,
    lengths: Longs,
    letters: Bytes,
    streamed: bool,
    xids: Longs,
    relations: Longs,
    bodies: Longs,
) -> Any:
    for i in range(len(starts)):
        letter, at, end = letters[i], starts[i] + 1, starts[i] + lengths[i]
        if letter == ORIGIN or (not streamed and (letter == BEGIN or letter == COMMIT)):
            continue
        if streamed:
            if end - at < 4:
                return i
            xids[i] = np.int64(be32(buffer, at))
            at += 4
        if letter == INSERT or letter == UPDATE or letter == DELETE:
            if end - at < 4:
                return i
            relations[i] = np.int64(be32(buffer, at))
            at += 4
        elif letter == MESSAGE:
            if not _is_logical_message(buffer, at, end):
                return i
        elif letter != RELATION and letter != TYPE and letter != TRUNCATE:
            return i
        bodies[i] = at
    return OK


@kernel
def _is_logical_message(buffer: Bytes, at: int, end: int) -> Any:
    """Whether these are flags, an LSN, a prefix that ends with a zero, and the content after its length."""
    if end - at < 9 or buffer[at] > 1:
        return False
    at += 9
    while at < end and buffer[at] != 0:
        at += 1
    at += 1
    return end - at >= 4 and np.int64(be32(buffer, at)) == end - at - 4


@kernel
def _row(
    buffer: Bytes, at: int, end: int, offsets: Longs, lengths: Ints, formats: Bytes, row: int, partial: bool
) -> Any:
    """Read a row; return its end, or -1 if it is malformed. Only a `partial` row may omit unchanged TOAST values."""
    columns = offsets.shape[0]
    if end - at < 2 or np.int64(be16(buffer, at)) != columns:
        return np.int64(-1)
    at += 2
    for k in range(columns):
        if at >= end:
            return np.int64(-1)
        kind = buffer[at]
        at += 1
        if kind == 116 or kind == 98:  # t, b
            if end - at < 4:
                return np.int64(-1)
            size: Any = np.int64(be32(buffer, at))
            at += 4
            if size > end - at:
                return np.int64(-1)
            offsets[k, row] = at
            lengths[k, row] = size
            formats[k] |= 1 if kind == 116 else 2
            at += size
        elif kind == 117 and partial:  # u
            lengths[k, row] = UNCHANGED
        elif kind != 110:  # n
            return np.int64(-1)
    return np.int64(at)


@kernel
def _walk(
    buffer: Bytes,
    bodies: Longs,
    ends: Longs,
    letters: Bytes,
    new_offsets: Longs,
    new_lengths: Ints,
    new_formats: Bytes,
    old_offsets: Longs,
    old_lengths: Ints,
    old_formats: Bytes,
    old_kinds: Bytes,
) -> Any:
    for i in range(len(bodies)):
        at, end, letter = bodies[i], ends[i], letters[i]
        if at >= end:
            return i
        if letter != INSERT and (buffer[at] == 75 or buffer[at] == 79):  # K, O
            old_kinds[i] = buffer[at]
            at = _row(buffer, at + 1, end, old_offsets, old_lengths, old_formats, i, False)
            if at < 0:
                return i
        elif letter == DELETE:
            return i
        if letter != DELETE:
            if at >= end or buffer[at] != 78:  # N
                return i
            at = _row(buffer, at + 1, end, new_offsets, new_lengths, new_formats, i, letter == UPDATE)
        if at != end:
            return i
    return OK
