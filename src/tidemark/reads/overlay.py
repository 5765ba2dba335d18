"""Combination of folded rows with later changes: the folded rows that the changes leave valid.

Rows with a key are matched by their place if it is known, otherwise by the key; integer keys in a narrow range use a
bitmap. Rows without a key are matched by a hash, which is not unique: rows with a matching hash are compared by their
contents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.lake.rows import INSERTED
from tidemark.reads.few import Few
from tidemark.reads.places import Places, is_obsolete
from tidemark.reads.shape import ITS, Shape, same_key
from tidemark.reads.tail import local_rows
from tidemark.reads.unchanged import from_folded
from tidemark.values.kernels import Longs

BEFORE = -1  # the position of folded rows in the order of changes
WORDS = 1 << 20  # the largest bitmap: 8 MB


def overlaid(rows: DataFrame, few: Few, shape: Shape, places: Places | None = None) -> DataFrame:
    """Combine folded rows with few changes that are already merged. With `places`, the rows have theirs."""
    spark = rows.sparkSession
    kinds = _fields(rows, shape.cells)
    texts = [column.cells[1] for column in shape.columns if column.fallback]
    left = local_rows(spark, few.rows, kinds, texts)
    if few.truncated:
        return left
    if not len(few.touched):
        return rows
    bits = _bits(few.touched)
    if places is not None:
        untouched = rows.where(~is_obsolete(places, spark)).select(*shape.cells)
    elif bits is not None:
        untouched = rows.where(_is_clear(shape.key_cells[0], bits, spark))
    else:
        keys = spark_types.StructType([kinds[cell] for cell in shape.key_cells])
        untouched = without_keys(rows, spark.createDataFrame(few.touched, keys), shape)
    untouched = untouched.select(*shape.cells).unionAll(left) if len(few.rows) else untouched
    return untouched if few.incomplete is None else untouched.unionAll(from_folded(few.incomplete, rows, shape))


def _fields(rows: DataFrame, cells: Iterable[str]) -> spark_types.StructType:
    """Return the fields of cells, all nullable: changes may have nulls where folded rows have a constant default."""
    return spark_types.StructType([spark_types.StructField(cell, rows.schema[cell].dataType) for cell in cells])


@dataclass(frozen=True, slots=True)
class _Bits:
    """A set of integers as a bitmap, because testing a bit costs a fraction of a lookup in a join's hash table.

    The bit of an integer is given by its lowest bits, which differ for all integers from `least` to `greatest`. Spark
    computes it for other integers too, such as a constant that a filter compares the key with: it must exist for all.
    """

    least: int
    greatest: int
    words: Longs

    @property
    def mask(self) -> int:
        """The lowest bits."""
        return 64 * len(self.words) - 1


def _bits(touched: pa.Table) -> _Bits | None:
    """Return the keys as a bitmap, if they are integers in a narrow enough range."""
    if touched.num_columns != 1 or not pa.types.is_integer(touched.schema.types[0]):
        return None
    keys = touched.column(0).to_numpy().astype(np.int64)
    least, greatest = int(keys.min()), int(keys.max())
    if greatest - least >= 64 * WORDS:
        return None
    bits = _Bits(least, greatest, np.zeros(max(1, (1 << (greatest - least).bit_length()) // 64), np.int64))
    places = (keys & bits.mask).astype(np.uint64)
    words = bits.words.view(np.uint64)
    np.bitwise_or.at(words, (places >> np.uint64(6)).astype(np.int64), np.uint64(1) << (places & np.uint64(63)))
    return bits


def _is_clear(cell: str, bits: _Bits, spark: SparkSession) -> Column:
    """Return whether a key is not in the bitmap. It is a subquery, which runs once; a literal would be planned."""
    words = spark.createDataFrame(pa.table({"words": pa.array([bits.words])})).scalar()
    place = f"cast(cast({cell} as bigint) & {bits.mask}L as int)"
    word = F.get(words, F.expr(f"shiftright({place}, 6)"))
    bit = word.bitwiseAND(F.expr(f"shiftleft(1L, {place} & 63)"))
    return (F.col(cell) < bits.least) | (F.col(cell) > bits.greatest) | (bit == 0)


def without_keys(rows: DataFrame, changes: DataFrame, shape: Shape, *, many: bool = False) -> DataFrame:
    """Return the rows whose keys no change has."""
    touched, same = _touched(changes, shape, many)
    return rows.join(touched, same, "left_anti")


def beneath(rows: DataFrame, changes: DataFrame, shape: Shape, *, many: bool = False) -> DataFrame:
    """Return the rows whose keys some change has, as inserts: they contain the unchanged TOAST values."""
    touched, same = _touched(changes, shape, many)
    under = rows.join(touched, same, "left_semi")
    metadata = {"kind": F.lit(INSERTED), "unchanged": F.lit(None).cast("string")}
    metadata |= {name: F.lit(BEFORE).cast("long") for name in ("commit", "ordinal")}
    return under.select(*shape.cells, *(value.alias(name) for name, value in metadata.items()))


def parted(rows: DataFrame, fewer: DataFrame, shape: Shape, *, many: bool = False) -> tuple[DataFrame, DataFrame]:
    """Separate rows that equal none of the others from rows that may."""
    hashes = fewer.select(F.xxhash64(*shape.cells).alias("its_hash"))
    some = hashes.distinct() if many else F.broadcast(hashes)
    same = F.xxhash64(*(rows[cell] for cell in shape.cells)) == some["its_hash"]
    return rows.join(some, same, "left_anti"), rows.join(some, same, "left_semi")


def _touched(changes: DataFrame, shape: Shape, many: bool) -> tuple[DataFrame, Column]:
    """Return the keys of changes, which are broadcast unless there are `many`, and the join condition."""
    keys = changes.select(*(F.col(cell).alias(f"{ITS}{cell}") for cell in shape.key_cells))
    return keys.distinct() if many else F.broadcast(keys), same_key(shape)
