"""Following one table from the previous poll to this one: its changes are found and written to the sink.

For a table with a key, the rows that may have changed are read by their `xmin`; the deleted rows are those whose key
hash does not exist at the source. The changes found must explain every difference between the digests of both sides. If
they do not, because two keys have the same hash or the mirror is not in the expected state, the next poll copies the
table.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from tidemark import logs
from tidemark.lake.rows import DELETED
from tidemark.pipeline.poll.digests import Ranges, hashed, within
from tidemark.pipeline.poll.mirrored import Hashes, Kept, MirroredRows, Room, only_in
from tidemark.pipeline.poll.reconcile import DifferingRanges, SourceTable
from tidemark.pipeline.poll.staging import Staged, StagedRead, staged_rows
from tidemark.pipeline.poll.table import PolledTable
from tidemark.pipeline.poll.writing import WrittenChanges, joined
from tidemark.reads.changes import celled
from tidemark.reads.difference import net
from tidemark.reads.digests import RowDigest
from tidemark.reads.shape import MANY, Shape

MOST_MISSED = 100_000
Stage = Callable[[StagedRead], Staged]
Write = Callable[[DataFrame | None], WrittenChanges]  # None writes a TRUNCATE


@dataclass(frozen=True, slots=True)
class Followed:
    """The changes written, and the hashes of the mirror's rows after them.

    `has` is only a digest if there are too many hashes, and None if neither is known.
    """

    written: WrittenChanges
    has: Kept | RowDigest | None


class NeedsWhole(Exception):
    """A table cannot be followed from its present state, and has to be copied, which is always correct."""

    def __init__(self, oid: int, why: str) -> None:
        super().__init__(why)
        self.oid, self.why = oid, why


class Following:
    """Follows one table.

    `had` is the hashes or the digest of the mirror's rows, if known; hashes are kept in memory while there is `room`.
    """

    def __init__(
        self,
        table: PolledTable,
        source: SourceTable,
        had: Kept | RowDigest | None,
        room: Room,
        stage: Stage,
        write: Write,
    ) -> None:
        self._table, self._source = table, source
        self._had, self._room, self._stage, self._write = had, room, stage, write

    def by_key(self, staged: Staged, wanted: StagedRead, *, reconcile: bool) -> Followed:
        """Follow a table with a key: compare the staged rows, and detect deleted rows if `reconcile`."""
        if reconcile and staged.rows and isinstance(self._had, Kept):
            return self._by_key_beside(staged, wanted, self._had)
        upserts = self._changed(staged, wanted)
        if not reconcile:
            return Followed(upserts, None if self._had is None else _with(self._had, upserts))
        rest = self._rest(_with(self._mirrored(), upserts), staged, wanted)
        return Followed(joined([upserts, rest.written]), rest.has)

    def _by_key_beside(self, staged: Staged, wanted: StagedRead, had: Kept) -> Followed:
        """Detect deleted rows while the staged rows are compared.

        The hashes of the staged rows show which keys are new before the comparison ends; its result must be the same.
        """
        new = had.lacking(Hashes.joined(_staged_hashes(path, self._table.integer_key) for path in staged.paths))
        has = replace(had.plus(new), thinned=False)
        with ThreadPoolExecutor(1, "changed", logs.initializer()) as pool:
            changed = pool.submit(self._changed, staged, wanted)
            rest = self._rest(has, staged, wanted, at_once=had.thinned)
            upserts = changed.result()
        if upserts.inserted.digest() != new.digest():
            raise NeedsWhole(self._table.fingerprint.oid, "the keys in the mirror differ from those of the last poll")
        return Followed(joined([upserts, rest.written]), rest.has)

    def _rest(self, has: Kept | RowDigest, staged: Staged, wanted: StagedRead, *, at_once: bool = False) -> Followed:
        """Write deleted rows and rows that the read by `xmin` missed; `has` includes the staged rows.

        With `at_once`, if rows were deleted at the last poll, the digests of ranges are requested at once: rows are
        probably deleted again.
        """
        differing = self._source.differing(has, len(has)) if at_once and isinstance(has, Kept) else None
        theirs = differing.source_whole if differing is not None else self._source.digest()
        if theirs == _digest(has):
            return Followed(joined([]), has)
        if not theirs.rows:
            return Followed(self._write(None), Kept.of(Hashes.joined([])))
        count = max(theirs.rows, _digest(has).rows)
        if isinstance(has, Kept):
            removed, missed = self._reconciled(has, differing or self._source.differing(has, count))
        else:
            removed, missed = self._reconciled_by_spark(staged, wanted, count)
        rest = joined([removed, self._missed(missed)])
        return Followed(rest, self._required(theirs, _with(has, rest)))

    def by_row(self) -> Followed:
        """Follow a table without a key: rows are compared by content and number of occurrences."""
        has, theirs = self._mirrored(), self._source.digest()
        if theirs == _digest(has):
            return Followed(joined([]), has)
        if not theirs.rows:
            return Followed(self._write(None), Kept.of(Hashes.joined([])))
        table, shape = self._table, self._shape(None)
        mirror = has if isinstance(has, Kept) else MirroredRows(hashed(self._early(shape), table.text(shape)))
        ranges = self._source.differing(mirror, max(theirs.rows, _digest(has).rows)).all
        wanted = StagedRead(table.fingerprint, table.columns, table.text().in_range(*ranges))
        staged = self._stage(wanted)
        shape = self._shape(staged)
        early = within(hashed(self._early(shape), table.text(shape)), ranges).select(*shape.cells)
        done = self._written(net(early, table.staged(staged, wanted, shape), shape), shape)
        return Followed(done, self._required(theirs, _with(has, done)))

    def _reconciled(self, has: Kept, differing: DifferingRanges) -> tuple[WrittenChanges, list[int]]:
        """Write the deleted rows, and return the hashes that the mirror lacks, both by the hashes kept in memory.

        Hashes are read from the source for the ranges that have rows there.
        """
        gone, missed = has.within(*differing.emptied), Hashes.joined([])
        bits, occupied = differing.bits, differing.all[1] - differing.emptied[1]
        if occupied:
            staged = self._stage(self._hashes_in((bits, occupied)))
            theirs = Kept.of(Hashes.joined(map(_staged_hashes, staged.paths))).has
            ours = has.within(bits, occupied)
            gone, missed = Hashes.joined([gone, only_in(ours, theirs.hashes)]), only_in(theirs, ours.hashes)
        if has.has.shares_any(gone):
            raise NeedsWhole(self._table.fingerprint.oid, "two keys have the same hash, and one of them was deleted")
        if not len(gone.hashes):
            return joined([]), missed.hashes.tolist()
        shape = self._shape(None)
        return self._write(self._deleted(self._with_hashes(gone, shape), shape)), missed.hashes.tolist()

    def _with_hashes(self, gone: Hashes, shape: Shape) -> DataFrame:
        """The mirror's keys that have these hashes, with their digested text."""
        table = self._table
        if gone.keys is not None and table.integer_key is not None:
            keys = table.spark.createDataFrame(pa.table({table.integer_key: pa.array(gone.keys)}))
            kinds = table.cell_types(shape)
            named = keys.select(*(_cast(cell, kinds[cell], cell == table.integer_key) for cell in shape.key_cells))
            return named.withColumn("text", table.text(shape).in_mirror())
        wanted = table.spark.createDataFrame(pa.table({"wanted": pa.array(np.unique(gone.hashes))}))
        few = F.broadcast(wanted) if len(gone.hashes) <= MANY else wanted
        return self._hashed_keys(shape).join(few, F.col("hash") == F.col("wanted"), "left_semi")

    def _reconciled_by_spark(self, staged: Staged, wanted: StagedRead, count: int) -> tuple[WrittenChanges, list[int]]:
        """Do the same with Spark, for a table with too many hashes to keep in memory."""
        shape = self._shape(staged)
        early = self._hashed_keys(shape)
        ours = early
        if staged.rows:
            late = hashed(self._table.staged(staged, wanted, shape).select(*shape.key_cells), self._table.text(shape))
            ours = early.unionByName(late.join(early.select("hash"), "hash", "left_anti"))
        ranges = self._source.differing(MirroredRows(ours), count).all
        asked = self._hashes_in(ranges)
        theirs = staged_rows(self._table.spark, self._stage(asked), asked, self._table.types)
        gone = within(early, ranges).join(theirs, "hash", "left_anti")
        lacking = theirs.join(within(ours, ranges).select("hash"), "hash", "left_anti").limit(MOST_MISSED + 1)
        return self._write(self._deleted(gone, shape)), [row[0] for row in lacking.collect()]

    def _missed(self, hashes: list[int]) -> WrittenChanges:
        """Write the rows whose keys the mirror lacks although their `xmin` is outside the horizon."""
        if not hashes:
            return joined([])
        if len(hashes) > MOST_MISSED:
            raise NeedsWhole(self._table.fingerprint.oid, f"more than {MOST_MISSED:,} rows are missing in the mirror")
        wanted = StagedRead(self._table.fingerprint, self._table.columns, self._table.text().of_hashes(hashes))
        return self._changed(self._stage(wanted), wanted)

    def _changed(self, staged: Staged, wanted: StagedRead) -> WrittenChanges:
        """Write the staged rows that the mirror does not have, or has with other values."""
        if not staged.rows:
            return joined([])
        table, shape = self._table, self._shape(staged)
        late = table.staged(staged, wanted, shape)
        return self._written(table.changed(self._early(shape), late, staged, shape), shape)

    def _hashes_in(self, ranges: Ranges) -> StagedRead:
        text = self._table.text()
        return StagedRead(self._table.fingerprint, (), text.in_range(*ranges), text.hash_at_source())

    def _hashed_keys(self, shape: Shape) -> DataFrame:
        return hashed(self._early(shape).select(*(shape.key_cells or shape.cells)), self._table.text(shape))

    def _deleted(self, rows: DataFrame, shape: Shape) -> DataFrame:
        """The changes that delete these rows, of which only the key is known."""
        kinds = self._table.cell_types(shape)
        others = (F.lit(None).cast(kinds[cell]).alias(cell) for cell in shape.cells if cell not in shape.key_cells)
        return rows.select(*shape.key_cells, *others, F.lit(DELETED).alias("kind"), "text")

    @cached_property
    def _rows(self) -> DataFrame:
        return self._table.early()

    def _shape(self, staged: Staged | None) -> Shape:
        return self._table.shape(self._rows, texts=staged.texts if staged is not None else frozenset())

    def _early(self, shape: Shape) -> DataFrame:
        return celled(self._rows, shape, {})

    def _mirrored(self) -> Kept | RowDigest:
        """The hashes or the digest of the mirror's rows; computed from its files if not known."""
        if self._had is not None:
            return self._had
        keys, cell = self._hashed_keys(self._shape(None)), self._table.integer_key
        if not self._room.take(keys.count()):
            return MirroredRows(keys).digests(0, None).whole()
        wanted = {"hash": F.col("hash")} | ({"key": F.col(cell).cast("long")} if cell is not None else {})
        found = keys.select(*(value.alias(name) for name, value in wanted.items())).toArrow()
        return Kept.of(Hashes(*(found[name].to_numpy() for name in wanted)))

    def _written(self, rows: DataFrame, shape: Shape) -> WrittenChanges:
        return self._write(rows.withColumn("text", self._table.text(shape).in_mirror()))

    def _required(self, theirs: RowDigest, has: Kept | RowDigest) -> Kept | RowDigest:
        """Return `has` if the changes found explain every difference; otherwise the table needs a copy."""
        if theirs != _digest(has):
            why = f"the source has {theirs.rows:,} rows, the mirror would have {_digest(has).rows:,}"
            raise NeedsWhole(self._table.fingerprint.oid, why)
        return has


def _digest(has: Kept | RowDigest) -> RowDigest:
    return has.digest() if isinstance(has, Kept) else has


def _with(has: Kept | RowDigest, written: WrittenChanges) -> Kept | RowDigest:
    """The hashes or the digest of the mirror's rows after some changes."""
    if isinstance(has, Kept):
        return has.plus(written.inserted).minus(written.removed)
    return has + written.inserted.digest() - written.removed.digest()


def _staged_hashes(path: str, cell: str | None = None) -> Hashes:
    """The hashes in a file of staged rows, and the integer keys if their cell is given."""
    read = pq.read_table(path, columns=["hash", cell] if cell is not None else ["hash"])
    keys = read[cell].cast(pa.int64()).to_numpy() if cell is not None else None
    return Hashes(read["hash"].to_numpy(), keys)


def _cast(cell: str, kind: DataType, there: bool) -> Column:
    return (F.col(cell) if there else F.lit(None)).cast(kind).alias(cell)
