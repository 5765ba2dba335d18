"""Load: applications that write while something else is looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from harness.database import Database


@contextmanager
def inserting(database: Database, clients: int) -> Iterator[None]:
    """Clients that insert into `t (a text)`, two rows a transaction.

    Every other transaction has a savepoint, every third commits asynchronously, one in seven is rolled back.
    """
    stop = threading.Event()

    def insert(client: int) -> None:
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

    threads = [threading.Thread(target=insert, args=[client]) for client in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
