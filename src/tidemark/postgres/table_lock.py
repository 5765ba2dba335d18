"""Lock a table and check that it has not changed since a snapshot."""

from __future__ import annotations

from psycopg import sql

from tidemark.errors import ObjectMissing, TableChanged
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import PgType


def require_same(session: Session, table: Fingerprint) -> None:
    """Lock a table against ALTER and raise TableChanged if it differs from its definition in the snapshot."""
    name = sql.Identifier(table.schema, table.name)
    try:
        session.execute(
            sql.SQL("lock table only {} in access share mode").format(name), f"locking {table_label(table)}"
        )
    except ObjectMissing as error:
        raise _changed(table, "was dropped or renamed") from error
    with translated(f"reading the definition of {table_label(table)}"):
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
    """Return a type and modifier as the server reports them for result columns: a domain becomes its base type."""
    while kind.kind == "d":
        (base,) = kind.parts
        kind, typmod = base.type, base.typmod
    return kind.oid, typmod


def _changed(table: Fingerprint, how: str) -> TableChanged:
    return TableChanged(f"table {table_label(table)} {how} after the snapshot was taken", "Retry the command.")


def table_label(table: Fingerprint) -> str:
    """Return `schema.table`, for messages."""
    return f"{table.schema}.{table.name}"
