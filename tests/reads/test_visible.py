"""A commit is visible at a boundary in every form of the rule, or in none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from harness.local import database
from tidemark.clock import Boundary, Lsn, Version, visible
from tidemark.lake.columns import COMMIT_VERSION
from tidemark.reads.visible import (
    arrow_misses,
    arrow_sees,
    numpy_sees,
    seen,
    seen_here,
    spark_misses,
    spark_sees,
    sql_misses,
    sql_sees,
)

pytestmark = pytest.mark.quick

MOST = 12


@st.composite
def boundaries(draw: st.DrawFn) -> Boundary:
    lsn = draw(st.integers(0, MOST))
    return Boundary(Lsn(lsn), frozenset(map(Lsn, draw(st.sets(st.integers(0, lsn), max_size=4)))))


COMMITS = range(MOST + 2)
TABLE = pa.table({COMMIT_VERSION: pa.array(COMMITS, pa.int64())})


def commits(rows: pa.Table) -> list[int]:
    found: list[int] = rows[COMMIT_VERSION].to_pylist()
    return found


@given(boundaries(), boundaries())
def test_arrow_sees_what_the_boundary_sees(base: Boundary, boundary: Boundary) -> None:
    commit = pc.field(COMMIT_VERSION)
    wanted = [lsn for lsn in COMMITS if boundary.sees(Lsn(lsn))]
    assert commits(TABLE.filter(arrow_sees(boundary, commit))) == wanted
    assert commits(TABLE.filter(arrow_misses(boundary, commit))) == [lsn for lsn in COMMITS if lsn not in wanted]
    assert commits(seen_here(TABLE, base, boundary)) == [lsn for lsn in wanted if not base.sees(Lsn(lsn))]


@given(boundaries(), st.integers(0, 3).map(lambda high: high << 62))
def test_numpy_sees_what_the_boundary_sees(boundary: Boundary, base: int) -> None:
    """Also LSNs that a signed number cannot hold."""
    moved = Boundary(Lsn(base + boundary.lsn.value), frozenset(Lsn(base + lsn.value) for lsn in boundary.excluded))
    commits = np.array([base + lsn for lsn in COMMITS], np.uint64)
    assert numpy_sees(moved, commits).tolist() == [boundary.sees(Lsn(lsn)) for lsn in COMMITS]


@given(st.lists(boundaries(), min_size=5, max_size=5))
def test_duckdb_sees_what_the_boundary_sees(given: list[Boundary]) -> None:
    forms = [form(boundary, "lsn") for boundary in given for form in (sql_sees, sql_misses)]
    schema = pa.schema([("lsn", pa.int64()), *((f"c{n}", pa.bool_()) for n in range(len(forms)))])
    with database().session() as session:
        found = session.run(f"SELECT lsn, {', '.join(forms)} FROM range({MOST + 2}) AS r (lsn)", schema)
    for lsn, *sees in zip(*(column.to_pylist() for column in found.columns), strict=True):
        assert sees == [
            visible for boundary in given for visible in (boundary.sees(Lsn(lsn)), not boundary.sees(Lsn(lsn)))
        ]


@given(boundaries(), st.integers(0, MOST + 1), st.none() | st.integers(0, MOST + 1))
def test_a_version_is_visible_from_its_begin_to_its_end(boundary: Boundary, begin: int, end: int | None) -> None:
    ended = end is not None and end <= boundary.lsn.value and Lsn(end) not in boundary.excluded
    begun = begin <= boundary.lsn.value and Lsn(begin) not in boundary.excluded
    assert visible(Version("row", Lsn(begin), None if end is None else Lsn(end)), boundary) == (begun and not ended)


@pytest.mark.spark
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(boundaries(), boundaries()), min_size=20, max_size=20))
def test_spark_sees_what_the_boundary_sees(spark: SparkSession, pairs: list[tuple[Boundary, Boundary]]) -> None:
    """Also in the changes between two boundaries, as they are read with and without the statistics of files."""
    frame = spark.createDataFrame(TABLE)
    commit = F.col(COMMIT_VERSION)
    forms = [(spark_sees(boundary, commit), spark_misses(boundary, commit)) for _, boundary in pairs]
    rows = frame.select(commit, *(form for both in forms for form in both)).collect()
    for lsn, *found in rows:
        wanted = [(boundary.sees(Lsn(lsn)), not boundary.sees(Lsn(lsn))) for _, boundary in pairs]
        assert found == [form for both in wanted for form in both]
    base, boundary = pairs[0]
    between = [lsn for lsn in COMMITS if boundary.sees(Lsn(lsn)) and not base.sees(Lsn(lsn))]
    assert sorted(row[0] for row in seen(frame, base, boundary, None).collect()) == between
