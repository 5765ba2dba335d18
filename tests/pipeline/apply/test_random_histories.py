"""Random histories on a real server, from several sessions that overlap: the mirror equals PostgreSQL by full content.

SEED= repeats a run; it is printed when one fails. The short form is shorter and has always the same seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from tests.conftest import installs_from

pytestmark = pytest.mark.quick

SESSIONS, STEPS, FEW_STEPS, CHECKED = 3, 120, 40, 10
install = installs_from(16)
TABLES = ("keyed", "pair", "bag", "wide")
LARGE = "(select string_agg(md5({} || i::text), '') from generate_series(1, 300) i)"


def statements(rng: random.Random) -> Iterator[str]:
    """What applications do, on few keys so that they meet."""
    while True:
        key, other, value = rng.randrange(12), rng.randrange(12), rng.randrange(100)
        yield rng.choice(
            [
                f"insert into keyed values ({key}, '{value}', {value}) on conflict (id) do update set v = 'again'",
                f"update keyed set id = {other} where id = {key} and not exists (select from keyed where id = {other})",
                f"update keyed set n = n + 1 where id % 3 = {key % 3}",
                f"delete from keyed where id = {key}",
                f"insert into pair values ({key}, 'k{other}', {value}) on conflict do nothing",
                f"update pair set a = a + 20 where b = 'k{other}' and a < 200",
                f"delete from pair where a % 5 = {key % 5}",
                f"insert into bag select {key % 3}, '{value % 4}' from generate_series(1, {other % 4})",
                f"delete from bag where ctid in (select ctid from bag where a = {key % 3} limit {other % 3})",
                f"update bag set b = '{value % 4}' where ctid in (select ctid from bag limit 2)",
                f"insert into wide values ({key}, 0, {LARGE.format(value)}) on conflict (id) do update set n = -wide.n",
                f"update wide set id = {other} where id = {key} and not exists (select from wide where id = {other})",
                f"update wide set big = {LARGE.format(value)} where id = {key}",
                f"delete from wide where id = {key}",
                *(["truncate bag"] if rng.random() < 0.1 else []),
                *(["truncate keyed, wide"] if rng.random() < 0.05 else []),
            ]
        )


def live(side: Lakeside, rng: random.Random, steps: int) -> None:
    """Transactions that overlap, each statement with little patience; what is committed is noted."""
    sessions: list[psycopg.Connection[Any]] = [side.database.connect() for _ in range(SESSIONS)]
    for session in sessions:
        session.autocommit = False
        session.execute("set lock_timeout = '20ms'")
        session.commit()
    said = statements(rng)
    for step in range(steps):
        session = rng.choice(sessions)
        try:
            if rng.random() < 0.3:
                with session.transaction():
                    session.execute(next(said).encode())
                    if rng.random() < 0.5:
                        raise psycopg.Rollback
            session.execute(next(said).encode())
            if rng.random() < 0.5:
                session.rollback() if rng.random() < 0.2 else session.commit()
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            session.rollback()
        if step % 4 == 0:
            _note(side)
    for session in sessions:
        session.commit()
        session.close()
    _note(side)


def _note(side: Lakeside) -> None:
    """Note all tables, unless one is locked by a truncate that is under way."""
    with suppress(psycopg.errors.LockNotAvailable):
        side.note(*TABLES)


@pytest.mark.full
def test_the_mirror_equals_postgresql_after_any_history(
    db: Database, spark: SparkSession, tmp_path: Path, short: bool
) -> None:
    steps = FEW_STEPS if short else STEPS
    seed = int(os.environ.get("SEED", 1 if short else random.SystemRandom().randrange(1 << 32)))
    rng = random.Random(seed)  # noqa: S311
    db.run(
        "create table keyed (id int primary key, v text, n int)",
        "create table pair (a int, b text, c int, primary key (a, b))",
        "create table bag (a int, b text)",
        "alter table bag replica identity full",
        "create table wide (id int primary key, n int, big text)",
        "alter table wide alter big set storage external",
    )
    side = lakeside(db, tmp_path, spark, *TABLES)
    try:
        with following(side):
            live(side, rng, steps)
            side.apply_all()
            side.fold()
            live(side, rng, steps)
            side.apply_all()
            side.notes = [*rng.sample(side.notes[:-1], CHECKED - 1), side.notes[-1]]
            assert side.require_noted() == CHECKED
    except BaseException:
        print(f"SEED={seed}")  # noqa: T201
        raise
