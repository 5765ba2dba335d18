"""Constant expressions, which PostgreSQL evaluates in the session: `now() - interval '7 days'`, `$1`, `date '…'`.

They are evaluated in one statement, which returns one text: the binary form of a record, in which each value has its
type and does not depend on the session's settings. A literal without a type, such as '1998-12-01', has the type that
its operator gives it; if its text has one meaning only, it is read here, otherwise PostgreSQL reads it as well.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from tidemark.clock.epoch import EPOCH
from tidemark.errors import Unproven
from tidemark.quoting import postgres_text
from tidemark.split import ir
from tidemark.split.facts import SessionFacts
from tidemark.split.nodes import Node, children, expression_sql, key, kind_of, strings
from tidemark.split.typed import Typed, integer, numeric
from tidemark.split.types import (
    BOOL,
    DATE,
    DEFAULT_COLLATION,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXTS,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    SqlType,
    plain,
)
from tidemark.values.types import BY_OID, ELEMENTS

_COMPOUND = frozenset(
    {
        *("A_Expr", "BoolExpr", "TypeCast", "FuncCall", "CaseExpr", "CoalesceExpr", "MinMaxExpr", "SQLValueFunction"),
        *("ParamRef", "A_ArrayExpr", "NullTest", "BooleanTest"),
    }
)
_VARYING = frozenset(
    {"ColumnRef", "SubLink", "CollateClause", "A_Star", "GroupingFunc", "SelectStmt", "WindowDef", "RowExpr"}
)
_NOT_BELOW = frozenset({"limit_count", "limit_offset", "sort_clause", "window_clause"})
_INTEGER, _DATE = re.compile(r"[+-]?[0-9]{1,18}"), re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?")
_NUMERIC = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?")
_RANGE = {INT2: 1 << 15, INT4: 1 << 31, INT8: 1 << 63}
_EPOCH = EPOCH.replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class Item:
    """A value that PostgreSQL returned: its type and binary form, None for NULL."""

    type: int
    value: bytes | None


@dataclass(slots=True)
class Constants:
    """The values that are known, by their keys, and the expressions whose values are still needed."""

    known: Mapping[bytes, Item] = field(default_factory=dict)
    asked: dict[bytes, str] = field(default_factory=dict)

    def value(self, node: Node) -> Typed:
        """Return the value of a constant expression."""
        return self._typed(self._item(node))

    def items(self, node: Node) -> list[Typed]:
        """Return the elements of a constant array with one dimension."""
        return [self._typed(item) for item in _elements(self._item(node))]

    def is_known(self, node: Node) -> bool:
        """Whether a node is a constant expression, with a value."""
        return kind_of(node) in _COMPOUND and key(node) in self.known

    def typed_literal(self, text: str, type_: int) -> Typed:
        """Return the value of a literal that its context gives this type."""
        found = _read(text, type_)
        if found is not None:
            return found
        if type_ not in BY_OID:
            raise Unproven("a literal of another type")
        name = b"%d:%s" % (type_, text.encode())
        if name in self.known:
            return self._typed(self.known[name])
        self.asked[name] = f"{postgres_text(text)}::pg_catalog.{BY_OID[type_].name}"
        return Typed(ir.Constant(False, plain(type_)), SqlType(type_))

    def _item(self, node: Node) -> Item:
        return self.known[key(node)]

    def _typed(self, item: Item) -> Typed:
        return decoded(item)


def ask_for(select: Node, facts: SessionFacts) -> dict[bytes, str]:
    """Return the largest constant expressions of a statement, by key."""
    return {key(node): expression_sql(node) for node in _largest(select, facts)}


def query_of(asked: Mapping[bytes, str]) -> str:
    """Return the statement whose one text `answers_of` reads."""
    row = ", ".join(asked.values())
    return f"SELECT pg_catalog.encode(pg_catalog.record_send(ROW({row})), 'hex')"


def answers_of(asked: Mapping[bytes, str], text: str) -> dict[bytes, Item]:
    """Read the values of the expressions."""
    return dict(zip(asked, record_items(text), strict=True))


def record_items(text: str) -> Iterator[Item]:
    """Yield the values of a record in binary form, printed in hexadecimal digits."""
    data = bytes.fromhex(text)
    (count,), at = struct.unpack_from(">i", data), 4
    for _ in range(count):
        type_, size = struct.unpack_from(">Ii", data, at)
        at += 8
        yield Item(type_, None if size < 0 else data[at : at + size])
        at += max(size, 0)


def _largest(node: Node, facts: SessionFacts) -> Iterator[Node]:
    if kind_of(node) in _COMPOUND and _is_constant(node, facts):
        yield node
        return
    skipped = [each for name in _NOT_BELOW if kind_of(node) == "SelectStmt" for each in _field_nodes(node, name)]
    for child in children(node):
        if not any(child is each or key(child) == key(each) for each in skipped):
            yield from _largest(child, facts)


def _field_nodes(node: Node, name: str) -> list[Node]:
    value = getattr(node, name)
    if node.DESCRIPTOR.fields_by_name[name].is_repeated:
        return [getattr(each, each.WhichOneof("node")) for each in value]
    return [getattr(value, value.WhichOneof("node"))] if node.HasField(name) else []


def _is_constant(node: Node, facts: SessionFacts) -> bool:
    kind = kind_of(node)
    if kind in _VARYING:
        return False
    if kind == "FuncCall":
        function = facts.functions[strings([each.string for each in node.funcname])]
        if function.kinds != {"f"} or function.returns_set:
            return False
    if kind == "A_ArrayExpr" and not node.elements:
        return False
    return all(_is_constant(each, facts) for each in children(node))


def decoded(item: Item) -> Typed:
    """Return a value of a type that can be computed with below."""
    type_ = item.type
    if type_ == NUMERIC:
        return (
            Typed(ir.Constant(None, ir.decimal(1, 0)), SqlType(NUMERIC), 0)
            if item.value is None
            else _numeric(item.value)
        )
    collation = DEFAULT_COLLATION if type_ in TEXTS else 0
    if item.value is None:
        return Typed(ir.Constant(None, plain(type_)), SqlType(type_, -1, collation))
    return Typed(ir.Constant(_plain_value(type_, item.value), plain(type_)), SqlType(type_, -1, collation))


def _plain_value(type_: int, value: bytes) -> bool | int | float | str | bytes | date | datetime:
    if type_ == BOOL:
        return value == b"\1"
    if type_ in INTEGERS:
        return int.from_bytes(value, "big", signed=True)
    if type_ in (FLOAT4, FLOAT8):
        (number,) = struct.unpack(">f" if type_ == FLOAT4 else ">d", value)
        assert isinstance(number, float)  # noqa: S101
        return number
    if type_ in TEXTS:
        return value.decode()
    if type_ == UUID:
        digits = value.hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    if type_ in (DATE, TIMESTAMP, TIMESTAMPTZ):
        return _moment(type_, int.from_bytes(value, "big", signed=True))
    raise Unproven(f"a constant of the type with OID {type_}")


def _moment(type_: int, number: int) -> date | datetime:
    try:
        if type_ == DATE:
            return (_EPOCH + timedelta(days=number)).date()
        found = _EPOCH + timedelta(microseconds=number)
    except OverflowError as error:
        raise Unproven("a constant date that is infinite, or not in the years 1 to 9999") from error
    return found.replace(tzinfo=UTC) if type_ == TIMESTAMPTZ else found


def _numeric(value: bytes) -> Typed:
    count, weight, sign, scale = struct.unpack_from(">hhHh", value)
    if sign not in (0, 0x4000):
        raise Unproven("a numeric constant that is not a number")
    digits = struct.unpack_from(f">{count}h", value, 8)
    whole = sum(digit * 10000 ** (count - 1 - at) for at, digit in enumerate(digits))
    exponent = 4 * (weight - count + 1) + scale  # of ten, by which the digits are shifted
    if abs(weight) > 10 or scale > ir.MOST_DIGITS:
        raise Unproven("a numeric constant of more than 38 digits")
    shifted = whole * 10**exponent if exponent >= 0 else whole // 10**-exponent
    return numeric(Decimal((int(sign != 0), tuple(map(int, str(shifted))), -scale)))


def _elements(item: Item) -> Iterator[Item]:
    """Yield the elements of an array in binary form; nothing for NULL is proven."""
    if item.type not in ELEMENTS or item.value is None:
        raise Unproven("an array of another type, or NULL")
    dimensions, _, type_ = struct.unpack_from(">iiI", item.value)
    if dimensions > 1:
        raise Unproven("an array with several dimensions")
    at = 12 + 8 * dimensions
    while at < len(item.value):
        (size,) = struct.unpack_from(">i", item.value, at)
        at += 4
        yield Item(type_, None if size < 0 else item.value[at : at + size])
        at += max(size, 0)


def _read(text: str, type_: int) -> Typed | None:
    """Return the value of a literal whose text means the same with every setting; None for other texts."""
    if type_ in TEXTS:
        return Typed(ir.Constant(text, ir.TEXT), SqlType(type_, -1, DEFAULT_COLLATION))
    if type_ in INTEGERS and _INTEGER.fullmatch(text) and -_RANGE[type_] <= int(text) < _RANGE[type_]:
        return integer(int(text), type_)
    if type_ == NUMERIC and _NUMERIC.fullmatch(text):
        return numeric(Decimal(text))
    if type_ == DATE and _DATE.fullmatch(text):
        return _of_iso(text, ir.DATE, type_)
    if type_ == TIMESTAMP and (_TIMESTAMP.fullmatch(text) or _DATE.fullmatch(text)):
        return _of_iso(text, ir.TIMESTAMP, type_)
    return None


def _of_iso(text: str, data: ir.DataType, type_: int) -> Typed | None:
    try:
        value = date.fromisoformat(text) if type_ == DATE else datetime.fromisoformat(text)
    except ValueError:
        return None
    return Typed(ir.Constant(value, data), SqlType(type_))


def is_untyped(value: Typed) -> bool:
    """Whether it is a literal or NULL whose type its context decides."""
    return value.oid == UNKNOWN


def assigned(value: Typed, type_: int, constants: Constants) -> Typed:
    """Return a literal without a type as a value of this type; other values unchanged."""
    if value.oid != UNKNOWN:
        return value
    assert isinstance(value.expr, ir.Constant)  # noqa: S101  only literals are unknown
    if value.expr.value is None:
        data = ir.decimal(1, 0) if type_ == NUMERIC else plain(type_)
        collation = DEFAULT_COLLATION if type_ in TEXTS else 0
        return Typed(ir.Constant(None, data), SqlType(type_, -1, collation), 0 if type_ == NUMERIC else None)
    return constants.typed_literal(str(value.expr.value), type_)
