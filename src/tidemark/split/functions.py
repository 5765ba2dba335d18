"""Functions below: those of pg_catalog whose results are proven equal for the types given here."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.constants import Constants, assigned
from tidemark.split.typed import Typed, as_text, cast
from tidemark.split.types import DATE, INT4, INTEGERS, NUMERIC, TEXT, TEXTS, TIMESTAMP, SqlType

_EXTRACTED = {
    "year": (ir.Op.YEAR, 4),
    "quarter": (ir.Op.QUARTER, 1),
    "month": (ir.Op.MONTH, 2),
    "day": (ir.Op.DAY, 2),
    "dow": (ir.Op.DAY_OF_WEEK, 1),
    "doy": (ir.Op.DAY_OF_YEAR, 3),
}
_OF_TIMES = {"hour": (ir.Op.HOUR, 2), "minute": (ir.Op.MINUTE, 2)}
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


def applied(name: str, args: list[Typed], constants: Constants) -> Typed:
    """Return the result of a function."""
    if name not in _FUNCTIONS:
        raise Unproven(f"the function {name} below the aggregates")
    function, counts = _FUNCTIONS[name]
    if len(args) not in counts:
        raise Unproven(f"the function {name} with {len(args)} arguments")
    return function(args, constants)


def _extract(args: list[Typed], _: Constants) -> Typed:
    """EXTRACT(field FROM date or timestamp), a numeric without digits after the point."""
    field, value = args
    known = {**_EXTRACTED, **(_OF_TIMES if value.oid == TIMESTAMP else {})}
    name = _constant(field)
    if value.oid not in (DATE, TIMESTAMP) or not isinstance(name, str) or name not in known:
        raise Unproven("EXTRACT of this field or type")
    op, digits = known[name]
    found = ir.Call(op, (value.expr,), ir.INT4)
    return Typed(cast(found, ir.decimal(digits, 0)), SqlType(NUMERIC), 0)


def _substring(args: list[Typed], constants: Constants) -> Typed:
    text, *places = (assigned(each, TEXT, constants) for each in args)
    numbers = [_constant(each) for each in places]
    if text.oid not in TEXTS or any(each.oid != INT4 for each in places):
        raise Unproven("substring with these arguments")
    start, count = numbers
    if not isinstance(start, int) or not isinstance(count, int) or start < 1 or count < 0:
        raise Unproven("substring with these numbers")
    text = as_text(text)
    args_of = (text.expr, ir.Constant(start, ir.INT4), ir.Constant(count, ir.INT4))
    return Typed(ir.Call(ir.Op.SUBSTRING, args_of, ir.TEXT), SqlType(TEXT, -1, text.type.collation))


def _length(args: list[Typed], constants: Constants) -> Typed:
    (text,) = (assigned(each, TEXT, constants) for each in args)
    if text.oid not in TEXTS:
        raise Unproven("length of another type than text")
    return Typed(ir.Call(ir.Op.LENGTH, (as_text(text).expr,), ir.INT4), SqlType(INT4))


def _abs(args: list[Typed], _: Constants) -> Typed:
    (value,) = args
    if value.oid not in (*INTEGERS, NUMERIC):
        raise Unproven("abs of this type")
    return Typed(ir.Call(ir.Op.ABS, (value.computed().expr,), value.data), SqlType(value.oid), value.scale)


def _round(args: list[Typed], _: Constants) -> Typed:
    """round(numeric) and round(numeric, n)."""
    value, digits = args[0].computed(), _constant(args[1]) if len(args) == 2 else 0
    if value.oid != NUMERIC or not isinstance(digits, int) or not 0 <= digits <= value.data.scale:
        raise Unproven("round with these arguments")
    if not isinstance(value.scale, int) or isinstance(value.expr, ir.Scalar):
        raise Unproven("round of a numeric whose scale is not known")
    type_ = ir.decimal(value.data.precision - value.data.scale + digits + 1, digits)
    return Typed(ir.Call(ir.Op.ROUND, (value.expr,), type_), SqlType(NUMERIC), digits)


def _date_trunc(args: list[Typed], _: Constants) -> Typed:
    """date_trunc(unit, timestamp); of a date, PostgreSQL takes the session's time zone."""
    unit, value = args
    name = _constant(unit)
    if value.oid != TIMESTAMP or not isinstance(name, str) or name not in _UNITS:
        raise Unproven("date_trunc with these arguments")
    args_of = (value.expr, ir.Constant(name, ir.TEXT))
    return Typed(ir.Call(ir.Op.TRUNCATE, args_of, ir.TIMESTAMP), SqlType(TIMESTAMP))


def _constant(value: Typed) -> object:
    return value.expr.value if isinstance(value.expr, ir.Constant) else None


_FUNCTIONS: dict[str, tuple[Callable[[list[Typed], Constants], Typed], tuple[int, ...]]] = {
    "extract": (_extract, (2,)),
    "substring": (_substring, (3,)),
    "substr": (_substring, (3,)),
    "length": (_length, (1,)),
    "char_length": (_length, (1,)),
    "character_length": (_length, (1,)),
    "abs": (_abs, (1,)),
    "round": (_round, (1, 2)),
    "date_trunc": (_date_trunc, (2,)),
}
