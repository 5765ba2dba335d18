"""The places of the current rows that changes make obsolete: their positions in files, found by key indexes.

The places are a bitmap for each file, all of them in one array of words. The bitmap of a file is found by its size,
which Spark provides at no cost, modulo a number for which the sizes of all files differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemark.lake.columns import StoredColumn
from tidemark.lake.key_index import LEAST_ROWS, MOST_ROWS, KeyIndex, indexed_key, open_index
from tidemark.lake.versions import VersionFile, Versions
from tidemark.reads.few import Few
from tidemark.reads.shown import ShownTable
from tidemark.values.hashes import buckets_of
from tidemark.values.kernels import Longs

FILE_SIZE, ROW_INDEX = "file_size", "row_index"
PLACE = (f"_metadata.file_size as {FILE_SIZE}", f"_metadata.row_index as {ROW_INDEX}")
WORTH_ROWS = 200_000  # below that, a join costs less than finding the places
MOST_FILES, MOST_SMALL = 1000, 64  # small files have no index, and their keys are read
_ATTEMPTS = 100
_METADATA = "_metadata"


@dataclass(frozen=True, slots=True)
class Places:
    """Bitmaps of the obsolete rows. The first `modulus` words have the offset of the bitmap of each file."""

    modulus: int
    words: Longs


def places_of(few: Few, versions: Versions, files: Sequence[VersionFile], table: ShownTable) -> Places | None:
    """Return the places of the rows in files of current rows whose keys changes have; None if they cannot be found."""
    modulus = _modulus([file.size_bytes for file in files])
    positions = positions_of(few, versions, files, table) if modulus is not None else None
    if modulus is None or positions is None:
        return None
    words = [np.zeros(modulus, np.int64)]
    used = modulus
    for file in files:
        words[0][file.size_bytes % modulus] = used
        words.append(_bitmap(positions[file.name], file.rows))
        used += len(words[-1])
    return Places(modulus, np.concatenate(words))


def positions_of(
    few: Few, versions: Versions, files: Sequence[VersionFile], table: ShownTable
) -> dict[str, Longs] | None:
    """Return the positions of these rows in each file; None if they cannot be found, or a join costs less."""
    key = _stored_key(versions, table)
    small = sum(file.rows < LEAST_ROWS for file in files)
    if not key or small > MOST_SMALL or not WORTH_ROWS <= sum(file.rows for file in files) <= MOST_ROWS:
        return None
    touched = few.touched.combine_chunks()
    buckets = {file.buckets for file in files}
    cells = [touched[cell].combine_chunks() for cell in table.shape.key_cells]
    where = {count: buckets_of(cells, count) for count in buckets}
    found = {}
    for file in files:
        index = open_index(versions.folder, file.name, key, file.rows)
        if index is None:
            return None
        found[file.name] = _positions(index, touched.filter(pa.array(where[file.buckets] == file.bucket)), table)
    return found


def is_obsolete(places: Places, spark: SparkSession) -> Column:
    """Return whether the row at `FILE_SIZE` and `ROW_INDEX` is in one of the places."""
    words = spark.createDataFrame(pa.table({"words": pa.array([places.words])})).scalar()
    bitmap = F.get(words, F.expr(f"cast({FILE_SIZE} % {places.modulus}L as int)"))
    word = F.get(words, (bitmap + F.expr(f"shiftright({ROW_INDEX}, 6)")).cast("int"))
    return word.bitwiseAND(F.expr(f"shiftleft(1L, cast({ROW_INDEX} & 63 as int))")) != 0


def _stored_key(versions: Versions, table: ShownTable) -> tuple[StoredColumn, ...]:
    """The stored columns of the key; none if it has no index, or changes have it with other types."""
    if any(column.name.lower() == _METADATA for column in versions.stored):
        return ()  # it hides Spark's own
    kinds = {column.attnum: column.type for column in table.columns}
    stored = {(column.attnum, column.type) for column in versions.stored if not column.text}
    if not stored.issuperset((attnum, kinds[attnum]) for attnum in table.key):
        return ()
    return indexed_key(versions.stored, table.key)


def _modulus(sizes: Sequence[int]) -> int | None:
    """A number modulo which all sizes differ; None if there are too many, or two are equal.

    Half the square of their number is large enough for a third of all numbers to be suitable.
    """
    if len(sizes) > MOST_FILES or len(set(sizes)) < len(sizes):
        return None
    given, first = np.array(sizes, np.int64), max(1, len(sizes) ** 2 // 2)
    found = (each for each in range(first, first + _ATTEMPTS) if len(np.unique(given % each)) == len(given))
    return next(found, None)


def _positions(index: KeyIndex, touched: pa.Table, table: ShownTable) -> Longs:
    if not len(touched):
        return np.zeros(0, np.int64)
    columns = table.shape.of(table.key)
    cells = [[touched[cell].combine_chunks() for cell in column.cells] for column in columns]
    return index.positions([(each[0], each[1] if len(each) > 1 else None) for each in cells])


def _bitmap(positions: Longs, rows: int) -> Longs:
    words = np.zeros(-(-rows // 64), np.uint64)
    found = positions.astype(np.uint64)
    np.bitwise_or.at(words, (found >> np.uint64(6)).astype(np.int64), np.uint64(1) << (found & np.uint64(63)))
    return words.view(np.int64)
