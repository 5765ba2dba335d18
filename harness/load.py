"""Load: applications that write during a test or a measurement."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from harness.database import Database


@contextmanager
def inserting(database: Database, clients: int) -> Iterator[None]:
    """Run clients that insert into `t (a text)`, two rows per transaction.

    Every other transaction has a savepoint, two of three commit asynchronously, and one in seven is rolled back.
    """

    def insert(client: int, stop: threading.Event) -> None:
        with database.connect() as connection:
            n = 0
            while not stop.is_set():
                n += 1
                connection.execute("begin")
                connection.execute("insert into t values (%s)", [f"{client}-{n}-a"])
                if n % 2:
                    connection.execute("savepoint s")
                if n % 3:
                    connection.execute("set local synchronous_commit = off")
                connection.execute("insert into t values (%s)", [f"{client}-{n}-b"])
                connection.execute("rollback" if n % 7 == 3 else "commit")

    with running(insert, clients):
        yield


@contextmanager
def writing(database: Database) -> Iterator[None]:
    """Run three clients that write to `t (id int, v text)` and `u (id int, v text, n numeric)`, across server restarts.

    There are small transactions, and some that are streamed if the work memory is small, with savepoints and rollbacks.
    """

    def write(client: int, stop: threading.Event) -> None:
        n = client
        while not stop.is_set():
            try:
                with database.connect() as connection:
                    while not stop.is_set():
                        n += 10
                        _write(connection, n)
            except psycopg.Error:  # the test has stopped the server
                time.sleep(0.05)

    with running(write, clients=3):
        yield


def _write(connection: psycopg.Connection[tuple[object, ...]], n: int) -> None:
    connection.execute(f"insert into t values ({n}, 'small')".encode())
    connection.execute(f"update t set v = 'changed' where id = {n}".encode())
    rows = f"generate_series({n * 1000}, {n * 1000 + 700})"
    connection.execute("begin")
    connection.execute(f"insert into u select i, repeat('x', 100), i from {rows} i".encode())
    connection.execute("savepoint s")
    connection.execute(f"delete from u where id % 3 = 0 and id in (select {rows})".encode())
    connection.execute("rollback to savepoint s" if n % 20 else "release savepoint s")
    connection.execute("rollback" if n % 70 == 0 else "commit")
    time.sleep(0.01)


@contextmanager
def running(work: Callable[[int, threading.Event], None], clients: int) -> Iterator[None]:
    """Run clients, each in a thread with its number, until the context ends."""
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=[client, stop]) for client in range(1, clients + 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
