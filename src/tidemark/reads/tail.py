"""The tail of the log: received changes that are not in the lake yet, decoded for one table as readers have it.

A short tail is decoded in this process, which takes milliseconds and determines its exact contents. Spark decodes a
long one.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from tidemark.errors import NotAnswerable
from tidemark.lake.columns import CHANGE_TYPE, OURS, TEXT_SUFFIX, TRUNCATE, UNCHANGED, StoredColumn, converted
from tidemark.lake.rows import INSERTED, PREIMAGE, change_rows
from tidemark.log.mapped import decoded
from tidemark.log.slices import Slice, SlicePlan
from tidemark.pgoutput.changes import Undecodable
from tidemark.reads.shape import ChangeFacts
from tidemark.reads.shown import ShownTable
from tidemark.schema.relation import Relation
from tidemark.spark.types import spark_type
from tidemark.values.cells import DecodedColumn as Values
from tidemark.values.types import Types

HERE_BYTES, MANY_BYTES = 8 << 20, 512 << 20


@dataclass(frozen=True, slots=True)
class TailWork:
    """The parameters for decoding a tail: the stored columns of each relation; those of other tables are skipped."""

    log: Path
    types: Types
    table: ShownTable
    relations: Mapping[Relation, tuple[StoredColumn, ...]]


@dataclass(frozen=True, slots=True)
class TailFrame:
    """A tail as a DataFrame, and its kinds of changes."""

    rows: DataFrame
    facts: ChangeFacts


def tail_here(work: TailWork, plan: SlicePlan, most_bytes: int = HERE_BYTES) -> pa.Table | None:
    """Decode a short tail in this process; None if it is long."""
    if plan.size_bytes > most_bytes:
        return None
    return pa.concat_tables([arrow_schema(work.table).empty_table(), *_tail_rows(work, plan.slices)])


def tail_of(spark: SparkSession, work: TailWork, plan: SlicePlan) -> TailFrame | None:
    """Return the tail, or None if it is known to contain no change of this table."""
    schema = change_schema(work.table)
    rows = tail_here(work, plan)
    if rows is not None:
        texts = [column.text_name for column in work.table.columns if column.fallback]
        return TailFrame(local_rows(spark, rows, schema, texts), _facts(rows)) if len(rows) else None
    slices = pa.table({"slice": pa.array([pickle.dumps(each) for each in plan.slices], pa.binary())})
    frame = spark.createDataFrame(slices).mapInArrow(partial(_run, work), schema)
    return TailFrame(
        frame,
        ChangeFacts(
            only_inserts=False, truncates=True, unchanged=True, preimages=True, many=plan.size_bytes > MANY_BYTES
        ),
    )


def local_rows(spark: SparkSession, rows: pa.Table, schema: spark_types.StructType, texts: Iterable[str]) -> DataFrame:
    """Convert rows in this process to a DataFrame; `texts` are the names of text fallbacks.

    While Spark's optimizer plans, it evaluates expressions over local rows, including those that the query does not
    need. Evaluating a guarded value that has only its text fails the query. Spark does not evaluate expressions over a
    coalesced DataFrame.
    """
    frame = spark.createDataFrame(rows, schema)
    return frame.coalesce(1) if any(rows[name].null_count < len(rows) for name in texts) else frame


def change_schema(table: ShownTable) -> spark_types.StructType:
    """Return the columns of a table's changes for readers, with Spark types."""
    return spark_types.StructType(
        [spark_types.StructField(field.name, spark_type(field.type)) for field in arrow_schema(table)]
    )


def arrow_schema(table: ShownTable) -> pa.Schema:
    """Return the columns of a table's changes for readers."""
    fields: list[pa.Field] = []
    for column in table.columns:
        fields.append(pa.field(column.name, column.type))
        if column.fallback:
            fields.append(pa.field(column.text_name, pa.string()))
    return pa.schema([*fields, *OURS])


def _run(work: TailWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for each in batch.column(0):
            for rows in _tail_rows(work, [pickle.loads(each.as_py())]):  # noqa: S301 - from our own driver
                yield from rows.to_batches()


def _tail_rows(work: TailWork, slices: Iterable[Slice]) -> Iterator[pa.Table]:
    for each in slices:
        for part in each.parts:
            for batch in decoded(part, work.log, work.types):
                columns = work.relations.get(batch.relation)
                if columns is None:
                    continue
                if isinstance(batch, Undecodable):
                    raise NotAnswerable(
                        f"{batch.relation.schema}.{batch.relation.name} cannot be read at or above {batch.commit_lsn}: "
                        f"{batch.reason}",
                        f"Use an LSN before {batch.commit_lsn}.",
                    )
                yield shown_rows(change_rows(batch, columns), columns, work.table)


def shown_rows(rows: pa.Table, columns: tuple[StoredColumn, ...], table: ShownTable) -> pa.Table:
    """Convert rows to the columns of a table for readers."""
    by_attnum = {column.attnum: column.name for column in columns}
    arrays: list[pa.ChunkedArray | pa.Array] = []
    for column in table.columns:
        name = by_attnum.get(column.attnum)
        values = _stored(rows, name, column.type) if name else _repeated(column.missing, column.type, len(rows))
        arrays.append(values.array)
        if column.fallback:
            arrays.append(values.fallback if values.fallback is not None else pa.nulls(len(rows), pa.string()))
        elif values.fallback is not None:
            raise NotAnswerable(
                f"column {column.name} has a value that Spark's type cannot hold, in a change that is not applied yet",
                "Retry the command when the change is applied; `tidemark status LAKE` shows the applied LSN.",
            )
    return pa.table([*arrays, *(rows[name] for name in OURS.names)], schema=arrow_schema(table))


def _stored(rows: pa.Table, name: str, kind: pa.DataType) -> Values:
    text = name + TEXT_SUFFIX
    return converted(Values(rows[name], rows[text] if text in rows.column_names else None), kind)


def _repeated(value: Values | None, kind: pa.DataType, count: int) -> Values:
    if value is None:
        return Values(pa.nulls(count, kind))
    return Values(*(None if each is None else pa.repeat(each[0], count) for each in (value.array, value.fallback)))


def _facts(rows: pa.Table) -> ChangeFacts:
    kinds = set(pc.unique(rows[CHANGE_TYPE]).to_pylist())
    return ChangeFacts(
        only_inserts=kinds == {INSERTED},
        truncates=rows[TRUNCATE].null_count < len(rows),
        unchanged=rows[UNCHANGED].null_count < len(rows),
        preimages=PREIMAGE in kinds,
    )
