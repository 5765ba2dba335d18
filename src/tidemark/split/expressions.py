"""Expressions below: from the nodes of a statement to typed expressions of the tree, or Unproven."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Protocol

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.constants import Constants, assigned, is_untyped
from tidemark.split.facts import SessionFacts
from tidemark.split.functions import applied
from tidemark.split.nodes import Fields, Node, kind_of, reading, strings
from tidemark.split.operators import COMPARISONS, Operators
from tidemark.split.typed import Typed, boolean, chosen_scale, integer, numeric
from tidemark.split.types import (
    BOOL,
    BPCHAR,
    FLOAT4,
    INT4,
    INT8,
    INTEGERS,
    NUMERIC,
    TEXT,
    TEXTS,
    UNKNOWN,
    VARCHAR,
    SqlType,
)
from tidemark.split.unified import converted, unified

_INT4_LIMIT = 1 << 31


class ColumnScope(Protocol):
    """What the names in an expression refer to."""

    def column(self, parts: tuple[str, ...]) -> Typed:
        """Return a column; raise Unproven if it is not one below."""

    def subquery(self, link: Node, expressions: Expressions) -> Typed:
        """Return the value of a subquery in an expression."""


class Expressions:
    """Analyzes expressions in one scope of one session."""

    def __init__(self, scope: ColumnScope, facts: SessionFacts, constants: Constants) -> None:
        self.scope, self.facts, self.constants = scope, facts, constants
        self.operators = Operators(facts, constants)
        self._readers: dict[str, Callable[[Fields], Typed]] = {
            "ColumnRef": self._column,
            "A_Const": self._constant,
            "A_Expr": self._operator,
            "BoolExpr": self._logic,
            "NullTest": self._null_test,
            "BooleanTest": self._boolean_test,
            "CaseExpr": self._case,
            "CoalesceExpr": self._coalesce,
            "MinMaxExpr": self._extreme,
            "TypeCast": self._cast,
            "FuncCall": self._function,
        }

    def typed(self, node: Node) -> Typed:
        """Return an expression; a literal without a type remains unknown.

        The number of digits of a numeric scalar subquery is not known yet, so it can only be compared (`_operand`).
        """
        found = self._any(node)
        if isinstance(found.expr, ir.Scalar) and found.oid == NUMERIC:
            raise Unproven("a numeric of a scalar subquery in another place than a comparison")
        return found

    def _operand(self, node: Node) -> Typed:
        """Return an operand of a comparison."""
        return self._any(node) if kind_of(node) == "SubLink" else self.typed(node)

    def _any(self, node: Node) -> Typed:
        if self.constants.is_known(node):
            return self.constants.value(node)
        kind = kind_of(node)
        if kind == "SubLink":
            return self.scope.subquery(node, self)
        if kind not in self._readers:
            raise Unproven(f"{kind} below the aggregates")
        with reading(node) as fields:
            return self._readers[kind](fields)

    def condition(self, node: Node) -> ir.Expr:
        """Return a condition."""
        value = assigned(self.typed(node), BOOL, self.constants)
        if value.oid != BOOL:
            raise Unproven("a condition that is not boolean")
        return value.expr

    def value(self, node: Node) -> Typed:
        """Return an expression; a literal without a type is a text."""
        return assigned(self.typed(node), TEXT, self.constants)

    def _column(self, fields: Fields) -> Typed:
        return self.scope.column(strings(fields["fields"]))

    def _constant(self, fields: Fields) -> Typed:
        if fields["isnull"]:
            return Typed(ir.Constant(None, ir.TEXT), SqlType(UNKNOWN))
        which = fields.node.WhichOneof("val")
        constant: Node = fields[which] if which else None
        if which == "ival":
            return integer(constant.ival)
        if which == "fval":
            return _number(constant.fval)
        if which == "boolval":
            return boolean(ir.Constant(constant.boolval, ir.BOOL))
        if which == "sval":
            return Typed(ir.Constant(constant.sval, ir.TEXT), SqlType(UNKNOWN))
        raise Unproven("a constant of another kind")

    def _operator(self, fields: Fields) -> Typed:
        kind, name = fields.enum("kind"), strings(fields["name"])[-1]
        left, right = fields["lexpr"], fields["rexpr"]
        if kind in ("AEXPR_OP", "AEXPR_LIKE"):
            if left is None:
                return self._signed(name, right)
            if name in COMPARISONS:
                return self.operators.binary(name, self._operand(left), self._operand(right))
            return self.operators.binary(name, self.typed(left), self.typed(right))
        if kind == "AEXPR_IN":
            return self._in(name, left, right)
        if kind in ("AEXPR_BETWEEN", "AEXPR_NOT_BETWEEN"):
            return self._between(kind == "AEXPR_NOT_BETWEEN", left, right)
        if kind in ("AEXPR_DISTINCT", "AEXPR_NOT_DISTINCT"):
            return self._distinct(kind == "AEXPR_NOT_DISTINCT", self.typed(left), self.typed(right))
        if kind == "AEXPR_NULLIF":
            return self._nullif(self.typed(left), self.typed(right))
        if kind == "AEXPR_OP_ANY" and name == "=" and self.constants.is_known(right):
            return self._any_of(self.typed(left), self.constants.items(right))
        raise Unproven(f"an operator of the kind {kind.removeprefix('AEXPR_')}")

    def _signed(self, name: str, node: Node) -> Typed:
        value = self.typed(node)
        if name == "+" and value.oid in (*INTEGERS, NUMERIC):
            return value
        if name != "-":
            raise Unproven(f"the operator {name} with one argument")
        return self.operators.negated(value)

    def _in(self, name: str, left: Node, right: Node) -> Typed:
        """Return IN or NOT IN with a list of constants, for which PostgreSQL finds one type."""
        items = [self.typed(each) for each in Fields(right)["items"]]
        if kind_of(left) == "RowExpr":
            raise Unproven("IN with rows")
        value = self.typed(left)
        oids = {each.oid for each in (value, *items) if not is_untyped(each)}
        if len(oids) > 1 and oids & {FLOAT4, BPCHAR}:  # the list is converted to this type, which `=` does not do
            raise Unproven("IN with a list of another type than real or char")
        return self._negated(self._any_of(value, items), negate=name == "<>")

    def _any_of(self, left: Typed, items: list[Typed]) -> Typed:
        if not items:
            return boolean(ir.Constant(False, ir.BOOL))
        if not all(isinstance(each.expr, ir.Constant) for each in items):
            raise Unproven("IN with a list of other things than constants")
        known = {each.oid for each in items if not is_untyped(each)}
        if len(known) > 1 and not known <= {*INTEGERS, NUMERIC}:
            raise Unproven("IN with a list of different types")
        if known and any(is_untyped(each) for each in items):
            raise Unproven("IN with a list of literals with and without types")
        tests = [self.operators.compared(ir.Op.EQ, left, each) for each in items]
        return boolean(_in_list(tests))

    def _between(self, negate: bool, left: Node, right: Node) -> Typed:
        low, high = Fields(right)["items"]
        value = self._operand(left)
        tests = (
            self.operators.binary(">=", value, self._operand(low)).expr,
            self.operators.binary("<=", value, self._operand(high)).expr,
        )
        return self._negated(boolean(ir.Call(ir.Op.AND, tests, ir.BOOL)), negate=negate)

    def _distinct(self, negate: bool, left: Typed, right: Typed) -> Typed:
        return self._negated(self.operators.compared(ir.Op.IS_DISTINCT, left, right), negate=negate)

    def _negated(self, value: Typed, *, negate: bool) -> Typed:
        return boolean(ir.Call(ir.Op.NOT, (value.expr,), ir.BOOL)) if negate else value

    def _nullif(self, left: Typed, right: Typed) -> Typed:
        """Return NULLIF: of the type to which the operator `=` converts the left argument."""
        if is_untyped(left):
            raise Unproven("NULLIF of a literal")
        equal = self.operators.binary("=", left, right).expr
        if left.oid == BPCHAR:
            raise Unproven("NULLIF of a char")
        if left.oid != right.oid and not is_untyped(right) and {left.oid, right.oid} != {TEXT, VARCHAR}:
            raise Unproven("NULLIF of values of different types")
        type_ = SqlType(TEXT if left.oid == VARCHAR else left.oid, -1, left.type.collation)
        return Typed(ir.Case(((equal, ir.Constant(None, left.data)),), left.expr, left.data), type_, left.scale)

    def _logic(self, fields: Fields) -> Typed:
        op = {"AND_EXPR": ir.Op.AND, "OR_EXPR": ir.Op.OR, "NOT_EXPR": ir.Op.NOT}[fields.enum("boolop")]
        return boolean(ir.Call(op, tuple(self.condition(each) for each in fields["args"]), ir.BOOL))

    def _null_test(self, fields: Fields) -> Typed:
        if fields["argisrow"]:
            raise Unproven("IS NULL of a row")
        found = ir.Call(ir.Op.IS_NULL, (self.value(fields["arg"]).expr,), ir.BOOL)
        return self._negated(boolean(found), negate=fields.enum("nulltesttype") == "IS_NOT_NULL")

    def _boolean_test(self, fields: Fields) -> Typed:
        kind, arg = fields.enum("booltesttype"), self.condition(fields["arg"])
        op = next(
            op
            for op, kinds in {
                ir.Op.IS_TRUE: ("IS_TRUE", "IS_NOT_TRUE"),
                ir.Op.IS_FALSE: ("IS_FALSE", "IS_NOT_FALSE"),
                ir.Op.IS_NULL: ("IS_UNKNOWN", "IS_NOT_UNKNOWN"),
            }.items()
            if kind in kinds
        )
        return self._negated(boolean(ir.Call(op, (arg,), ir.BOOL)), negate="NOT" in kind)

    def _case(self, fields: Fields) -> Typed:
        subject = self.typed(fields["arg"]) if fields["arg"] is not None else None
        conditions, values = [], []
        for node in fields["args"]:
            with reading(node) as when:
                conditions.append(self._when(subject, when["expr"]))
                values.append(self.typed(when["result"]))
        default = fields["defresult"]
        null = Typed(ir.Constant(None, ir.TEXT), SqlType(UNKNOWN))
        # the default is the first of the values from which PostgreSQL chooses the type
        found = unified([self.typed(default) if default is not None else null, *values], self.constants)
        otherwise, branches = found[0], found[1:]
        whens = tuple(zip(conditions, (each.expr for each in branches), strict=True))
        scale = None
        if otherwise.oid == NUMERIC:
            scale = chosen_scale([*zip(conditions, branches, strict=True), (None, otherwise)])
        return Typed(ir.Case(whens, otherwise.expr, otherwise.data), otherwise.type, scale)

    def _when(self, subject: Typed | None, node: Node) -> ir.Expr:
        if subject is None:
            return self.condition(node)
        if is_untyped(subject):
            raise Unproven("CASE of a literal")
        return self.operators.binary("=", subject, self.typed(node)).expr

    def _coalesce(self, fields: Fields) -> Typed:
        values = unified([self.typed(each) for each in fields["args"]], self.constants)
        expr = ir.Call(ir.Op.COALESCE, tuple(each.expr for each in values), values[0].data)
        scale = None
        if values[0].oid == NUMERIC:
            present = [ir.Call(ir.Op.NOT, (ir.Call(ir.Op.IS_NULL, (each.expr,), ir.BOOL),), ir.BOOL) for each in values]
            scale = chosen_scale([*zip(present[:-1], values[:-1], strict=True), (None, values[-1])])
        return Typed(expr, values[0].type, scale)

    def _extreme(self, fields: Fields) -> Typed:
        op = {"IS_GREATEST": ir.Op.GREATEST, "IS_LEAST": ir.Op.LEAST}[fields.enum("op")]
        values = unified([self.typed(each) for each in fields["args"]], self.constants)
        if len({each.scale for each in values if not each.is_null}) > 1 or values[0].oid in TEXTS:
            raise Unproven("GREATEST or LEAST of texts, or of numerics of different scales")
        self.operators.require_ordered(values[0])
        return Typed(ir.Call(op, tuple(each.expr for each in values), values[0].data), values[0].type, values[0].scale)

    def _cast(self, fields: Fields) -> Typed:
        with reading(fields["type_name"]) as name:
            oid = self.facts.types[strings(name["names"])]
            typmods = [_typmod(each) for each in name["typmods"]]
            name["typemod"]
            if name["setof"] or name["array_bounds"] or name["pct_type"] or oid is None:
                raise Unproven("a cast to an array or another type")
        value = self.typed(fields["arg"])
        if is_untyped(value) and oid == NUMERIC and not value.is_null:
            raise Unproven("a cast of a literal")
        return converted(assigned(value, oid, self.constants), oid, typmods)

    def _function(self, fields: Fields) -> Typed:
        name = strings(fields["funcname"])
        if not self.facts.functions[name].builtin or self.facts.functions[name].kinds != {"f"}:
            raise Unproven(f"the function {'.'.join(name)} below the aggregates")
        fields.enum("funcformat")
        return applied(name[-1], [self.typed(each) for each in fields["args"]], self.constants)


def _number(text: str) -> Typed:
    """Return the constant of a number that is not an int4: PostgreSQL tries an int8 before a numeric.

    The grammar joins a sign to the number.
    """
    if (
        not text.replace(".", "", 1)
        .replace("e", "", 1)
        .replace("E", "", 1)
        .replace("-", "", 1)
        .replace("+", "", 1)
        .isdigit()
    ):
        raise Unproven("a number in another notation")
    if text.removeprefix("-").isdigit():
        number = int(text)
        if -1 << 63 <= number < 1 << 63:
            return integer(number, INT4 if -_INT4_LIMIT <= number < _INT4_LIMIT else INT8)
    return numeric(Decimal(text))


def _typmod(node: Node) -> int:
    if kind_of(node) != "A_Const" or node.WhichOneof("val") != "ival":
        raise Unproven("a type with another modifier than a number")
    number: int = node.ival.ival
    return number


def _in_list(tests: list[Typed]) -> ir.Expr:
    """Return the tests of one value as IN if they compare the same expression; otherwise with OR."""
    calls = [each.expr for each in tests if isinstance(each.expr, ir.Call)]
    subjects = {call.args[0] for call in calls}
    if len(calls) == len(tests) and len(subjects) == 1:
        return ir.In(calls[0].args[0], tuple(call.args[1] for call in calls))
    return ir.Call(ir.Op.OR, tuple(each.expr for each in tests), ir.BOOL) if len(tests) > 1 else tests[0].expr
