"""Digests and hashes of texts are the same in PostgreSQL, in Spark and in numpy."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from harness.database import Database, create_database
from harness.postgres import Server
from tidemark.reads.digests import (
    RowDigest,
    contributions,
    source_md5,
    source_sums,
    source_text_hash,
    totals_of,
)
from tidemark.reads.spark_digests import spark_hashed_text, spark_md5, spark_sums, spark_text_hash
from tidemark.values.hashes import text_hashes

pytestmark = pytest.mark.quick

EDGES = (0, -1, 1, 1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 32) - 1, 1 << 32, -(1 << 63), (1 << 63) - 1)
HASHES = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=20)
TEXTS = ["", "a", "(17,x)", "é" * 40, "(é,ÿ)", "ab" * 5, "abcd" * 8, "x" * 1000, *(str(n) for n in range(50))]
TEXT = sql.SQL("t")


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(HASHES, min_size=1, max_size=30))
@pytest.mark.spark
def test_all_forms_give_one_digest(db: Database, spark: SparkSession, groups: list[list[int]]) -> None:
    rows = [(number, value) for number, group in enumerate(groups) for value in group]
    wanted = [RowDigest.of(np.array(group, np.int64)) for group in groups]
    query = sql.SQL("select {} from unnest(%s::int[], %s::bigint[]) each (number, hash) where number = %s")
    numbers, hashes = [number for number, _ in rows], [value for _, value in rows]
    frame = spark.createDataFrame(
        pa.table({"number": pa.array(numbers, pa.int32()), "hash": pa.array(hashes, pa.int64())})
    )
    in_spark = {row[0]: row[1:] for row in frame.groupBy("number").agg(*spark_sums(F.col("hash"))).collect()}
    with db.connect() as connection:
        for number, digest in enumerate(wanted):
            asked = connection.execute(query.format(source_sums(sql.SQL("hash"))), [numbers, hashes, number])
            (at_source,) = asked.fetchall()
            assert RowDigest.of_sums(*at_source) == digest
            assert RowDigest.of_sums(*in_spark.get(number, (0, None, None))) == digest
            if digest.rows:
                high, low = (np.array([total], np.int64) for total in at_source[1:])
                assert totals_of(high, low).tolist() == [digest.total]


@given(HASHES, HASHES)
def test_digests_are_added_and_subtracted_as_their_rows(some: list[int], others: list[int]) -> None:
    one, other, both = (RowDigest.of(np.array(hashes, np.int64)) for hashes in (some, others, [*some, *others]))
    assert one + other == both
    assert both - other == one
    halves = [(h >> 32, ((h & 0xFFFFFFFF) ^ (1 << 31)) - (1 << 31)) for h in some]
    assert one == RowDigest(len(some), sum((high << 32) + low for high, low in halves) % (1 << 64))


def test_different_hashes_add_different_numbers() -> None:
    assert len(set(contributions(np.array(EDGES, np.int64)).tolist())) == len(EDGES)


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
@pytest.mark.spark
def test_a_text_has_the_same_hashes_in_both_engines(server: Server, spark: SparkSession, encoding: str) -> None:
    utf8 = encoding == "UTF8"
    database = create_database(server, encoding)
    query = sql.SQL("select {}, {} from unnest(%s::text[]) with ordinality each (t, at) order by at").format(
        source_md5(TEXT, utf8=utf8), source_text_hash(TEXT, utf8=utf8)
    )
    with database.connect() as connection:
        at_source = connection.execute(query, [TEXTS]).fetchall()
    frame = spark.createDataFrame([(number, text) for number, text in enumerate(TEXTS)], "number int, t string")
    hashed = spark_hashed_text(F.col("t"), utf8=utf8)
    in_spark = frame.select("number", spark_md5(F.col("t")), spark_text_hash(hashed)).orderBy("number").collect()
    assert [tuple(row[1:]) for row in in_spark] == at_source
    encoded = TEXTS if utf8 else [text.encode().hex() for text in TEXTS]
    assert [row[1] for row in at_source] == text_hashes(pa.array(encoded)).tolist()
    first_bits = [int(hashlib.md5(text.encode()).hexdigest()[:15], 16) for text in TEXTS]  # noqa: S324 - not for secrets
    assert [row[0] for row in at_source] == first_bits
