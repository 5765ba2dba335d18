"""`make sql-parity`: statements of PostgreSQL at the source and by the mirror, which must not differ in a byte.

TPC-H and TPC-DS, random statements of the grammar that the mirror proves and others, and random statements under the
load of the parity test. A statement that the mirror does not answer is passed through, and is counted with the reason.
Each part can be left out by the number 0; `--seed`, `--phase` and `--only` repeat a statement that was printed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from pyspark.sql import SparkSession

from bench.figures import report
from harness.postgres import installs
from tests.mirror.parity.run import SPARK
from tests.sql_parity.comparison import Findings
from tests.sql_parity.lakes import Place, Routes, has_icu, server_at
from tests.sql_parity.load import compare_under_load
from tests.sql_parity.openers import routes_of
from tests.sql_parity.randoms import READ, Run, compare_random
from tests.sql_parity.tpc import compare_benchmark, places
from tidemark.pipeline.fold import layout
from tidemark.spark import SparkOptions, spark_session

INSIDE, OUTSIDE, LOAD = 10_000, 2_000, 1_000
BUCKET_BYTES = 20_000  # so that the small tables have several
PER_WORLD = 1_200
LEAST_BY_MIRROR = {"tpch": 22, "tpcds": 40}  # at each place
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **SPARK}
Part = Callable[[SparkSession | None, Routes], Findings]


def main() -> None:
    """Run all parts, and print the findings of each."""
    options = _options()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC")  # G1 takes a tenth of the two cores
    spark = None if options.route == "reference" else _spark()
    layout.BUCKET_BYTES = BUCKET_BYTES
    routes = routes_of(options.route, spark, options.engine)
    found: dict[str, Findings] = {}
    for name, part in _parts(options):
        begin = time.monotonic()
        some = part(spark, routes)
        found.setdefault(name, Findings()).add(some)
        _print(f"{name}, after {time.monotonic() - begin:.0f} s: {some}\n")
    if spark is not None:
        spark.stop()
    for name, findings in found.items():
        _print(f"{name}: {findings}")
    report("sql-parity", _figures(found))
    passed_through = [] if options.route == "reference" else list(_passed_through(options, found))
    sys.stderr.writelines(f"{each}\n" for each in passed_through)
    sys.exit(1 if passed_through or any(findings.differences for findings in found.values()) else 0)


def _passed_through(options: argparse.Namespace, found: dict[str, Findings]) -> Iterator[str]:
    """The benchmarks that ran whole, and of which the mirror answered fewer queries than it can."""
    for name, least in LEAST_BY_MIRROR.items():
        wanted = least * (len(places()) if name == "tpch" else 1)
        if not getattr(options, name) and found[name].by_mirror < wanted:
            yield f"{name}: the mirror answered {found[name].by_mirror} queries, and must answer {wanted}"


def _spark() -> SparkSession:
    spark = spark_session(SparkOptions(master="local[3]", conf=QUIET))
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sql_parity.run", description=__doc__)
    parser.add_argument("--route", choices=("split", "server", "reference"), default="split", help="who answers")
    parser.add_argument("--engine", default="spark", help="what computes the part below")
    parser.add_argument("--tpch", default="", help="the numbers of some queries; 0 for none")
    parser.add_argument("--tpcds", default="", help="the numbers of some queries; 0 for none")
    parser.add_argument("--inside", type=int, default=INSIDE, help="random statements of the proven grammar")
    parser.add_argument("--outside", type=int, default=OUTSIDE, help="random statements outside of it")
    parser.add_argument("--load", type=int, default=LOAD, help="random statements under load")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="of the first world")
    parser.add_argument("--phase", choices=READ, help="run one phase of one world")
    parser.add_argument("--only", type=int, help="run the statement of this number in the phase")
    return parser.parse_args()


def _parts(options: argparse.Namespace) -> Iterator[tuple[str, Part]]:
    for benchmark in ("tpch", "tpcds"):
        chosen = getattr(options, benchmark)
        if chosen != "0":
            for place in places() if benchmark == "tpch" else places()[:1]:
                yield benchmark, partial(_benchmark, benchmark, place, chosen)
    for name, outside in (("inside", False), ("outside", True)):
        yield from ((name, partial(_random, run)) for run in _runs(options, getattr(options, name), outside=outside))
    if options.load and options.route != "reference":
        servers = list(installs().values())
        for install in {servers[0].major: servers[0], servers[-1].major: servers[-1]}.values():
            half = -(-options.load // min(2, len(servers)))
            yield "load", partial(_loaded, Place(install), half, options.seed)


def _runs(options: argparse.Namespace, count: int, *, outside: bool) -> Iterator[Run]:
    """Worlds that share the statements, or the phase of one world that is asked for."""
    if options.phase:
        if count:
            yield Run(options.seed, count, outside, (options.phase,), only=options.only)
        return
    for number in range(-(-count // PER_WORLD)):
        share = min(PER_WORLD, count - number * PER_WORLD)
        yield Run(options.seed + number, -(-share // len(READ)), outside)


def _benchmark(name: str, place: Place, chosen: str, spark: SparkSession | None, routes: Routes) -> Findings:
    _print(f"{name} on {place}")
    found = Findings()
    for number in chosen.split(",") if chosen else [""]:
        found.add(compare_benchmark(name, place, routes, spark, only=f"{name} {number and number.zfill(2)}"))
    return found


def _random(run: Run, spark: SparkSession | None, routes: Routes) -> Findings:
    """A world on the newest server; outside of the grammar every other one on a server with ICU, if there is one."""
    found = list(installs().values())
    chosen = found[-1]
    if run.outside and run.seed % 2:
        for install in found:
            with server_at(install) as server:
                chosen = install if has_icu(server) else chosen
    with server_at(chosen) as server:
        return compare_random(server, spark, run, routes)


def _loaded(place: Place, count: int, seed: int, spark: SparkSession | None, routes: Routes) -> Findings:
    assert spark is not None
    return compare_under_load(place, spark, count, seed, routes)


def _figures(found: dict[str, Findings]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, findings in found.items():
        figures[f"{name}_statements"] = findings.statements
        figures[f"{name}_by_mirror"] = findings.by_mirror
        figures[f"{name}_refused_by_both"] = findings.refused_by_both
        figures[f"{name}_differences"] = len(findings.differences)
    return figures


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
