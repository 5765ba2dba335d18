"""Reads COPY data from libpq in compiled code, some megabytes at a time: a Python loop takes three times as long."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from typing import Any

import numpy as np
from psycopg import pq

from tidemark.postgres.libpq import copy_memory, free_memory, get_copy_data, libpq, link
from tidemark.postgres.session import results_of
from tidemark.postgres.sqlstate import error_for
from tidemark.values.kernels import Bytes, Longs, kernel

CHUNK_BYTES = 4 << 20
_POINTER, _LENGTH = _STATE = range(2)


def copied_bytes(pgconn: Any, statement: bytes, doing: str) -> Generator[memoryview, None, int]:
    """The data that the server sends for a COPY … TO STDOUT, in chunks; the server's error if the COPY fails.

    The return value is the number of rows. A caller that does not consume all of it must close the connection.
    """
    link()
    _require(pgconn.exec_(statement), pq.ExecStatus.COPY_OUT, doing)
    state = np.zeros(len(_STATE), np.int64)
    try:
        ended = False
        while not ended:
            waiting = int(state[_LENGTH]) if state[_POINTER] else 0
            buffer = np.empty(max(CHUNK_BYTES, waiting), np.uint8)
            ended, used = _fill(pgconn.pgconn_ptr, buffer, state)
            yield buffer[:used].data.toreadonly()
    finally:
        if state[_POINTER]:
            libpq().PQfreemem(ctypes.c_void_p(int(state[_POINTER])))
    rows = 0
    for result in list(results_of(pgconn)):  # all of them, or the connection could not be used again
        _require(result, pq.ExecStatus.COMMAND_OK, doing)
        rows = result.command_tuples or 0
    return rows


def _require(result: pq.abc.PGresult, status: pq.ExecStatus, doing: str) -> None:
    if result.status != status:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        raise error_for(state.decode() if state else None, doing, result.get_error_message())


@kernel
def _fill(connection: int, buffer: Bytes, state: Longs) -> Any:
    """Copy rows into the buffer until it is full or the data ends; a row that does not fit is kept in `state`."""
    slot = np.zeros(1, np.int64)
    used = np.int64(0)
    while True:
        if state[_POINTER] == 0:
            got = get_copy_data(connection, slot.ctypes.data, 0)
            if got < 0:
                return True, used
            state[_POINTER], state[_LENGTH] = slot[0], np.int64(got)
        if used + state[_LENGTH] > len(buffer):
            return False, used
        copy_memory(buffer.ctypes.data + used, state[_POINTER], state[_LENGTH])
        used += state[_LENGTH]
        free_memory(state[_POINTER])
        state[_POINTER] = 0
