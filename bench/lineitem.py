"""A table of 13 columns with numerics, dates, times and texts; and a full read of it with Spark's JDBC source."""

from __future__ import annotations

import tempfile
import time

from pyspark.sql import SparkSession

from harness.database import MIRROR, PASSWORD, Database
from harness.debian import unpacked
from tidemark.spark import SparkOptions, spark_session

PARTITIONS, FETCHED = 4, 20_000
TABLE = """create table lineitem (id bigint primary key, part int not null, supplier int not null,
    quantity numeric(12,2) not null, price numeric(12,2) not null, discount numeric(12,2) not null,
    tax numeric(12,2) not null, flag text not null, status text not null, shipped date not null, due date not null,
    received timestamptz not null, comment text not null)"""
VALUES = """i, 1 + random() * 199999, 1 + random() * 9999, 1 + i % 50, 900 + random() * 104000, i % 11 / 100.0,
    i % 9 / 100.0, (array['A', 'N', 'R'])[1 + i % 3], (array['O', 'F'])[1 + i % 2],
    date '1992-01-02' + (random() * 2500)::int, date '1992-01-31' + (random() * 2450)::int,
    timestamptz '1992-01-03' + random() * interval '2500 days',
    left(md5(i::text) || ' ' || md5((i * 7)::text), 10 + i % 33)"""


def jdbc_session() -> SparkSession:
    """A session with PostgreSQL's JDBC driver."""
    jdbc = unpacked("jdbc", ("libpostgresql-jdbc-java",))
    if jdbc is None:
        raise SystemExit("no JDBC driver: apt-get cannot download Debian's libpostgresql-jdbc-java")
    begin = time.monotonic()
    conf = {
        "spark.jars": str(jdbc / "usr/share/java/postgresql.jar"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = spark_session(SparkOptions(conf=conf))
    spark.sparkContext.setLogLevel("ERROR")
    print(f"Spark started in {time.monotonic() - begin:.1f} s", flush=True)
    return spark


def read_by_jdbc(database: Database, spark: SparkSession, rows: int) -> None:
    """Read the whole table with Spark's JDBC source, partitioned by the key, into Parquet."""
    options = {
        "url": f"jdbc:postgresql://127.0.0.1:{database.server.port}/{database.name}",
        "driver": "org.postgresql.Driver",
        "user": MIRROR,
        "password": PASSWORD,
        "dbtable": "public.lineitem",
        "partitionColumn": "id",
        "lowerBound": "1",
        "upperBound": str(rows),
        "numPartitions": str(PARTITIONS),
        "fetchsize": str(FETCHED),
    }
    with tempfile.TemporaryDirectory() as folder:
        whole = spark.read.format("jdbc").options(**options).load()
        whole.write.option("compression", "zstd").parquet(f"{folder}/all")
