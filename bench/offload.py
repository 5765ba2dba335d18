"""What the mirror answers in place of the source, in TPC-H at SCALE= (1): a part of `make bench-serve`.

`primary_cpu_share` is the CPU time of PostgreSQL for the queries that the mirror answered, over that for the same
queries at the source; `tpch_by_mirror` is their number. `dashboard_speedup_geomean` is how much faster the mirror with
the local engine answers eight statements of a dashboard, through the server. `auto_over_best` is the time with the
route that the server chooses, after it has learned, over that of the faster route, as the geometric mean over all
statements. `spark_split_over_spark_sql` is the time of the queries split between Spark and PostgreSQL over that of the
same queries as Spark's SQL, of those with as many rows (comparisons of char(n) differ). Statements run alternately on
all routes, each TIMES= (3) times; the fastest one counts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tidemark
from bench.memory import tree_cpu_s
from bench.wide import session
from harness.database import MIRROR, OWNER, Database, add_roles, create_database
from harness.postgres import installs, start_server
from harness.postgres.server import Settings
from harness.served import served
from harness.syncing import syncing
from harness.tpc import tpch
from tidemark.errors import NotAnswerable, TidemarkError
from tidemark.mirror.dialect import answer
from tidemark.mirror.moment import Moment

SCALE, TIMES = float(os.environ.get("SCALE", "1")), int(os.environ.get("TIMES", "3"))
SETTINGS: Settings = {"shared_buffers": "2GB", "work_mem": "64MB", "autovacuum": False, "max_wal_size": "4GB"}
LEARNED = 4  # executions after which both routes are known
DASHBOARD = {
    "count": "select count(*) from lineitem",
    "sum": "select sum(l_extendedprice) from lineitem",
    "groups": "select l_returnflag, l_linestatus, count(*), avg(l_quantity) from lineitem group by 1, 2 order by 1, 2",
    "top": "select l_suppkey, sum(l_extendedprice) from lineitem group by 1 order by 2 desc, 1 limit 10",
    "distinct": "select count(distinct l_partkey) from lineitem",
    "years": "select extract(year from l_shipdate), sum(l_extendedprice * (1 - l_discount)) from lineitem "
    "group by 1 order by 1",
    "join": "select o_orderpriority, count(*), sum(l_quantity) from orders join lineitem on o_orderkey = l_orderkey "
    "where o_orderdate >= date '1995-01-01' group by 1 order by 1",
    "month": "select l_shipmode, count(*) filter (where l_receiptdate > l_commitdate) as late, count(*) from lineitem "
    "where l_shipdate between date '1996-03-01' and date '1996-03-31' group by 1 order by 1",
}
LOOKUPS = {
    "order": "select * from orders where o_orderkey = 7",
    "lines": "select l_linenumber, l_quantity from lineitem where l_orderkey = 7 order by 1",
    "customer": "select c_name, count(*) from customer join orders on c_custkey = o_custkey where c_custkey = 7 "
    "group by 1",
}
Client = psycopg.Connection[Any]


def offloaded() -> dict[str, float]:
    """Load TPC-H, mirror it, and measure."""
    spark = session()
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    database = create_database(server)
    with database.connect() as connection:
        tpch.fill(connection, SCALE)
    server.sql("checkpoint")
    with (
        tempfile.TemporaryDirectory() as folder,
        syncing(database, Path(folder), spark, *tpch.tables(), folds=False) as synced,
    ):
        synced.copy_all()
        synced.catch_up()
        print("the mirror is ready", flush=True)
        figures = by_local_engine(database, synced.options.lake) | by_spark(database, synced.options.lake, spark)
    server.remove()
    spark.stop()
    return figures


def by_local_engine(database: Database, lake: Path) -> dict[str, float]:
    """The routes of the server with the local engine."""
    dsn = database.dsn(OWNER)
    with served(dsn, lake, "--engine", "duckdb", "--route", "auto") as running, ExitStack() as held:

        def client(text: str, *settings: str) -> Client:
            found = held.enter_context(psycopg.connect(text, autocommit=True))
            for setting in settings:
                found.execute(setting.encode())
            return found

        source, auto = client(dsn.reveal()), client(running.dsn(dsn))
        mirror = client(running.dsn(dsn), "set tidemark.cost = 0")
        figures = cpu_share(database, source, mirror)
        times = {
            name: fastest(statement, {"source": source, "mirror": mirror, "auto": auto})
            for name, statement in (DASHBOARD | LOOKUPS | tpch.statements()).items()
        }
    for name, found in times.items():
        print(name, {route: f"{1000 * seconds:.1f} ms" for route, seconds in found.items()}, flush=True)
    figures["dashboard_speedup_geomean"] = geomean(
        [times[each]["source"] / times[each]["mirror"] for each in DASHBOARD]
    )
    figures["auto_over_best"] = geomean(
        [found["auto"] / min(found["source"], found["mirror"]) for found in times.values()]
    )
    return figures


def is_by_mirror(client: Client, statement: str) -> bool:
    """Execute a statement; return whether the mirror answered it."""
    executed(client, statement)
    last = client.execute("show tidemark.last").fetchone()
    return last is not None and str(last[0]).startswith("mirror: ")


def cpu_share(database: Database, source: Client, mirror: Client) -> dict[str, float]:
    """The CPU time of PostgreSQL for TPC-H by the mirror, over that at the source."""
    postmaster = database.server.pid
    by_source, by_mirror, answered = 0.0, 0.0, 0
    for statement in tpch.statements().values():
        begin = tree_cpu_s(postmaster)
        is_answered = is_by_mirror(mirror, statement)
        middle = tree_cpu_s(postmaster)
        if is_answered:
            executed(source, statement)
            answered += 1
            by_mirror += middle - begin
            by_source += tree_cpu_s(postmaster) - middle
    return {"primary_cpu_share": by_mirror / by_source, "tpch_by_mirror": answered}


def fastest(statement: str, clients: Mapping[str, Client]) -> dict[str, float]:
    """The shortest time of a statement on each route; `auto` learns first."""
    for _ in range(LEARNED):
        executed(clients["auto"], statement)
    return alternately({name: partial(executed, each, statement) for name, each in clients.items()})


def executed(client: Client, statement: str) -> None:
    """Execute a statement, and fetch all rows."""
    client.execute(statement.encode()).fetchall()


def alternately(ways: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The shortest time of each way, in seconds."""
    found = dict.fromkeys(ways, float("inf"))
    for _ in range(TIMES):
        for name, way in ways.items():
            begin = time.monotonic()
            way()
            found[name] = min(found[name], time.monotonic() - begin)
    return found


def by_spark(database: Database, lake: Path, spark: SparkSession) -> dict[str, float]:
    """TPC-H split between Spark and PostgreSQL, over the same queries in Spark's SQL at the same moment."""
    split_s, plain_s, compared = 0.0, 0.0, 0
    with (
        tidemark.open(lake, spark, source=database.dsn(MIRROR)) as mirror,
        mirror.at("now") as moment,
        database.connect() as connection,
    ):
        for name, statement in tpch.statements().items():
            split = partial(answer, statement, (), moment, connection)
            try:
                rows = len(split().rows)
            except NotAnswerable as error:
                print(f"{name} is not split: {error.message}", flush=True)
                continue
            if (plain := collected(moment, statement)) != rows:
                print(f"{name} is not compared: Spark's SQL returns {plain} rows, PostgreSQL {rows}", flush=True)
                continue
            found = alternately({"split": split, "spark": partial(collected, moment, statement)})
            print(name, {way: f"{seconds:.2f} s" for way, seconds in found.items()}, flush=True)
            split_s, plain_s, compared = split_s + found["split"], plain_s + found["spark"], compared + 1
    return {"spark_split_over_spark_sql": split_s / plain_s, "spark_queries": compared}


def collected(moment: Moment, statement: str) -> int | None:
    """Execute a query of Spark, and fetch all rows; return their number, None if Spark's SQL does not have it."""
    try:
        return len(moment.sql(statement).collect())
    except (TidemarkError, PySparkException) as error:
        print(f"  {type(error).__name__}", flush=True)
        return None


def geomean(ratios: list[float]) -> float:
    """The geometric mean."""
    return statistics.geometric_mean(ratios)
