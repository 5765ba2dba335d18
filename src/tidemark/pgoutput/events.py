"""Scan frames for transaction boundaries: begins, ends, stream blocks, aborts and Relation messages.

Changes are only counted. This is the only place that checks the order of messages: it rejects a message at a position
where the protocol does not allow it.
"""

from __future__ import annotations

from enum import IntEnum
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
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_START,
    STREAM_STOP,
    TRUNCATE,
    TYPE,
    UPDATE,
    frame_length,
)
from tidemark.values.kernels import OK, Bytes, Longs, be32, be64, kernel


class FrameEventKind(IntEnum):
    """The kind of an event. An event records the start and end of its frames and how many changes they contain."""

    COMMIT = 0
    EXTENT = 1
    STREAM_START = 2
    STREAM_STOP = 3
    STREAM_COMMIT = 4
    STREAM_ABORT = 5
    RELATION = 6


# The kernel's state between calls. In a stream block `_XID` is that of the top-level transaction.
_MODE, _XID, _FINAL, _CHANGES = STATE = range(4)
_OUTSIDE, _PLAIN, _STREAM = range(3)
NO_END = 2**63 - 1
NOBODY, SOMEONE = -2, -1  # values of an event's xid: outside of any transaction, inside a plain transaction

# Of one type: numba would compile `_emit` for every combination of literals, which takes seconds.
_ZERO, _NOBODY, _SOMEONE = np.int64(0), np.int64(NOBODY), np.int64(SOMEONE)
_E_COMMIT, _E_EXTENT, _E_START, _E_STOP, _E_STREAM_COMMIT, _E_ABORT, _E_RELATION = (
    np.int64(kind) for kind in FrameEventKind
)


@kernel
def _emit(
    events: Longs, count: int, kind: int, start: int, end: int, changes: int, xid: int, lsn: int, more: int
) -> Any:
    events[count, 0], events[count, 1], events[count, 2], events[count, 3] = kind, start, end, changes
    events[count, 4], events[count, 5], events[count, 6] = xid, lsn, more
    return count + 1


@kernel
def classify(buffer: Bytes, at: int, end: int, endpos: int, state: Longs, events: Longs) -> Any:
    """Scan frames until the end, until `events` is full, or until a commit above `endpos`.

    Return the number of events, the offset to continue from, the offset of a malformed frame or OK, and whether the
    scan stopped at a commit above `endpos`.
    """
    count, begun, beyond = _ZERO, at, False
    while at < end:
        if count + 2 >= len(events):
            break
        length = frame_length(buffer, at, end)
        if length < 0:
            return count, at, at, False
        body = at + HEAD
        stop, letter, mode = body + length, buffer[body], state[_MODE]
        if letter == INSERT or letter == UPDATE or letter == DELETE or letter == TRUNCATE:
            if mode == _OUTSIDE or length < (5 if mode == _PLAIN else 9):
                return count, at, at, False
            state[_CHANGES] += 1
        elif letter == BEGIN:
            if mode != _OUTSIDE or length != 21:
                return count, at, at, False
            if np.int64(be64(buffer, body + 1)) >= endpos:  # start of the commit record; the commit LSN is its end
                beyond = True
                break
            state[_MODE], state[_FINAL], state[_CHANGES] = _PLAIN, np.int64(be64(buffer, body + 1)), 0
            state[_XID] = np.int64(be32(buffer, body + 17))
            begun = at
        elif letter == COMMIT:
            if mode != _PLAIN or length != 26 or buffer[body + 1] or np.int64(be64(buffer, body + 2)) != state[_FINAL]:
                return count, at, at, False
            lsn, micros = np.int64(be64(buffer, body + 10)), np.int64(be64(buffer, body + 18))
            if lsn < 0:
                return count, at, at, False
            if lsn > endpos:
                beyond = True
                break
            count = _emit(events, count, _E_COMMIT, begun, stop, state[_CHANGES], state[_XID], lsn, micros)
            state[_MODE] = _OUTSIDE
        elif letter == STREAM_START:
            if mode != _OUTSIDE or length != 6 or buffer[body + 5] > 1:
                return count, at, at, False
            state[_MODE], state[_XID], state[_CHANGES] = _STREAM, np.int64(be32(buffer, body + 1)), 0
            count = _emit(events, count, _E_START, at, stop, _ZERO, state[_XID], _ZERO, np.int64(buffer[body + 5]))
            begun = stop
        elif letter == STREAM_STOP:
            if mode != _STREAM or length != 1:
                return count, at, at, False
            count = _emit(events, count, _E_STOP, begun, at, state[_CHANGES], state[_XID], _ZERO, _ZERO)
            state[_MODE] = _OUTSIDE
        elif letter == STREAM_COMMIT:
            if mode != _OUTSIDE or length != 30 or buffer[body + 5]:
                return count, at, at, False
            top = np.int64(be32(buffer, body + 1))
            lsn, micros = np.int64(be64(buffer, body + 14)), np.int64(be64(buffer, body + 22))
            if lsn < 0:
                return count, at, at, False
            if lsn > endpos:
                beyond = True
                break
            count = _emit(events, count, _E_STREAM_COMMIT, at, stop, _ZERO, top, lsn, micros)
        elif letter == STREAM_ABORT:
            if mode != _OUTSIDE or (length != 9 and length != 25):
                return count, at, at, False
            top, sub = np.int64(be32(buffer, body + 1)), np.int64(be32(buffer, body + 5))
            count = _emit(events, count, _E_ABORT, at, stop, _ZERO, top, _ZERO, sub)
        elif letter == RELATION:
            skip = 5 if mode == _STREAM else 1
            if length < skip + 4:
                return count, at, at, False
            owner = _NOBODY if mode == _OUTSIDE else (_SOMEONE if mode == _PLAIN else state[_XID])
            oid = np.int64(be32(buffer, body + skip))
            count = _emit(events, count, _E_RELATION, at, stop, _ZERO, owner, _ZERO, oid)
        elif letter != MESSAGE and letter != ORIGIN and letter != TYPE:
            return count, at, at, False
        at = stop
    if state[_MODE] != _OUTSIDE and at > begun:
        owner = state[_XID] if state[_MODE] == _STREAM else _SOMEONE
        count = _emit(events, count, _E_EXTENT, begun, at, state[_CHANGES], owner, _ZERO, _ZERO)
        state[_CHANGES] = 0
    return count, at, OK, beyond
