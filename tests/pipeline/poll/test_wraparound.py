"""Ids of transactions that wrap: a server that is moved to the end of their 32 bits, and goes on.

`pg_resetwal` moves it in steps, since whatever is not frozen must lie less than 2^31 back. Rows are written and polled
before, at and after each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database, create_database
from harness.polled import polling
from harness.postgres import Server
from tests.conftest import Start, installs_from

install = installs_from(16)
pytestmark = [pytest.mark.quick, pytest.mark.spark]

WRAP = 1 << 32
SEGMENT_IDS = 32 * 8192 * 4  # in a file of pg_xact
STEPS = (2_000_000_000, 4_000_000_000, WRAP - 9)


@dataclass
class Seed:
    """The rule that looks for a wrap in the ids of the rows that it finds, by which it never sees one."""

    database: Database
    rows: dict[int, str] = field(default_factory=dict)
    last: int = 0

    def poll(self) -> None:
        query = "select id, v, xmin::text::bigint from t"
        found = self.database.run(f"{query} where xmin::text::bigint > {self.last} order by 3")
        greatest = max([xmin for *_, xmin in found], default=self.last)
        if self.last > greatest and self.last - greatest > 2_000_000_000:
            found = self.database.run(query)
        self.rows |= {key: value for key, value, _ in found}
        self.last = greatest

    @property
    def lost(self) -> int:
        there = dict(self.database.run("select id, v from t"))
        return len(there.items() - self.rows.items())


def freeze_all(server: Server) -> None:
    """Nothing holds an id back."""
    server.sql("alter database template0 allow_connections true")
    for (name,) in server.sql("select datname from pg_database"):
        server.sql("vacuum (freeze)", dbname=name)
    server.sql("checkpoint")


def move(server: Server, *arguments: str, xid: int | None = None) -> None:
    """Have the next transaction begin elsewhere; what became of earlier ones there is that they never were."""
    freeze_all(server)
    server.stop()
    if xid is not None:
        arguments = (*arguments, f"--next-transaction-id={xid}")
        segment = server.data / "pg_xact" / f"{xid // SEGMENT_IDS:04X}"
        if not segment.exists():
            segment.write_bytes(bytes(SEGMENT_IDS // 4))
    server.program("pg_resetwal", *arguments, "--pgdata", server.data)
    server.start()


def write(db: Database, n: int) -> None:
    """Rows that are new, that change, and that go, in transactions of their own."""
    db.run(
        f"insert into t values ({n}, 'new'), ({n} + 1000, 'new too')",
        f"update t set v = 'changed {n}' where id = {n - 1}",
        f"delete from t where id = {n - 3}",
        f"insert into bag values ({n}), ({n})",
    )


def next_id(db: Database) -> int:
    (xmax,) = db.run("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")[0]
    return int(xmax)


@pytest.mark.full
def test_rows_on_both_sides_of_the_wrap(start: Start, tmp_path: Path, spark: SparkSession) -> None:
    server = start(wal_level="replica", autovacuum=False)
    db = create_database(server)
    db.run("create table t (id int primary key, v text)", "create table bag (n int)")
    write(db, 1)
    seed, n = Seed(db), 1
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("t", "bag")
        for xid in STEPS:
            write(db, n := n + 1)
            seed.poll()
            move(server, xid=xid)
            write(db, n := n + 1)
            polled = mirror.require_news("t", "bag")
            assert (polled.copied, next_id(db) >= xid) == (0, True)
        seed.poll()
        assert seed.lost == 0
        with db.connect() as early:
            early.execute("begin; insert into t values (-1, 'begun before the wrap')")
            while next_id(db) < WRAP:
                write(db, n := n + 1)
                assert mirror.require_news("t", "bag").copied == 0
                seed.poll()
            early.execute("savepoint s; insert into t values (-2, 'after it'); release s; commit")
        write(db, n := n + 1)
        assert mirror.require_news("t", "bag").copied == 0
        seed.poll()
        assert seed.lost >= 3, "the rule of the seed document loses what is written after the wrap"
        move(server, "--epoch=5")
        write(db, n := n + 1)
        assert mirror.require_news("t", "bag").copied == 2
        assert any("too many transactions since" in said for said in mirror.said)
        write(db, n := n + 1)
        assert mirror.require_news("t", "bag").copied == 0
