"""An expression below, with its properties in PostgreSQL: its type, and the display scale of a numeric."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.types import (
    BOOL,
    BPCHAR,
    DATE,
    DEFAULT_COLLATION,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    SqlType,
    is_opaque,
    plain,
)

Scale = int | ir.Expr
_DIGITS = {INT2: 5, INT4: 10, INT8: 19}


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression and its type in PostgreSQL.

    `scale` is the display scale of a numeric: the number of digits that PostgreSQL prints after the point. It is the
    same for all values, or an expression of the type INT4 that is evaluated for each value. A DECIMAL has at least
    that scale. It is None for other types. `pending` marks a value that is not known yet, in a first pass.
    """

    expr: ir.Expr
    type: SqlType
    scale: Scale | None = None

    @property
    def data(self) -> ir.DataType:
        """The type in the tree."""
        return self.expr.type

    @property
    def oid(self) -> int:
        """The OID of the type in PostgreSQL."""
        return self.type.oid

    @property
    def is_null(self) -> bool:
        """Whether it is the constant NULL."""
        return isinstance(self.expr, ir.Constant) and self.expr.value is None

    def computed(self) -> Typed:
        """Return the value for an operation; raise Unproven for one that is only passed on."""
        if is_opaque(self.type) and self.data.kind is not ir.Kind.DECIMAL:
            raise Unproven("an operation on a value that is stored as text")
        return self


def boolean(expr: ir.Expr) -> Typed:
    """Return a condition."""
    return Typed(expr, SqlType(BOOL))


def integer(value: int, oid: int = INT4) -> Typed:
    """Return an integer constant."""
    return Typed(ir.Constant(value, plain(oid)), SqlType(oid))


def numeric(value: Decimal) -> Typed:
    """Return a numeric constant with its own display scale."""
    if not value.is_finite():
        raise Unproven("a numeric constant that is not a number")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101  finite
    scale = max(-exponent, 0)
    whole = max(len(digits) + exponent, 0)
    if whole + scale > ir.MOST_DIGITS:
        raise Unproven("a numeric constant of more than 38 digits")
    type_ = ir.decimal(max(whole + scale, 1), scale)
    return Typed(ir.Constant(value, type_), SqlType(NUMERIC), scale)


def cast(expr: ir.Expr, to: ir.DataType) -> ir.Expr:
    """Return the expression with another type in the tree; nothing if it has it."""
    if expr.type == to:
        return expr
    if isinstance(expr, ir.Constant) and expr.value is None:
        return ir.Constant(None, to)
    return ir.Call(ir.Op.CAST, (expr,), to)


def as_numeric(value: Typed) -> Typed:
    """Return an integer as a numeric, as PostgreSQL's implicit cast does."""
    if value.oid in INTEGERS:
        return Typed(cast(value.expr, ir.decimal(_DIGITS[value.oid], 0)), SqlType(NUMERIC), 0)
    if value.oid != NUMERIC:
        raise Unproven("a numeric operation on another type")
    return value.computed()


def as_integer(value: Typed, oid: int) -> Typed:
    """Return an integer as one of a wider type."""
    return Typed(cast(value.expr, plain(oid)), SqlType(oid))


def as_float8(value: Typed) -> Typed:
    """Return a number as a float8, as PostgreSQL's implicit cast does."""
    return Typed(cast(value.computed().expr, plain(FLOAT8)), SqlType(FLOAT8))


def as_text(value: Typed) -> Typed:
    """Return a text, varchar or char as text; the cast from char removes trailing blanks."""
    expr = ir.Call(ir.Op.RTRIM, (value.expr,), ir.TEXT) if value.oid == BPCHAR else value.expr
    return Typed(expr, SqlType(TEXT, -1, value.type.collation))


def as_timestamp(value: Typed) -> Typed:
    """Return a date as a timestamp."""
    return Typed(cast(value.expr, ir.TIMESTAMP), SqlType(TIMESTAMP)) if value.oid == DATE else value


def merged_collation(values: list[Typed]) -> int:
    """Return the collation of an operation; a default collation yields to another one."""
    found = {value.type.collation for value in values if value.type.collation} - {DEFAULT_COLLATION}
    if len(found) > 1:
        raise Unproven("different collations in one operation")
    has_any = any(value.type.collation or value.oid == UNKNOWN for value in values)
    return min(found, default=DEFAULT_COLLATION if has_any else 0)


def common_decimal(values: list[Typed]) -> ir.DataType:
    """Return the DECIMAL that holds the values of all these; the cast to it is exact, or an error."""
    scale = max(value.data.scale for value in values)
    whole = max(value.data.precision - value.data.scale for value in values)
    if scale > ir.MOST_DIGITS:
        raise Unproven("a numeric with more than 38 digits after the point")
    return ir.decimal(whole + scale, scale)


def scale_expr(scale: Scale | None) -> ir.Expr:
    """Return a display scale as an expression."""
    assert scale is not None  # noqa: S101  the callers have a numeric
    return ir.Constant(scale, ir.INT4) if isinstance(scale, int) else scale


def combined_scale(op: ir.Op, left: Scale | None, right: Scale | None) -> Scale:
    """Return the display scale of a sum (GREATEST) or product (ADD) of two numerics."""
    assert left is not None  # noqa: S101  the callers have numerics
    assert right is not None  # noqa: S101
    if isinstance(left, int) and isinstance(right, int):
        return left + right if op is ir.Op.ADD else max(left, right)
    return ir.Call(op, (scale_expr(left), scale_expr(right)), ir.INT4)


def chosen_scale(branches: list[tuple[ir.Expr | None, Typed]]) -> Scale:
    """Return the display scale of a value that is one of several: the first whose condition is true."""
    present = [(condition, value) for condition, value in branches if not value.is_null]
    scales = [value.scale for _, value in present if isinstance(value.scale, int)]
    if len(set(scales)) <= 1 and len(scales) == len(present):
        return min(scales, default=0)
    whens = tuple((condition, _scale_or_null(value)) for condition, value in branches if condition is not None)
    other = [_scale_or_null(value) for condition, value in branches if condition is None]
    otherwise = other[0] if other else ir.Constant(None, ir.INT4)
    return ir.Case(whens, otherwise, ir.INT4) if whens else otherwise


def _scale_or_null(value: Typed) -> ir.Expr:
    return ir.Constant(None, ir.INT4) if value.is_null else scale_expr(value.scale)
