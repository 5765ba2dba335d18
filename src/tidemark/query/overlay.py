"""Folded rows and later changes: which of the rows the changes leave alone.

Rows with a key are matched by it, integers by a bitmap where they lie close. Whole rows are matched by a hash, which
may be shared: then the row goes where contents are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.decode.kernels import Longs
from tidemark.lake.rows import INSERTED
from tidemark.query.few import Few
from tidemark.query.shape import RANK_OTHER, Shape

BEFORE = -1  # where folded rows stand among changes
WORDS = 1 << 20  # of a bitmap: eight megabytes


def overlaid(rows: DataFrame, few: Few, shape: Shape) -> DataFrame:
    """Rows with a few changes that were merged already."""
    spark = rows.sparkSession
    kinds = spark_types.StructType([rows.schema[cell] for cell in shape.cells])
    left = spark.createDataFrame(few.rows, kinds)
    if few.truncated:
        return left
    if not len(few.touched):
        return rows
    bits = _bits(few.touched)
    if bits is not None:
        untouched = rows.where(_is_clear(shape.key_cells[0], bits, spark))
    else:
        keys = spark_types.StructType([kinds[cell] for cell in shape.key_cells])
        untouched = without_keys(rows, spark.createDataFrame(few.touched, keys), shape)
    return untouched.select(*shape.cells).unionAll(left) if len(few.rows) else untouched


@dataclass(frozen=True, slots=True)
class _Bits:
    """Integers as a bitmap: testing a bit costs a fraction of what probing a join's table does."""

    least: int
    greatest: int
    words: Longs


def _bits(touched: pa.Table) -> _Bits | None:
    """The keys as a bitmap, if they are integers that lie close enough."""
    if touched.num_columns != 1 or not pa.types.is_integer(touched.schema.types[0]):
        return None
    keys = touched.column(0).to_numpy().astype(np.int64)
    least, greatest = int(keys.min()), int(keys.max())
    if greatest - least >= 64 * WORDS:
        return None
    places = (keys - least).astype(np.uint64)
    words = np.zeros(int(places.max() >> np.uint64(6)) + 1, np.uint64)
    np.bitwise_or.at(words, (places >> np.uint64(6)).astype(np.int64), np.uint64(1) << (places & np.uint64(63)))
    return _Bits(least, greatest, words.view(np.int64))


def _is_clear(cell: str, bits: _Bits, spark: SparkSession) -> Column:
    """Whether a key is not among them. The words come by a subquery, which is run once; a literal would be planned."""
    words = spark.createDataFrame(pa.table({"words": pa.array([bits.words])})).scalar()
    place = f"(cast({cell} as bigint) - ({bits.least}L))"
    word = F.get(words, F.expr(f"cast(shiftright({place}, 6) as int)"))
    bit = word.bitwiseAND(F.expr(f"shiftleft(1L, cast({place} & 63 as int))"))
    return (F.col(cell) < bits.least) | (F.col(cell) > bits.greatest) | (bit == 0)


def without_keys(rows: DataFrame, changes: DataFrame, shape: Shape, *, many: bool = False) -> DataFrame:
    """The rows whose keys no change has."""
    touched, same = _touched(changes, shape, many)
    return rows.join(touched, same, "left_anti")


def beneath(rows: DataFrame, changes: DataFrame, shape: Shape, *, many: bool = False) -> DataFrame:
    """The rows whose keys some change has, as the changes that made them: they hold values not sent again."""
    touched, same = _touched(changes, shape, many)
    under = rows.join(touched, same, "left_semi")
    said = {"kind": F.lit(INSERTED), "rank": F.lit(RANK_OTHER), "marks": F.lit(None).cast("string")}
    said |= {name: F.lit(BEFORE).cast("long") for name in ("commit", "ordinal")}
    return under.select(*shape.cells, *(value.alias(name) for name, value in said.items()))


def parted(rows: DataFrame, fewer: DataFrame, shape: Shape, *, many: bool = False) -> tuple[DataFrame, DataFrame]:
    """Rows that equal none of the others, and those that may."""
    hashes = fewer.select(F.xxhash64(*shape.cells).alias("its_hash"))
    some = hashes.distinct() if many else F.broadcast(hashes)
    same = F.xxhash64(*(rows[cell] for cell in shape.cells)) == some["its_hash"]
    return rows.join(some, same, "left_anti"), rows.join(some, same, "left_semi")


def _touched(changes: DataFrame, shape: Shape, many: bool) -> tuple[DataFrame, Column]:
    """The keys of changes, to be joined, and when one is a row's; where they are many Spark decides how."""
    its = {cell: f"its_{cell}" for cell in shape.key_cells}
    keys = changes.select(*(F.col(cell).alias(name) for cell, name in its.items()))
    exact = {cell for column in shape.of(shape.key) if column.exact for cell in column.cells}
    same = [
        F.col(cell).eqNullSafe(F.col(name)) if cell in exact else F.col(cell) == F.col(name)
        for cell, name in its.items()
    ]
    return keys.distinct() if many else F.broadcast(keys), reduce(and_, same)
