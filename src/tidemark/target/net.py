"""The net effect of the changes of one table: at most one operation for each row, however often it was changed. Pure.

A row is identified by the bytes of its key as the stream sends them: an update that only changes how a key is stored,
such as from 1.0 to 1.00, is sent with the old key too. A row that the changes did not insert existed before them, under
its *origin*, the key of its first change. Its values are those of its last change. Values that the stream did not send
again (unchanged TOAST values) are taken from an earlier change of the row; if there is none, they stay marked.

Without a key, rows with the same content are the same: the net effect is how many there are more or fewer of each.

A value is referenced as a change and a side: `2 * change` for the new row and `2 * change + 1` for the old one.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemark.errors import MalformedMessage
from tidemark.pgoutput.frames import DELETE, INSERT
from tidemark.values.cells import NULL, UNCHANGED
from tidemark.values.kernels import OK, Bytes, Flags, Ints, Longs, kernel

NOTHING, INSERTED, UPDATED, MOVED, DELETED = range(5)
_SEED = np.uint64(secrets.randbits(64))  # keys that collide cannot be chosen on purpose
_MULTIPLIER, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)
_FREE, _ABSENT = -1, -2  # in the table of keys: no key; a key without a row


@dataclass(frozen=True, slots=True)
class TableChanges:
    """Changes of one table in order: I, U and D, and the locations of their values in one buffer.

    `old_sent` marks the changes that have an old row, of which only the columns of the key need to be there.
    """

    buffer: Bytes
    letters: Bytes
    new_offsets: Longs
    new_lengths: Ints
    old_offsets: Longs
    old_lengths: Ints
    old_sent: Flags

    def __len__(self) -> int:
        return len(self.letters)


@dataclass(frozen=True, slots=True)
class NetRows:
    """The net effect on rows with a key: what happens to each, the reference of its origin, and its last change."""

    operations: Bytes
    origins: Longs
    last: Longs


@dataclass(frozen=True, slots=True)
class NetContents:
    """The net effect on rows without a key: references of contents, and how many rows there are more of each."""

    rows: Longs
    counts: Longs


def fill_from_old_rows(changes: TableChanges) -> None:
    """Take values that were not sent again from the old row of the same change, where it has them."""
    if not changes.old_sent.any():
        return
    known = (changes.new_lengths == UNCHANGED) & changes.old_sent & (changes.old_lengths != NULL)
    if known.any():
        changes.new_offsets[known] = changes.old_offsets[known]
        changes.new_lengths[known] = changes.old_lengths[known]


def net_rows(changes: TableChanges, key: Longs) -> NetRows:
    """Return the net effect on a table whose rows are identified by these columns."""
    count = len(changes)
    operations = np.zeros(count, np.uint8)
    origins, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    marked = (changes.new_lengths == UNCHANGED).any(axis=0)
    if (changes.new_lengths[key] == UNCHANGED).any():
        raise MalformedMessage("a change does not contain the key of its row")
    found, bad = _net_rows(
        changes.buffer, changes.letters, changes.new_offsets, changes.new_lengths, changes.old_offsets,
        changes.old_lengths, changes.old_sent, marked, key, _slots(2 * count), _SEED, operations, origins, last,
    )  # fmt: skip
    if bad != OK:
        raise MalformedMessage(f"change {bad} of {count} does not follow from the changes before it")
    return NetRows(operations[:found], origins[:found], last[:found])


def net_contents(changes: TableChanges) -> NetContents:
    """Return the net effect on a table without a key, of which every old row is complete."""
    count = len(changes)
    if (changes.new_lengths == UNCHANGED).any():
        raise MalformedMessage("a change of a table without a key does not contain the whole row")
    rows, counts = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
    found, bad = _net_contents(
        changes.buffer, changes.letters, changes.new_offsets, changes.new_lengths, changes.old_offsets,
        changes.old_lengths, changes.old_sent, _slots(2 * count), _SEED, rows, counts,
    )  # fmt: skip
    if bad != OK:
        raise MalformedMessage(f"change {bad} of {count} has no old row")
    some = counts[:found] != 0
    return NetContents(rows[:found][some], counts[:found][some])


def _slots(most: int) -> Longs:
    """A table for at most so many keys: the reference of each key, and its row."""
    size = 1 << max(4, (2 * most).bit_length())
    return np.full((2, size), _FREE, np.int64)


@kernel
def _hash(buffer: Bytes, offsets: Longs, lengths: Ints, columns: Longs, row: int, seed: Any) -> Any:
    value = seed
    for column in columns:
        length = lengths[column, row]
        value = (value ^ np.uint64(length + 2)) * _MULTIPLIER
        value ^= value >> _SHIFT
        at = np.uint64(offsets[column, row])
        word, filled = np.uint64(0), 0
        for k in range(length):
            word = word << np.uint64(8) | np.uint64(buffer[at + np.uint64(k)])
            filled += 1
            if filled == 8:
                value = (value ^ word) * _MULTIPLIER
                value ^= value >> _SHIFT
                word, filled = np.uint64(0), 0
        value = (value ^ word) * _MULTIPLIER
        value ^= value >> _SHIFT
    return value


@kernel
def _is_same(
    buffer: Bytes, offsets: Longs, lengths: Ints, row: int, others: Longs, sizes: Ints, other: int, columns: Longs
) -> Any:
    for column in columns:
        length = lengths[column, row]
        if length != sizes[column, other]:
            return False
        at, there = np.uint64(offsets[column, row]), np.uint64(others[column, other])
        for k in range(length):
            if buffer[at + np.uint64(k)] != buffer[there + np.uint64(k)]:
                return False
    return True


@kernel
def _find(
    buffer: Bytes,
    new_offsets: Longs,
    new_lengths: Ints,
    old_offsets: Longs,
    old_lengths: Ints,
    columns: Longs,
    slots: Longs,
    seed: Any,
    reference: int,
) -> Any:
    """Return the slot of a key; its first reference is entered if there is none yet."""
    row, is_old = reference >> 1, reference & 1
    offsets, lengths = (old_offsets, old_lengths) if is_old else (new_offsets, new_lengths)
    mask = slots.shape[1] - 1
    at = np.int64(_hash(buffer, offsets, lengths, columns, row, seed) & np.uint64(mask))
    while slots[0, at] != _FREE:
        there = slots[0, at]
        if there & 1:
            same = _is_same(buffer, offsets, lengths, row, old_offsets, old_lengths, there >> 1, columns)
        else:
            same = _is_same(buffer, offsets, lengths, row, new_offsets, new_lengths, there >> 1, columns)
        if same:
            return at
        at = (at + 1) & mask
    slots[0, at] = reference
    return at


@kernel
def _net_rows(
    buffer: Bytes,
    letters: Bytes,
    new_offsets: Longs,
    new_lengths: Ints,
    old_offsets: Longs,
    old_lengths: Ints,
    old_sent: Flags,
    marked: Flags,
    key: Longs,
    slots: Longs,
    seed: Any,
    operations: Bytes,
    origins: Longs,
    last: Longs,
) -> Any:
    """Follow every row through the changes; return the number of rows, and the index of a bad change or OK."""
    found = 0
    for i in range(len(letters)):
        letter = letters[i]
        before = 2 * i + 1 if old_sent[i] else 2 * i
        at = _find(buffer, new_offsets, new_lengths, old_offsets, old_lengths, key, slots, seed, before)
        row = slots[1, at]
        if letter == INSERT:
            if row >= 0:
                return found, i
            operations[found], last[found] = INSERTED, i
            slots[1, at] = found
            found += 1
            continue
        if row == _ABSENT:
            return found, i
        if row == _FREE:
            row = found
            operations[row], origins[row] = UPDATED, before
            slots[1, at] = row
            found += 1
        if letter == DELETE:
            operations[row] = NOTHING if origins[row] < 0 else DELETED
            slots[1, at] = _ABSENT
            continue
        if marked[i] and last[row] >= 0:
            for column in range(new_lengths.shape[0]):
                if new_lengths[column, i] == UNCHANGED:
                    new_offsets[column, i] = new_offsets[column, last[row]]
                    new_lengths[column, i] = new_lengths[column, last[row]]
        last[row] = i
        if old_sent[i]:
            after = _find(buffer, new_offsets, new_lengths, old_offsets, old_lengths, key, slots, seed, 2 * i)
            if after != at:
                if slots[1, after] >= 0:
                    return found, i
                slots[1, at], slots[1, after] = _ABSENT, row
    for row in range(found):
        if operations[row] == UPDATED:
            origin, now = origins[row] >> 1, last[row]
            if origins[row] & 1:
                same = _is_same(buffer, new_offsets, new_lengths, now, old_offsets, old_lengths, origin, key)
            else:
                same = _is_same(buffer, new_offsets, new_lengths, now, new_offsets, new_lengths, origin, key)
            if not same:
                operations[row] = MOVED
    return found, OK


@kernel
def _net_contents(
    buffer: Bytes,
    letters: Bytes,
    new_offsets: Longs,
    new_lengths: Ints,
    old_offsets: Longs,
    old_lengths: Ints,
    old_sent: Flags,
    slots: Longs,
    seed: Any,
    rows: Longs,
    counts: Longs,
) -> Any:
    """Count the rows of each content; return the number of contents, and the index of a bad change or OK."""
    columns = np.arange(new_lengths.shape[0])
    found = 0
    for i in range(len(letters)):
        for is_old in range(2):
            if letters[i] == (INSERT if is_old else DELETE):
                continue
            if is_old and not old_sent[i]:
                return found, i
            reference = 2 * i + is_old
            at = _find(buffer, new_offsets, new_lengths, old_offsets, old_lengths, columns, slots, seed, reference)
            if slots[1, at] == _FREE:
                slots[1, at], rows[found] = found, reference
                found += 1
            counts[slots[1, at]] += -1 if is_old else 1
    return found, OK
