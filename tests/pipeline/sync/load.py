"""An application that writes to its tables in every way that a stream can show, until it is stopped.

What it does is chosen by a seed: inserts, updates and deletes of few rows and of many, keys that change, large values
that do and do not, savepoints rolled back, transactions that fail, and prepared ones that are finished by someone else.
A writer's manner says how it commits, how long it stays open, and whether it empties tables and moves money.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from harness.database import Database

COLUMNS = "id int primary key, n int, q numeric(12, 2), v text, large text, moment timestamptz"
KEYS = 2000
ACCOUNTS = 50
PAUSE_S = 0.01  # so that two cores have time for the mirror too


@dataclass(frozen=True, slots=True)
class Manner:
    """How one writer goes about it: `settings` are its session's, and some transactions stay open for `held_s`.

    One that `empties` deletes what was added, or truncates, and then no reader is exact that has not locked first.
    Money moves between the rows of `accounts`, in its column n: the sum is always the same.
    """

    settings: str = "select 1"
    keys: int = KEYS
    pause_s: float = PAUSE_S
    held_s: float = 0.0
    empties: bool = False
    accounts: str | None = None


PLAIN = Manner()


def create(db: Database, *tables: str, rows: int = KEYS // 2) -> None:
    """Tables with large values, which the first keeps out of line and the others compressed; `bag…` has no key."""
    for table in tables:
        columns = COLUMNS.replace(" primary key", "") if table.startswith("bag") else COLUMNS
        db.run(
            f"create table {table} ({columns})",
            f"alter table {table} replica identity {'full' if table.startswith('bag') else 'default'}",
            f"alter table {table} alter large set storage {'external' if table == tables[0] else 'extended'}",
            f"insert into {table} select i, i, i / 4.0, 'v' || i, "
            "case when i % 50 = 0 then repeat(md5(i::text), 100) end, timestamptz '2024-01-01' + i * interval '1 hour' "
            f"from generate_series(1, {rows}) i",
        )


def _statements(chance: random.Random, table: str, keys: int) -> str:
    low = chance.randint(1, keys)
    other, aside = chance.randint(1, keys), -chance.randint(1, 10**9)
    moves = ((low, aside), (other, low), (aside, other))
    swapped = "; ".join(f"update {table} set id = {new} where id = {old}" for old, new in moves)
    some = f"id between {low} and {low + chance.choice([0, 0, 3, 40])}"
    range_ = f"generate_series({low}, {low + 20})"
    return chance.choice(
        [
            f"insert into {table} (id, n, v) values ({chance.randint(keys, 10**9)}, 1, 'new') on conflict do nothing",
            f"insert into {table} select i, i, i, 'back' from {range_} i on conflict do nothing",
            f"update {table} set n = n + 1 where {some}",
            f"update {table} set v = v || '.', q = q + 0.25, moment = now() where {some}",
            f"update {table} set large = repeat(md5(random()::text), 100) where {some}",
            f"update {table} set id = {chance.randint(10**9, 2 * 10**9)} where id = {low}",
            swapped,
            f"delete from {table} where {some}",
            f"savepoint s; update {table} set n = -1 where {some}; rollback to savepoint s",
            f"savepoint s; delete from {table} where {some}; release savepoint s",
            f"savepoint a; update {table} set n = 0 where {some}; savepoint b; delete from {table}; rollback to b"
            if chance.random() < 0.1
            else f"savepoint a; delete from {table} where {some}; savepoint b; update {table} set n = 1 where {some}",
        ]
    )


def transaction(chance: random.Random, tables: Sequence[str], manner: Manner) -> str:
    """The statements of a transaction, without its end."""
    texts = [_statements(chance, chance.choice(tables), manner.keys) for _ in range(chance.randint(1, 4))]
    if manner.accounts is not None and chance.random() < 0.5:
        one, other = sorted(chance.sample(range(1, ACCOUNTS + 1), 2))
        moved = chance.randint(-100, 100)
        texts.append(f"update {manner.accounts} set n = n - {moved} where id = {one}")
        texts.append(f"update {manner.accounts} set n = n + {moved} where id = {other}")
    if manner.empties and chance.random() < 0.1:
        table, some = chance.choice(tables), f"generate_series(1, {manner.keys // 2})"
        texts.append(f"delete from {table} where id > {manner.keys} or id < 0")
        if chance.random() < 0.4:
            texts[:] = [f"truncate {table}", f"insert into {table} select i, i, i, 'anew' from {some} i"]
    return "begin; " + "; ".join(texts)


def _write(
    db: Database, tables: Sequence[str], manner: Manner, seed: int, stop: threading.Event, done: list[int]
) -> None:
    chance = random.Random(seed)  # noqa: S311 - repeatable
    with db.connect() as session:
        session.execute(manner.settings.encode())
        while not stop.is_set():
            gid = f"p{uuid4().hex}"
            end = chance.choices(["commit", "rollback", "prepare"], [8, 1, 1])[0]
            text = transaction(chance, tables, manner)
            try:
                session.execute(text.encode())
                stop.wait(manner.held_s)
                if end == "prepare":
                    session.execute(f"prepare transaction '{gid}'".encode())
                    end = chance.choice(["commit", "rollback"]) + f" prepared '{gid}'"
                session.execute(end.encode())
                done[0] += 1
                stop.wait(manner.pause_s)
            except psycopg.Error:  # a key that is there, a deadlock: as applications have them
                session.execute("rollback")


@contextmanager
def writing(
    db: Database, *tables: str, writers: int = 2, seed: int = 1, manners: Sequence[Manner] = (PLAIN,)
) -> Iterator[list[int]]:
    """Several writers at once, of these manners in turn; gives how many transactions they have made so far."""
    stop, done = threading.Event(), [0]
    threads = [
        threading.Thread(target=_write, args=[db, tables, manners[n % len(manners)], seed * 100 + n, stop, done])
        for n in range(writers)
    ]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()
