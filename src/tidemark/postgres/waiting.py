"""Limit the time to wait for a server. Its own timeouts have no effect if it is stopped or unreachable."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import pq


def answered(pgconn: pq.abc.PGconn, wait_s: float) -> bool:
    """Read until the command has its result or the time has elapsed; return whether it has."""
    deadline = time.monotonic() + wait_s
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    pgconn.flush()
    pgconn.consume_input()
    while pgconn.is_busy():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        if poll.poll(min(left_s, 1.0) * 1000):
            pgconn.consume_input()
    return True


@contextmanager
def bounded(pgconn: pq.abc.PGconn, limit_s: float) -> Iterator[None]:
    """Shut down the connection if the body takes longer, so that libpq reports it as closed; 0 means no limit."""
    if limit_s <= 0:
        yield
        return
    timer = threading.Timer(limit_s, _cut, [pgconn])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cut(pgconn: pq.abc.PGconn) -> None:
    if pgconn.status == pq.ConnStatus.OK:
        with socket.socket(fileno=os.dup(pgconn.socket)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
