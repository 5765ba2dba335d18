"""Tables, and transactions on them that are hard to follow: swaps, moves, large values, truncates, rollbacks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg

from harness.database import Database, create_database
from harness.load import running
from harness.postgres import Server

TABLES = {
    "keyed": "(id int primary key, v text, n numeric)",
    "exact": "(n numeric primary key, f float8, v text)",
    "paired": '(a int, b text collate "C", c int, primary key (a, b))',
    "uniques": "(id int generated always as identity primary key, u int unique, e int4range, v text, "
    "exclude using gist (e with &&))",
    "plain": "(a int, b text, f float8)",
    "large": "(id int primary key, big text, small int)",
    "summed": "(id int primary key, a int, twice int generated always as (a * 2) stored)",
    "only_key": "(id int primary key)",
}
SHAPE = [
    "alter table plain replica identity full",
    "alter table large alter big set storage external",
    "create function span(a int, b int) returns int4range immutable return int4range(a, b)",
]
# A stream that has ranges is sent as text. Without them it is sent in binary, and new rows are read by COPY.
WITHOUT_RANGES = [
    "drop function span",
    "create function span(a int, b int) returns int immutable return a",
    "alter table uniques drop e, drop v, add e int, add v text, add exclude (e with =)",
]


def create_tables(database: Database, *, ranges: bool = True) -> Database:
    """Create the tables; without ranges, all of their values are sent in binary."""
    tables = (f"create table {name} {columns}" for name, columns in TABLES.items())
    database.run(*tables, *SHAPE, *([] if ranges else WITHOUT_RANGES))
    return database


def database_with_tables(server: Server, *, ranges: bool = True) -> Iterator[Database]:
    database = create_tables(create_database(server), ranges=ranges)
    yield database
    database.drop()


def contents(database: Database) -> dict[str, list[Any]]:
    return {name: database.run(f"select t::text from {name} t order by 1") for name in TABLES}


def hostile(connection: psycopg.Connection[Any], chance: Random, transactions: int) -> None:
    """Run transactions that insert, update, move, swap, delete and truncate, with savepoints and rollbacks.

    Some are prepared before they end.
    """
    for _ in range(transactions):
        connection.execute("begin")
        for _ in range(chance.randrange(1, 8)):
            connection.execute("savepoint s")
            try:
                connection.execute(_statement(chance).encode())
            except (psycopg.errors.IntegrityError, psycopg.errors.DeadlockDetected):
                connection.execute("rollback to savepoint s")
            if chance.random() < 0.1:
                connection.execute("rollback to savepoint s")
        gid = f"{connection.info.backend_pid}-{chance.randrange(10**9)}"
        if (ending := chance.random()) < 0.1:
            connection.execute(f"prepare transaction '{gid}'")
            connection.execute(f"{'commit' if ending < 0.07 else 'rollback'} prepared '{gid}'")
        else:
            connection.execute("rollback" if ending < 0.2 else "commit")


def _statement(chance: Random) -> str:
    a, b, n, letter = chance.randrange(30), chance.randrange(30), chance.randrange(1000), chance.choice("abC")
    odd = chance.choice(["NaN", "-0", "0", "Infinity", "1.5"])
    text = chance.choice(["null", "''", f"'v{n}'", "E'a\\tb\\\\N\\n'", f"repeat('{n}', 50)"])
    return chance.choice(
        [
            f"insert into keyed values ({a}, {text}, {n}.50) on conflict (id) do update set v = excluded.v",
            f"update keyed set id = {b}, v = {text} where id = {a}",
            f"update keyed set id = case id when {a} then {b} + 1000 else {a} + 1000 end where id in ({a}, {b})",
            "update keyed k set id = id - 1000 where id > 1000 and id - 1000 not in (select id from keyed)",
            f"delete from keyed where id = {a}",
            f"insert into exact values ({a}.0, '{odd}', {text}) on conflict do nothing",
            f"update exact set n = {a}.{'0' * chance.randrange(1, 4)} where n = {a}",
            f"update exact set f = '{odd}' where n = {a}",
            f"delete from exact where n = {a}",
            f"insert into paired values ({a % 5}, '{letter}', {n}) on conflict do nothing",
            f"update paired set a = {b % 5}, c = {n} where a = {a % 5} and b = 'a'",
            f"delete from paired where a = {a % 5}",
            f"insert into uniques (u, e, v) values ({a}, span({a * 2}, {a * 2 + 1}), {text})",
            f"update uniques set u = -u - 1 where u in ({a}, {b})",
            "update uniques set u = -u - 1 where u < 0",
            f"update uniques set e = span({n + 100}, {n + 101}) where u = {a}",
            f"update uniques set id = default, v = {text} where u = {a}",
            f"delete from uniques where u = {a}",
            f"insert into plain select {a % 4}, {text}, '-0' from generate_series(1, {chance.randrange(1, 4)})",
            f"update plain set b = {text} where a = {a % 4}",
            f"delete from plain where ctid = (select min(ctid) from plain where a = {a % 4})",
            f"insert into large values ({a}, repeat(md5('{n}'), 200), {n}) on conflict do nothing",
            f"update large set small = {n} where id = {a}",
            f"update large set id = {b} where id = {a}",
            f"update large set big = {text}, small = {n} where id = {a}",
            f"delete from large where id = {a}",
            f"insert into summed (id, a) values ({a}, {n}) on conflict (id) do update set a = excluded.a",
            f"delete from summed where id = {a}",
            f"insert into only_key values ({a}) on conflict do nothing",
            f"update only_key set id = {b} where id = {a}",
            f"truncate {chance.choice(['keyed', 'plain', 'large, only_key'])}" if n < 60 else "select",
        ]
    )


@contextmanager
def writing(source: Database, clients: int, pause_s: float = 0.0) -> Iterator[None]:
    """Run clients with hostile transactions, with a pause after each; a deadlock between them ends one transaction."""

    def write(client: int, stop: threading.Event) -> None:
        with source.connect() as connection:
            connection.autocommit = True
            chance = Random(client)  # noqa: S311 - to be repeated
            while not stop.is_set():
                try:
                    hostile(connection, chance, 1)
                except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                    connection.execute("rollback")
                stop.wait(pause_s)

    with running(write, clients):
        yield
