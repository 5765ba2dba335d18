"""One part of a table as a snapshot shows it: locked, looked at, and read by COPY in binary.

A snapshot does not protect from a table that was truncated, rewritten or altered since: its rows are read as the table
is now. So while the lock is ours the table is held against what the snapshot has, and another one is refused. Types
that are kept as text are asked for as text, in the words of their own output functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.errors import TimedOut
from tidemark.pipeline.copy.drain import copied_bytes
from tidemark.pipeline.copy.parts import Part
from tidemark.postgres.blockers import naming_lockers
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated
from tidemark.postgres.table_lock import require_same, table_label
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column
from tidemark.values.types import Decoding

_PAGES = "select pg_relation_size(%s) / current_setting('block_size')::int, current_setting('block_size')::int"


@dataclass(frozen=True, slots=True)
class PartQuery:
    """What is asked for of the rows of a part, under which names: of all, or of those that fulfil a condition."""

    table: Fingerprint
    part: Part
    names: tuple[str, ...]
    shown: tuple[sql.Composable, ...]
    condition: sql.Composable | None = None

    def copied(self, session: Session, dsn: Dsn) -> Iterator[memoryview]:
        """What the server sends for it, in pieces. Whoever does not take all of them must close the session."""
        try:
            require_same(session, self.table)
        except TimedOut as error:
            with Session.open(dsn, "find blockers") as other:
                raise naming_lockers(other, self.table.oid, error) from error
        statement = copy_statement(self.table, self.part, self.shown, self.condition).as_bytes(session.connection)
        session.send_as_stored()
        yield from copied_bytes(session.connection.pgconn, statement, f"copying {table_label(self.table)}")


def pages_of(session: Session, oid: int) -> tuple[int, int]:
    """How many pages a table has, and of how many bytes; for one that is locked, an error that leaves the session."""
    with translated("reading the size of a table"), session.connection.transaction():
        row = session.connection.execute(_PAGES, [oid]).fetchone()
    pages, page_bytes = row or (None, 0)
    return pages or 0, page_bytes


def copy_statement(
    table: Fingerprint, part: Part, shown: Sequence[sql.Composable], condition: sql.Composable | None = None
) -> sql.Composed:
    """COPY of a range of pages."""
    return sql.SQL("copy (select {} from {}) to stdout (format binary)").format(
        sql.SQL(", ").join(shown), rows_of(table, part, condition)
    )


def rows_of(table: Fingerprint, part: Part, condition: sql.Composable | None = None) -> sql.Composed:
    """The rows of a range of pages, all or those that fulfil a condition, as a query's FROM has them."""
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
    """A table's columns as a copy asks for them."""
    return [_shown(column, decoding) for column, decoding in zip(columns, decodings, strict=True)]


def _shown(column: Column, decoding: Decoding) -> sql.Composable:
    name = sql.Identifier(column.name)
    if decoding.binary:
        return name
    return sql.SQL("case when {0} is distinct from null then format('%s', {0}) end").format(name)
