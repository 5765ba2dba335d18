"""Changes of a table's columns at the source, as statements that make the same changes at the target. Pure.

The stream describes a table again at the first change after an ALTER TABLE, with names and types and without attnums or
defaults. The catalog of the source has these, and may be further ahead than the stream. A description is carried only
if it has one interpretation: each of its columns has the name of one column, before or after, and no column can have
been added and dropped in between. The rows of the target are then those that the source had at the ALTER TABLE, so a
column is added with the value that the source shows in rows that are older than the column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from tidemark.clock import Lsn
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.schema.relation import Relation, columns_of
from tidemark.schema.table import Column, Generated


@dataclass(frozen=True, slots=True)
class ColumnText:
    """A column of the source as SQL: its type, its collation if that is not the one of the type, and its default.

    `missing` is the value in rows that are older than the column, as text; None also if it cannot be read.
    """

    type: str
    collation: str | None
    default: str | None
    missing: str | None


@dataclass(frozen=True, slots=True)
class AlteredTable:
    """A definition that a table has at the source at a position, with the SQL of its columns by attnum."""

    definition: Fingerprint
    columns: Mapping[int, ColumnText]
    lsn: Lsn


def obstacle(old: Fingerprint, altered: AlteredTable | None) -> str | None:
    """Return why a change of a table cannot be carried to the target; None if it can, or there is none."""
    new = altered.definition if altered is not None else None
    found = compare(old, new)
    if found.effect is Effect.SAME:
        return None
    if altered is None or new is None or found.effect is not Effect.METADATA:
        return found.reasons[0]
    without = replace(old, columns=()), replace(new, columns=(), filenode=old.filenode)
    if without[0] != without[1]:
        return next(iter(compare(*without).reasons), "its key constraint changed")
    if old.parent or old.inherits or old.children:
        return f"{found.reasons[0]}, and it has a parent table or child tables"
    before = {column.attnum: column for column in old.columns}
    if reason := _unclear(before, {column.attnum: column for column in new.columns}):
        return reason
    pairs = [(before.get(column.attnum), column) for column in new.columns]
    return next((reason for each in pairs if (reason := _column_obstacle(*each, altered.columns))), None)


def _unclear(before: Mapping[int, Column], after: Mapping[int, Column]) -> str | None:
    """Return why a change may have left no trace in the stream, or could have been made by way of another one.

    The stream describes a column that was dropped and added again like the one before.
    """
    numbers = {column.name: attnum for attnum, column in before.items()}
    again = [column.name for attnum, column in after.items() if numbers.get(column.name, attnum) != attnum]
    if again:
        return f"column {again[0]!r} is another column than before"
    highest = max(before, default=0)
    added = [attnum for attnum in after if attnum > highest]
    skipped = added != list(range(highest + 1, highest + 1 + len(added)))
    return f"column {after[added[0]].name!r} added, and another one added and dropped" if skipped else None


def _column_obstacle(was: Column | None, now: Column, texts: Mapping[int, ColumnText]) -> str | None:
    if was is None:
        if now.generated is not Generated.NO:
            return f"column {now.name!r} added, which is generated"
        unread = now.missing is not None and texts[now.attnum].missing is None
        return f"column {now.name!r} added, with a default of type {now.type.name}" if unread else None
    if (was.generated, was.expression) != (now.generated, now.expression):
        return f"column {now.name!r} changed its generation expression"
    if was.type.oid == now.type.oid and was.type != now.type:
        return f"type {now.type.name} of column {now.name!r} changed"
    return None


def described(relation: Relation, old: Fingerprint, new: Fingerprint) -> Fingerprint | None:
    """Return the definition that a relation describes, of a table that changed from `old` to `new` without an obstacle.

    None if it has no interpretation, or several.
    """
    before, after = ({column.attnum: column for column in each.columns} for each in (old, new))
    found = [_described(column.name, (column.type_oid, column.typmod), before, after) for column in relation.columns]
    known = [column for column in found if column is not None]
    names = {column.name for column in relation.columns}
    unsent = [c for c in old.columns if c.generated is not Generated.NO and c.attnum in after and c.name not in names]
    columns = {column.attnum: column for column in (*known, *unsent)}
    if len(known) != len(found) or any(attnum in after for attnum in before if attnum not in columns):
        return None
    definition = replace(old, columns=tuple(columns[attnum] for attnum in sorted(columns)))
    return definition if columns_of(relation, definition) is not None else None


def _described(
    name: str, kind: tuple[int, int], before: Mapping[int, Column], after: Mapping[int, Column]
) -> Column | None:
    """Return the only column that a described one can be, with the described name."""
    attnums = {column.attnum for column in (*before.values(), *after.values()) if column.name == name}
    if len(attnums) != 1:
        return None
    (attnum,) = attnums
    candidates = [each[attnum] for each in (after, before) if attnum in each]
    fitting = [column for column in candidates if (column.type.oid, column.typmod) == kind]
    return replace(fitting[0], name=name) if fitting else None


def alterations(old: Fingerprint, new: Fingerprint, texts: Mapping[int, ColumnText]) -> list[sql.Composed]:
    """Return the statements that change the columns of a table from one definition to another."""
    before, after = ({column.attnum: column for column in each.columns} for each in (old, new))
    table = sql.SQL("alter table {} ").format(sql.Identifier(old.schema, old.name))
    both = [(before[attnum], after[attnum]) for attnum in before if attnum in after]
    parts = [sql.SQL("drop column {}").format(_name(column)) for at, column in before.items() if at not in after]
    parts += _renamed([(was.name, now.name) for was, now in both if was.name != now.name])
    for was, now in both:
        if (was.type.oid, was.typmod) != (now.type.oid, now.typmod):
            parts.append(sql.SQL("alter column {} type {}").format(_name(now), _type(texts[now.attnum])))
    for at, column in after.items():
        if at not in before:
            parts += _added(column, texts[at])
    return [table + part for part in parts]


def _renamed(names: Sequence[tuple[str, str]]) -> list[sql.Composed]:
    """Rename columns; by names that none has, if one of them takes the name of another."""
    old = {was for was, _ in names}
    if any(now in old for _, now in names):
        aside = [f"tidemark_renamed_{at}" for at in range(len(names))]
        first, second = zip(*names, strict=True)
        steps = [*zip(first, aside, strict=True), *zip(aside, second, strict=True)]
    else:
        steps = list(names)
    return [sql.SQL("rename column {} to {}").format(*map(sql.Identifier, step)) for step in steps]


def _added(column: Column, text: ColumnText) -> list[sql.Composed]:
    added = sql.SQL("add column {} {}").format(_name(column), _type(text))
    if text.missing is not None:
        added += sql.SQL(" default {}::{}").format(sql.Literal(text.missing), sql.SQL(text.type))
    parts = [added]
    if text.default is not None:
        parts.append(sql.SQL("alter column {} set default {}").format(_name(column), sql.SQL(text.default)))
    elif text.missing is not None:
        parts.append(sql.SQL("alter column {} drop default").format(_name(column)))
    return parts


def gone_names(old: Fingerprint, new: Fingerprint) -> list[str]:
    """Return the names of columns that are dropped or renamed."""
    after = {column.attnum: column.name for column in new.columns}
    return [column.name for column in old.columns if after.get(column.attnum) != column.name]


def _name(column: Column) -> sql.Identifier:
    return sql.Identifier(column.name)


def _type(text: ColumnText) -> sql.SQL:
    return sql.SQL(text.type + (f" collate {text.collation}" if text.collation else ""))
