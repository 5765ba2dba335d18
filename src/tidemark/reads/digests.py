"""Digests of rows that PostgreSQL, Spark and numpy compute alike: the number of rows, and the sum of their hashes.

A digest does not depend on the order of the rows, and digests can be added and subtracted. A hash has 64 bits; both of
its halves are added as signed 32-bit integers, because PostgreSQL sums these without `numeric`.

The hash of a row is that of its canonical text (`reads.canonical`). There are two:

- `md5`: its first 60 bits. Both engines have md5, so a comparison of mirror and source needs no code of Tidemark in
  Spark's tasks, and trusts none.
- `text_hash`: PostgreSQL's hash of texts, which takes a fifth of md5's time at the source, where every poll hashes all
  keys. Spark does not have it; `values.hashes` computes it.

Spark's expressions are in `reads.spark_digests`, so that a comparison of two servers does not import Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from psycopg import sql

Longs = npt.NDArray[np.int64]
Totals = npt.NDArray[np.uint64]
BITS = 64
_WRAP = 1 << BITS
_HALF = 1 << 31
MD5_DIGITS = 15  # hexadecimal digits of an md5 that fit into a positive bigint


@dataclass(frozen=True, slots=True)
class RowDigest:
    """The digest of rows: their number, and the sum of their hashes modulo 2^64."""

    rows: int = 0
    total: int = 0

    @classmethod
    def of(cls, hashes: Longs) -> RowDigest:
        """The digest of rows with these hashes."""
        return cls(len(hashes), int(contributions(hashes).sum()))

    @classmethod
    def of_sums(cls, rows: int, high: int | None, low: int | None) -> RowDigest:
        """The digest of rows whose hashes PostgreSQL or Spark has summed up; the sums of no rows are null."""
        return cls(rows, (((high or 0) << 32) + (low or 0)) % _WRAP)

    def __add__(self, other: RowDigest) -> RowDigest:
        return RowDigest(self.rows + other.rows, (self.total + other.total) % _WRAP)

    def __sub__(self, other: RowDigest) -> RowDigest:
        return RowDigest(self.rows - other.rows, (self.total - other.total) % _WRAP)

    def __str__(self) -> str:
        return f"{self.total:016x}"


def contributions(hashes: Longs) -> Totals:
    """Return what each hash adds to the total of a digest."""
    return (hashes - ((hashes & np.int64(_HALF)) << np.int64(1))).view(np.uint64)


def totals_of(high: Longs, low: Longs) -> Totals:
    """Return the totals of several digests from the sums that PostgreSQL or Spark has computed."""
    return ((high << np.int64(32)) + low).view(np.uint64)


def source_sums(hashed: sql.Composable) -> sql.Composed:
    """Return the PostgreSQL aggregates of a digest: the number of rows, and the sums of both halves.

    `hashed` is evaluated twice: it should be a column of a subquery with `offset 0`.
    """
    return sql.SQL("count(*), sum(({0} >> 32)::int4), sum(({0} << 32 >> 32)::int4)").format(hashed)


def source_md5(text: sql.Composable, *, utf8: bool) -> sql.Composed:
    """Return the PostgreSQL expression for the md5 hash of a text; `utf8` is whether the database stores UTF-8."""
    encoded = text if utf8 else sql.SQL("convert_to({}, 'UTF8')").format(text)
    return sql.SQL("('x0' || left(md5({}), {}))::bit(64)::bigint").format(encoded, sql.Literal(MD5_DIGITS))


def source_text_hash(text: sql.Composable, *, utf8: bool) -> sql.Composed:
    """Return the PostgreSQL expression for the hash of a text; `utf8` is whether the database stores UTF-8.

    PostgreSQL hashes a text in the encoding of the database, so other encodings are hashed as hexadecimal digits.
    """
    encoded = text if utf8 else sql.SQL("encode(convert_to({}, 'UTF8'), 'hex')").format(text)
    return sql.SQL('hashtextextended({} collate "C", 0)').format(encoded)
