"""Digests of a table's rows that do not depend on their order, by ranges of their hashes, made by either side.

What is digested is the canonical text of a row's key, or of the whole row where there is no key, and its hash is the
one that PostgreSQL has for texts: it takes a fifth of the time of an md5. A range is the first bits of a hash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from psycopg import sql
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import LongType

from tidemark.compare.canonical import ComparedColumn, mirror_row, source_row
from tidemark.decode.kernels import Bytes, Longs, kernel
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source.dsn import Dsn
from tidemark.source.session import Session, Timeouts
from tidemark.source.sqlstate import translated
from tidemark.sync.parts import Part
from tidemark.sync.reading import CopySource, require_same, rows_of

BITS = 64
_WRAP = 1 << BITS
_READING = Timeouts(statement_s=0, idle_in_transaction_s=0)
_START, _BYTE = np.uint32(0x9E3779B9 + 3923095), np.uint32(8)


@dataclass(frozen=True, slots=True)
class Digest:
    """So many rows, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    @classmethod
    def of(cls, hashes: Longs) -> Digest:
        """Of rows with these hashes."""
        return cls(len(hashes), int(hashes.view(np.uint64).sum()))

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.total + other.total) % _WRAP)

    def __sub__(self, other: Digest) -> Digest:
        return Digest(self.rows - other.rows, (self.total - other.total) % _WRAP)


Among = tuple[int, frozenset[int]] | None  # ranges, and of how many bits they are


@dataclass(frozen=True, slots=True)
class Text:
    """What is digested of each row, in the words of either side."""

    columns: tuple[ComparedColumn, ...]
    utf8: bool

    def at_source(self) -> sql.Composed:
        """In PostgreSQL's SQL."""
        text = source_row(self.columns)
        return text if self.utf8 else sql.SQL("encode(convert_to({}, 'UTF8'), 'hex')").format(text)

    def hash_at_source(self) -> sql.Composed:
        """Its hash."""
        return sql.SQL('hashtextextended({} collate "C", 0)').format(self.at_source())

    def in_range(self, bits: int, ranges: Collection[int]) -> sql.Composed:
        """A condition: that the hash lies in one of these ranges."""
        return sql.SQL("({} >> {}) = any({}::bigint[])").format(
            self.hash_at_source(), sql.Literal(BITS - bits), sql.Literal(f"{{{','.join(map(str, sorted(ranges)))}}}")
        )

    def of_hashes(self, hashes: Collection[int]) -> sql.Composed:
        """A condition: that the hash is one of these."""
        return sql.SQL("{} = any({}::bigint[])").format(
            self.hash_at_source(), sql.Literal(f"{{{','.join(map(str, sorted(hashes)))}}}")
        )

    def in_mirror(self) -> Column:
        """In Spark's, of columns that are called as cells are."""
        text = mirror_row(self.columns)
        return text if self.utf8 else F.lower(F.hex(text))


def source_digests(
    source: CopySource, table: Fingerprint, parts: Iterable[Part], text: Text, bits: int, among: Among, tasks: int
) -> dict[int, Digest]:
    """The source's digests by ranges of so many bits: all, or those within coarser ranges."""
    query = sql.SQL("select {}, count(*), coalesce(sum(h), 0) from (select {} h from {}) hashed{} group by 1")
    where = sql.SQL("") if among is None else sql.SQL(" where {}").format(_within(among))
    wanted = sql.SQL("0::bigint") if bits == 0 else sql.SQL("h >> {}").format(sql.Literal(BITS - bits))

    def asked(part: Part) -> list[tuple[Any, ...]]:
        with Session.open(Dsn(source.conninfo), "poll", _READING) as session:
            session.begin(snapshot_id=source.snapshot_id)
            require_same(session, table)
            statement = query.format(wanted, text.hash_at_source(), rows_of(table, part), where)
            with translated(f"digesting {table.schema}.{table.name}"):
                return session.connection.execute(statement).fetchall()

    found: dict[int, Digest] = {}
    with ThreadPoolExecutor(tasks, "digest") as pool:
        for rows in pool.map(asked, parts):
            for number, count, total in rows:
                found[number] = found.get(number, Digest()) + Digest(count, int(total) % _WRAP)
    return found


def mirror_digests(rows: DataFrame, bits: int, among: Among) -> dict[int, Digest]:
    """The same of rows that have a `hash`."""
    hashes = rows.select("hash") if among is None else within(rows, among).select("hash")
    number = F.lit(0).cast("long") if bits == 0 else F.shiftright("hash", BITS - bits)
    total = F.sum(F.col("hash").cast("decimal(38,0)"))
    found = hashes.groupBy(number.alias("range")).agg(F.count(F.lit(1)), total).collect()
    return {row[0]: Digest(row[1], int(row[2]) % _WRAP) for row in found}


def within(rows: DataFrame, among: tuple[int, frozenset[int]]) -> DataFrame:
    """The rows whose `hash` lies in one of these ranges."""
    bits, ranges = among
    wanted = rows.sparkSession.createDataFrame(pa.table({"wanted": pa.array(sorted(ranges), pa.int64())}))
    return rows.join(F.broadcast(wanted), F.shiftright("hash", BITS - bits) == F.col("wanted"), "left_semi")


def hashed(rows: DataFrame, text: Text) -> DataFrame:
    """Rows with their `text` and its `hash`."""
    return rows.withColumn("text", text.in_mirror()).withColumn("hash", text_hash("text"))


def _within(among: tuple[int, frozenset[int]]) -> sql.Composed:
    bits, ranges = among
    return sql.SQL("(h >> {}) = any({}::bigint[])").format(
        sql.Literal(BITS - bits), sql.Literal(f"{{{','.join(map(str, sorted(ranges)))}}}")
    )


def text_hash(texts: str) -> Column:
    """The hash of a column of texts. The function is made here: only now is it known whether Spark is a remote one."""
    made: Column = arrow_udf(_hashed, LongType())(texts)
    return made


def _hashed(texts: pa.Array) -> pa.Array:
    return pa.array(hashes_of(texts))


def hashes_of(texts: pa.Array) -> Longs:
    """PostgreSQL's `hashtextextended(text collate "C", 0)` of each."""
    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    raw = np.frombuffer(data if data is not None else b"", np.uint8)
    found: Longs = _hashes(raw, starts)
    return found


@kernel
def _hashes(data: Bytes, starts: Longs) -> Any:
    found = np.empty(len(starts) - 1, np.int64)
    for row in range(len(found)):
        found[row] = _of_bytes(data, np.uint64(starts[row]), np.uint64(starts[row + 1]))
    return found


@kernel
def _of_bytes(data: Bytes, at: Any, end: Any) -> Any:
    """hash_bytes_extended of PostgreSQL's hashfn.c, with no seed."""
    a = b = c = np.uint32(_START + np.uint32(end - at))
    while end - at >= np.uint64(12):
        a, b, c = _mixed(
            np.uint32(a + _word(data, at)),
            np.uint32(b + _word(data, at + np.uint64(4))),
            np.uint32(c + _word(data, at + np.uint64(8))),
        )
        at += np.uint64(12)
    left = np.int64(end - at)
    for n in range(left):
        byte = np.uint32(data[at + np.uint64(n)])
        if n < 4:
            a = np.uint32(a + (byte << np.uint32(8 * n)))
        elif n < 8:
            b = np.uint32(b + (byte << np.uint32(8 * (n - 4))))
        else:  # the lowest byte is the length's
            c = np.uint32(c + (byte << np.uint32(8 * (n - 7))))
    b, c = _finished(a, b, c)
    return np.int64(np.uint64(b) << np.uint64(32) | np.uint64(c))


@kernel
def _word(data: Bytes, at: Any) -> Any:
    word = np.uint32(0)
    for n in range(4):
        word |= np.uint32(data[at + np.uint64(n)]) << np.uint32(8 * n)
    return word


@kernel
def _rotated(value: Any, by: int) -> Any:
    return np.uint32(np.uint32(value << np.uint32(by)) | (value >> np.uint32(32 - by)))


@kernel
def _mixed(a: Any, b: Any, c: Any) -> Any:
    a = np.uint32(np.uint32(a - c) ^ _rotated(c, 4))
    c = np.uint32(c + b)
    b = np.uint32(np.uint32(b - a) ^ _rotated(a, 6))
    a = np.uint32(a + c)
    c = np.uint32(np.uint32(c - b) ^ _rotated(b, 8))
    b = np.uint32(b + a)
    a = np.uint32(np.uint32(a - c) ^ _rotated(c, 16))
    c = np.uint32(c + b)
    b = np.uint32(np.uint32(b - a) ^ _rotated(a, 19))
    a = np.uint32(a + c)
    c = np.uint32(np.uint32(c - b) ^ _rotated(b, 4))
    b = np.uint32(b + a)
    return a, b, c


@kernel
def _finished(a: Any, b: Any, c: Any) -> Any:
    c = np.uint32(np.uint32(c ^ b) - _rotated(b, 14))
    a = np.uint32(np.uint32(a ^ c) - _rotated(c, 11))
    b = np.uint32(np.uint32(b ^ a) - _rotated(a, 25))
    c = np.uint32(np.uint32(c ^ b) - _rotated(b, 16))
    a = np.uint32(np.uint32(a ^ c) - _rotated(c, 4))
    b = np.uint32(np.uint32(b ^ a) - _rotated(a, 14))
    c = np.uint32(np.uint32(c ^ b) - _rotated(b, 24))
    return b, c
