"""Rows that a cycle has read from the source, in files in the staging directory until the next cycle.

So the source is read once, even if Spark evaluates the rows several times. Columns are named by attnum, as in plans:
`v3` is a value, `t3` its text fallback.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types

from tidemark.errors import UNREADABLE, TidemarkError, Unreadable, in_short
from tidemark.lake.files import FileWriter
from tidemark.lake.shared import SharedFolder
from tidemark.pipeline.copy.parts import Part, together
from tidemark.pipeline.copy.reading import PartQuery, shown_columns
from tidemark.pipeline.copy.sources import CopySource, PartSources, read_part
from tidemark.reads.changes import READING
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column
from tidemark.spark import in_a_task, in_parallel
from tidemark.spark.types import spark_type
from tidemark.values.copy import CopyBatch
from tidemark.values.types import Decoding, Types, decoding_of

_BIGINT_OID = 20


@dataclass(frozen=True, slots=True)
class StagedRead:
    """What to read from one table: columns, a hash of each row or both, of all rows or those of a condition."""

    fingerprint: Fingerprint
    columns: tuple[Column, ...]
    condition: sql.Composed | None
    hash: sql.Composed | None = None


@dataclass(frozen=True, slots=True)
class StageWork:
    """The input of a task."""

    shared: SharedFolder
    types: Types
    folder: Path
    wanted: Mapping[int, StagedRead]

    def query(self, part: Part) -> PartQuery:
        """The query for a part."""
        wanted = self.wanted[part.oid]
        shown = shown_columns(wanted.columns, self._of_columns(wanted))
        hashes = () if wanted.hash is None else (wanted.hash,)
        names = (*(column.name for column in wanted.columns), *("hash" for _ in hashes))
        return PartQuery(wanted.fingerprint, part, names, (*shown, *hashes), wanted.condition)

    def decodings(self, part: Part) -> list[Decoding]:
        """How the columns of the query are decoded."""
        wanted = self.wanted[part.oid]
        hashes = [] if wanted.hash is None else [decoding_of(_BIGINT_OID, -1, self.types)]
        return self._of_columns(wanted) + hashes

    def _of_columns(self, wanted: StagedRead) -> list[Decoding]:
        return [decoding_of(column.type.oid, column.typmod, self.types) for column in wanted.columns]


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The rows that were read from a part: their files, and the columns with text fallbacks."""

    oid: int
    rows: int
    paths: tuple[str, ...]
    texts: frozenset[int]


@dataclass(frozen=True, slots=True)
class UnreadablePart:
    """A part with a value that cannot be decoded."""

    oid: int
    error: Unreadable


@dataclass(frozen=True, slots=True)
class Staged:
    """All rows that were read from a table."""

    rows: int
    paths: tuple[str, ...]
    texts: frozenset[int]

    @classmethod
    def joined(cls, parts: Sequence[StagedPart]) -> Self:
        """Combine parts."""
        return cls(
            sum(part.rows for part in parts),
            tuple(path for part in parts for path in part.paths),
            frozenset[int]().union(*(part.texts for part in parts)),
        )

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(Path(path).stat().st_size for path in self.paths)


def stage(
    spark: SparkSession,
    sources: PartSources,
    work: StageWork,
    parts: Iterable[Part],
    tasks: int,
    stopping: Callable[[], bool],
) -> dict[int, Staged | Unreadable]:
    """Read parts of tables, `tasks` at a time; an undecodable value ends its table, any other error ends all."""
    found: dict[int, list[StagedPart]] = {oid: [] for oid in work.wanted}
    unreadable: dict[int, Unreadable] = {}
    for staged_parts in in_parallel(partial(_staged, spark, sources, work), together(parts), tasks, stopping):
        for part in staged_parts:
            if isinstance(part, UnreadablePart):
                unreadable[part.oid] = part.error
            else:
                found[part.oid].append(part)
    return {oid: unreadable.get(oid) or Staged.joined(parts) for oid, parts in found.items()}


def staged_rows(spark: SparkSession, staged: Staged, wanted: StagedRead, types: Types) -> DataFrame:
    """The rows by cells; a column with text fallbacks in one file has the cell for them in all rows."""
    fields: list[spark_types.StructField] = []
    for column in wanted.columns:
        kind = decoding_of(column.type.oid, column.typmod, types).arrow
        fields.append(spark_types.StructField(f"v{column.attnum}", spark_type(kind)))
        if column.attnum in staged.texts:
            fields.append(spark_types.StructField(f"t{column.attnum}", spark_types.StringType()))
    if wanted.hash is not None:
        fields.append(spark_types.StructField("hash", spark_types.LongType()))
    schema = spark_types.StructType(fields)
    if not staged.paths:
        return spark.createDataFrame([], schema)
    return spark.read.options(**READING).schema(schema).parquet(*staged.paths)


def _staged(
    spark: SparkSession, sources: PartSources, work: StageWork, parts: Sequence[Part]
) -> list[StagedPart | UnreadablePart]:
    mine = replace(work, wanted={part.oid: work.wanted[part.oid] for part in parts})
    with sources.provided(map(mine.query, parts)) as source:
        found = in_a_task(spark, partial(_run, source, mine, tuple(parts)))
    staged_parts = [pickle.loads(each) for each in found]  # noqa: S301 - from our own tasks
    for each in staged_parts:
        if isinstance(each, TidemarkError):
            raise each
    return staged_parts


def _run(source: CopySource, work: StageWork, parts: Sequence[Part]) -> Iterator[bytes]:
    try:
        for part in parts:
            yield pickle.dumps(_tried(source, work, part))
    except TidemarkError as error:
        yield pickle.dumps(error)
    except Exception as error:  # noqa: BLE001 - reported in one line, without the executor's traceback
        yield pickle.dumps(in_short(error))


def _tried(source: CopySource, work: StageWork, part: Part) -> StagedPart | UnreadablePart:
    try:
        return _read(source, work, part)
    except UNREADABLE as error:
        return UnreadablePart(part.oid, error)


def _read(source: CopySource, work: StageWork, part: Part) -> StagedPart:
    wanted = work.wanted[part.oid]
    work.shared.verified()
    work.folder.mkdir(parents=True, exist_ok=True)
    writers: dict[tuple[str, ...], FileWriter] = {}
    for batch in read_part(source, work.query(part), work.decodings(part)):
        rows = _named(batch, wanted)
        key = tuple(rows.column_names)
        if key not in writers:
            writers[key] = FileWriter(work.folder, "staged", text_bounds=False)
        writers[key].write(rows)
    paths = tuple(str(work.folder / writer.close().path) for writer in writers.values())
    texts = frozenset(int(name[1:]) for names in writers for name in names if name.startswith("t"))
    return StagedPart(part.oid, sum(writer.rows for writer in writers.values()), paths, texts)


def _named(batch: CopyBatch, wanted: StagedRead) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for column, values in zip(wanted.columns, batch.columns, strict=False):
        columns[f"v{column.attnum}"] = values.array
        if values.fallback is not None:
            columns[f"t{column.attnum}"] = values.fallback
    if wanted.hash is not None:
        columns["hash"] = batch.columns[-1].array
    return pa.table(columns)
