"""Moves the messages that libpq has received into a buffer, in compiled code: a Python loop is four times slower.

    w  XLogData    int64 start, int64 end, int64 server's time, then a pgoutput message
    k  Keepalive   int64 position, int64 server's time, int8 1 if a reply is requested

Messages become frames in the caller's buffer. A keepalive's position means that the server has sent everything up to
it.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

import numpy as np

from tidemark.errors import MalformedMessage
from tidemark.pgoutput.frames import HEAD
from tidemark.postgres.libpq import consume_input, copy_memory, free_memory, get_copy_data, libpq, link
from tidemark.values.kernels import Bytes, Longs, be64, kernel

_XLOG_HEADER, _KEEPALIVE = 25, 18


class Dry(IntEnum):
    """The reason why draining stopped."""

    DRY = 0  # all messages that have arrived were taken
    FULL = 1  # the buffer has no room for the next message
    ENDED = 2  # the server ended the stream, or the connection is gone
    UNKNOWN = 3  # not a message of the protocol


# The state between calls: a message taken from libpq that did not fit into the buffer, and the keepalives received.
_POINTER, _LENGTH, _POSITION, _REPLY, _MESSAGES = _STATE = range(5)
_DRY, _FULL, _ENDED, _UNKNOWN = (int(why) for why in Dry)


class Drain:
    """Takes all received messages from one connection."""

    def __init__(self, pgconn: Any) -> None:
        link()
        self._pgconn = pgconn
        self._state = np.zeros(len(_STATE), np.int64)
        self._scratch = np.zeros(32, np.uint8)

    def into(self, buffer: Bytes, used: int) -> tuple[Dry, int]:
        """Fill the buffer with frames from `used` on; returns why draining stopped, and the new end of the data."""
        why, used = _drain(self._pgconn.pgconn_ptr, buffer, used, self._state, self._scratch)
        if why == _UNKNOWN:
            raise MalformedMessage(
                f"the server sent an unknown replication message: {self._scratch.tobytes().hex(' ')}",
                "Connect to PostgreSQL directly, not through a connection pooler or proxy.",
            )
        return Dry(why), int(used)

    def close(self) -> None:
        """Free the message that did not fit, if there is one; `into` must not be called afterwards."""
        if self._state[_POINTER]:
            libpq().PQfreemem(ctypes.c_void_p(int(self._state[_POINTER])))
            self._state[_POINTER] = 0

    @property
    def waiting_bytes(self) -> int:
        """The buffer size that the message that did not fit requires, or 0."""
        return int(self._state[_LENGTH]) + HEAD if self._state[_POINTER] else 0

    @property
    def position(self) -> int:
        """The highest position that the server has sent in a keepalive."""
        return int(self._state[_POSITION])

    @property
    def messages(self) -> int:
        """The number of messages received, including keepalives."""
        return int(self._state[_MESSAGES])

    def take_reply_wish(self) -> bool:
        """Whether the server has requested a reply since the last call."""
        wanted, self._state[_REPLY] = bool(self._state[_REPLY]), 0
        return wanted


@kernel
def _drain(connection: int, buffer: Bytes, used: int, state: Longs, scratch: Bytes) -> Any:
    slot = np.zeros(1, np.int64)
    consumed = False
    while True:
        if state[_POINTER]:
            pointer, length = state[_POINTER], state[_LENGTH] + _XLOG_HEADER
        else:
            got = get_copy_data(connection, slot.ctypes.data, 1)
            if got == 0:
                if consumed:
                    return _DRY, used
                if consume_input(connection) == 0:
                    return _ENDED, used
                consumed = True
                continue
            if got < 0:
                return _ENDED, used
            consumed = False
            pointer, length = slot[0], np.int64(got)
            state[_MESSAGES] += 1
        copy_memory(scratch.ctypes.data, pointer, min(length, len(scratch)))
        if scratch[0] == 119 and length > _XLOG_HEADER:  # w
            size = length - _XLOG_HEADER
            if used + HEAD + size > len(buffer):
                state[_POINTER], state[_LENGTH] = pointer, size
                return _FULL, used
            for i in range(HEAD):
                buffer[used + i] = size >> 8 * i & 255
            copy_memory(buffer.ctypes.data + used + HEAD, pointer + _XLOG_HEADER, size)
            used += HEAD + size
            state[_POINTER] = 0
        elif scratch[0] == 107 and length == _KEEPALIVE:  # k
            state[_POSITION] = max(state[_POSITION], np.int64(be64(scratch, 1)))
            state[_REPLY] |= scratch[17]
        else:
            free_memory(pointer)
            return _UNKNOWN, used
        free_memory(pointer)
