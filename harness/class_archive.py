"""An archive of Spark's classes as the JVM keeps them in memory, which halves the start of a JVM.

`python -m harness.class_archive` writes it into the virtual environment. A JVM of another version or with other jars
ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.spark import SparkOptions, spark_session

ARCHIVE = Path(sys.prefix) / "spark.jsa"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:-UsePerfData"
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_STATEMENTS = (
    "select k, count(*), sum(n), max(t), avg(d) from v group by k order by k",
    "select * from v a join v b using (id) where a.n > 5 and b.t in ('1', '2')",
    "select /*+ merge(b) */ count(*) from v a join v b on a.k = b.k and a.id <> b.id",
    "select *, row_number() over (partition by k order by id desc) from v qualify row_number() over (order by id) < 9",
    "select id from v where not exists (select 1 from v w where w.id = v.id + 1) union all select 1 from v limit 3",
    "with c as (select distinct k from v) select cast(k as string), case when k = 1 then null else k end from c",
    "select xxhash64(id, t), cast(n as decimal(38, 2)) / 3, date '2020-01-01' + int(k), array(k), map(k, t) from v",
)


def java_options() -> str:
    """The options of a JVM for tests: one compiler, one thread of garbage collection, and the archive if it exists."""
    return f"{OPTIONS} -Xshare:auto -XX:SharedArchiveFile={ARCHIVE} {_QUIET}" if ARCHIVE.exists() else OPTIONS


def write_archive() -> None:
    """Start a JVM, load the classes of common statements, and write the archive when it ends."""
    partial = ARCHIVE.with_suffix(".partial")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={partial} {_QUIET}"
    _load_classes(spark_session(SparkOptions(conf={"spark.sql.codegen.wholeStage": "false"})))
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if partial.exists():  # a JVM without this option leaves none
        partial.rename(ARCHIVE)


def _load_classes(spark: SparkSession) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    with tempfile.TemporaryDirectory() as folder:
        frame = spark.range(100).selectExpr(
            "id", "id % 3 k", "string(id) t", "cast(id as decimal(12, 2)) n", "double(id) d", "timestamp_micros(id) at"
        )
        frame.write.mode("overwrite").parquet(folder)
        read = spark.read.parquet(folder)
        read.createOrReplaceTempView("v")
        for statement in _STATEMENTS:
            spark.sql(statement).collect()
        read.mapInArrow(same, read.schema).toArrow()
        spark.createDataFrame(read.toArrow()).count()
    spark.stop()


if __name__ == "__main__":
    write_archive()
