"""PostgreSQL itself as the engine of a bottom: the tree and the top are tested without Spark and without a lake.

The tree is printed as its documentation reads, with each type written out, and texts compared by their bytes. So a
difference is one of the split and not of an engine. Like a mirror, it refuses values that have no form in the lake's
types. What it cannot test is whether another engine computes an operation of the tree exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import psycopg
import pyarrow as pa

from tidemark.engines import MOST_ROWS
from tidemark.engines.arrays import array_parameters
from tidemark.engines.printer import BottomPrinter
from tidemark.errors import EngineRefused
from tidemark.split import Finish, Plan, Query, Run, SessionFacts, ir, steps
from tidemark.split.ir import Kind, Op
from tidemark.values.cells import cells_of
from tidemark.values.types import Types, decoding_of

SETTINGS = "-c timezone=UTC -c search_path=pg_catalog -c statement_timeout=60s"
_OIDS = {
    Kind.BOOL: 16, Kind.INT2: 21, Kind.INT4: 23, Kind.INT8: 20, Kind.FLOAT4: 700, Kind.FLOAT8: 701, Kind.TEXT: 25,
    Kind.BINARY: 17, Kind.DATE: 1082, Kind.TIMESTAMP: 1114, Kind.TIMESTAMPTZ: 1184, Kind.DECIMAL: 1700,
}  # fmt: skip
_TYPES = {
    Kind.BOOL: "bool", Kind.INT2: "int2", Kind.INT4: "int4", Kind.INT8: "int8", Kind.FLOAT4: "float4",
    Kind.FLOAT8: "float8", Kind.TEXT: "text", Kind.BINARY: "bytea", Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp", Kind.TIMESTAMPTZ: "timestamptz",
}  # fmt: skip
_OUT_OF_RANGE = {
    Kind.DATE: "NOT ({0} >= '0001-01-01' AND {0} <= '9999-12-31')",
    Kind.TIMESTAMP: "NOT ({0} >= '0001-01-01' AND {0} < '10000-01-01')",
    Kind.TIMESTAMPTZ: "NOT ({0} >= '0001-01-01 00:00:00+00' AND {0} < '10000-01-01 00:00:00+00')",
    Kind.DECIMAL: "{0} = 'NaN'",
}
_INFIX = "CAST(({0} %s {1}) AS {type})"
_FIELD = "CAST(EXTRACT(%s FROM {0}) AS {type})"
_QUOTIENT = "({0} / NULLIF({1}, 0)::numeric)"
_UP_TO_20 = f"0 * (1 / (scale({_QUOTIENT}) <= 20)::int)"  # an error for more digits
_FORMS = {
    **{op: _INFIX % op.value for op in (Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MODULO)},
    Op.DIVIDE_INT: _INFIX % "/",
    Op.ADD_DAYS: _INFIX % "+",
    Op.DAYS_BETWEEN: _INFIX % "-",
    Op.NEGATE: "(- {0})",
    Op.ABS: "abs({0})",
    Op.ROUND: "CAST({0} AS {type})",
    Op.CAST: "CAST({0} AS {type})",
    Op.LIKE: "({0} LIKE {1})",
    Op.SUBSTRING: "substring({all})",
    Op.LENGTH: "char_length({0})",
    Op.RTRIM: "rtrim({0}, ' ')",
    **{op: _FIELD % op.value for op in (Op.YEAR, Op.QUARTER, Op.MONTH, Op.DAY, Op.HOUR, Op.MINUTE)},
    Op.DAY_OF_WEEK: _FIELD % "dow",
    Op.DAY_OF_YEAR: _FIELD % "doy",
    Op.TRUNCATE: "date_trunc({1}, {0})",
    Op.QUOTIENT: f"CAST({_QUOTIENT} + {_UP_TO_20} AS {{type}})",
    Op.QUOTIENT_SCALE: f"scale({_QUOTIENT}) + {_UP_TO_20}",
}


class PostgresPrinter(BottomPrinter):
    types: ClassVar[Mapping[Kind, str]] = _TYPES
    forms: ClassVar[Mapping[Op, str]] = {**BottomPrinter.forms, **_FORMS}

    def __init__(self, facts: SessionFacts) -> None:
        super().__init__()
        self._facts = facts

    def stored(self, scan: ir.Scan) -> tuple[str, Iterable[str]]:
        relation = _relation(self._facts, scan.table)
        columns = {column.attnum: column for column in relation.columns}
        texts = [self.cast(_as_stored(columns[attnum]), column.type) for attnum, column in scan.columns]
        return f"ONLY {_quoted(relation.schema)}.{_quoted(relation.name)}", texts

    def join(self, join: ir.Join) -> str:
        if join.kind not in (ir.JoinKind.SEMI, ir.JoinKind.ANTI):
            return super().join(join)
        negated = "NOT " if join.kind is ir.JoinKind.ANTI else ""
        where = self.expr(join.condition) if join.condition is not None else "TRUE"
        found = f"{negated}EXISTS (SELECT FROM {self.nested(join.right)} WHERE {where})"
        return f"SELECT * FROM {self.nested(join.left)} WHERE {found}"

    def literal(self, node: ir.Constant) -> str:
        value = node.value
        if value is None:
            return self.cast("NULL", node.type)
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'::bytea"
        text = f"{value:f}" if node.type.kind is Kind.DECIMAL else str(value)
        return self.cast("'" + text.replace("'", "''") + "'", node.type)

    def cast(self, text: str, type_: ir.DataType) -> str:
        return super().cast(text, type_) + (' COLLATE "C"' if type_.kind is Kind.TEXT else "")


class PostgresEngine:
    """Runs bottoms in a session that sees the tables; they are those that the facts name."""

    def __init__(self, session: psycopg.Connection[Any], facts: SessionFacts) -> None:
        self._session, self._facts = session, facts

    def run(self, bottom: ir.Bottom, most_rows: int = MOST_ROWS) -> pa.Table:
        """Return the rows; refuse an error of PostgreSQL, as an engine refuses an overflow."""
        self._require_in_range(bottom.relation)
        text = f"{PostgresPrinter(self._facts).bottom(bottom)} LIMIT {most_rows + 1}"
        result = self._session.pgconn.exec_params(text.encode(), [], None, None, 0)
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise EngineRefused(f"PostgreSQL did not compute the statement: {result.error_message.decode()}\n{text}")
        if result.ntuples > most_rows:
            raise EngineRefused("more rows than go up")
        columns = [
            _arrow([result.get_value(row, at) for row in range(result.ntuples)], column.type)
            for at, column in enumerate(bottom.columns)
        ]
        return pa.table(columns, names=[column.name for column in bottom.columns])

    def cancel(self) -> None:
        """Cancel what runs now, from another thread."""
        self._session.cancel_safe()

    def _require_in_range(self, relation: ir.Relation) -> None:
        for scan in ir.scans(relation):
            table = _relation(self._facts, scan.table)
            names = {column.attnum: _quoted(column.name) for column in table.columns}
            for attnum, column in scan.columns:
                if column.type.kind in _OUT_OF_RANGE:
                    odd = _OUT_OF_RANGE[column.type.kind].format(names[attnum])
                    query = f"SELECT 1 FROM {_quoted(table.schema)}.{_quoted(table.name)} WHERE {odd} LIMIT 1"
                    if self._session.execute(query.encode()).fetchone():
                        raise EngineRefused("a value that the type of the lake cannot hold")


def _relation(facts: SessionFacts, oid: int) -> Any:
    return next(each for each in facts.relations.values() if each is not None and each.oid == oid)


def _as_stored(column: Any) -> str:
    """A column as the mirror stores it: a char(n) with its blanks."""
    name = _quoted(column.name)
    return f"rpad({name}::text, {column.typmod - 4})" if column.type == 1042 and column.typmod > 4 else name


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
