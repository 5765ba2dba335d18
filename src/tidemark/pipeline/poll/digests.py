"""Digests of a table's rows by range of their hashes, for source and mirror; a range is the first bits of a hash.

The digested text is the canonical text of a row's key, or of the whole row if there is no key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from psycopg import sql
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark import logs
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.copy.reading import rows_of
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot, require_same
from tidemark.postgres.sqlstate import translated
from tidemark.reads.canonical import ComparedColumn, source_row
from tidemark.reads.digests import BITS, RowDigest, Totals, source_sums, source_text_hash, totals_of
from tidemark.reads.spark_digests import mirror_row, spark_hashed_text, spark_sums, spark_text_hash
from tidemark.schema.fingerprint import Fingerprint
from tidemark.values.kernels import Longs

_READING = Timeouts(statement_s=0, idle_in_transaction_s=0)


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of the ranges that have rows, in the order of their numbers."""

    numbers: Longs
    rows: Longs
    totals: Totals

    @classmethod
    def of(cls, numbers: Longs, rows: Longs, totals: Totals) -> Digests:
        """Digests of ranges in any order; entries of the same range are added."""
        order = np.argsort(numbers, kind="stable")
        numbers, rows, totals = numbers[order], rows[order], totals[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
        if not len(starts):
            return cls(numbers, rows, totals)
        return cls(numbers[starts], np.add.reduceat(rows, starts), np.add.reduceat(totals, starts))

    def whole(self) -> RowDigest:
        """The digest of all ranges together."""
        return RowDigest(int(self.rows.sum()), int(self.totals.sum()))

    def at(self, numbers: Longs) -> tuple[Longs, Totals]:
        """The numbers of rows and the totals of some ranges; zero for a range without rows."""
        place = np.minimum(np.searchsorted(self.numbers, numbers), max(0, len(self.numbers) - 1))
        there = self.numbers[place] == numbers if len(self.numbers) else np.zeros(len(numbers), bool)
        rows, totals = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.uint64)
        rows[there], totals[there] = self.rows[place[there]], self.totals[place[there]]
        return rows, totals


Ranges = tuple[int, frozenset[int]]  # the number of bits, and the numbers of the ranges
Among = Ranges | None  # None for all


@dataclass(frozen=True, slots=True)
class Text:
    """The digested text of a row, for the source and for the mirror.

    A key that is a single integer is its own text, which takes two thirds of the time of a row's text.
    """

    columns: tuple[ComparedColumn, ...]
    utf8: bool
    integer: bool = False

    def hash_at_source(self) -> sql.Composed:
        """The hash of the text as an SQL expression."""
        if self.integer:
            key = sql.SQL("{}::text").format(sql.Identifier(self.columns[0].source_name))
            return source_text_hash(key, utf8=True)
        return source_text_hash(source_row(self.columns), utf8=self.utf8)

    def in_range(self, bits: int, ranges: Collection[int]) -> sql.Composed:
        """The SQL condition that the hash is in one of these ranges."""
        return in_ranges(self.hash_at_source(), (bits, ranges))

    def of_hashes(self, hashes: Collection[int]) -> sql.Composed:
        """The SQL condition that the hash is one of these."""
        return sql.SQL("{} = any({}::bigint[])").format(
            self.hash_at_source(), sql.Literal(f"{{{','.join(map(str, sorted(hashes)))}}}")
        )

    def in_mirror(self) -> Column:
        """The text as a Spark expression, on columns that are named by cells."""
        if self.integer:
            return F.col(self.columns[0].name).cast("string")
        return spark_hashed_text(mirror_row(self.columns), utf8=self.utf8)


def source_digests(
    source: SharedSnapshot, table: Fingerprint, parts: Iterable[Part], text: Text, bits: int, among: Among, tasks: int
) -> Digests:
    """A server's digests by ranges of `bits` bits: of all rows, or of those in coarser ranges."""

    def asked(part: Part) -> Longs:
        with source.session("poll", _READING) as session:
            require_same(session, table)
            rows = sql.SQL("select {} h from {}").format(text.hash_at_source(), rows_of(table, part))
            return read_digests(session, table.qualified, rows, bits, among)

    with ThreadPoolExecutor(tasks, "digest", logs.initializer()) as pool:
        return digests_of(pool.map(asked, parts))


def read_digests(session: Session, label: str, hashes: sql.Composed, bits: int, among: Among) -> Longs:
    """The digests of the hashes `h` of a query, for `digests_of`: number of the range, number of rows, and two sums."""
    # With `offset 0` the hash is computed once per row. Every group has rows, so that no sum is null.
    query = sql.SQL("select {}, {} from ({} offset 0) hashed{} group by 1")
    where = sql.SQL("") if among is None else sql.SQL(" where {}").format(in_ranges(sql.SQL("h"), among))
    wanted = sql.SQL("0::bigint") if bits == 0 else sql.SQL("h >> {}").format(sql.Literal(BITS - bits))
    statement = query.format(wanted, source_sums(sql.SQL("h")), hashes, where)
    with translated(f"digesting {session.server.object(label)}", session.server):
        rows = session.connection.cursor(binary=True).execute(statement).fetchall()
    return np.array(rows, np.int64).reshape(-1, 4)


def digests_of(found: Iterable[Longs]) -> Digests:
    """The digests that `read_digests` has read for the parts of a table."""
    numbers, rows, high, low = np.concatenate([np.empty((0, 4), np.int64), *found]).T
    return Digests.of(numbers, rows, totals_of(high, low))


def mirror_digests(rows: DataFrame, bits: int, among: Among) -> Digests:
    """The same digests of the mirror, from rows that have a `hash`."""
    hashes = rows.select("hash") if among is None else within(rows, among).select("hash")
    number = F.lit(0).cast("long") if bits == 0 else F.shiftright("hash", BITS - bits)
    found = hashes.groupBy(number.alias("range")).agg(*spark_sums(F.col("hash"))).collect()
    numbers, counts, high, low = np.array(found, np.int64).reshape(-1, 4).T
    return Digests.of(numbers, counts, totals_of(high, low))


def within(rows: DataFrame, among: Ranges) -> DataFrame:
    """The rows whose `hash` is in one of these ranges."""
    bits, ranges = among
    wanted = rows.sparkSession.createDataFrame(pa.table({"wanted": pa.array(sorted(ranges), pa.int64())}))
    return rows.join(F.broadcast(wanted), F.shiftright("hash", BITS - bits) == F.col("wanted"), "left_semi")


def hashed(rows: DataFrame, text: Text) -> DataFrame:
    """Add the digested `text` and its `hash` to rows."""
    return rows.withColumn("text", text.in_mirror()).withColumn("hash", spark_text_hash(F.col("text")))


def in_ranges(hashed: sql.Composable, among: tuple[int, Collection[int]]) -> sql.Composed:
    """The SQL condition that a hash is in one of these ranges."""
    bits, ranges = among
    return sql.SQL("({} >> {}) = any({}::bigint[])").format(
        hashed, sql.Literal(BITS - bits), sql.Literal(f"{{{','.join(map(str, sorted(ranges)))}}}")
    )
