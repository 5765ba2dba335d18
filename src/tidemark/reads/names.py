"""Resolution of table names at a position: a name refers to the table that had it then."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.schema.history import TableHistory, descendants


def parsed(name: str) -> tuple[str, str]:
    """Parse `schema.table`, or `table` in schema public; parts with a dot are double-quoted, as in PostgreSQL."""
    parts = split_name(name)
    if len(parts) > 2 or not all(parts):
        raise InvalidValue(f"invalid table name: {name!r}", 'Write schema.table, or "odd.schema"."odd.table".')
    return ("public", parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def split_name(name: str) -> list[str]:
    """Split a name at dots and remove double quotes; the result is one empty part if the quotes are not balanced."""
    parts, inside, current = list[str](), False, ""
    at = 0
    while at < len(name):
        if name[at] == '"' and inside and name[at + 1 : at + 2] == '"':
            current, at = current + '"', at + 1
        elif name[at] == '"':
            inside = not inside
        elif name[at] == "." and not inside:
            parts, current = [*parts, current], ""
        else:
            current += name[at]
        at += 1
    return [""] if inside else [*parts, current]


def names_at(histories: Iterable[TableHistory], lsn: Lsn) -> Mapping[tuple[str, str], TableHistory]:
    """Return every table by its name at an LSN; a table that is not readable there has its last name."""
    spans = [(history, history.span_at(lsn)) for history in histories]
    spans.sort(key=lambda each: (each[1] is not None, each[0].last.lsn))
    found: dict[tuple[str, str], TableHistory] = {}
    for history, span in spans:
        fingerprint = span.fingerprint if span is not None else history.fingerprint
        found[fingerprint.schema, fingerprint.name] = history
    return found


def find(names: Mapping[tuple[str, str], TableHistory], wanted: tuple[str, str]) -> TableHistory:
    """Return the table with this name. Raises InvalidValue, with similar names, if there is none."""
    if wanted in names:
        return names[wanted]
    spelled = [f"{schema}.{name}" for schema, name in names]
    near = difflib.get_close_matches(".".join(wanted), spelled, 3) or sorted(spelled)[:5]
    raise InvalidValue(
        f"table {'.'.join(wanted)} does not exist in this mirror",
        f"Tables with similar names: {', '.join(near)}. `tidemark tables LAKE` lists all."
        if near
        else "Run `tidemark sync` first: no table is mirrored yet.",
    )


def oids_of(tables: Iterable[str], histories: Mapping[int, TableHistory], lsn: Lsn) -> set[int]:
    """Return the OIDs of tables by their names at an LSN, and of all tables below them."""
    names = names_at(histories.values(), lsn)
    found = [find(names, parsed(table)) for table in tables]
    below = (child.oid for history in found for child in descendants(history, histories))
    return {history.fingerprint.oid for history in found} | set(below)
