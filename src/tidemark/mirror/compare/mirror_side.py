"""The rows of a table in the mirror; Spark computes the digests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.mirror.compare.digest import WHOLE, LocatedDigest, Range, Row
from tidemark.mirror.compare.server_side import ComparedTable
from tidemark.quoting import backticked
from tidemark.reads.spark_digests import mirror_row, spark_md5, spark_sums


@dataclass(frozen=True, slots=True)
class MirrorSide:
    """One table at the boundary of the comparison's snapshot, with the columns of the text fallback."""

    frame: DataFrame
    table: ComparedTable

    def whole(self) -> LocatedDigest:
        """Return the digest of all rows."""
        return LocatedDigest.of(*self._figures(None).agg(*_figures()).collect()[0])

    def parts(self, within: Range) -> Mapping[int, LocatedDigest]:
        """Return the digest of each part of a range that has rows."""
        part = F.expr(f"(cast(at as decimal(38,0)) - {within.low}) div {within.step}")
        rows = self._figures(within).groupBy(part.alias("part")).agg(*_figures()).collect()
        return {part: LocatedDigest.of(*figures) for part, *figures in rows}

    def rows(self, within: Range, *, values: bool) -> Counter[Row]:
        """Return the rows of a range."""
        key = mirror_row(self.table.key) if self.table.key else F.lit(None).cast("string")
        text = mirror_row(self.table.columns)
        content = text if values else spark_md5(text).cast("string")
        return Counter(Row(row[0], row[1]) for row in self._read(within).select(key, content).collect())

    def _figures(self, within: Range | None) -> DataFrame:
        """Return the hash and the position of each row."""
        hashed = spark_md5(mirror_row(self.table.columns))
        return self._read(within).select(hashed.alias("hash"), self._position().cast("long").alias("at"))

    def _read(self, within: Range | None) -> DataFrame:
        frame = self.frame
        if within is not None:
            frame = frame.where(self._position().between(within.low, within.high))
        if self.table.sample < WHOLE:
            frame = frame.where(spark_md5(mirror_row(self.table.located)) % WHOLE < self.table.sample)
        return frame

    def _position(self) -> Column:
        if (key := self.table.by_value) is not None:
            return F.col(backticked(key.name))
        return spark_md5(mirror_row(self.table.located))


def _figures() -> tuple[Column, ...]:
    return *spark_sums(F.col("hash")), F.min("at"), F.max("at")
