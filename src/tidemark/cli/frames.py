"""Printing of the rows of a DataFrame on standard output.

Spark formats the rows, and they are fetched one partition at a time, so a long result need not fit into memory here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.cli.printing import print_objects, print_texts
from tidemark.mirror.failures import explaining
from tidemark.schema.display import backticked

_JSON = {  # Spark's default formats have only milliseconds
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def print_frame(frame: DataFrame, form: str, lsns: Collection[str] = ()) -> None:
    """Print the rows of a DataFrame; LSNs, which are numbers in it, are printed as PostgreSQL prints them.

    Errors of Spark are reported with their position in the statement that the user typed.
    """
    shown = _with_lsns(frame, lsns)
    with explaining(getattr(frame, "_tidemark_statement", None)):
        if form in ("json", "jsonl"):
            print_objects(_objects(shown), form)
        else:
            numbers = [kind.startswith(_NUMBERS) for _, kind in shown.dtypes]
            print_texts(shown.columns, numbers, _texts(shown), form)


def _with_lsns(frame: DataFrame, lsns: Collection[str]) -> DataFrame:
    for name in lsns:
        value = F.col(backticked(name))
        halves = F.hex(F.shiftrightunsigned(value, 32)), F.hex(value.bitwiseAND(F.lit(0xFFFFFFFF)))
        frame = frame.withColumn(name, F.concat(halves[0], F.lit("/"), halves[1]))
    return frame


def _objects(frame: DataFrame) -> Iterator[str]:
    whole = F.to_json(F.struct(*(F.col(backticked(name)) for name in frame.columns)), _JSON)
    return (row[0] for row in frame.select(whole).toLocalIterator())


def _texts(frame: DataFrame) -> Iterator[tuple[str | None, ...]]:
    texts = [_text(name, kind) for name, kind in frame.dtypes]
    return (tuple(row) for row in frame.select(*texts).toLocalIterator())


def _text(name: str, kind: str) -> Column:
    value: Any = F.col(backticked(name))
    if kind == "binary":
        value = F.concat(F.lit("\\x"), F.lower(F.hex(value)))
    elif kind == "timestamp":
        value = F.concat(value.cast("string"), F.lit("+00"))
    elif kind.startswith(("array", "struct", "map")):
        value = F.to_json(value, _JSON)
    text: Column = value.cast("string")
    return text
