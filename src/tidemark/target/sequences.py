"""The values of sequences: read at the source, set at the target, read back and compared.

Sequences are not transactional: a read returns the current value in any snapshot, which is at or above every value of a
committed row. The view pg_sequences shows NULL, without an error, for a sequence that the role may not read, as
for one that was never used; so values are read from the sequences themselves, after their privileges are checked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from tidemark.errors import NotPermitted, ObjectMissing, TargetDiffers
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import Session

_SEQUENCES = """
    select c.oid, n.nspname, c.relname, s.seqincrement, s.seqmin, s.seqmax,
           has_schema_privilege(n.oid, 'USAGE'), has_sequence_privilege(c.oid, 'SELECT')
      from pg_sequence s join pg_class c on c.oid = s.seqrelid join pg_namespace n on n.oid = c.relnamespace
     where c.relpersistence <> 't'
       and not exists (select from pg_depend d where d.classid = 'pg_catalog.pg_class'::regclass and d.objid = c.oid
                                                 and d.deptype = 'e')
     order by n.nspname collate "C", c.relname collate "C"
"""
_PER_STATEMENT = 200
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class SequenceValue:
    """The state of a sequence. The next value is `last_value` if it is not called, else one increment further."""

    schema: str
    name: str
    last_value: int
    is_called: bool
    increment: int
    minimum: int
    maximum: int

    def advanced(self, margin: int) -> SequenceValue:
        """Return the state after `margin` more values, at most at the end of the sequence."""
        value = min(self.maximum, max(self.minimum, self.last_value + margin * self.increment))
        fields = (self.is_called, self.increment, self.minimum, self.maximum)
        return SequenceValue(self.schema, self.name, value, *fields)

    @property
    def identifier(self) -> sql.Identifier:
        """The quoted name."""
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def read_sequences(session: Session, oids: Collection[int] | None = None) -> tuple[SequenceValue, ...]:
    """Read all sequences, or those with these OIDs, except those of extensions.

    Raise NotPermitted, with the statements that grant the privileges, if one cannot be read.
    """
    listed = [row for row in session.rows(_SEQUENCES) if oids is None or row[0] in oids]
    _require_readable(session, listed)
    return tuple(
        SequenceValue(schema, name, last_value, is_called, increment, minimum, maximum)
        for (_, schema, name, increment, minimum, maximum, *_), (last_value, is_called) in zip(
            listed, _states(session, [(row[1], row[2]) for row in listed]), strict=True
        )
    )


def _require_readable(session: Session, listed: list[Any]) -> None:
    closed = [row for row in listed if not (row[6] and row[7])]
    if closed:
        role = sql.Identifier(session.connection.info.user)
        schemas = sorted({row[1] for row in closed if not row[6]})
        grants = [statement("grant usage on schema {} to {};", sql.Identifier(name), role) for name in schemas]
        grants += [
            statement("grant select on sequence {} to {};", sql.Identifier(row[1], row[2]), role) for row in closed
        ]
        names = ", ".join(f"{row[1]}.{row[2]}" for row in closed[:_SHOWN])
        more = f" and {len(closed) - _SHOWN} more" if len(closed) > _SHOWN else ""
        raise NotPermitted(
            f"role {session.connection.info.user} may not read the sequences {names}{more}",
            f"Have their owner run: {' '.join(grants)}",
            "42501",
        )


def _states(session: Session, names: Sequence[tuple[str, str]]) -> Iterator[tuple[int, bool]]:
    """Return the last value of each sequence, and whether it was called; many with one statement."""
    for start in range(0, len(names), _PER_STATEMENT):
        reads = [
            sql.SQL("select {}, last_value, is_called from {}").format(number, sql.Identifier(*name))
            for number, name in enumerate(names[start : start + _PER_STATEMENT])
        ]
        found = session.rows(sql.SQL(" union all ").join(reads).as_string(session.connection))
        yield from ((last_value, is_called) for _, last_value, is_called in sorted(found))


def set_sequences(session: Session, values: Collection[SequenceValue], margin: int = 0) -> None:
    """Set sequences of the target, advanced by `margin` values in their direction; read back and compare.

    Raise ObjectMissing if one does not exist, TargetDiffers if one has another value afterwards.
    """
    wanted = [value.advanced(margin) for value in values]
    _require_existing(session, wanted)
    for value in wanted:
        _set(session, value)
    found = _states(session, [(value.schema, value.name) for value in wanted])
    wrong = [
        f"{value} ({last_value}, expected {value.last_value})"
        for value, (last_value, is_called) in zip(wanted, found, strict=True)
        if (last_value, is_called) != (value.last_value, value.is_called)
    ]
    if wrong:
        raise TargetDiffers(
            f"sequences have other values than those that were set: {', '.join(wrong[:_SHOWN])}",
            "Stop the applications that use the target, and run the command again.",
        )


def _require_existing(session: Session, values: Collection[SequenceValue]) -> None:
    found = {(schema, name) for _, schema, name, *_ in session.rows(_SEQUENCES)}
    lacking = [str(value) for value in values if (value.schema, value.name) not in found]
    if lacking:
        raise ObjectMissing(
            f"the target lacks the sequences {', '.join(lacking[:_SHOWN])}",
            "Create them at the target as they are defined at the source, and run the command again.",
        )


def _set(session: Session, value: SequenceValue) -> None:
    name = value.identifier.as_string(session.connection)
    call = sql.SQL("select setval({}, {}, {})").format(name, value.last_value, value.is_called)
    session.execute(call, f"setting sequence {value}")
