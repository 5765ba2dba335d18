"""PostgreSQL itself as the engine of a bottom: the tree and the top are tested without Spark and without a lake.

What it cannot test is whether another engine computes an operation of the tree exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import psycopg
import pyarrow as pa

from tidemark.engines.arrays import array_parameters
from tidemark.engines.printer import SqlPrinter
from tidemark.split import Facts, Finish, Plan, Query, Run, ir, steps
from tidemark.split.ir import Kind, Op
from tidemark.values.cells import cells_of
from tidemark.values.types import Types, decoding_of

_OIDS = {
    Kind.BOOL: 16, Kind.INT2: 21, Kind.INT4: 23, Kind.INT8: 20, Kind.FLOAT4: 700, Kind.FLOAT8: 701,
    Kind.TEXT: 25,
    Kind.BINARY: 17, Kind.DATE: 1082, Kind.TIMESTAMP: 1114, Kind.TIMESTAMPTZ: 1184, Kind.DECIMAL: 1700,
}  # fmt: skip
_TYPES = {
    Kind.BOOL: "bool", Kind.INT2: "int2", Kind.INT4: "int4", Kind.INT8: "int8", Kind.FLOAT4: "float4",
    Kind.FLOAT8: "float8", Kind.TEXT: "text", Kind.BINARY: "bytea", Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp", Kind.TIMESTAMPTZ: "timestamptz",
}  # fmt: skip
_FUNCTIONS = {
    Op.COALESCE: "coalesce", Op.GREATEST: "greatest", Op.LEAST: "least", Op.SUBSTRING: "substring", Op.LENGTH: "length",
    Op.ABS: "abs", Op.RTRIM: "rtrim",
}  # fmt: skip
_FIELDS = {
    Op.YEAR: "year", Op.QUARTER: "quarter", Op.MONTH: "month", Op.DAY: "day", Op.HOUR: "hour", Op.MINUTE: "minute",
    Op.DAY_OF_WEEK: "dow", Op.DAY_OF_YEAR: "doy",
}  # fmt: skip


class PostgresPrinter(SqlPrinter):
    types: ClassVar[Mapping[Kind, str]] = _TYPES
    functions: ClassVar[Mapping[Op, str]] = _FUNCTIONS

    def join(self, join: ir.Join) -> str:
        if join.kind not in (ir.JoinKind.SEMI, ir.JoinKind.ANTI):
            return super().join(join)
        there = "EXISTS" if join.kind is ir.JoinKind.SEMI else "NOT EXISTS"
        where = self.expr(join.condition) if join.condition is not None else "TRUE"
        found = f"{there} (SELECT 1 FROM {self.nested(join.right)} WHERE {where})"
        return f"SELECT * FROM {self.nested(join.left)} WHERE {found}"

    def other(self, call: ir.Call, args: list[str]) -> str:
        name = self.type_name(call.type)
        if call.op in _FIELDS:
            return f"CAST(EXTRACT({_FIELDS[call.op]} FROM {args[0]}) AS {name})"
        if call.op is Op.DIVIDE_INT:
            return f"({args[0]} / {args[1]})"
        if call.op is Op.IS_DISTINCT:
            return f"({args[0]} IS DISTINCT FROM {args[1]})"
        if call.op is Op.ADD_DAYS:
            return f"({args[0]} + {args[1]})"
        if call.op is Op.DAYS_BETWEEN:
            return f"({args[0]} - {args[1]})"
        if call.op in (Op.QUOTIENT, Op.QUOTIENT_SCALE):
            found = f"({args[0]} / NULLIF({args[1]}, 0)::numeric)"
            return f"CAST({found} AS {name})" if call.op is Op.QUOTIENT else f"scale({found})"
        if call.op is Op.TRUNCATE:
            return f"date_trunc({args[1]}, {args[0]})"
        return super().other(call, args)

    def literal(self, node: ir.Literal) -> str:
        value, name = node.value, self.type_name(node.type)
        if value is None:
            return f"CAST(NULL AS {name})"
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'::bytea"
        text = str(value).replace("'", "''")
        return f"CAST('{text}' AS {name})"

    def identifier(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'


class PostgresEngine:
    """Runs bottoms in a session that sees the tables."""

    def __init__(self, session: psycopg.Connection[Any], facts: Facts) -> None:
        relations = [each for each in facts.relations.values() if each is not None]
        self._session = session
        self._tables = {
            each.oid: (
                f'(SELECT {", ".join(map(_as_stored, each.columns))} FROM "{each.schema}"."{each.name}") AS stored',
                {column.attnum: column.name for column in each.columns},
            )
            for each in relations
        }

    def run(self, bottom: ir.Bottom, most_rows: int = 100_000) -> pa.Table:
        text = PostgresPrinter(self._tables).bottom(bottom)
        result = self._session.pgconn.exec_params(text.encode(), [], None, None, 0)
        assert result.nfields == len(bottom.columns), result.error_message.decode() + "\n" + text
        assert result.ntuples <= most_rows
        columns = [
            _arrow([result.get_value(row, at) for row in range(result.ntuples)], column.type)
            for at, column in enumerate(bottom.columns)
        ]
        return pa.table(columns, names=[column.name for column in bottom.columns])

    def cancel(self) -> None:
        self._session.cancel()


def _as_stored(column: Any) -> str:
    """A column as the mirror stores it: text where Spark has no type for it, a char(n) as text with its blanks."""
    name = '"' + column.name.replace('"', '""') + '"'
    if column.type == 1042 and column.typmod > 4:
        return f'pg_catalog.rpad({name}::text, {column.typmod - 4}) COLLATE "C" AS {name}'
    exact = column.type in set(_OIDS.values()) - {25} and (column.type != 1700 or column.typmod > 0)
    return name if exact else f'{name}::text COLLATE "C" AS {name}'


def _arrow(values: Sequence[bytes | None], type_: ir.DataType) -> pa.Array:
    typmod = (type_.precision << 16 | type_.scale) + 4 if type_.kind is Kind.DECIMAL else -1
    return decoding_of(_OIDS[type_.kind], typmod, Types()).decode(cells_of(values), False).array


def planned(statement: str, session: psycopg.Connection[Any]) -> tuple[Plan, Any]:
    """Split a statement, and finish it with PostgreSQL as the engine; return the plan and the result."""
    arrays: dict[int, list[bytes]] = {}
    answering = steps(statement)
    step: Any = next(answering)
    while not isinstance(step, Finish):
        if isinstance(step, Run):
            for part in step.parts:
                arrays[part.first] = array_parameters(part, PostgresEngine(session, step.facts).run(part.bottom))
            step = answering.send(None)
        else:
            step = answering.send(_text(_executed(session, step.sql, step.parts, arrays)))
    return step.plan, _executed(session, step.plan.top, step.plan.parts, arrays)


def _executed(session: psycopg.Connection[Any], sql: str, parts: Sequence[Any], arrays: dict[int, list[bytes]]) -> Any:
    values = [array for part in parts for array in arrays[part.first]]
    oids = [output.array_oid for part in parts for output in part.outputs]
    return session.pgconn.exec_params(sql.encode(), values, oids, None, 0)


def _text(result: Any) -> str:
    assert result.ntuples == 1, result.error_message.decode()
    value = result.get_value(0, 0)
    assert value is not None
    return str(value.decode())


__all__ = ["PostgresEngine", "PostgresPrinter", "Query", "planned"]
