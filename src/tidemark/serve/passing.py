"""What a statement is by its first word, and whether it may pass to the source although the session reads the past."""

from __future__ import annotations

import re

import postgast

from tidemark.errors import Unproven
from tidemark.split.nodes import kind_of, parsed, walk

_FIRST = re.compile(rb"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]+|\()?", re.DOTALL)
# Statements that read and write no table. A transaction may be begun and ended with any setting. LOCK comes before the
# snapshot of a REPEATABLE READ block, which reading the settings would take.
_HARMLESS = frozenset(
    {
        *("set", "reset", "show", "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release"),
        *("lock", "discard", "deallocate", "listen", "unlisten", "notify", "close", ""),
    }
)
_SYSTEM = frozenset(("pg_catalog", "information_schema"))
# Functions that clients call without a schema, and that read no table.
_KNOWN = frozenset(
    {
        *("version", "current_schema", "current_schemas", "current_database", "current_setting", "set_config"),
        *("pg_backend_pid", "pg_is_in_recovery", "now", "array_to_string", "format_type", "quote_ident"),
        *("has_schema_privilege", "has_table_privilege", "pg_get_expr", "pg_get_indexdef", "pg_get_userbyid"),
        *("obj_description", "col_description", "unnest", "generate_series", "count", "array_agg", "string_agg"),
        *("lower", "upper", "length"),
    }
)


def keyword_of(text: bytes) -> str:
    """Return the first word of a statement in lower case, `(`, or nothing."""
    match = _FIRST.match(text)
    return match[1].decode().lower() if match is not None and match[1] else ""


def is_harmless(text: bytes) -> bool:
    """Return whether a statement reads and writes no table, by its first word; a string of several is not."""
    return keyword_of(text) in _HARMLESS and b";" not in text.rstrip().rstrip(b";")


def reads_only_catalogs(text: bytes) -> bool:
    """Return whether every relation that a SELECT names is qualified with a schema of the system, or has its prefix."""
    try:
        tree = parsed(text.decode())
    except (Unproven, UnicodeDecodeError, postgast.PgQueryError):
        return False
    if kind_of(tree) != "SelectStmt":
        return False
    relations = [node for node in walk(tree) if kind_of(node) == "RangeVar"]
    named = all(
        node.schemaname in _SYSTEM or (not node.schemaname and node.relname.startswith("pg_")) for node in relations
    )
    functions = [[each.string.sval for each in node.funcname] for node in walk(tree) if kind_of(node) == "FuncCall"]
    return named and all(name[0] in (_SYSTEM if len(name) > 1 else _KNOWN) for name in functions)
