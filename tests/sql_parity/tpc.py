"""TPC-H and TPC-DS at the source and by the mirror: every query, on several versions and with several collations."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from harness.postgres import installs
from harness.tpc import tpcds, tpch
from tests.sql_parity.comparison import Findings, Statement, compare
from tests.sql_parity.lakes import ICU, LIBC, Place, Routes, copied, database_at, has_icu, server_at, source_session

BENCHMARKS: Mapping[str, ModuleType] = {"tpch": tpch, "tpcds": tpcds}
SCALE = 0.01


def places() -> list[Place]:
    """The newest version with collation C, the oldest of PyPI with that of libc, and one with ICU if there is one."""
    found = installs()
    chosen = [Place(found[max(found)]), Place(found[16], LIBC)]
    for install in found.values():
        with server_at(install) as server:
            if has_icu(server):
                return [*chosen, Place(install, ICU)]
    return chosen


def compare_benchmark(
    name: str, place: Place, routes: Routes, spark: SparkSession | None, scale: float = SCALE, only: str = ""
) -> Findings:
    """Every query of a benchmark, or those whose names contain a text."""
    benchmark, findings = BENCHMARKS[name], Findings()
    with tempfile.TemporaryDirectory() as folder, database_at(place) as database:
        with database.connect() as connection:
            benchmark.fill(connection, scale)
        with (
            copied(database, Path(folder), spark, list(benchmark.tables())) as lake,
            routes(database, lake) as opened,
            source_session(database) as source,
        ):
            route = opened()
            for query, sql in benchmark.statements().items():
                if only in query:
                    compare(Statement(sql, kind=query), source, route, f"{query} on {place}", findings)
    return findings
