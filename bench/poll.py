"""`make bench-poll`: a poll against reading the whole table again with Spark's JDBC source.

Two million rows of 13 columns. Alternately: a poll that finds 1 % changed and 0.1 % deleted rows, scattered, and the
JDBC read into Parquet. Then polls of one kind each, for the bytes on the network, which a proxy counts: changed rows
only, deleted rows only, and a transaction on another table only. ROWS= makes it smaller.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import tidemark
from bench.figures import report
from bench.lineitem import TABLE, VALUES, jdbc_session, read_by_jdbc
from harness.database import Database, add_roles, create_database
from harness.polled import PolledMirror, polling
from harness.postgres import installs, start_server
from harness.proxy import Proxy
from tidemark.mirror.compare.comparison import CompareOptions, Comparison
from tidemark.mirror.compare.narrowing import Verdict
from tidemark.pipeline.copy.drain import copied_bytes
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session

ROWS = int(os.environ.get("ROWS", "2000000"))
TURNS, WARMING = 5, 1


def main() -> None:
    """Fill, mirror, and poll."""
    spark = jdbc_session()
    server = start_server(installs()[18], {"wal_level": "replica", "max_wal_size": "8GB"})
    add_roles(server)
    database = create_database(server)
    server.sql("alter role mirror noreplication")
    database.run(
        "create table beside (id int primary key)",
        TABLE,
        f"insert into lineitem select {VALUES} from generate_series(1, {ROWS}) i",
    )
    database.run("vacuum analyze")
    database.admin("checkpoint")
    proxy = Proxy(server.port)
    with tempfile.TemporaryDirectory() as folder:
        with polling(database, Path(folder), spark, proxy=proxy) as mirror:
            _measure(mirror, proxy)
        compared = list(Comparison(tidemark.open(mirror.options.lake, spark), database.dsn(), CompareOptions()).run())
        if {each.verdict for each in compared} != {Verdict.EQUAL}:
            raise SystemExit("the mirror differs from the source")
    proxy.close()
    server.remove()
    spark.stop()


def _measure(mirror: PolledMirror, proxy: Proxy) -> None:
    database, spark = mirror.database, mirror.spark
    begin = time.monotonic()
    mirror.poll()
    first_s = time.monotonic() - begin
    cycles, reads = [], []
    for turn in range(-WARMING, TURNS):
        _change(database, turn)
        _delete(database, turn)
        cycles.append(_timed(mirror))
        begin = time.monotonic()
        read_by_jdbc(database, spark, ROWS)
        reads.append(time.monotonic() - begin)
        print(f"  poll {cycles[-1]:.2f} s, JDBC {reads[-1]:.2f} s", flush=True)
    idle = [_timed(mirror) for _ in range(TURNS)]
    moved = {}
    for what, act in (("change", _change), ("delete", _delete), ("nothing", _beside)):
        act(database, TURNS + 1)
        before = proxy.received_bytes
        mirror.poll()
        moved[what] = proxy.received_bytes - before
    table_bytes, key_bytes = _bytes(database, "lineitem"), _bytes(database, "(select id from public.lineitem)")
    cycle_s, jdbc_s = (statistics.median(each[WARMING:]) for each in (cycles, reads))
    report(
        "poll",
        {
            "rows": float(ROWS),
            "change_bytes_over_table_bytes": moved["change"] / table_bytes,
            "reconcile_bytes_over_all_keys": moved["delete"] / key_bytes,
            "reconcile_idle_bytes_over_all_keys": moved["nothing"] / key_bytes,
            "cycle_over_spark_jdbc": cycle_s / jdbc_s,
            "cycle_s": cycle_s,
            "spark_jdbc_s": jdbc_s,
            "idle_cycle_s": statistics.median(idle),
            "first_cycle_s": first_s,
        },
    )


def _timed(mirror: PolledMirror) -> float:
    begin = time.monotonic()
    mirror.poll()
    return time.monotonic() - begin


def _change(database: Database, turn: int) -> None:
    """Update one row in a hundred, scattered."""
    database.run(f"update lineitem set price = price + 1 where (id * 7919 + {turn}) % 100 = 0")


def _delete(database: Database, turn: int) -> None:
    """Delete one row in a thousand, scattered."""
    database.run(f"delete from lineitem where (id * 104729 + {turn}) % 1000 = 0")


def _beside(database: Database, turn: int) -> None:
    database.run(f"insert into beside values ({turn})")


def _bytes(database: Database, what: str) -> int:
    """The number of bytes that a binary COPY of a table or query sends."""
    named = f"public.{what}" if what.isidentifier() else what
    with Session.open(Dsn(database.dsn().reveal()), "bench") as session:
        statement = f"copy {named} to stdout (format binary)".encode()
        return sum(len(piece) for piece in copied_bytes(session.connection.pgconn, statement, "counting"))


if __name__ == "__main__":
    main()
