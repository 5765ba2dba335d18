"""`make bench-overlay`: ways to leave out the rows whose keys changed, each against a plain scan of all rows.

1 % of the keys of a table are changed. The same two queries run in one warm session, alternately: with a bitmap; with
anti-joins on the key, on a hash of it (and the key), and on row positions (assumed to be known); with a sort-merge join
instead of a broadcast; and with a window over all rows. Then with a key that is not an integer, with more keys, and
with and without adaptive execution. ROWS= makes it smaller.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812

from bench.figures import report
from bench.wide import by_turns
from tidemark.reads.few import Few
from tidemark.reads.overlay import overlaid, without_keys
from tidemark.reads.shape import Shape, ShownColumn
from tidemark.spark import SparkOptions, spark_session

ROWS = int(os.environ.get("ROWS", "5000000"))
FILES, TURNS, WARMING = 8, 5, 1
SHARE = 0.01
SHARES = (0.04, 0.4)
COLUMNS = ("id", "name", "amount", "score", "due", "version")
SHAPE = Shape(tuple(ShownColumn(name, n) for n, name in enumerate(COLUMNS, 1)), (1,))
BY_NAME = Shape(SHAPE.columns, (2,))
QUESTIONS = {
    "aggregation": "select v6 % 4, count(*), sum(v3), avg(v4), max(v5) from {rows} group by 1 order by 1",
    "sum": "select sum(v6) from {rows}",
}
Ways = Mapping[str, DataFrame]


def main() -> None:
    """Write the table, and run all measurements."""
    spark = spark_session(
        SparkOptions(
            conf={"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "3g"}
        )
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows"
        made = spark.range(0, ROWS, 1, FILES).selectExpr(
            "id as v1", "'name ' || id as v2", "cast(id % 100000 / 100 as decimal(12, 2)) as v3",
            "cast(id % 977 as double) as v4", "date '2020-01-01' + cast(id % 1500 as int) as v5", "0 as v6",
        )  # fmt: skip
        made.write.option("compression", "zstd").parquet(path)
        rows = spark.read.parquet(path)
        figures = _asked("", {"plain": rows, **_ways(rows, _changed(SHARE))})
        figures |= _asked("name_", {"plain": rows, **_by_name(rows, _changed(SHARE))})
        for share in SHARES:
            figures |= _asked(f"{share * 100:.0f}pct_", {"plain": rows, **_sizes(rows, _changed(share))})
        figures |= _adaptive(rows)
        report("overlay", {"rows": float(ROWS), **figures})
    spark.stop()


def _changed(share: float) -> pa.Table:
    """A share of all rows, scattered, with new values."""
    keys = np.sort(np.random.default_rng(1).choice(ROWS, int(ROWS * share), replace=False))
    values = {
        "v1": pa.array(keys, pa.int64()),
        "v2": pa.array([f"name {key}" for key in keys.tolist()]),
        "v3": pa.array((keys % 100).astype(np.int8)).cast(pa.decimal128(12, 2)),
        "v4": pa.array(keys % 10, pa.int64()).cast(pa.float64()),
        "v5": pa.array(keys % 1000, pa.int32()).cast(pa.date32()),
        "v6": pa.array(np.ones(len(keys)), pa.int32()),
    }
    return pa.table(values)


def _ways(rows: DataFrame, changed: pa.Table) -> Ways:
    spark = rows.sparkSession
    new = spark.createDataFrame(changed, rows.schema)
    keys = new.select("v1")
    touched = changed.select(["v1"])
    hashed = keys.select(F.xxhash64("v1").alias("its_hash"), F.col("v1").alias("its"))
    same = (F.xxhash64("v1") == F.col("its_hash")) & (F.col("v1") == F.col("its"))
    at = rows.select("*", F.col("_metadata.file_name").alias("file"), F.col("_metadata.row_index").alias("place"))
    places = at.join(F.broadcast(keys), "v1", "left_semi").select("file", "place").toArrow()
    files = {name: n for n, name in enumerate(sorted(set(places["file"].to_pylist())))}
    numbered = F.create_map(*(F.lit(each) for pair in files.items() for each in pair))[F.col("file")]
    numbers = [(files[f], p) for f, p in zip(*(column.to_pylist() for column in places.columns), strict=True)]
    known = spark.createDataFrame(pa.table({"f": [f for f, _ in numbers], "p": [p for _, p in numbers]}))
    here = at.withColumn("number", numbered)
    by_place = here.join(
        F.broadcast(known), (F.col("number") == F.col("f")) & (F.col("place") == F.col("p")), "left_anti"
    )
    newest = Window.partitionBy("v1").orderBy(F.desc("v6"))
    every = rows.unionAll(new).select("*", F.row_number().over(newest).alias("age"))
    return {
        "bitmap": overlaid(rows, Few(changed, touched, truncated=False), SHAPE),
        "keys": without_keys(rows, keys, SHAPE).unionAll(new),
        "hashes": rows.join(F.broadcast(hashed), same, "left_anti").unionAll(new),
        "positions": by_place.select(*rows.columns).unionAll(new),
        "merged": rows.join(keys.hint("merge"), "v1", "left_anti").unionAll(new),
        "window": every.where("age = 1").select(*rows.columns),
    }


def _by_name(rows: DataFrame, changed: pa.Table) -> Ways:
    """A text key: compared directly, and by a hash that is verified."""
    new = rows.sparkSession.createDataFrame(changed, rows.schema)
    hashed = new.select(F.xxhash64("v2").alias("its_hash"), F.col("v2").alias("its"))
    same = (F.xxhash64("v2") == F.col("its_hash")) & (F.col("v2") == F.col("its"))
    return {
        "keys": overlaid(rows, Few(changed, changed.select(["v2"]), truncated=False), BY_NAME),
        "hashes": rows.join(F.broadcast(hashed), same, "left_anti").unionAll(new),
    }


def _sizes(rows: DataFrame, changed: pa.Table) -> Ways:
    """The keys, which are the smaller side of the join, broadcast; or both sides shuffled."""
    new = rows.sparkSession.createDataFrame(changed, rows.schema)
    keys = new.select("v1")
    joined: Callable[[DataFrame], DataFrame] = lambda side: rows.join(side, "v1", "left_anti").unionAll(new)  # noqa: E731
    return {
        "broadcast": joined(F.broadcast(keys)),
        "shuffled": joined(keys.hint("shuffle_hash")),
    }


def _adaptive(rows: DataFrame) -> dict[str, float]:
    """The chosen way with and without adaptive execution; the setting is read when a query is planned."""
    over = overlaid(rows, Few(_changed(SHARE), _changed(SHARE).select(["v1"]), truncated=False), SHAPE)
    figures = {}
    for question, statement in QUESTIONS.items():
        ways = {each: partial(_ask_adaptive, statement, over, each) for each in ("true", "false")}
        found = by_turns(ways, TURNS, WARMING)
        figures[f"{question}_adaptive_over_not"] = found["true"] / found["false"]
    return figures


def _ask(statement: str, rows: DataFrame, _: int) -> list[Row]:
    return rows.sparkSession.sql(statement, rows=rows).collect()


def _ask_adaptive(statement: str, rows: DataFrame, adaptive: str, turn: int) -> None:
    rows.sparkSession.conf.set("spark.sql.adaptive.enabled", adaptive)
    _ask(statement, rows, turn)
    rows.sparkSession.conf.unset("spark.sql.adaptive.enabled")


def _asked(prefix: str, ways: Ways) -> dict[str, float]:
    """Run every query in every way, alternately; all ways but the plain one must return the same answer."""
    figures: dict[str, float] = {}
    for question, statement in QUESTIONS.items():
        asked = {way: partial(_ask, statement, rows) for way, rows in ways.items()}
        answers = {way: ask(0) for way, ask in asked.items() if way != "plain"}
        if len({repr(answer) for answer in answers.values()}) != 1:
            raise SystemExit(f"{question}: {answers}")
        found = by_turns(asked, TURNS, WARMING)
        figures |= {f"{prefix}{question}_{way}_over_plain": found[way] / found["plain"] for way in answers}
        figures[f"{prefix}{question}_plain_ms"] = found["plain"] * 1000
        print("  " + ", ".join(f"{way} {seconds * 1000:.0f} ms" for way, seconds in found.items()), flush=True)
    return figures


if __name__ == "__main__":
    main()
