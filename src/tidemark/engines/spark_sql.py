"""A bottom as a text in Spark's SQL. Every type is written out, so that no rule of Spark converts a value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import ClassVar

from tidemark.engines.printer import SqlPrinter
from tidemark.errors import EngineRefused
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
_FUNCTIONS = {
    Op.COALESCE: "coalesce",
    Op.GREATEST: "greatest",
    Op.LEAST: "least",
    Op.SUBSTRING: "substring",
    Op.LENGTH: "char_length",
    Op.RTRIM: "rtrim",
    Op.ABS: "abs",
    Op.YEAR: "year",
    Op.QUARTER: "quarter",
    Op.MONTH: "month",
    Op.DAY: "day",
    Op.HOUR: "hour",
    Op.MINUTE: "minute",
    Op.DAY_OF_YEAR: "dayofyear",
    Op.ADD_DAYS: "date_add",
    Op.DAYS_BETWEEN: "datediff",
}
_SIMPLE_TEXT = re.compile(r"[A-Za-z0-9 _.,:;@#%&*()+/<>=!?|~^-]*")


class SparkPrinter(SqlPrinter):
    """Prints a bottom for `spark.sql(text, **frames)`; the tables are placeholders such as `{t0}`."""

    types: ClassVar[Mapping[Kind, str]] = MappingProxyType(_TYPES)
    functions: ClassVar[Mapping[Op, str]] = MappingProxyType(_FUNCTIONS)

    def other(self, call: ir.Call, args: list[str]) -> str:
        """Return an operation that Spark writes in its own way."""
        name = self.type_name(call.type)
        if call.op is Op.DIVIDE_INT:
            return f"CAST(({args[0]} div {args[1]}) AS {name})"
        if call.op is Op.IS_DISTINCT:
            return f"(NOT ({args[0]} <=> {args[1]}))"
        if call.op is Op.DAY_OF_WEEK:
            return f"(dayofweek({args[0]}) - 1)"
        if call.op is Op.TRUNCATE:
            return f"CAST(date_trunc({args[1]}, {args[0]}) AS {name})"
        if call.op in (Op.QUOTIENT, Op.QUOTIENT_SCALE):
            raise EngineRefused("Spark does not compute an average below others", "Run the statement at the source.")
        return super().other(call, args)

    def literal(self, node: ir.Literal) -> str:
        """Return a constant; a text with other than plain characters is written in hexadecimal digits."""
        value, name = node.value, self.type_name(node.type)
        if value is None:
            return f"CAST(NULL AS {name})"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, str):
            simple = _SIMPLE_TEXT.fullmatch(value)
            return f"'{value}'" if simple else f"CAST(X'{value.encode().hex()}' AS STRING)"
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        return f"CAST('{_text_of(value)}' AS {name})"

    def identifier(self, name: str) -> str:
        """Return the name of a column in backticks; braces are doubled for Python's formatter."""
        return "`" + name.replace("`", "``").replace("{", "{{").replace("}", "}}") + "`"


def _text_of(value: int | float | Decimal | date | datetime) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, date) else repr(value)
