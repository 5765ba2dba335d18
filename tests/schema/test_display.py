"""Identifiers are quoted as PostgreSQL quotes them, and as Spark reads them."""

from __future__ import annotations

import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from harness.database import Database
from tidemark.quoting import backticked
from tidemark.schema.display import quoted, spark_name

pytestmark = pytest.mark.quick

STRANGE = ("Orders", "a b", 'a"b', "a`b", "``", "a.b", "1a", "ü", "a$b", "_", "a_1", "'", "select", " ")


def test_identifiers_are_quoted_as_by_postgresql(db: Database) -> None:
    keywords = [word for (word,) in db.run("select word from pg_get_keywords()")]
    with db.connect() as connection:
        query = "select n, quote_ident(n) from unnest(%s::text[]) n"
        named = dict(connection.execute(query, [[*keywords, *STRANGE]]).fetchall())
        newest = connection.info.server_version >= 180000
        for name, by_server in named.items():
            assert quoted(name) == by_server or (not newest and by_server == name), name
            for written in (quoted(name), sql.Identifier(name).as_string(connection)):
                column = connection.execute(f"select 1 as {written}".encode()).description
                assert column is not None
                assert column[0].name == name


@pytest.mark.spark
def test_spark_reads_names_as_they_are(spark: SparkSession) -> None:
    names = (*STRANGE, "plain")
    assert spark.sql(f"select {', '.join(f'1 as {backticked(name)}' for name in names)}").columns == list(names)
    assert spark.sql(f"select {', '.join(f'1 as {spark_name([name])}' for name in names)}").columns == list(names)
    assert spark_name(["public", "Two words", "a`b"]) == "public.`Two words`.`a``b`"
