"""Names in SQL: identifiers quoted for PostgreSQL and for Spark, and types as PostgreSQL's `format_type` prints them.

These are texts for users and for Spark; SQL that is executed in PostgreSQL is composed with `psycopg.sql`. Extension
types are printed without their type modifiers, whose formats are defined by functions in the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidemark.quoting import backticked, double_quoted
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import PgType, Table

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_RESERVED = frozenset((
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "binary", "both",
    "case", "cast", "check", "collate", "collation", "column", "concurrently", "constraint", "create", "cross",
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp",
    "current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "false", "fetch",
    "for", "foreign", "freeze", "from", "full", "grant", "group", "having", "ilike", "in", "initially", "inner",
    "intersect", "into", "is", "isnull", "join", "lateral", "leading", "left", "like", "limit", "localtime",
    "localtimestamp", "natural", "not", "notnull", "null", "offset", "on", "only", "or", "order", "outer", "overlaps",
    "placing", "primary", "references", "returning", "right", "select", "session_user", "similar", "some",
    "symmetric", "system_user", "table", "tablesample", "then", "to", "trailing", "true", "union", "unique", "user",
    "using", "variadic", "verbose", "when", "where", "window", "with", "between", "bigint", "bit", "boolean", "char",
    "character", "coalesce", "dec", "decimal", "exists", "extract", "float", "greatest", "grouping", "inout", "int",
    "integer", "interval", "least", "national", "nchar", "none", "normalize", "nullif", "numeric", "out", "overlay",
    "position", "precision", "real", "row", "setof", "smallint", "substring", "time", "timestamp", "treat", "trim",
    "values", "varchar", "json", "json_array", "json_arrayagg", "json_exists", "json_object", "json_objectagg",
    "json_query", "json_scalar", "json_serialize", "json_table", "json_value", "merge_action", "xmlattributes",
    "xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot",
    "xmlserialize", "xmltable",
))  # fmt: skip
_NAMES = {
    "bool": "boolean",
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "varbit": "bit varying",
    "varchar": "character varying",
    "char": '"char"',
}
_TIMES = {
    "time": ("time", "without time zone"),
    "timetz": ("time", "with time zone"),
    "timestamp": ("timestamp", "without time zone"),
    "timestamptz": ("timestamp", "with time zone"),
}
_FIELDS = ((2, "year"), (1, "month"), (3, "day"), (10, "hour"), (11, "minute"), (12, "second"))
_VECTORS = ("int2vector", "oidvector")  # stored as arrays, but printed by their own names
_ALL_FIELDS, _ANY_PRECISION = 0x7FFF, 0xFFFF


def quoted(name: str) -> str:
    """An identifier, in double quotes if SQL requires them."""
    if _PLAIN.fullmatch(name) and name not in _RESERVED:
        return name
    return double_quoted(name)


def spark_name(parts: Iterable[str]) -> str:
    """A qualified name for Spark, with backticks where they may be required."""
    return ".".join(part if _PLAIN.fullmatch(part) else backticked(part) for part in parts)


def sql_name(table: Fingerprint | Table) -> str:
    """The name of a table with its schema, quoted for use in a SQL statement."""
    return f"{quoted(table.schema)}.{quoted(table.name)}"


def type_name(kind: PgType, typmod: int = -1) -> str:
    """A type with its modifier, as `format_type` prints it; types outside pg_catalog are schema-qualified."""
    schema, _, name = kind.name.partition(".")
    if kind.kind == "b" and kind.parts and name not in _VECTORS:
        return f"{type_name(kind.parts[0].type, typmod)}[]"
    if schema != "pg_catalog":
        return f"{quoted(schema)}.{quoted(name)}"
    if name in _TIMES:
        begin, end = _TIMES[name]
        return f"{begin}{f'({typmod})' if typmod >= 0 else ''} {end}"
    if name == "bit":
        return f"bit({typmod})" if typmod >= 0 else '"bit"'
    if name == "bpchar":
        return f"character({typmod - 4})" if typmod >= 0 else "bpchar"
    if name == "interval" and typmod >= 0:
        return f"interval{_interval(typmod)}"
    return _NAMES.get(name, name) + _modifier(name, typmod)


def _modifier(name: str, typmod: int) -> str:
    if typmod < 0:
        return ""
    if name == "varchar":
        return f"({typmod - 4})"
    if name == "varbit":
        return f"({typmod})"
    if name == "numeric":
        precision, scale = (typmod - 4) >> 16 & 0xFFFF, (typmod - 4) & 0x7FF
        return f"({precision},{(scale ^ 1024) - 1024})"
    return ""


def _interval(typmod: int) -> str:
    """The fields and the precision of an interval: ` day to second(3)`."""
    fields, precision = typmod >> 16 & 0x7FFF, typmod & 0xFFFF
    names = [name for bit, name in _FIELDS if fields & 1 << bit] if fields != _ALL_FIELDS else []
    text = f" {names[0]} to {names[-1]}" if len(names) > 1 else f" {names[0]}" if names else ""
    return text + (f"({precision})" if precision != _ANY_PRECISION else "")
