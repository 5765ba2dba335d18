"""The plan of a statement: what engines compute, and the statement with which PostgreSQL finishes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemark.quoting import double_quoted
from tidemark.split import ir
from tidemark.split.facts import SessionFacts
from tidemark.split.typed import Typed
from tidemark.split.types import SqlType, array_oid, declared, name_of


@dataclass(frozen=True, slots=True)
class Output:
    """A column that goes up under a name: its type in PostgreSQL, and for a numeric its scale or the column with it."""

    name: str
    column: ir.TypedColumn
    type: SqlType
    scale: int | ir.TypedColumn | None

    @classmethod
    def of(cls, name: str, value: Typed) -> Output:
        """Return a typed column as an output."""
        assert isinstance(value.expr, ir.TypedColumn)  # noqa: S101  the callers have projected it
        scale = value.scale
        assert scale is None or isinstance(scale, int | ir.TypedColumn)  # noqa: S101  projected as well
        return cls(name, value.expr, value.type, scale)

    @property
    def array_oid(self) -> int:
        """The OID of the type of its array parameter."""
        return array_oid(self.type)


@dataclass(frozen=True, slots=True)
class PlanPart:
    """A bottom, and the columns of it that become array parameters, from `$first` on."""

    bottom: ir.Bottom
    outputs: tuple[Output, ...]
    first: int

    @property
    def tables(self) -> frozenset[int]:
        """The OIDs of the tables that it reads."""
        return frozenset(scan.table for scan in ir.scans(self.bottom.relation))


@dataclass(frozen=True, slots=True)
class Plan:
    """A statement that was split.

    `scalars` are plans of their own, each with one row and one column at most. They are run first, in this order, and
    `with_scalars` takes their values. `top` is the statement that PostgreSQL runs at the end, with the parameters of
    the original and after them the arrays of `parts`.
    """

    parts: tuple[PlanPart, ...]
    top: str
    scalars: tuple[Plan, ...]
    parameters: int

    @property
    def tables(self) -> frozenset[int]:
        """The OIDs of all tables that it reads."""
        own = frozenset(oid for part in self.parts for oid in part.tables)
        return own.union(*(scalar.tables for scalar in self.scalars))

    def with_scalars(self, values: tuple[ir.Constant, ...]) -> Plan:
        """Return the plan with the values of its scalar subqueries."""
        parts = tuple(
            replace(part, bottom=ir.Bottom(ir.bound(part.bottom.relation, values), part.bottom.columns))
            for part in self.parts
        )
        return replace(self, parts=parts, scalars=())


def derived_table(outputs: tuple[Output, ...], first: int, alias: str, facts: SessionFacts) -> str:
    """Return the derived table of the top that has the rows of a bottom: `(SELECT … FROM ROWS FROM (unnest($1), …))`.

    Its columns have the names, types, typmods and collations of the expressions that they stand for.
    """
    calls = ", ".join(
        f"pg_catalog.unnest(${number}::{name_of(output.type)}[])" for number, output in enumerate(outputs, first)
    )
    names = ", ".join(output.name for output in outputs)
    selected = ", ".join(f"{_with_type(output, facts)} AS {output.name}" for output in outputs)
    return f"(SELECT {selected} FROM ROWS FROM ({calls}) AS u ({names})) AS {alias}"  # noqa: S608  own names


def _with_type(output: Output, facts: SessionFacts) -> str:
    type_, text = output.type, f"u.{output.name}"
    name = declared(type_)
    if name is not None:
        text = f"{text}::{name}"
    collation = facts.collations[type_.collation].name if type_.collation not in (0, 100) else ()
    quoted = ".".join(map(double_quoted, collation))
    return f"{text} COLLATE {quoted}" if quoted else text
