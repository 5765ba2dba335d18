"""The rows of a table in the mirror; Spark computes the digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.mirror.compare.digest import DIGITS, WHOLE, Range, Row, RowDigest
from tidemark.mirror.compare.table import ComparedTable
from tidemark.reads.canonical import mirror_row
from tidemark.reads.text import quoted

_NUMBER = "decimal(38,0)"


@dataclass(frozen=True, slots=True)
class MirrorSide:
    """One table at the boundary of the comparison's snapshot, with the columns of the text fallback."""

    frame: DataFrame
    table: ComparedTable

    def whole(self) -> RowDigest:
        """Return the digest of all rows."""
        row = self._from(None).agg(*_figures()).collect()[0]
        return RowDigest(row[0], int(row[1]), row[2], row[3])

    def parts(self, within: Range) -> Mapping[int, RowDigest]:
        """Return the digest of each part of a range that has rows."""
        part = F.expr(f"(cast(at as {_NUMBER}) - {within.low}) div {within.step}")
        rows = self._from(within).groupBy(part.alias("part")).agg(*_figures()).collect()
        return {row[0]: RowDigest(row[1], int(row[2]), row[3], row[4]) for row in rows}

    def rows(self, within: Range, *, values: bool) -> Counter[Row]:
        """Return the rows of a range."""
        key = mirror_row(self.table.key) if self.table.key else F.lit(None).cast("string")
        said = F.col("row_text") if values else _hash(F.col("row_text")).cast("string")
        return Counter(
            Row(row[0], row[1]) for row in self._from(within, key.alias("key")).select("key", said).collect()
        )

    def _from(self, within: Range | None, *also: Column) -> DataFrame:
        frame, position = self.frame, self._position()
        if within is not None:
            frame = frame.where(position.between(within.low, within.high))
        if self.table.sample < WHOLE:
            frame = frame.where(_hash(mirror_row(self.table.located)) % WHOLE < self.table.sample)
        return frame.select(mirror_row(self.table.columns).alias("row_text"), position.cast("long").alias("at"), *also)

    def _position(self) -> Column:
        if (key := self.table.by_value) is not None:
            return F.col(quoted(key.name))
        return _hash(mirror_row(self.table.located))


def _figures() -> tuple[Column, ...]:
    total = F.sum(_hash(F.col("row_text")).cast(_NUMBER))
    return F.count(F.lit(1)), F.coalesce(total, F.lit(0).cast(_NUMBER)), _or_0(F.min("at")), _or_0(F.max("at"))


def _or_0(value: Column) -> Column:
    return F.coalesce(value, F.lit(0).cast("long"))


def _hash(text: Column) -> Column:
    return F.conv(F.left(F.md5(text.cast("binary")), F.lit(DIGITS)), 16, 10).cast("long")
