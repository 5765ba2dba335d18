"""Every operation of a bottom in two forms, PostgreSQL's and the tree's, and the values that it is tried with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

from tidemark.split import ir
from tidemark.split.ir import BOOL, DATE, INT2, INT4, INT8, TEXT, TIMESTAMP, DataType, Expr, Op, decimal

FLOAT4, FLOAT8, BINARY = DataType(ir.Kind.FLOAT4), DataType(ir.Kind.FLOAT8), DataType(ir.Kind.BINARY)
TIMESTAMPTZ = ir.TIMESTAMPTZ

NAMES = {
    BOOL: "bool",
    INT2: "int2",
    INT4: "int4",
    INT8: "int8",
    FLOAT4: "float4",
    FLOAT8: "float8",
    TEXT: 'text collate "C"',
    BINARY: "bytea",
    DATE: "date",
    TIMESTAMP: "timestamp",
    TIMESTAMPTZ: "timestamptz",
}
_PLAIN: dict[DataType, Sequence[str | None]] = {
    BOOL: ("t", "f", None),
    INT2: ("0", "1", "-1", "7", "-7", "32767", "-32768", None),
    INT4: ("0", "1", "-1", "7", "-7", "2147483647", "-2147483648", None),
    INT8: ("0", "1", "-1", "7", "-7", "9007199254740993", "9223372036854775807", "-9223372036854775808", None),
    FLOAT4: ("0", "-0", "1.5", "NaN", "Infinity", "-Infinity", "0.1", "1e-45", None),
    FLOAT8: ("0", "-0", "1.5", "NaN", "Infinity", "-Infinity", "0.1", "5e-324", None),
    TEXT: (
        "",
        "a",
        "A",
        "é",
        "z",
        "ab  ",
        " a",
        "a\t ",
        "añb",
        "日本語",
        "a%b",
        "x_y",
        "\U0001d11ex",
        "e\u0301x",
        None,
    ),
    BINARY: (r"\x", r"\x00", r"\xff", r"\x00ff", r"\x61", None),
    DATE: ("0001-01-01", "1582-10-10", "1969-12-31", "1970-01-01", "2000-02-29", "2024-12-30", "9999-12-31", None),
    TIMESTAMP: (
        *("0001-01-01 00:00:00", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2000-02-29 12:30:45.5"),
        *("2024-12-30 00:00:00.000001", "9999-12-31 23:59:59.999999", None),
    ),
    TIMESTAMPTZ: ("0001-01-01 00:00:00+00", "2024-03-31 01:30:00+00", "9999-12-31 23:59:59.999999+00", None),
}
_ROUNDED = ("0.5", "-0.5", "2.5", "0.05", "-0.05", "0.15", "0.4999")
DECIMALS = (decimal(10, 2), decimal(38, 0), decimal(38, 10), decimal(5, 5), decimal(18, 4))


def name_of(type_: DataType) -> str:
    """PostgreSQL's name of a type."""
    return f"numeric({type_.precision},{type_.scale})" if type_.kind is ir.Kind.DECIMAL else NAMES[type_]


def values_of(type_: DataType) -> Sequence[str | None]:
    """Texts of values, extremes included."""
    if type_.kind is not ir.Kind.DECIMAL:
        return _PLAIN[type_]
    unit, half = Decimal(1).scaleb(-type_.scale), Decimal(5).scaleb(-type_.scale)
    digits = [format(each, "f") for each in (Decimal(0), unit, -unit, half, -half)]
    nines = "9" * type_.precision
    whole, rest = nines[: type_.precision - type_.scale] or "0", nines[: type_.scale]
    fitting = [each for each in _ROUNDED if _fits(each, type_)]
    return [*digits, *fitting, f"{whole}.{rest}" if rest else whole, f"-{whole}.{rest}" if rest else f"-{whole}", None]


def _fits(text: str, type_: DataType) -> bool:
    whole, _, rest = text.lstrip("-").partition(".")
    return len(rest) <= type_.scale and len(whole.lstrip("0")) <= type_.precision - type_.scale


@dataclass(frozen=True)
class Operation:
    """An expression over arguments `a`, `b` and `c` of these types."""

    sql: str
    types: tuple[DataType, ...]
    tree: Callable[..., Expr]

    @property
    def rows(self) -> list[tuple[str | None, ...]]:
        """The values of the arguments: all combinations."""
        return list(product(*map(values_of, self.types)))

    def expr(self) -> Expr:
        """The expression over the columns `a`, `b` and `c`."""
        return self.tree(*(ir.TypedColumn(name, type_) for name, type_ in zip("abc", self.types, strict=False)))


def _call(op: Op, type_: DataType, *more: Expr) -> Callable[..., Expr]:
    return lambda *args: ir.Call(op, (*args, *more), type_)


def _integers() -> Iterator[Operation]:
    for type_ in (INT2, INT4, INT8):
        for sql, op in {"+": Op.ADD, "-": Op.SUBTRACT, "*": Op.MULTIPLY, "/": Op.DIVIDE_INT, "%": Op.MODULO}.items():
            yield Operation(f"a {sql} b", (type_, type_), _call(op, type_))
        yield Operation("- a", (type_,), _call(Op.NEGATE, type_))
        yield Operation("abs(a)", (type_,), _call(Op.ABS, type_))
        for other in (INT2, INT4, INT8, decimal(19, 0), decimal(38, 19), decimal(3, 0), FLOAT8):
            yield Operation(f"a::{name_of(other)}", (type_,), _call(Op.CAST, other))


def _decimals() -> Iterator[Operation]:
    for one, other in product(DECIMALS, DECIMALS):
        scale = max(one.scale, other.scale)
        common = decimal(max(one.precision - one.scale, other.precision - other.scale) + scale, scale)
        wider = decimal(common.precision + 1, scale)
        yield Operation("a + b", (one, other), _call(Op.ADD, wider))
        yield Operation("a - b", (one, other), _call(Op.SUBTRACT, wider))
        product_type = decimal(one.precision + other.precision, one.scale + other.scale)
        yield Operation("a * b", (one, other), _call(Op.MULTIPLY, product_type))
        yield Operation(f"a::{name_of(other)}", (one,), _call(Op.CAST, other))
        for op in (Op.EQ, Op.LT, Op.IS_DISTINCT):
            yield Operation(f"a {op.value} b", (one, other), _call(op, BOOL))
    for type_ in DECIMALS:
        yield Operation("- a", (type_,), _call(Op.NEGATE, type_))
        yield Operation("abs(a)", (type_,), _call(Op.ABS, type_))
        yield Operation("a::float8", (type_,), _call(Op.CAST, FLOAT8))
        for digits in range(min(type_.scale, 3) + 1):
            rounded = decimal(type_.precision - type_.scale + digits + 1, digits)
            yield Operation(f"round(a, {digits})", (type_,), _call(Op.ROUND, rounded))


def _comparisons() -> Iterator[Operation]:
    for type_ in (BOOL, INT4, FLOAT4, FLOAT8, TEXT, BINARY, DATE, TIMESTAMP, TIMESTAMPTZ):
        for op in (Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.IS_DISTINCT):
            yield Operation(f"a {op.value} b", (type_, type_), _call(op, BOOL))
        yield Operation("a is null", (type_,), _call(Op.IS_NULL, BOOL))
    for type_ in (INT4, DATE, TIMESTAMP, FLOAT8):
        yield Operation("greatest(a, b)", (type_, type_), _call(Op.GREATEST, type_))
        yield Operation("least(a, b)", (type_, type_), _call(Op.LEAST, type_))
        yield Operation("coalesce(a, b)", (type_, type_), _call(Op.COALESCE, type_))


def _booleans() -> Iterator[Operation]:
    yield Operation("a and b", (BOOL, BOOL), _call(Op.AND, BOOL))
    yield Operation("a or b or c", (BOOL, BOOL, BOOL), _call(Op.OR, BOOL))
    yield Operation("not a", (BOOL,), _call(Op.NOT, BOOL))
    yield Operation("a is true", (BOOL,), _call(Op.IS_TRUE, BOOL))
    yield Operation("a is false", (BOOL,), _call(Op.IS_FALSE, BOOL))
    one, seven, null = (ir.Constant(value, INT4) for value in (1, 7, None))
    yield Operation("a in (1, 7)", (INT4,), lambda a: ir.In(a, (one, seven)))
    yield Operation("a not in (1, null)", (INT4,), lambda a: ir.Call(Op.NOT, (ir.In(a, (one, null)),), BOOL))
    yield Operation(
        "case when a then b when not a then 7 else 1 end",
        (BOOL, INT4),
        lambda a, b: ir.Case(((a, b), (ir.Call(Op.NOT, (a,), BOOL), seven)), one, INT4),
    )
    quotient = ir.Call(Op.DIVIDE_INT, (one, ir.TypedColumn("a", INT4)), INT4)
    is_zero = ir.Call(Op.EQ, (ir.TypedColumn("a", INT4), ir.Constant(0, INT4)), BOOL)
    yield Operation(
        "case when a = 0 then 7 else 1 / a end", (INT4,), lambda _: ir.Case(((is_zero, seven),), quotient, INT4)
    )


def _texts() -> Iterator[Operation]:
    yield Operation("a || b", (TEXT, TEXT), _call(Op.CONCAT, TEXT))
    yield Operation("length(a)", (TEXT,), _call(Op.LENGTH, INT4))
    yield Operation("rtrim(a, ' ')", (TEXT,), _call(Op.RTRIM, TEXT))
    for start, count in ((1, 0), (1, 1), (1, 2), (2, 1), (2, 100), (3, 2), (9, 1)):
        numbers = (ir.Constant(start, INT4), ir.Constant(count, INT4))
        yield Operation(f"substring(a, {start}, {count})", (TEXT,), _call(Op.SUBSTRING, TEXT, *numbers))
    for pattern in (
        "",
        "%",
        "_",
        "__",
        "a%",
        "%b",
        "%a%",
        "_%_",
        "a_b",
        "%\u0301%",
        "日%",
        "%_語",
        "x'y",
        "%%",
        "a%b%",
    ):
        quoted = "'" + pattern.replace("'", "''") + "'"
        yield Operation(f"a like {quoted}", (TEXT,), _call(Op.LIKE, BOOL, ir.Constant(pattern, TEXT)))


def _times() -> Iterator[Operation]:
    fields = {
        Op.YEAR: "year",
        Op.QUARTER: "quarter",
        Op.MONTH: "month",
        Op.DAY: "day",
        Op.DAY_OF_WEEK: "dow",
        Op.DAY_OF_YEAR: "doy",
    }
    for type_, more in ((DATE, {}), (TIMESTAMP, {Op.HOUR: "hour", Op.MINUTE: "minute"})):
        for op, field in {**fields, **more}.items():
            yield Operation(f"extract({field} from a)::int4", (type_,), _call(op, INT4))
    yield Operation("a - b", (DATE, DATE), _call(Op.DAYS_BETWEEN, INT4))
    for days in (0, 1, -1, 366, -1_000_000, 1_000_000):
        yield Operation(f"a + ({days})", (DATE,), _call(Op.ADD_DAYS, DATE, ir.Constant(days, INT4)))
    for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second"):
        truncated = _call(Op.TRUNCATE, TIMESTAMP, ir.Constant(unit, TEXT))
        yield Operation(f"date_trunc('{unit}', a)", (TIMESTAMP,), truncated)
    yield Operation("a::timestamp", (DATE,), _call(Op.CAST, TIMESTAMP))
    yield Operation("a::date", (TIMESTAMP,), _call(Op.CAST, DATE))
    yield Operation("a::float8", (FLOAT4,), _call(Op.CAST, FLOAT8))


OPERATIONS = [*_integers(), *_decimals(), *_comparisons(), *_booleans(), *_texts(), *_times()]
