"""One type for several expressions, as in CASE, COALESCE and UNION, and explicit casts."""

from __future__ import annotations

from dataclasses import replace

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.constants import Constants, assigned, is_untyped
from tidemark.split.typed import Typed, as_float8, as_integer, as_numeric, as_text, as_timestamp, cast, common_decimal
from tidemark.split.typed import merged_collation as merged
from tidemark.split.types import (
    BPCHAR,
    DATE,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXT,
    TEXTS,
    TIMESTAMP,
    VARCHAR,
    SqlType,
)

_NUMBERS = (INT2, INT4, INT8, NUMERIC, FLOAT8)


def unified(values: list[Typed], constants: Constants) -> list[Typed]:
    """Return the values in the one type that PostgreSQL chooses for them."""
    known = [each for each in values if not is_untyped(each)]
    oids = {each.oid for each in known}
    if not known:
        return _in_common([assigned(each, TEXT, constants) for each in values])
    if len(oids) == 1:
        target = min(oids)
    elif oids <= set(_NUMBERS):
        target = max(oids, key=_NUMBERS.index)
    elif oids <= set(TEXTS):
        target = _text_type(known)
    elif oids == {DATE, TIMESTAMP}:
        target = TIMESTAMP
    else:
        raise Unproven("values of different types in CASE, COALESCE or UNION")
    return _in_common([_implicit(assigned(each, target, constants), target) for each in values])


def _text_type(values: list[Typed]) -> int:
    """Return the type of the first of texts and varchars: each can be converted to each."""
    if any(each.oid == BPCHAR for each in values):
        raise Unproven("char and another text in CASE, COALESCE or UNION")
    return values[0].oid


def _implicit(value: Typed, target: int) -> Typed:
    if value.oid == target:
        return value
    if target in INTEGERS:
        return as_integer(value, target)
    if target == NUMERIC:
        return as_numeric(value)
    if target == FLOAT8:
        return as_float8(value)
    return as_timestamp(value) if target == TIMESTAMP else _as_other_text(value, target)


def _as_other_text(value: Typed, target: int) -> Typed:
    return replace(as_text(value), type=SqlType(target, -1, value.type.collation))


def _in_common(values: list[Typed]) -> list[Typed]:
    """Return values of one type in PostgreSQL in one type of the tree, with the typmod that they share."""
    for value in values:
        value.computed()
    typmods = {each.type.typmod for each in values}
    typmod = min(typmods) if len(typmods) == 1 else -1
    type_ = SqlType(values[0].oid, typmod, merged(values) if values[0].oid in TEXTS else 0)
    if type_.oid == BPCHAR and typmod < 0:
        raise Unproven("char of different lengths in CASE, COALESCE or UNION")
    if values[0].oid != NUMERIC:
        return [replace(each, type=type_) for each in values]
    if any(isinstance(each.expr, ir.Scalar) for each in values):
        raise Unproven("a scalar subquery in CASE, COALESCE or UNION")
    data = common_decimal(values)
    return [Typed(cast(each.expr, data), type_, each.scale) for each in values]


def converted(value: Typed, oid: int, typmods: list[int]) -> Typed:
    """Return an explicit cast."""
    value = value.computed()
    if value.oid == oid and not typmods:
        return replace(value, type=SqlType(oid, value.type.typmod, value.type.collation))
    if oid == NUMERIC and (value.oid in INTEGERS or value.oid == NUMERIC):
        return _numeric(as_numeric(value), typmods)
    if typmods:
        raise Unproven("a cast to a type with a modifier")
    if oid in INTEGERS and value.oid in INTEGERS:
        return as_integer(value, oid)  # a narrower type fails for a value that does not fit, as in PostgreSQL
    if oid == FLOAT8 and value.oid in (*INTEGERS, NUMERIC):
        return as_float8(value)
    if oid in (TEXT, VARCHAR) and value.oid in TEXTS:
        return _as_other_text(value, oid)
    if oid == DATE and value.oid == TIMESTAMP:
        return Typed(cast(value.expr, ir.DATE), SqlType(DATE))
    if oid == TIMESTAMP and value.oid == DATE:
        return as_timestamp(value)
    raise Unproven("a cast to this type")


def _numeric(value: Typed, typmods: list[int]) -> Typed:
    if not typmods:
        return replace(value, type=SqlType(NUMERIC))
    if isinstance(value.expr, ir.Scalar):
        raise Unproven("a cast of the result of a scalar subquery")
    precision, scale = typmods[0], typmods[1] if len(typmods) > 1 else 0
    if not 0 <= scale <= precision <= ir.MOST_DIGITS:
        raise Unproven("a cast to a numeric that a DECIMAL cannot hold")
    type_ = SqlType(NUMERIC, ((precision << 16) | scale) + 4)
    return Typed(cast(value.expr, ir.decimal(precision, scale)), type_, scale)
