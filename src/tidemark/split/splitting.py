"""Splitting a statement: `split` returns its plan, or what the session has to evaluate before."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.blocks import Blocks
from tidemark.split.constants import Constants, Item, answers_of, ask_for, decoded, query_of, record_items
from tidemark.split.context import Context, Shared
from tidemark.split.facts import SessionFacts
from tidemark.split.nodes import Node, key, kind_of, sql_of, walk
from tidemark.split.parse import Parsed
from tidemark.split.plan import Plan
from tidemark.split.subqueries import Pending

_NEW_NUMBERS = re.compile(r"\b0[xXoObB]|[0-9]_[0-9]")  # PostgreSQL before 16 reads these differently
_OWN_NAMES = re.compile(rb"_[ct][0-9]")  # `Context.column` and `Context.block`
Values = Mapping[bytes, Item]


@dataclass(frozen=True, slots=True)
class Question:
    """Constant expressions that PostgreSQL has to evaluate: one SELECT with one text."""

    asked: Mapping[bytes, str]

    @property
    def sql(self) -> str:
        """The SELECT, with the parameters of the statement."""
        return query_of(self.asked)


def answers(ask: Question, text: str) -> dict[bytes, Item]:
    """Read the text that the SELECT of `ask` returned."""
    return answers_of(ask.asked, text)


def split(parsed: Parsed, facts: SessionFacts, values: Values) -> Plan | Question:
    """Split a statement; raise Unproven if no part of it can be computed below.

    `values` are the constants that are known so far.
    """
    facts.require_ordinary(parsed)
    if facts.version_num < 160000 and _NEW_NUMBERS.search(parsed.statement):
        raise Unproven("a number in a notation that the server may read differently")
    if _OWN_NAMES.search(key(parsed.select)):
        raise Unproven("a name like those of generated columns")
    first = ask_for(parsed.select, facts)
    missing = {name: sql for name, sql in first.items() if name not in values}
    if missing:
        return Question(missing)
    return _split(parsed.select, max(parsed.parameters, default=0), facts, values, any_rows=True)


def _split(
    select: Node, parameters: int, facts: SessionFacts, values: Values, *, any_rows: bool = False
) -> Plan | Question:
    constants = Constants(values)
    shared = Shared(facts, constants)
    blocks = Blocks(select, parameters)
    try:
        top = blocks.query(select, Context(shared), any_rows=any_rows)
    except Pending:
        return Question(constants.asked)
    if constants.asked:
        return Question(constants.asked)
    if not blocks.parts:
        raise Unproven("no table is read")
    _require_no_table(top)
    scalars = []
    for each in shared.scalars:
        found = _split(each, parameters, facts, values)
        if isinstance(found, Question):
            return found
        scalars.append(found)
    return _with_used_scalars(Plan(tuple(blocks.parts), sql_of(top), tuple(scalars), parameters))


def _require_no_table(top: Node) -> None:
    """Raise Unproven if PostgreSQL would read a table, and not a CTE."""
    ctes = {each.ctename for each in walk(top) if kind_of(each) == "CommonTableExpr"}
    for each in walk(top):
        if kind_of(each) == "RangeVar" and (each.schemaname or each.relname not in ctes):
            raise Unproven(f"the table {each.relname} in a place that is not proven")


def _with_used_scalars(plan: Plan) -> Plan:
    """Return the plan with those scalar subqueries that a bottom names, renumbered."""
    used = sorted({node.number for part in plan.parts for node in ir.walk(part.bottom) if isinstance(node, ir.Scalar)})

    def renumbered(node: ir.Expr) -> ir.Expr:
        return replace(node, number=used.index(node.number)) if isinstance(node, ir.Scalar) else node

    parts = tuple(replace(part, bottom=ir.rebuilt(part.bottom, renumbered)) for part in plan.parts)
    return replace(plan, parts=parts, scalars=tuple(plan.scalars[number] for number in used))


def scalar_query(plan: Plan) -> str:
    """Return the top of a scalar subquery as a statement whose one text `scalar_value` reads."""
    return f"SELECT pg_catalog.encode(pg_catalog.record_send(ROW(({plan.top}))), 'hex')"


def scalar_value(text: str) -> ir.Constant:
    """Read the value of a scalar subquery."""
    (item,) = record_items(text)
    literal = decoded(item).expr
    assert isinstance(literal, ir.Constant)  # noqa: S101  a constant
    return literal
