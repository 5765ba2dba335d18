"""One table in a cycle: its rows in the mirror, the rows read from the source, and their comparison.

Rows are compared by cells (`v3`, `t3`, see `reads.shape`), under the definition that the cycle's snapshot shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from tidemark.lake.rows import INSERTED, POSTIMAGE
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.poll.digests import Text
from tidemark.pipeline.poll.staging import Staged, StagedRead, staged_rows
from tidemark.reads.canonical import ComparedColumn
from tidemark.reads.contents import has_floats, zeros_apart
from tidemark.reads.shape import MANY, Shape, ShownColumn
from tidemark.reads.shown import is_streamed, shape_of
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableHistory
from tidemark.schema.table import Column
from tidemark.spark.types import spark_type
from tidemark.values.types import Types, decoding_of

FEW, SMALL_BYTES = 100_000, 8 << 20  # up to this size of the rows read, the mirror's rows are broadcast


@dataclass(frozen=True, slots=True)
class PolledTable:
    """A followed table as the snapshot shows it; `early` returns the mirror's rows, with columns by name."""

    spark: SparkSession
    history: TableHistory
    fingerprint: Fingerprint
    parts: tuple[Part, ...]
    types: Types
    utf8: bool
    early: Callable[[], DataFrame]

    @property
    def name(self) -> str:
        """The qualified name."""
        return self.fingerprint.qualified

    @property
    def columns(self) -> tuple[Column, ...]:
        """The mirrored columns."""
        return tuple(each for each in self.fingerprint.columns if is_streamed(each, self.types.version_num))

    @property
    def digested(self) -> tuple[Column, ...]:
        """The columns that identify a row: those of the key, or all columns if there is no key."""
        by_attnum = {column.attnum: column for column in self.columns}
        return tuple(by_attnum[attnum] for attnum in self.fingerprint.key) or self.columns

    @property
    def integer_key(self) -> str | None:
        """The cell of the key, if the key is a single integer."""
        (only,) = self.digested if len(self.fingerprint.key) == 1 else (None,)
        kind = decoding_of(only.type.oid, only.typmod, self.types).arrow if only is not None else pa.null()
        return f"v{only.attnum}" if only is not None and pa.types.is_signed_integer(kind) else None

    def shape(self, *frames: DataFrame, texts: frozenset[int] = frozenset()) -> Shape:
        """The cells of these frames, and a text fallback for each column in `texts`."""
        names = {name for frame in frames for name in frame.columns}
        return shape_of(self.fingerprint, self.types.version_num, names, texts)

    def text(self, shape: Shape | None = None) -> Text:
        """The digested text of a row that has the cells of a shape."""
        with_fallback = (
            {column.attnum for column in shape.columns if column.fallback} if shape is not None else frozenset[int]()
        )
        columns = tuple(
            ComparedColumn(
                column.name,
                f"v{column.attnum}",
                decoding_of(column.type.oid, column.typmod, self.types).arrow,
                f"t{column.attnum}" if column.attnum in with_fallback else None,
            )
            for column in self.digested
        )
        return Text(columns, self.utf8, self.integer_key is not None)

    def cell_types(self, shape: Shape) -> dict[str, spark_types.DataType]:
        """The Spark type of each cell of a shape."""
        kinds: dict[str, spark_types.DataType] = {f"t{each.attnum}": spark_types.StringType() for each in self.columns}
        for column in self.columns:
            kind = decoding_of(column.type.oid, column.typmod, self.types).arrow
            kinds[f"v{column.attnum}"] = spark_type(kind)
        return {cell: kinds[cell] for cell in shape.cells}

    def staged(self, staged: Staged, wanted: StagedRead, shape: Shape) -> DataFrame:
        """The staged rows, with the cells of a shape."""
        rows = staged_rows(self.spark, staged, wanted, self.types)
        there = set(rows.columns)
        return rows.select(*(_cell(cell, cell in there) for cell in shape.cells))

    def changed(self, early: DataFrame, late: DataFrame, staged: Staged, shape: Shape) -> DataFrame:
        """The rows of the source that the mirror does not have, or has with other values, with their `kind`.

        The table has a key, by which rows are matched. Up to `MANY` keys are broadcast, so that the mirror's rows are
        not shuffled.
        """
        keys = late.select(*(F.col(cell).alias(f"its_{cell}") for cell in shape.key_cells))
        of_key = reduce(and_, (_same_key(column) for column in shape.of(shape.key)))
        known = early.join(F.broadcast(keys) if staged.rows <= MANY else keys, of_key, "left_semi")
        before = known.select(F.lit(True).alias("its"), *(F.col(cell).alias(f"its_{cell}") for cell in shape.cells))
        few = staged.rows <= FEW and staged.size_bytes <= SMALL_BYTES
        beside = late.join(F.broadcast(before) if few else before, of_key, "left")
        there = F.col("its").isNotNull()
        same = reduce(and_, (_same_cell(cell, late.schema[cell].dataType) for cell in shape.cells))
        kind = F.when(there, POSTIMAGE).otherwise(INSERTED)
        return beside.where(~(there & same)).select(*shape.cells, kind.alias("kind"))


def _same_key(column: ShownColumn) -> SparkColumn:
    """Whether a column of the key is equal.

    It is never null, but a value that only the text fallback can represent has no value in `v…`.
    """
    if not column.fallback:
        return F.col(f"v{column.attnum}") == F.col(f"its_v{column.attnum}")
    return reduce(and_, (F.col(cell).eqNullSafe(F.col(f"its_{cell}")) for cell in column.cells))


def _same_cell(cell: str, kind: spark_types.DataType) -> SparkColumn:
    """Whether a cell is identical; Spark considers 0.0 and -0.0 equal."""
    same = F.col(cell).eqNullSafe(F.col(f"its_{cell}"))
    if not has_floats(kind):
        return same
    return same & zeros_apart(cell, kind).eqNullSafe(zeros_apart(f"its_{cell}", kind))


def _cell(name: str, there: bool) -> SparkColumn:
    return F.col(name) if there else F.lit(None).cast("string").alias(name)
