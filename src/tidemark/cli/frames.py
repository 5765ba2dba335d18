"""Printing of the rows of a DataFrame on standard output.

As a table and as CSV, values are printed as PostgreSQL prints them; what PostgreSQL has no type for is JSON. Rows are
fetched one partition at a time, so a long result need not fit into memory here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from tidemark.cli.printing import print_objects, print_texts
from tidemark.mirror.failures import explaining
from tidemark.quoting import backticked
from tidemark.reads.text import postgres_text
from tidemark.values.cells import DecodedColumn
from tidemark.values.output import column_strings

_JSON = {  # Spark's default formats have only milliseconds
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_FLOATS = {
    "float": pa.float32(),
    "double": pa.float64(),
    "array<float>": pa.list_(pa.float32()),
    "array<double>": pa.list_(pa.float64()),
}
_BATCH = 1000  # rows whose floats are formatted at a time
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def print_frame(frame: DataFrame, form: str, lsns: Collection[str] = ()) -> None:
    """Print the rows of a DataFrame; LSNs, which are numbers in it, are printed as PostgreSQL prints them.

    Errors of Spark are reported with their position in the statement that the user typed.
    """
    names = frame.columns
    shown = frame.toDF(*map(str, range(len(names))))  # by number: a result can have two columns of one name
    shown = _with_lsns(shown, [str(names.index(name)) for name in lsns])
    with explaining(getattr(frame, "_tidemark_statement", None)):
        if form in ("json", "jsonl"):
            print_objects(_objects(shown, names), form)
        else:
            numbers = [kind.startswith(_NUMBERS) for _, kind in shown.dtypes]
            print_texts(names, numbers, _texts(shown), form)


def _with_lsns(frame: DataFrame, lsns: Collection[str]) -> DataFrame:
    for name in lsns:
        value = F.col(backticked(name))
        halves = F.hex(F.shiftrightunsigned(value, 32)), F.hex(value.bitwiseAND(F.lit(0xFFFFFFFF)))
        frame = frame.withColumn(name, F.concat(halves[0], F.lit("/"), halves[1]))
    return frame


def _objects(frame: DataFrame, names: Sequence[str]) -> Iterator[str]:
    columns = (F.col(backticked(number)).alias(name) for number, name in zip(frame.columns, names, strict=True))
    return (row[0] for row in frame.select(F.to_json(F.struct(*columns), _JSON)).toLocalIterator())


def _texts(frame: DataFrame) -> Iterator[tuple[str | None, ...]]:
    """Return the rows as PostgreSQL's texts. Spark generates them, except for the digits of floats."""
    kinds = [field.dataType for field in frame.schema.fields]
    floats = {at: _FLOATS[kind.simpleString()] for at, kind in enumerate(kinds) if kind.simpleString() in _FLOATS}
    values = (F.col(backticked(name)) for name in frame.columns)
    texts = [value if at in floats else _text(value, kinds[at]) for at, value in enumerate(values)]
    rows = frame.select(*texts).toLocalIterator()
    if not floats:
        yield from (tuple(row) for row in rows)
    while floats and (batch := list(islice(rows, _BATCH))):
        columns: list[Sequence[str | None]] = list(zip(*batch, strict=True))
        for at, kind in floats.items():
            columns[at] = column_strings(DecodedColumn(pa.array(columns[at], kind))).to_pylist()
        yield from zip(*columns, strict=True)


def _text(value: Column, kind: T.DataType) -> Column:
    nested = T.ArrayType | T.StructType | T.MapType
    if isinstance(kind, T.StructType | T.MapType) or (
        isinstance(kind, T.ArrayType) and isinstance(kind.elementType, nested)
    ):
        return F.to_json(value, _JSON)
    return postgres_text(value, kind)
