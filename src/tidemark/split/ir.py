"""The tree of a bottom: what an engine computes. It is independent of the engine, and every type in it is exact.

Columns have names that are unique in the whole tree (`_c1`, `_c2`, …), so a reference needs no qualification, and a
condition of a join may name columns of both sides. A correlated condition exists only in `Exists`, whose `condition`
names columns of the relation and of the query around it; a printer may rely on three-valued logic there.

Operations mean exactly what `Op` documents: arguments have been cast to one type before, so a printer casts nothing by
its own rules. Where a result does not fit its type (an integer, or a DECIMAL of 38 digits), the engine must fail, never
round, wrap or return NULL. The only divisions are of integers, and of a sum by a count as PostgreSQL rounds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, TypeAlias


class Kind(Enum):
    """The types of values."""

    BOOL = "bool"
    INT2 = "int2"
    INT4 = "int4"
    INT8 = "int8"
    DECIMAL = "decimal"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"


INTEGERS = (Kind.INT2, Kind.INT4, Kind.INT8)
MOST_DIGITS = 38


@dataclass(frozen=True, slots=True)
class DataType:
    """A type. A DECIMAL has at most 38 digits; a value that needs more is an error of the engine."""

    kind: Kind
    precision: int = 0
    scale: int = 0


BOOL, TEXT, DATE = DataType(Kind.BOOL), DataType(Kind.TEXT), DataType(Kind.DATE)
INT2, INT4, INT8 = DataType(Kind.INT2), DataType(Kind.INT4), DataType(Kind.INT8)
TIMESTAMP, TIMESTAMPTZ = DataType(Kind.TIMESTAMP), DataType(Kind.TIMESTAMPTZ)


def decimal(precision: int, scale: int) -> DataType:
    """Return a DECIMAL with this scale, and at most 38 digits."""
    return DataType(Kind.DECIMAL, min(precision, MOST_DIGITS), scale)


class Op(Enum):
    """The operations. Unless noted, arguments have one type, and the result is NULL if an argument is."""

    ADD = "+"  # exact, or an error: integers of the result's type; DECIMALs of any scales, the result has the larger
    SUBTRACT = "-"
    MULTIPLY = "*"  # the result's scale is the sum of the scales
    DIVIDE_INT = "div"  # integers; truncates towards zero; an error for zero and for an overflow
    MODULO = "%"  # integers; the sign of the dividend
    NEGATE = "negate"
    ABS = "abs"
    ROUND = "round"  # of a DECIMAL to the scale of the result, half away from zero
    EQ = "="
    NE = "<>"
    LT = "<"  # texts by their bytes in UTF-8; floats with NaN above all numbers
    LE = "<="
    GT = ">"
    GE = ">="
    AND = "and"  # three-valued logic
    OR = "or"
    NOT = "not"
    IS_NULL = "is null"
    IS_TRUE = "is true"
    IS_FALSE = "is false"
    IS_DISTINCT = "is distinct from"
    COALESCE = "coalesce"
    GREATEST = "greatest"  # NULL only if all arguments are
    LEAST = "least"
    LIKE = "like"  # the second is a literal with % and _ and without a backslash; _ is a character, not a byte
    CONCAT = "||"
    SUBSTRING = "substring"  # text, start from 1, number of characters; the numbers are literals, start >= 1
    LENGTH = "length"  # in characters
    RTRIM = "rtrim"  # only the blank, U+0020
    YEAR = "year"  # of a date or timestamp, as an INT4
    QUARTER = "quarter"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"  # of a timestamp
    MINUTE = "minute"
    DAY_OF_WEEK = "day of week"  # 0 is Sunday
    DAY_OF_YEAR = "day of year"
    ADD_DAYS = "add days"  # to a date; the second is an integer literal
    DAYS_BETWEEN = "days between"  # first date minus second, an INT4
    TRUNCATE = "truncate"  # a timestamp to the unit that the second names, a literal: year, month, day, hour, …
    QUOTIENT = "quotient"  # a DECIMAL by an INT8 > 0, rounded half away from zero to QUOTIENT_SCALE digits
    QUOTIENT_SCALE = "quotient scale"  # PostgreSQL's select_div_scale of these, an INT4; an error if it exceeds 20
    CAST = "cast"  # to the type of the result: exact, or to a DECIMAL of smaller scale half away from zero


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of a relation."""

    name: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant; None is NULL. Dates are between the years 1 and 9999, timestamps with a time zone are in UTC."""

    value: bool | int | float | Decimal | str | bytes | date | datetime | None
    type: DataType


@dataclass(frozen=True, slots=True)
class Scalar:
    """The value of a scalar subquery, computed first: `Plan.scalars[number]`. `bound` replaces it with a literal."""

    number: int
    type: DataType


@dataclass(frozen=True, slots=True)
class Call:
    """An operation."""

    op: Op
    args: tuple[Expr, ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class Case:
    """`CASE WHEN condition THEN value … ELSE otherwise END`; all values have the type."""

    whens: tuple[tuple[Expr, Expr], ...]
    otherwise: Expr
    type: DataType


@dataclass(frozen=True, slots=True)
class In:
    """`arg IN (literals)`, with three-valued logic."""

    arg: Expr
    values: tuple[Expr, ...]
    type: DataType = BOOL


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether the relation has a row for which the condition is true. Never NULL."""

    relation: Relation
    condition: Expr
    type: DataType = BOOL


Expr: TypeAlias = TypedColumn | Constant | Scalar | Call | Case | In | Exists


class Aggregate(Enum):
    """The aggregates. All ignore NULL, and return NULL for no values, except the counts, which return 0."""

    COUNT_ROWS = "count(*)"
    COUNT = "count"
    COUNT_DISTINCT = "count(distinct)"
    SUM = "sum"  # exact, or an error
    SUM_DISTINCT = "sum(distinct)"
    MIN = "min"  # texts by their bytes in UTF-8
    MAX = "max"
    BOOL_AND = "bool_and"
    BOOL_OR = "bool_or"


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """An aggregate of an expression, None for COUNT_ROWS, over the rows for which `where` is true."""

    aggregate: Aggregate
    arg: Expr | None
    type: DataType
    where: Expr | None = None


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows of a table by its OID; `columns` are the columns by attnum that are read."""

    table: int
    columns: tuple[tuple[int, TypedColumn], ...]


@dataclass(frozen=True, slots=True)
class OneRow:
    """One row without columns."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which the condition is true."""

    relation: Relation
    condition: Expr


class JoinKind(Enum):
    """The joins. SEMI and ANTI return only the columns of the left."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"


@dataclass(frozen=True, slots=True)
class Join:
    """A join; `condition` None is always true. ANTI keeps the rows for which it is true for no row of the right."""

    kind: JoinKind
    left: Relation
    right: Relation
    condition: Expr | None


@dataclass(frozen=True, slots=True)
class Project:
    """Named expressions of each row."""

    relation: Relation
    columns: tuple[tuple[TypedColumn, Expr], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A row for each group; without keys, one row also if there are no rows. Keys are grouped with NULL as a value."""

    relation: Relation
    keys: tuple[tuple[TypedColumn, Expr], ...]
    aggregates: tuple[tuple[TypedColumn, AggregateCall], ...]


@dataclass(frozen=True, slots=True)
class Distinct:
    """The different rows."""

    relation: Relation


@dataclass(frozen=True, slots=True)
class Union:
    """UNION ALL: the columns of each part in this order, as `columns`."""

    columns: tuple[TypedColumn, ...]
    parts: tuple[tuple[Relation, tuple[TypedColumn, ...]], ...]


Relation: TypeAlias = Scan | OneRow | Filter | Join | Project | Group | Distinct | Union


@dataclass(frozen=True, slots=True)
class Bottom:
    """What an engine runs: a relation, and the columns of its result in order."""

    relation: Relation
    columns: tuple[TypedColumn, ...]


def columns_of(relation: Relation) -> tuple[TypedColumn, ...]:
    """Return the columns of a relation."""
    if isinstance(relation, Scan):
        return tuple(column for _, column in relation.columns)
    if isinstance(relation, Filter | Distinct):
        return columns_of(relation.relation)
    if isinstance(relation, Join):
        left = columns_of(relation.left)
        return left if relation.kind in (JoinKind.SEMI, JoinKind.ANTI) else (*left, *columns_of(relation.right))
    if isinstance(relation, Project):
        return tuple(column for column, _ in relation.columns)
    if isinstance(relation, Group):
        return (*(column for column, _ in relation.keys), *(column for column, _ in relation.aggregates))
    return relation.columns if isinstance(relation, Union) else ()


def walk(node: Any) -> Iterator[Any]:
    """Yield every relation, expression and aggregate of a tree."""
    if is_dataclass(node) and not isinstance(node, DataType):
        yield node
        for field in fields(node):
            yield from walk(getattr(node, field.name))
    elif isinstance(node, tuple):
        for item in node:
            yield from walk(item)


def rebuilt(node: Any, change: Any) -> Any:
    """Return the tree with `change` applied to every node, the inner ones first."""
    if isinstance(node, tuple):
        return tuple(rebuilt(item, change) for item in node)
    if not is_dataclass(node) or isinstance(node, (DataType, type)):
        return node
    found = {field.name: getattr(node, field.name) for field in fields(node)}
    inner = {name: rebuilt(value, change) for name, value in found.items()}
    different = {name: value for name, value in inner.items() if value is not found[name] and value != found[name]}
    return change(replace(node, **different) if different else node)


def pruned(bottom: Bottom) -> Bottom:
    """Return the bottom with scans of only those columns that an expression or the result names."""
    used = {column.name for column in bottom.columns}
    for node in walk(bottom.relation):
        used |= _named(node)

    def narrowed(node: Any) -> Any:
        if isinstance(node, Scan):
            return Scan(node.table, tuple(each for each in node.columns if each[1].name in used))
        return node

    return Bottom(rebuilt(bottom.relation, narrowed), bottom.columns)


def _named(node: Any) -> set[str]:
    """Return the names of the columns that the expressions of a relation mention, without those inside of it."""
    expressions: list[Any] = []
    if isinstance(node, Filter | Exists | Join):
        expressions = [node.condition]
    elif isinstance(node, Project):
        expressions = [expr for _, expr in node.columns]
    elif isinstance(node, Group):
        expressions = [expr for _, expr in node.keys] + [call for _, call in node.aggregates]
    elif isinstance(node, Union):
        expressions = [column for _, columns in node.parts for column in columns]
    return {each.name for expr in expressions for each in columns_in(expr)}


def columns_in(node: Any) -> Iterator[TypedColumn]:
    """Yield the columns that an expression mentions, also inside an `Exists`."""
    return (each for each in walk(node) if isinstance(each, TypedColumn))


def produced(relation: Relation) -> set[str]:
    """Return the names of the columns that are defined inside of a relation."""
    names: set[str] = set()
    for node in walk(relation):
        if isinstance(node, Scan):
            names |= {column.name for _, column in node.columns}
        elif isinstance(node, Project):
            names |= {column.name for column, _ in node.columns}
        elif isinstance(node, Group):
            names |= {column.name for column, _ in (*node.keys, *node.aggregates)}
        elif isinstance(node, Union):
            names |= {column.name for column in node.columns}
    return names


def scans(node: Any) -> Iterator[Scan]:
    """Yield the scans of a tree."""
    return (each for each in walk(node) if isinstance(each, Scan))


def conjunction(conditions: Sequence[Expr]) -> Expr:
    """Return the conditions joined by AND."""
    return conditions[0] if len(conditions) == 1 else Call(Op.AND, tuple(conditions), BOOL)


def bound(node: Any, scalars: tuple[Constant, ...]) -> Any:
    """Return the tree with the values of scalar subqueries."""
    return rebuilt(node, lambda each: scalars[each.number] if isinstance(each, Scalar) else each)
