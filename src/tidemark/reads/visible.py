"""Visibility of commits at a boundary: expressions of Spark, of Arrow, and of SQL, and NumPy for decoded changes.

The rule is `clock.Boundary.sees`: a commit is visible if it is at or below the boundary's LSN and not excluded. An
engine has it in both directions, because Parquet filters are derived from comparisons and not from their negation. One
property test compares all forms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.clock import Boundary
from tidemark.lake.changes import ChangeFile
from tidemark.lake.columns import COMMIT_VERSION


def spark_sees(boundary: Boundary, commit: Column) -> Column:
    """Return the Spark condition that a commit is visible; null if the commit is null."""
    seen = commit <= boundary.lsn.value
    return seen & ~commit.isin(_excluded(boundary)) if boundary.excluded else seen


def spark_misses(boundary: Boundary, commit: Column) -> Column:
    """Return the Spark condition that a commit is not visible; null if the commit is null."""
    above = commit > boundary.lsn.value
    return above | commit.isin(_excluded(boundary)) if boundary.excluded else above


def arrow_sees(boundary: Boundary, commit: pc.Expression) -> pc.Expression:
    """Return the Arrow condition that a commit is visible."""
    return (commit <= boundary.lsn.value) & ~commit.isin(pa.array(_excluded(boundary), pa.int64()))


def arrow_misses(boundary: Boundary, commit: pc.Expression) -> pc.Expression:
    """Return the Arrow condition that a commit is not visible."""
    return (commit > boundary.lsn.value) | commit.isin(pa.array(_excluded(boundary), pa.int64()))


def sql_sees(boundary: Boundary, commit: str) -> str:
    """Return the SQL condition that a commit is visible; null if the commit is null."""
    seen = f"{commit} <= {boundary.lsn.value}"
    return f"({seen} AND {commit} NOT IN ({_listed(boundary)}))" if boundary.excluded else f"({seen})"


def sql_misses(boundary: Boundary, commit: str) -> str:
    """Return the SQL condition that a commit is not visible; null if the commit is null."""
    above = f"{commit} > {boundary.lsn.value}"
    return f"({above} OR {commit} IN ({_listed(boundary)}))" if boundary.excluded else f"({above})"


def numpy_sees(boundary: Boundary, commits: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return for each commit LSN whether it is visible."""
    seen = commits <= np.uint64(boundary.lsn.value)
    if boundary.excluded and seen.any():
        seen &= ~np.isin(commits, np.array(_excluded(boundary), np.uint64))
    return seen


def seen(changes: DataFrame, base: Boundary, boundary: Boundary, files: Sequence[ChangeFile] | None) -> DataFrame:
    """Return the changes visible at `boundary` and not at `base`; filters that file statistics satisfy are omitted."""
    commit = F.col(COMMIT_VERSION)
    if files is None or boundary.excluded or any(file.greatest > boundary.lsn for file in files):
        changes = changes.where(spark_sees(boundary, commit))
    if files is None or any(file.least <= base.lsn for file in files):
        changes = changes.where(spark_misses(base, commit))
    return changes


def seen_here(rows: pa.Table, since: Boundary, boundary: Boundary) -> pa.Table:
    """Return the changes visible at `boundary` and not at `since`, in this process."""
    commit = pc.field(COMMIT_VERSION)
    return rows.filter(arrow_sees(boundary, commit)).filter(arrow_misses(since, commit))


def _listed(boundary: Boundary) -> str:
    return ", ".join(map(str, _excluded(boundary)))


def _excluded(boundary: Boundary) -> list[int]:
    return sorted(lsn.value for lsn in boundary.excluded)
