"""A bottom as a text in Spark's SQL. Every type is written out, so that no rule of Spark converts a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import ClassVar

import pyarrow as pa

from tidemark.engines.printer import BottomPrinter
from tidemark.engines.quotients import RESULT, quotient_scales, quotients
from tidemark.quoting import backticked, spark_bytes, spark_text
from tidemark.split import ir
from tidemark.split.ir import Kind, Op

_TYPES = {
    Kind.BOOL: "BOOLEAN",
    Kind.INT2: "SMALLINT",
    Kind.INT4: "INT",
    Kind.INT8: "BIGINT",
    Kind.FLOAT4: "FLOAT",
    Kind.FLOAT8: "DOUBLE",
    Kind.TEXT: "STRING",
    Kind.BINARY: "BINARY",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP_NTZ",
    Kind.TIMESTAMPTZ: "TIMESTAMP",
}
_INFIX = "CAST(({0} %s {1}) AS {type})"
_FORMS = {
    Op.ADD: _INFIX % "+",
    Op.SUBTRACT: _INFIX % "-",
    Op.MULTIPLY: _INFIX % "*",
    Op.DIVIDE_INT: _INFIX % "div",
    Op.MODULO: _INFIX % "%",
    Op.NEGATE: "(- {0})",
    Op.ABS: "abs({0})",
    Op.ROUND: "CAST({0} AS {type})",
    Op.CAST: "CAST({0} AS {type})",
    Op.LIKE: "({0} LIKE {1})",
    Op.SUBSTRING: "substring({all})",
    Op.LENGTH: "char_length({0})",
    Op.RTRIM: "rtrim({0})",
    Op.YEAR: "year({0})",
    Op.QUARTER: "quarter({0})",
    Op.MONTH: "month({0})",
    Op.DAY: "day({0})",
    Op.HOUR: "hour({0})",
    Op.MINUTE: "minute({0})",
    Op.DAY_OF_WEEK: "(dayofweek({0}) - 1)",
    Op.DAY_OF_YEAR: "dayofyear({0})",
    Op.ADD_DAYS: "date_add({0}, {1})",
    Op.DAYS_BETWEEN: "datediff({0}, {1})",
    Op.TRUNCATE: "CAST(date_trunc({1}, {0}) AS {type})",
    Op.QUOTIENT: "tidemark_quotient({0}, {1})",
    Op.QUOTIENT_SCALE: "tidemark_quotient_scale({0}, {1})",
}
FUNCTIONS: Mapping[str, tuple[Callable[[pa.Array, pa.Array], pa.Array], str]] = {
    "tidemark_quotient": (quotients, f"decimal({RESULT.precision},{RESULT.scale})"),
    "tidemark_quotient_scale": (quotient_scales, "int"),
}


class SparkPrinter(BottomPrinter):
    """Prints a bottom for `spark.sql(text, **frames)`.

    `tables` has the placeholder of each table, such as `{t0}`, and the names of its columns by attnum. The engine
    registers `FUNCTIONS`, by name with their types.
    """

    types: ClassVar[Mapping[Kind, str]] = MappingProxyType(_TYPES)
    forms: ClassVar[Mapping[Op, str]] = MappingProxyType({**BottomPrinter.forms, **_FORMS})

    def __init__(self, tables: Mapping[int, tuple[str, Mapping[int, str]]]) -> None:
        super().__init__()
        self._tables = tables

    def stored(self, scan: ir.Scan) -> tuple[str, Iterable[str]]:
        """Return the placeholder of a table, and its columns."""
        table, names = self._tables[scan.table]
        return table, [_identifier(names[attnum]) for attnum, _ in scan.columns]

    def literal(self, node: ir.Constant) -> str:
        """Return a constant; a text with other than plain characters is written in hexadecimal digits."""
        value, name = node.value, self.type_name(node.type)
        if value is None:
            return f"CAST(NULL AS {name})"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, str):
            return spark_text(value)
        if isinstance(value, bytes):
            return spark_bytes(value)
        return f"CAST({spark_text(_text_of(value))} AS {name})"


def _identifier(name: str) -> str:
    """Return the name of a column in backticks; braces are doubled for Python's formatter."""
    return backticked(name).replace("{", "{{").replace("}", "}}")


def _text_of(value: int | float | Decimal | date | datetime) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, date) else repr(value)
