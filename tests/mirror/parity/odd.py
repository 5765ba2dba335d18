"""Tables on which mirrors went wrong: floats with NaN and -0, numeric keys, inheritance, one truncated often."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from harness.database import Database

TABLES = ("measured", "amounts", "parents", "children", "queue")
CREATE = (
    "create table measured (x float8 primary key, y float4, n int)",
    "create table amounts (k numeric(20,10) primary key, v numeric, n int)",
    "create table parents (id int primary key, v text)",
    "create table children (more int, primary key (id)) inherits (parents)",
    "create table queue (id int primary key, v text)",
    "insert into measured values ('NaN', '-0', 1), ('-0', 'NaN', 1), (1, 1, 1)",
    "insert into amounts values (0, 0.00, 1), (0.0000001, 'NaN', 1), (1, 1.10, 1)",
    "insert into parents select i, 'parent' from generate_series(1, 20) i",
    "insert into children select i, 'child', i from generate_series(11, 30) i",
    "insert into queue select i, 'first' from generate_series(1, 20) i",
)
WIDENED = "alter table amounts alter k type numeric"
FLOATS = ("NaN", "-0", "0", "Infinity", "-Infinity", "1", "-1.5", "0.1", "1e-30")
NUMERICS = ("0", "0.0000001", "-0.0000001", "1", "1.0", "1.50", "-1.5", "9999999999.9999999999", "NaN", "1e-30")
PAUSE_S = 0.1


def _statement(chance: random.Random) -> str:
    x, y, k, v = (f"'{chance.choice(values)}'" for values in (FLOATS, FLOATS, NUMERICS, NUMERICS))
    low, other = chance.randint(1, 40), chance.randint(1, 40)
    table = chance.choice(["parents", "only parents", "children"])
    return chance.choice(
        [
            f"insert into measured values ({x}, {y}, 1) on conflict (x) do update set y = excluded.y",
            f"update measured set n = n + 1 where x = {x}",
            f"update measured set x = {y} where x = {x}",
            f"update measured set x = -x where x = {x}",
            f"delete from measured where x >= {x} and y <= {y}",
            f"insert into amounts values ({k}, {v}, 1) on conflict (k) do update set v = excluded.v",
            f"update amounts set n = n + 1, v = -v where k <= {k}",
            f"update amounts set k = {v} where k = {k}",
            f"delete from amounts where k = {k}",
            f"insert into parents values ({low}, 'new') on conflict do nothing",
            f"insert into children values ({low}, 'new', {other}) on conflict do nothing",
            f"update {table} set v = v || '.' where id between {low} and {other}",
            f"delete from {table} where id = {low}",
            f"insert into queue select i, 'new' from generate_series({low}, {low} + 5) i on conflict do nothing",
            f"truncate queue; insert into queue values ({low}, 'kept')",
            "truncate queue",
        ]
    )


def _write(db: Database, seed: int, stop: threading.Event) -> None:
    chance = random.Random(seed)  # noqa: S311 - repeatable
    with db.connect() as session:
        session.execute("set lock_timeout = '500ms'")
        while not stop.wait(PAUSE_S):
            texts = [_statement(chance) for _ in range(chance.randint(1, 4))]
            end = "rollback" if chance.random() < 0.1 else "commit"
            try:
                session.execute(f"begin; {'; '.join(texts)}; {end}".encode())
            except psycopg.Error:  # a key that is there, a value without room, a deadlock: as applications have them
                session.execute("rollback")


@contextmanager
def writing_oddly(db: Database, seed: int, writers: int = 2) -> Iterator[None]:
    """Several writers at once on these tables, until the context ends."""
    stop = threading.Event()
    threads = [threading.Thread(target=_write, args=[db, seed * 100 + n, stop]) for n in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
