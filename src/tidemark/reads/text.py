"""Values as PostgreSQL prints them: the text of typed values, made by Spark, and columns that are read as text.

Some values of PostgreSQL's have no counterpart in Spark's type: `infinity` among dates, NaN among decimals, arrays with
several dimensions. A table has their text in a column beside the typed one. A query that reads such a value is refused,
unless the column is read as text: then every value of it is what PostgreSQL prints.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tidemark.errors import InvalidValue
from tidemark.lake.columns import TEXT_SUFFIX
from tidemark.reads.names import split_name
from tidemark.values.exact import float_text

Key = tuple[str, str]
Floats = Callable[[Column, T.DataType], Column]
_QUOTED_IN_ARRAYS = r'^$|^(?i:null)$|["\\{},\s]'


def quoted(name: str) -> str:
    """A column's name as Spark wants it, whatever is in it."""
    return _in_quotes(name, "`")


def _in_quotes(name: str, mark: str) -> str:
    return mark + name.replace(mark, 2 * mark) + mark


def guarded(rows: DataFrame, table: Key) -> DataFrame:
    """The same, where a value that Spark's type cannot hold ends the query that reads it, instead of being NULL."""
    there = set(rows.columns)
    exact = {name for name in rows.columns if name + TEXT_SUFFIX in there}
    if not exact:
        return rows
    return rows.select(
        *(_refusing(rows, name, table) if name in exact else F.col(quoted(name)) for name in rows.columns)
    )


def _refusing(rows: DataFrame, name: str, table: Key) -> Column:
    text, kind = F.col(quoted(name + TEXT_SUFFIX)), rows.schema[name].dataType
    why = F.concat(
        F.lit(f"column {name} of {'.'.join(table)} has a value that Spark's type {_shown(kind)} cannot hold: "),
        text,
        F.lit("\nHint: " + as_text_hint(table, name)),
    )
    refused = F.raise_error(why).cast(kind)
    return F.when(text.isNotNull(), refused).otherwise(F.col(quoted(name))).alias(name)


def as_text_hint(table: Key, column: str) -> str:
    """How a column is read as text, in Python, in a shell and in SQL."""
    parts = (*(part for part in table[:1] if part != "public"), table[1], column)
    name = ".".join(_in_quotes(part, '"') if set('."') & set(part) else part for part in parts)
    in_sql = ".".join(part if re.fullmatch(r"[A-Za-z_]\w*", part) else quoted(part) for part in parts)
    return (
        f"Read the column as PostgreSQL's text: `text=[{name!r}]` in Python, `--text {name}` on the command line, "
        f"`/*+ TEXT({in_sql}) */` after SELECT in SQL."
    )


def _shown(kind: T.DataType) -> str:
    return kind.simpleString().upper()


def text_columns(text: str | Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The names that a caller gave, by their parts: `column`, `table.column` or `schema.table.column`."""
    names = [text] if isinstance(text, str) else list(text)
    parts = tuple(tuple(split_name(name)) for name in names)
    for name, found in zip(names, parts, strict=True):
        if not 1 <= len(found) <= 3 or not all(found):
            raise InvalidValue(f"invalid column name: {name!r}", "Write column, table.column or schema.table.column.")
    return parts


def chosen(wanted: Iterable[tuple[str, ...]], table: Key, columns: Sequence[str]) -> dict[tuple[str, ...], str]:
    """Which of a table's columns these names denote: by the exact spelling, or by the only one that differs in case."""
    found = {}
    for name in wanted:
        *where, column = name
        if where and tuple(where) != table[-len(where) :]:
            continue
        exact = [each for each in columns if each == column]
        alike = [each for each in columns if each.lower() == column.lower()]
        if len(exact or alike) == 1:
            found[name] = (exact or alike)[0]
    return found


def require_found(wanted: Iterable[tuple[str, ...]], found: Iterable[tuple[str, ...]], where: str) -> None:
    """Refuse names that denote no column."""
    there = set(found)
    for name in wanted:
        if name not in there:
            raise InvalidValue(
                f"column {'.'.join(name)}, to be read as text, does not exist in {where}",
                "Write column, table.column or schema.table.column; `tidemark tables LAKE` lists the columns.",
            )


def plain_columns(rows: DataFrame) -> list[str]:
    """The columns without those that have the text of others."""
    there = set(rows.columns)
    return [name for name in rows.columns if not (name.endswith(TEXT_SUFFIX) and _typed(name) in there)]


def read_as_text(rows: DataFrame, names: Iterable[str]) -> DataFrame:
    """The same with these columns as PostgreSQL's text, and without the columns of text beside them."""
    wanted, there = set(names), set(rows.columns)
    if not wanted:
        return rows
    columns = []
    for name in rows.columns:
        if name in wanted:
            value, text = F.col(quoted(name)), quoted(name + TEXT_SUFFIX)
            whole = postgres_text(value, rows.schema[name].dataType)
            columns.append((F.coalesce(F.col(text), whole) if name + TEXT_SUFFIX in there else whole).alias(name))
        elif not (name.endswith(TEXT_SUFFIX) and _typed(name) in wanted):
            columns.append(F.col(quoted(name)))
    return rows.select(*columns)


def _typed(name: str) -> str:
    return name.removesuffix(TEXT_SUFFIX)


def postgres_text(value: Column, kind: T.DataType, floats: Floats | None = None) -> Column:
    """PostgreSQL's text of a value of this type; `floats` makes that of floats, or of a list of floats."""
    floats = floats or _float_text
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        if isinstance(inner, T.FloatType | T.DoubleType):
            items = F.transform(floats(value, kind), lambda e: F.coalesce(e, F.lit("NULL")))
        else:
            items = F.transform(value, lambda e: F.coalesce(_in_array(postgres_text(e, inner)), F.lit("NULL")))
        return F.concat(F.lit("{"), F.array_join(items, ","), F.lit("}"))
    if isinstance(kind, T.BooleanType):
        return F.when(value, "t").when(~value, "f")
    if isinstance(kind, T.FloatType | T.DoubleType):
        return floats(value, kind)
    if isinstance(kind, T.BinaryType):
        return F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    if isinstance(kind, T.TimestampType):
        return F.concat(value.cast("string"), F.lit("+00"))
    return value.cast("string")


def _in_array(text: Column) -> Column:
    """With quotation marks where they are needed, and a backslash before what is special."""
    inside = F.regexp_replace(text, r'(["\\])', r"\\$1")
    return F.when(text.rlike(_QUOTED_IN_ARRAYS), F.concat(F.lit('"'), inside, F.lit('"'))).otherwise(text)


def _float_text(value: Column, kind: T.DataType) -> Column:
    """The shortest text that reads back as the same float, which only Python makes as PostgreSQL does."""
    if isinstance(kind, T.ArrayType):
        one = _single if isinstance(kind.elementType, T.FloatType) else _double
        return F.udf(lambda values: None if values is None else [one(each) for each in values], "array<string>")(value)
    return F.udf(_single if isinstance(kind, T.FloatType) else _double, "string")(value)


def _single(value: float | None) -> str | None:
    return None if value is None else float_text(struct.pack("!f", value))


def _double(value: float | None) -> str | None:
    return None if value is None else float_text(struct.pack("!d", value))
