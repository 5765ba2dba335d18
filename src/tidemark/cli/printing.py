"""Rows of a DataFrame on standard output, a row at a time: as a table, as CSV or as JSON lines.

Spark makes the text, so that a long answer never has to fit into memory here, and nothing is converted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Texts = Iterator[tuple[str | None, ...]]
_JSON = {  # Spark's own formats end at milliseconds
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_MEASURED = 1000  # rows that a table's widths are taken from


def as_table(frame: DataFrame) -> None:
    """As psql does it."""
    rows = _texts(frame)
    first = list(islice(rows, _MEASURED))
    shown = [frame.columns, *([value if value is not None else "" for value in row] for row in first)]
    widths = [max(len(str(row[at])) for row in shown) for at in range(len(frame.columns))]
    numbers = [kind in ("tinyint", "smallint", "int", "bigint", "float", "double") or kind.startswith("decimal")
               for _, kind in frame.dtypes]  # fmt: skip
    click.echo(" | ".join(name.center(width) for name, width in zip(frame.columns, widths, strict=True)).rstrip())
    click.echo("-+-".join("-" * width for width in widths))
    count = 0
    for row in chain(first, rows):
        cells = zip(row, widths, numbers, strict=True)
        padded = ((v or "").rjust(width) if number else (v or "").ljust(width) for v, width, number in cells)
        click.echo(" | ".join(padded).rstrip())
        count += 1
    click.echo(f"({count} row{'s' * (count != 1)})")


def as_csv(frame: DataFrame) -> None:
    """With a header; NULL is empty and empty text is quoted, as in PostgreSQL's COPY."""
    for row in chain([tuple(frame.columns)], _texts(frame)):
        click.echo(",".join(_cell(value) for value in row))


def as_json(frame: DataFrame) -> None:
    """An object for each row, on a line of its own."""
    from pyspark.sql import functions as F  # noqa: N812

    whole = F.to_json(F.struct(*(F.col(_quoted(name)) for name in frame.columns)), _JSON)
    for row in frame.select(whole).toLocalIterator():
        click.echo(row[0])


FORMATS: Mapping[str, Callable[[DataFrame], None]] = {"table": as_table, "csv": as_csv, "json": as_json}


def _texts(frame: DataFrame) -> Texts:
    texts = [_text(name, kind) for name, kind in frame.dtypes]
    return (tuple(row) for row in frame.select(*texts).toLocalIterator())


def _text(name: str, kind: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    value: Any = F.col(_quoted(name))
    if kind == "binary":
        value = F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    elif kind == "timestamp":
        value = F.concat(value.cast("string"), F.lit("+00"))
    elif kind.startswith(("array", "struct", "map")):
        value = F.to_json(value, _JSON)
    text: Column = value.cast("string")
    return text


def _cell(value: str | None) -> str:
    if value is None:
        return ""
    if value == "" or any(char in value for char in ',"\n\r'):
        return '"' + value.replace('"', '""') + '"'
    return value


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
