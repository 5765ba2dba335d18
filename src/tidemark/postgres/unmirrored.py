"""Selected relations that are not mirrored: views, sequences, and tables whose changes are not in the WAL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.postgres.catalog import printed
from tidemark.postgres.session import Session
from tidemark.schema.selection import SelectedTables, Selection

_OTHERS = """
    select n.nspname, c.relname, c.relkind::text
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind in ('v', 'm', 'S')
       and c.relpersistence <> 't'
       and n.nspname not in ('pg_catalog', 'information_schema')
       and n.nspname not like 'pg\\_toast%'
       and c.relrewrite = 0
       and not exists (select from pg_depend d
                        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
     order by n.nspname collate "C", c.relname collate "C"
"""
_KINDS = {
    "v": ("view", "no rows of its own"),
    "m": ("materialized view", "logical decoding does not send its rows"),
    "S": ("sequence", "logical decoding does not send its values"),
}
_LISTED = 5


@dataclass(frozen=True, slots=True)
class Unmirrored:
    """A relation of the source that is not mirrored."""

    name: str
    kind: str
    reason: str


def read_unmirrored(session: Session, selection: Selection, chosen: SelectedTables) -> tuple[Unmirrored, ...]:
    """Return every relation that is selected and not mirrored, sorted by name; objects of extensions are omitted."""
    with session.as_stored():
        rows = session.rows(_OTHERS)
    others = (
        Unmirrored(f"{printed(schema)}.{printed(name)}", *_KINDS[kind])
        for schema, name, kind in rows
        if selection.includes(schema, name)
    )
    tables = (Unmirrored(each.table.qualified, "table", each.reason) for each in chosen.skipped)
    return tuple(sorted((*others, *tables), key=lambda each: each.name))


def summarize(unmirrored: Iterable[Unmirrored]) -> list[str]:
    """Return one line for each reason, with the first names."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in unmirrored:
        names[each.kind, each.reason].append(each.name)
    return [_line(kind, reason, found) for (kind, reason), found in sorted(names.items())]


def _line(kind: str, reason: str, names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names):,} {kind}{'s' * (len(names) > 1)} ({', '.join(names[:_LISTED])}{more}): {reason}"
