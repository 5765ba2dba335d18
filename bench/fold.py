"""`make bench-fold`: a fold of changes into a table against a rewrite with Spark: all live files read and written.

Each turn updates random rows, applies them, and folds; and the same files are rewritten with plain Spark, zstd, into as
many files. Only the fold and the rewrite are timed. A table with a fifth of the rows shows the growth; ROWS= makes it
smaller. Last, the cost of a fold for apply cycles that run at the same time (`bench/beside.py`).
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from bench.beside import disturbance
from bench.figures import report
from bench.wide import Wide, size_bytes, wide

ROWS = int(os.environ.get("ROWS", "5000000"))
SHARES = {"1pct": 0.01, "10pct": 0.1}
TURNS = 3


def main() -> None:
    """Fill and fold both tables, then fold changes and rewrite alternately."""
    sizes = {"small": ROWS // 5, "large": ROWS}
    figures: dict[str, float] = {"rows": float(ROWS)}
    with wide(dict.fromkeys(sizes, "id bigint")) as bench:
        for table, rows in sizes.items():
            bench.fill(table, rows)
            figures[f"{table}_first_fold_s"], done = bench.fold(table)
            figures[f"{table}_files"] = float(len(bench.live(table)))
            print(f"{done}, {figures[f'{table}_first_fold_s']:.1f} s", flush=True)
            _rewrite(bench, table)  # warm-up
        for name, share in SHARES.items():
            for table in sizes:
                figures |= {f"{table}_{key}": value for key, value in _by_turns(bench, table, name, share).items()}
            figures[f"fold_{name}_over_rewrite"] = figures[f"large_fold_{name}_over_rewrite"]
            for what in ("fold", "rewrite"):
                figures[f"{what}_{name}_growth"] = figures[f"large_{what}_{name}_s"] / figures[f"small_{what}_{name}_s"]
        figures |= disturbance(bench, "large", ROWS)
    report("fold", figures)


def _by_turns(bench: Wide, table: str, name: str, share: float) -> dict[str, float]:
    folds, rewrites = list[float](), list[float]()
    fold_bytes = rewrite_bytes = 0
    for turn in range(-1, TURNS):
        bench.change(table, share)
        rewritten = _rewrite(bench, table) if turn % 2 else None
        fold_s, done = bench.fold(table)
        rewrite_s, rewrite_bytes = rewritten or _rewrite(bench, table)
        fold_bytes = done.size_bytes
        print(f"  {table} {name}: fold {fold_s:.2f} s, rewrite {rewrite_s:.2f} s", flush=True)
        if turn >= 0:
            folds.append(fold_s)
            rewrites.append(rewrite_s)
    return {
        f"fold_{name}_s": statistics.median(folds),
        f"rewrite_{name}_s": statistics.median(rewrites),
        f"fold_{name}_over_rewrite": statistics.median(folds) / statistics.median(rewrites),
        f"fold_{name}_bytes": float(fold_bytes),
        f"rewrite_{name}_bytes": float(rewrite_bytes),
    }


def _rewrite(bench: Wide, table: str) -> tuple[float, int]:
    """Seconds and bytes of Spark reading all live files and writing each to one file."""
    spark, paths, folder = bench.side.spark, bench.live(table), bench.folder / "rewritten"
    with _a_task_for_each_file(spark, max(Path(path).stat().st_size for path in paths)):
        begin = time.monotonic()
        spark.read.parquet(*paths).write.option("compression", "zstd").parquet(str(folder))
        taken = time.monotonic() - begin
    written = [str(path) for path in folder.glob("*.parquet")]
    if len(written) != len(paths):
        print(f"  {len(paths)} files were rewritten into {len(written)}", flush=True)
    written_bytes = size_bytes(written)
    shutil.rmtree(folder)
    return taken, written_bytes


@contextmanager
def _a_task_for_each_file(spark: SparkSession, largest_bytes: int) -> Iterator[None]:
    """One task per file: buckets have similar sizes, so a split as large as the largest holds exactly one."""
    usual = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(largest_bytes))
    try:
        yield
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", usual or "128MB")


if __name__ == "__main__":
    main()
