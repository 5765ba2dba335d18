"""The cost of a fold for apply: the same cycles with and without a fold running, alternately.

Part of `make bench-fold`; `make bench-beside` runs this alone. Folds run without their usual pauses, and a cycle counts
only if a fold ran during it. ROWS= and CYCLES= make it smaller.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.figures import report
from bench.wide import CHANGE, Wide, wide
from tidemark.pipeline.fold.background import POOL
from tidemark.pipeline.fold.compactor import Compactor

ROWS = int(os.environ.get("ROWS", "5000000"))
CYCLES = int(os.environ.get("CYCLES", "60"))
TURNS, WARMING = 3, 5
BATCH_SHARE = 0.006
LIMIT_S = 20.0  # for a turn
PAUSE_S = 0.05


def main() -> None:
    """Measure with one table, filled and folded."""
    with wide({"large": "id bigint"}) as bench:
        bench.fill("large", ROWS)
        print(f"{bench.fold('large')[1]}", flush=True)
        report("beside", disturbance(bench, "large", ROWS))


def disturbance(bench: Wide, table: str, rows: int) -> dict[str, float]:
    """The times of cycles during folds over those of cycles alone, and the longest of each."""
    _cycles(bench, table, rows, WARMING)
    alone, besides = list[float](), list[float]()
    folds = list[tuple[float, float]]()
    for turn in range(TURNS):
        alone += [end - begin for begin, end in _cycles(bench, table, rows, CYCLES // TURNS)]
        with _folding(bench, folds):
            cycles = _cycles(bench, table, rows, CYCLES // TURNS, folds)
        besides += [end - begin for begin, end in cycles if _during(begin, end, folds)]
        print(f"  turn {turn}: {len(besides)} cycles during {len(folds)} folds, {len(alone)} alone", flush=True)
    if not besides:
        raise SystemExit("no cycle ran during a fold")
    return {
        "apply_beside_fold_over_alone": statistics.median(besides) / statistics.median(alone),
        "apply_beside_fold_over_alone_p95": _p95(besides) / _p95(alone),
        "apply_beside_fold_max_ms": max(besides) * 1000,
        "apply_alone_ms": statistics.median(alone) * 1000,
        "apply_alone_p95_ms": _p95(alone) * 1000,
        "apply_alone_max_ms": max(alone) * 1000,
        "apply_cycles_beside_fold": float(len(besides)),
    }


def _cycles(
    bench: Wide, table: str, rows: int, count: int, folds: Sequence[tuple[float, float]] | None = None
) -> list[tuple[float, float]]:
    """Begin and end of each cycle, until `count` of them ran during one of the folds, if folds are given."""
    side, writer, cycles = bench.side, bench.writer, list[tuple[float, float]]()
    size = int(rows * BATCH_SHARE)
    limit = time.monotonic() + LIMIT_S
    counted = 0
    while counted < count and time.monotonic() < limit:
        first = random.randint(1, rows - size)  # noqa: S311 - adjacent keys are in all buckets
        side.database.run(f"update {table} set {CHANGE} where id between {first} and {first + size}")
        side.mirror.catch_up()
        begin = time.monotonic()
        writer.apply()
        end = time.monotonic()
        writer.read_catalog()
        writer.record_progress()
        cycles.append((begin, end))
        counted += folds is None or _during(begin, end, folds)
    return cycles


@contextmanager
def _folding(bench: Wide, folds: list[tuple[float, float]]) -> Iterator[None]:
    """Fold in a thread as the fold job does, without its pauses; begin and end of each fold are appended to `folds`."""
    stop, failures = threading.Event(), list[Exception]()

    def run() -> None:
        context = bench.side.spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        tasks = max(1, context.defaultParallelism // 2)
        try:
            while not stop.wait(PAUSE_S):
                with Compactor(bench.side.options.lake, bench.side.spark, tasks) as compactor:
                    for table in compactor.foldable():
                        folds.append((time.monotonic(), float("inf")))
                        compactor.fold(table)
                        folds[-1] = (folds[-1][0], time.monotonic())
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def _during(begin: float, end: float, folds: Sequence[tuple[float, float]]) -> bool:
    return any(begin < fold_end and fold_begin < end for fold_begin, fold_end in folds)


def _p95(seconds: Sequence[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)]


if __name__ == "__main__":
    main()
