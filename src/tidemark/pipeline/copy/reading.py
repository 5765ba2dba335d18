"""Reads one part of a table in a snapshot: the table is locked, checked, and read by COPY.

A snapshot does not protect from a TRUNCATE, a rewrite or an ALTER since it was taken: the rows are read from the table
as it is now. So while the lock is held, the table is compared with the definition in the snapshot, and refused if they
differ. Types that are stored as text are read as text, as their own output functions write it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.errors import TimedOut
from tidemark.pipeline.copy.drain import copied_bytes
from tidemark.pipeline.copy.parts import Part
from tidemark.postgres.blockers import naming_lockers
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.postgres.shared import require_same
from tidemark.postgres.sqlstate import translated
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column
from tidemark.values.types import Decoding

_PAGES = "select pg_relation_size(%s) / current_setting('block_size')::int, current_setting('block_size')::int"


@dataclass(frozen=True, slots=True)
class PartQuery:
    """A query for the rows of a part, all or those that meet a condition: the expressions, and their names."""

    table: Fingerprint
    part: Part
    names: tuple[str, ...]
    shown: tuple[sql.Composable, ...]
    condition: sql.Composable | None = None
    binary: bool = True

    def copied(self, session: Session, dsn: Dsn) -> Generator[memoryview, None, int]:
        """The data that the server sends, in chunks; returns the number of rows.

        A caller that does not read all of it must close the session.
        """
        try:
            require_same(session, self.table)
        except TimedOut as error:
            with Session.open(dsn, "find blockers") as other:
                raise naming_lockers(other, self.table.oid, error) from error
        statement = copy_statement(self).as_bytes(session.connection)
        session.send_as_stored()
        return (yield from copied_bytes(session.connection.pgconn, statement, f"copying {self.table.qualified}"))


def pages_of(session: Session, oid: int) -> tuple[int, int]:
    """The number of pages of a table, and their size in bytes.

    If the table is locked, this raises an error, and the session can still be used.
    """
    with translated("reading the size of a table"), session.connection.transaction():
        row = session.connection.execute(_PAGES, [oid]).fetchone()
    pages, page_bytes = row or (None, 0)
    return pages or 0, page_bytes


def copy_statement(query: PartQuery) -> sql.Composed:
    """The COPY statement for a range of pages."""
    return sql.SQL("copy (select {} from {}) to stdout (format {})").format(
        sql.SQL(", ").join(query.shown),
        rows_of(query.table, query.part, query.condition),
        sql.SQL("binary" if query.binary else "text"),
    )


def rows_of(table: Fingerprint, part: Part, condition: sql.Composable | None = None) -> sql.Composed:
    """The FROM item and the WHERE clause for the rows of a range of pages, all or those that meet a condition."""
    conditions: list[sql.Composable] = []
    if part.first:
        conditions.append(sql.SQL("ctid >= {}").format(sql.Literal(f"({part.first},0)")))
    if part.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({part.end},0)")))
    if condition is not None:
        conditions.append(condition)
    return sql.SQL("only {}{}").format(
        sql.Identifier(table.schema, table.name),
        sql.SQL(" where {}").format(sql.SQL(" and ").join(conditions)) if conditions else sql.SQL(""),
    )


def shown_columns(columns: Sequence[Column], decodings: Sequence[Decoding]) -> list[sql.Composable]:
    """The expressions by which a copy reads the columns of a table."""
    return [_shown(column, decoding) for column, decoding in zip(columns, decodings, strict=True)]


def _shown(column: Column, decoding: Decoding) -> sql.Composable:
    name = sql.Identifier(column.name)
    if decoding.binary:
        return name
    return sql.SQL("case when {0} is distinct from null then format('%s', {0}) end").format(name)
