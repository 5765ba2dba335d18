"""One part of a table as a snapshot shows it: locked, looked at, and read by COPY in binary.

A snapshot does not protect from a table that was truncated, rewritten or altered since: its rows are read as the table
is now. So while the lock is ours the table is held against what the snapshot has, and another one is refused. Types
that are kept as text are asked for as text, in the words of their own output functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.decode.types import Decoding
from tidemark.errors import ObjectMissing, TableChanged, TimedOut
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column, PgType
from tidemark.source.blockers import naming_lockers
from tidemark.source.dsn import Dsn
from tidemark.source.session import Session
from tidemark.source.sqlstate import translated
from tidemark.sync.drain import copied_bytes
from tidemark.sync.parts import Part

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
        yield from copied_bytes(session.connection.pgconn, statement, f"copying {_name(self.table)}")


def pages_of(session: Session, oid: int) -> tuple[int, int]:
    """How many pages a table has, and of how many bytes; for one that is locked, an error that leaves the session."""
    with translated("reading the size of a table"), session.connection.transaction():
        row = session.connection.execute(_PAGES, [oid]).fetchone()
    pages, page_bytes = row or (None, 0)
    return pages or 0, page_bytes


def require_same(session: Session, table: Fingerprint) -> None:
    """Lock a table against being altered, and refuse it if it is not as the snapshot has it."""
    name = sql.Identifier(table.schema, table.name)
    try:
        session.execute(sql.SQL("lock table only {} in access share mode").format(name), f"locking {_name(table)}")
    except ObjectMissing as error:
        raise _changed(table, "was dropped or renamed") from error
    with translated(f"reading the definition of {_name(table)}"):
        quoted = name.as_string(session.connection)
        row = session.row("select to_regclass(%s)::oid, pg_relation_filenode(to_regclass(%s))", [quoted, quoted])
        shown = session.connection.execute(sql.SQL("select * from only {} limit 0").format(name)).pgresult
    oid, filenode = row
    if oid != table.oid:
        raise _changed(table, "was replaced by another table of the same name")
    if filenode != table.filenode:
        raise _changed(table, "was truncated or rewritten")
    assert shown is not None  # noqa: S101
    found = [
        ((shown.fname(n) or b"").decode(), shown.ftablecol(n), shown.ftype(n), shown.fmod(n))
        for n in range(shown.nfields)
    ]
    if found != [(column.name, column.attnum, *_described(column.type, column.typmod)) for column in table.columns]:
        raise _changed(table, "was altered")


def _described(kind: PgType, typmod: int) -> tuple[int, int]:
    """A type and its modifier as the server describes columns of results: a domain is its base."""
    while kind.kind == "d":
        (base,) = kind.parts
        kind, typmod = base.type, base.typmod
    return kind.oid, typmod


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


def _changed(table: Fingerprint, how: str) -> TableChanged:
    return TableChanged(f"table {_name(table)} {how} after the snapshot was taken", "Retry the command.")


def _name(table: Fingerprint) -> str:
    return f"{table.schema}.{table.name}"
