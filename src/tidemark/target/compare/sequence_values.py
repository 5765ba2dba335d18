"""The last values of the sequences of a server. They are not part of a snapshot: a session reads the current ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.postgres.quoted import statement
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated
from tidemark.schema.selection import STATE_SCHEMA, Pattern

_SEQUENCES = """
    select n.nspname, c.relname, current_user::text,
           has_schema_privilege(n.oid, 'USAGE'), has_sequence_privilege(c.oid, 'SELECT')
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind = 'S' and c.relpersistence <> 't' and n.nspname not in ('pg_catalog', 'information_schema', %s)
       and n.nspname not like 'pg\\_toast%%'
     order by n.nspname collate "C", c.relname collate "C"
"""
_AT_ONCE = 200
Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ComparedSequence:
    """The state of a sequence, or the reason why it could not be read."""

    last_value: int = 0
    is_called: bool = False
    reason: str = ""

    def __str__(self) -> str:
        return f"last_value {self.last_value}, is_called {'true' if self.is_called else 'false'}"


def read_sequences(session: Session, patterns: Sequence[Pattern]) -> dict[Name, ComparedSequence]:
    """Return the state of each sequence that matches a pattern, or of all, in the transaction of a session."""
    values: dict[Name, ComparedSequence] = {}
    readable: list[Name] = []
    for schema, name, role, usable, selectable in session.rows(_SEQUENCES, [STATE_SCHEMA]):
        if patterns and not any(pattern.matches_name(schema, name) for pattern in patterns):
            continue
        if usable and selectable:
            readable.append((schema, name))
            continue
        grants = "; ".join(_grants(schema, name, role, usable, selectable))
        label = session.server.object(f"{schema}.{name}")
        values[schema, name] = ComparedSequence(reason=f"role {role} may not read {label}\nHint: Run `{grants}`.")
    for begin in range(0, len(readable), _AT_ONCE):
        values |= _read(session, readable[begin : begin + _AT_ONCE])
    return values


def _read(session: Session, names: Sequence[Name]) -> dict[Name, ComparedSequence]:
    each = (
        sql.SQL("select {}, last_value, is_called from {}").format(sql.Literal(number), sql.Identifier(*name))
        for number, name in enumerate(names)
    )
    with translated(f"reading the sequences of {session.server}", session.server):
        rows = session.connection.execute(sql.SQL(" union all ").join(each)).fetchall()
    return {names[number]: ComparedSequence(last, called) for number, last, called in rows}


def _grants(schema: str, name: str, role: str, usable: bool, selectable: bool) -> Iterator[str]:
    if not usable:
        yield statement("grant usage on schema {} to {}", sql.Identifier(schema), sql.Identifier(role))
    if not selectable:
        yield statement("grant select on sequence {} to {}", sql.Identifier(schema, name), sql.Identifier(role))
