"""Histories of the model through a lake that is folded, compacted and expired on the way: as of every commit kept.

Many histories are the rows of one table, told apart by its first column. Their commits have positions of their own, so
one boundary hides other commits of each. Where they are truncated they commit together.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from tests.mirror.made import MadeLake, many
from tests.mirror.model import (
    Identity,
    rows_after,
)
from tidemark.clock import Boundary, Lsn
from tidemark.errors import NotAnswerable
from tidemark.lake.registers import read_retained
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.fold import change_files
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.reads import few, places

pytestmark = [pytest.mark.quick, pytest.mark.spark]

QUICK = ((Identity.DEFAULT, False),)


class FoldedLake(MadeLake):
    """The same, folded, compacted and expired."""

    compactions = 0

    def fold(self, spark: SparkSession) -> None:
        with Compactor(self.lake.path, spark) as compactor:
            for table in compactor.foldable():
                compactor.fold(table)
            for small in compactor.compactable():
                self.compactions += compactor.compact(small).after

    def expire(self, number: int) -> None:
        """Let go of everything before a commit."""
        done = expire_lake(self.lake.path, ExpireOptions(keep_s=None, before=self.table.lsn(number), grace_s=0))
        assert done.retained == self.table.lsn(number)

    def require(self, spark: SparkSession, first: int, last: int, chance: random.Random, *, short: bool) -> None:
        """As of every commit from `first` on, with some hidden that came later; not before it, if that is gone.

        The short form reads as of every other commit.
        """
        mirror, table = tidemark.open(self.lake.path, spark), self.table
        if read_retained(self.lake.path) > Lsn.ZERO:
            for below in (Boundary(table.lsn(first - 1)), Boundary(table.lsn(last), frozenset({table.lsn(first)}))):
                with pytest.raises(NotAnswerable, match=f"the history is kept from {table.lsn(first)} on"):
                    mirror.at(below)
        for end in range(last, first - 1, -2 if short else -1):
            nothing = [frozenset[int]()] * len(table.histories)
            for hidden in (table.hidden(end, chance, first), *([nothing] if end in (first, last) else [])):
                excluded = frozenset(table.lsn(n, sub) for sub, some in enumerate(hidden) for n in some)
                found: dict[int, Counter[str]] = defaultdict(Counter)
                for row in mirror.at(Boundary(table.lsn(end), excluded)).table("public.t").collect():
                    found[row[0]][repr(tuple(row[1:]))] += 1
                for sub, history in enumerate(table.histories):
                    visible = frozenset(range(min(end + 1, len(history)))) - hidden[sub]
                    assert found[sub] == rows_after(history, visible, table.keyed), (end, hidden[sub], history)


@pytest.mark.parametrize(
    ("identity", "truncated"),
    [
        pytest.param(each, truncated, marks=() if (each, truncated) in QUICK else pytest.mark.full)
        for truncated, identities in (
            (False, list(Identity)),
            (True, [i for i in Identity if i is not Identity.NOTHING]),
        )
        for each in identities
    ],
    ids=lambda value: value.value if isinstance(value, Identity) else "truncated" if value else "",
)
def test_every_reader_sees_the_models_rows_wherever_the_table_is_folded_to(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    identity: Identity,
    truncated: bool,
    short: bool,
) -> None:
    """What is not folded is merged by the reader, and once by Spark, as where it is much.

    The rows that it replaces are left out by their places, or in a table that is truncated by their keys.
    """
    if not truncated:
        monkeypatch.setattr(places, "WORTH_ROWS", 1)
    monkeypatch.setattr(change_files, "MANY", 2)
    monkeypatch.setattr(change_files, "GROWTH", 1)
    table, chance = many(identity, truncated, 8 if short else 25), random.Random(0)  # noqa: S311 - it is to be the same every time
    made = FoldedLake(tmp_path, table)
    first, second, last = 1, 3, table.length - 1
    made.apply(table.lsn(first))
    made.fold(spark)
    made.apply(table.lsn(second))
    made.require(spark, 0, second, chance, short=short)
    made.fold(spark)
    made.expire(first)
    made.apply(table.lsn(last))
    with monkeypatch.context() as patch:
        patch.setattr(few, "ROWS", 0)
        made.require(spark, first, last, chance, short=short)
    made.fold(spark)
    made.expire(second)
    made.require(spark, second, last, chance, short=short)
    assert made.compactions
