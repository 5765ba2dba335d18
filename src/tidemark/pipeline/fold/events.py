"""The rows that a fold merges, as one DataFrame: changes, unchanged TOAST values for them, and versions that move.

Each row has the number of its bucket. A TRUNCATE concerns all buckets, so each gets a row with no other content.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.lake.rows import INSERTED, TRUNCATED
from tidemark.pipeline.fold.layout import VersionLayout
from tidemark.pipeline.fold.merge import BEGIN, END, EVENTS, Merging
from tidemark.reads.contents import by_attnum
from tidemark.reads.overlay import BEFORE, beneath
from tidemark.reads.shape import ChangeFacts, Shape, ShownColumn
from tidemark.reads.unchanged import carried_rows, keys_from_preimages, may_be_unchanged

BUCKET = "bucket"


@dataclass(frozen=True, slots=True)
class Events:
    """The rows to merge, and the parameters of the merge."""

    rows: DataFrame
    how: Merging


def events_of(
    changes: DataFrame,
    shape: Shape,
    layout: VersionLayout,
    facts: ChangeFacts,
    live: DataFrame | None,
    moving: DataFrame | None,
    retired: Collection[int],
) -> Events:
    """The changes on top of the `live` rows, with the versions that are `moving` to another bucket or layout.

    If updates changed keys and did not send large values again, rows that carry these values are added. Without a key
    the bucket of a row is a hash of its columns without the `retired` ones, because later removals do not contain
    those.
    """
    rows = by_attnum(changes, shape)
    truncates = _truncates(rows) if facts.truncates else ()
    rows = rows.filter(F.col("truncates").isNull()) if facts.truncates else rows
    large: tuple[ShownColumn, ...] = ()
    if facts.unchanged and shape.key:
        keys, large = may_be_unchanged(rows, shape)
        rows = keys_from_preimages(rows, keys)
    if large and facts.preimages:
        known = (
            rows
            if live is None
            else rows.unionByName(beneath(live, rows, shape, many=facts.many), allowMissingColumns=True)
        )
        rows = rows.unionByName(carried_rows(known, shape, large), allowMissingColumns=True)
    rows = rows.withColumn(END, F.lit(None).cast("long"))
    if moving is not None:
        rows = rows.unionByName(_moved(moving, shape), allowMissingColumns=True)
    gone = () if shape.key else tuple(column for column in shape.columns if column.attnum in retired)
    there = [cell for column in shape.columns if column not in gone for cell in column.cells]
    hashed = F.xxhash64(*(shape.key_cells or there))
    rows = rows.withColumn(BUCKET, F.pmod(hashed, F.lit(layout.buckets)).cast("int"))
    rows = rows.select(*shape.cells, *EVENTS.names, END, BUCKET)
    if truncates:
        every = rows.sparkSession.range(layout.buckets).select(F.col("id").cast("int").alias(BUCKET))
        rows = rows.unionByName(every.withColumn("kind", F.lit(TRUNCATED)), allowMissingColumns=True)
    unsent = {column.attnum: column.cells for column in large or gone}
    return Events(rows, Merging(shape.cells, shape.key_cells, unsent, truncates))


def _truncates(rows: DataFrame) -> tuple[tuple[int, int], ...]:
    found = rows.filter(F.col("truncates").isNotNull()).select("commit", "ordinal").distinct().collect()
    return tuple(sorted((row[0], row[1]) for row in found))


def _moved(versions: DataFrame, shape: Shape) -> DataFrame:
    """Versions as the changes that created them; closed versions also have their end."""
    metadata = {"kind": F.lit(INSERTED), "ordinal": F.lit(BEFORE).cast("long")}
    return versions.select(
        *shape.cells,
        F.col(BEGIN).alias("commit"),
        F.col(END),
        *(value.alias(name) for name, value in metadata.items()),
    )
