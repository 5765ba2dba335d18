"""The Spark job of a copy: executors read parts of tables, decode them and write them to the sink.

A task returns to the driver what it wrote, and that belongs to no table until the sink adopts the copy.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from tidemark.errors import TidemarkError, in_short
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.copy.reading import PartQuery, shown_columns
from tidemark.pipeline.copy.sources import CopySource, PartSources, read_part
from tidemark.pipeline.sinks.sink import Target, Written
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column
from tidemark.spark import in_a_task
from tidemark.values.copy import CopyBatch
from tidemark.values.types import Decoding, Types, decoding_of


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table of a copy: the columns to copy, and where its rows are written."""

    fingerprint: Fingerprint
    columns: tuple[Column, ...]
    target: Target[CopyBatch]


@dataclass(frozen=True, slots=True)
class CopyWork:
    """The input of a task."""

    types: Types
    tables: Mapping[int, CopiedTable]

    def query(self, part: Part) -> PartQuery:
        """The query that reads a part."""
        table = self.tables[part.oid]
        names = tuple(column.name for column in table.columns)
        return PartQuery(table.fingerprint, part, names, tuple(shown_columns(table.columns, self.decodings(part))))

    def decodings(self, part: Part) -> list[Decoding]:
        """How the columns of a part are decoded."""
        return [decoding_of(column.type.oid, column.typmod, self.types) for column in self.tables[part.oid].columns]


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """What a task wrote for a part."""

    part: Part
    rows: int
    written: tuple[Written, ...]


@dataclass(frozen=True, slots=True)
class FailedPart:
    """A part of which nothing is kept, and the error."""

    part: Part
    error: TidemarkError


def copy_parts(
    spark: SparkSession, sources: PartSources, work: CopyWork, parts: Sequence[Part]
) -> list[CopiedPart | FailedPart]:
    """Copy parts in one task; return for each what was written, or the error."""
    work = replace(work, tables={part.oid: work.tables[part.oid] for part in parts})
    with sources.provided(map(work.query, parts)) as source:
        found = in_a_task(spark, partial(_run, source, work, tuple(parts)))
    return [pickle.loads(each) for each in found]  # noqa: S301 - ours


def _run(source: CopySource, work: CopyWork, parts: Sequence[Part]) -> Iterator[bytes]:
    """Copy parts, and yield the result of each when it is complete."""
    for part in parts:
        try:
            result = pickle.dumps(_copied(source, work, part))
        except TidemarkError as error:
            result = pickle.dumps(FailedPart(part, error))
        except Exception as error:  # noqa: BLE001 - any other error fails this part, and no others
            result = pickle.dumps(FailedPart(part, in_short(error)))
        yield result


def _copied(source: CopySource, work: CopyWork, part: Part) -> CopiedPart:
    writer = work.tables[part.oid].target.open()
    rows = 0
    try:
        for batch in read_part(source, work.query(part), work.decodings(part)):
            writer.write(batch)
            rows += batch.rows
        return CopiedPart(part, rows, tuple(writer.finished()))
    except Exception:
        writer.discard()
        raise
