"""Operators below: which one PostgreSQL resolves for two types, and what it computes.

Without user-defined operators of these names and without additional casts, which `SessionFacts.require_ordinary` has
checked, the candidates are those of pg_catalog. A test compares each combination with PostgreSQL's own analysis.
"""

from __future__ import annotations

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.constants import Constants, assigned, is_untyped
from tidemark.split.facts import SessionFacts
from tidemark.split.typed import (
    Typed,
    as_float8,
    as_integer,
    as_numeric,
    as_text,
    as_timestamp,
    boolean,
    cast,
    combined_scale,
    common_decimal,
    merged_collation,
)
from tidemark.split.types import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOATS,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXT,
    TEXTS,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    SqlType,
    plain,
)

COMPARISONS = {
    "=": ir.Op.EQ,
    "<>": ir.Op.NE,
    "<": ir.Op.LT,
    "<=": ir.Op.LE,
    ">": ir.Op.GT,
    ">=": ir.Op.GE,
}
_ARITHMETIC = {"+": ir.Op.ADD, "-": ir.Op.SUBTRACT, "*": ir.Op.MULTIPLY}
_INT_ONLY = {"/": ir.Op.DIVIDE_INT, "%": ir.Op.MODULO}
_EQUALITY_ONLY = (BYTEA,)
_ORDERED = (BOOL, DATE, TIMESTAMP, TIMESTAMPTZ, UUID)
_MOST_DAYS = 1_000_000


class Operators:
    """Applies operators to typed values in one session."""

    def __init__(self, facts: SessionFacts, constants: Constants) -> None:
        self._facts, self._constants = facts, constants

    def binary(self, name: str, left: Typed, right: Typed) -> Typed:
        """Return the result of an operator with two arguments."""
        if name in ("~~", "!~~", "||"):  # of text only: a literal is a text, also beside a char
            left, right = (assigned(each, TEXT, self._constants) for each in (left, right))
            return self._concatenated(left, right) if name == "||" else self.like(name, left, right)
        left, right = self._same_for_unknown(left, right)
        if name in COMPARISONS:
            return self.compared(COMPARISONS[name], left, right)
        if name in _ARITHMETIC or name in _INT_ONLY:
            return _computed(name, left, right)
        raise Unproven(f"the operator {name}")

    def compared(self, op: ir.Op, left: Typed, right: Typed) -> Typed:
        """Return a comparison."""
        left, right = self._same_for_unknown(left, right)
        one, other = self._comparable(left, right, ordered=op not in (ir.Op.EQ, ir.Op.NE, ir.Op.IS_DISTINCT))
        return boolean(ir.Call(op, (one.expr, other.expr), ir.BOOL))

    def like(self, name: str, left: Typed, right: Typed) -> Typed:
        """Return LIKE or NOT LIKE with a constant pattern."""
        if left.oid not in TEXTS or right.oid not in TEXTS or not isinstance(right.expr, ir.Constant):
            raise Unproven("LIKE with a pattern that is not a constant")
        if not isinstance(right.expr.value, str) or "\\" in right.expr.value:
            raise Unproven("LIKE with a backslash, or NULL")
        self._require_deterministic([left, right])
        if right.oid == BPCHAR:
            raise Unproven("LIKE with a pattern of the type char")
        found = ir.Call(ir.Op.LIKE, (left.expr, right.expr), ir.BOOL)  # of char with its blanks: bpcharlike
        return boolean(ir.Call(ir.Op.NOT, (found,), ir.BOOL) if name == "!~~" else found)

    def negated(self, value: Typed) -> Typed:
        """Return a number with the other sign."""
        if value.oid not in (*INTEGERS, NUMERIC):
            raise Unproven("a sign before another type than a number")
        return Typed(ir.Call(ir.Op.NEGATE, (value.computed().expr,), value.data), SqlType(value.oid), value.scale)

    def _same_for_unknown(self, left: Typed, right: Typed) -> tuple[Typed, Typed]:
        """Give a literal without a type the type of the other argument, as PostgreSQL does."""
        if is_untyped(left) and is_untyped(right):
            left, right = assigned(left, TEXT, self._constants), assigned(right, TEXT, self._constants)
        unknown_type = {VARCHAR: TEXT}
        if is_untyped(left):
            left = assigned(left, unknown_type.get(right.oid, right.oid), self._constants)
        if is_untyped(right):
            right = assigned(right, unknown_type.get(left.oid, left.oid), self._constants)
        return left, right

    def _comparable(self, left: Typed, right: Typed, *, ordered: bool) -> tuple[Typed, Typed]:
        """Return two values in one type, whose comparison in the tree is PostgreSQL's."""
        left, right = left.computed(), right.computed()
        types = {left.oid, right.oid}
        if types <= set(INTEGERS):
            widest = max(left.oid, right.oid, key=(INT2, INT4, INT8).index)
            return as_integer(left, widest), as_integer(right, widest)
        if types <= {*INTEGERS, NUMERIC}:
            return same_decimal(as_numeric(left), as_numeric(right))
        if types <= {*INTEGERS, NUMERIC, *FLOATS}:
            return as_float8(left), as_float8(right)
        if types <= set(TEXTS):
            return self._comparable_texts(left, right, ordered=ordered)
        if types <= {DATE, TIMESTAMP} and len(types) == 2:
            return as_timestamp(left), as_timestamp(right)
        if len(types) == 1 and (left.oid in _ORDERED or (left.oid in _EQUALITY_ONLY and not ordered)):
            return left, right
        raise Unproven("a comparison of these types")

    def _comparable_texts(self, left: Typed, right: Typed, *, ordered: bool) -> tuple[Typed, Typed]:
        collation = merged_collation([left, right])
        known = self._facts.collations.get(collation)
        if known is None or not known.deterministic:
            raise Unproven("a collation that is not deterministic")
        if ordered and not known.is_c:
            raise Unproven("an order of texts under another collation than C")
        types = {left.oid, right.oid}
        if types == {BPCHAR, VARCHAR}:  # PostgreSQL converts the varchar to char: blanks count on no side
            return _trimmed(left), _trimmed(right)
        return (_trimmed(left), _trimmed(right)) if types == {BPCHAR} else (as_text(left), as_text(right))

    def require_groupable(self, value: Typed) -> None:
        """Raise Unproven if equal values of an expression may differ in what PostgreSQL prints."""
        value = value.computed()
        if value.oid in (*INTEGERS, *_ORDERED, *_EQUALITY_ONLY):
            return
        if value.oid == NUMERIC and isinstance(value.scale, int):
            return
        if value.oid in (TEXT, VARCHAR) or (value.oid == BPCHAR and value.type.width):
            self._require_deterministic([value])
            return
        raise Unproven("groups of values that may be equal and print differently")

    def require_ordered(self, value: Typed) -> None:
        """Raise Unproven if MIN or MAX of an expression is not the value that PostgreSQL returns."""
        self.require_groupable(value)
        if value.oid in TEXTS and not self._facts.collations[merged_collation([value])].is_c:
            raise Unproven("an order of texts under another collation than C")
        if value.oid in (BYTEA, BOOL, UUID):
            raise Unproven("MIN or MAX of another type")

    def _require_deterministic(self, values: list[Typed]) -> None:
        known = self._facts.collations.get(merged_collation(values))
        if known is None or not known.deterministic:
            raise Unproven("a collation that is not deterministic")

    def _concatenated(self, left: Typed, right: Typed) -> Typed:
        if left.oid not in TEXTS or right.oid not in TEXTS:
            raise Unproven("|| of other types than text")
        collation = merged_collation([left, right])
        args = (as_text(left).expr, as_text(right).expr)
        return Typed(ir.Call(ir.Op.CONCAT, args, ir.TEXT), SqlType(TEXT, -1, collation))


def same_decimal(left: Typed, right: Typed) -> tuple[Typed, Typed]:
    """Return two numerics with one precision and scale, which holds both exactly."""
    if isinstance(left.expr, ir.Scalar) or isinstance(right.expr, ir.Scalar):
        return left, right  # its literal has its own digits; the printer brings both to one type
    type_ = common_decimal([left, right])
    return (
        Typed(cast(left.expr, type_), left.type, left.scale),
        Typed(cast(right.expr, type_), right.type, right.scale),
    )


def _trimmed(value: Typed) -> Typed:
    return Typed(ir.Call(ir.Op.RTRIM, (value.expr,), ir.TEXT), value.type)


def _computed(name: str, left: Typed, right: Typed) -> Typed:
    left, right = left.computed(), right.computed()
    types = {left.oid, right.oid}
    if types <= set(INTEGERS):
        widest = max(left.oid, right.oid, key=(INT2, INT4, INT8).index)
        op = _ARITHMETIC.get(name) or _INT_ONLY[name]
        args = (as_integer(left, widest).expr, as_integer(right, widest).expr)
        return Typed(ir.Call(op, args, plain(widest)), SqlType(widest))
    if types <= {*INTEGERS, NUMERIC} and name in _ARITHMETIC:
        return _decimals(_ARITHMETIC[name], as_numeric(left), as_numeric(right))
    if DATE in types and name in "+-":
        return _days(name, left, right)
    raise Unproven(f"the operator {name} for these types")


def _decimals(op: ir.Op, left: Typed, right: Typed) -> Typed:
    if isinstance(left.expr, ir.Scalar) or isinstance(right.expr, ir.Scalar):
        raise Unproven("arithmetic with the result of a scalar subquery")
    one, other = left.data, right.data
    if op is ir.Op.MULTIPLY:
        type_ = ir.decimal(one.precision + other.precision, one.scale + other.scale)
        scale = combined_scale(ir.Op.ADD, left.scale, right.scale)
    else:
        common = common_decimal([left, right])
        type_ = ir.decimal(common.precision + 1, common.scale)
        scale = combined_scale(ir.Op.GREATEST, left.scale, right.scale)
    if type_.scale > ir.MOST_DIGITS:
        raise Unproven("a numeric with more than 38 digits after the point")
    return Typed(ir.Call(op, (left.expr, right.expr), type_), SqlType(NUMERIC), scale)


def _days(name: str, left: Typed, right: Typed) -> Typed:
    """Return date + integer, integer + date, date - integer or date - date."""
    if left.oid == right.oid == DATE and name == "-":
        return Typed(ir.Call(ir.Op.DAYS_BETWEEN, (left.expr, right.expr), ir.INT4), SqlType(INT4))
    if right.oid == DATE and name == "+":
        left, right = right, left
    days = right.expr.value if isinstance(right.expr, ir.Constant) else None
    if left.oid != DATE or right.oid not in (INT2, INT4) or not isinstance(days, int) or abs(days) > _MOST_DAYS:
        raise Unproven("arithmetic of a date with this type or value")
    if not isinstance(left.expr, ir.TypedColumn):
        raise Unproven("arithmetic of a date that is not a column")
    shifted = ir.Constant(days if name == "+" else -days, ir.INT4)
    return Typed(ir.Call(ir.Op.ADD_DAYS, (left.expr, shifted), ir.DATE), SqlType(DATE))
