"""The steps of an answer as a generator, which any caller can drive: it yields queries and runs of an engine.

    answer = steps(statement)
    step = next(answer)
    while not isinstance(step, Finish):
        step = answer.send(session.run(step) if isinstance(step, Query) else engine.run(step))

The last step is `Finish`, the statement that has the result. `Unproven` may be raised at any step.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

from tidemark.errors import Unproven
from tidemark.split import ir
from tidemark.split.constants import Item
from tidemark.split.facts import SessionFacts, facts_query
from tidemark.split.parse import Parsed, parse
from tidemark.split.plan import Plan, PlanPart
from tidemark.split.splitting import Question, answers, scalar_query, scalar_value, split


@dataclass(frozen=True, slots=True)
class Query:
    """A statement to run in the session; the answer is the text in its one row and column.

    With `parameters`, the parameters of the original statement come with it, and after them the arrays of `parts`.
    """

    sql: str
    parameters: bool
    parts: tuple[PlanPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Parts to run in an engine, and the facts of the session; the answer is None. The caller keeps the arrays."""

    parts: tuple[PlanPart, ...]
    facts: SessionFacts


@dataclass(frozen=True, slots=True)
class Finish:
    """The statement with the result: its parameters are those of the original, and the arrays of `plan.parts`."""

    plan: Plan
    facts: SessionFacts


Step: TypeAlias = Query | Run | Finish
Answering: TypeAlias = Generator[Step, str | None, None]


def steps(statement: str | Parsed) -> Answering:
    """Yield the steps of an answer."""
    parsed = parse(statement) if isinstance(statement, str) else statement
    facts = SessionFacts.read(_text((yield Query(facts_query(parsed), parameters=False))), parsed)
    values: dict[bytes, Item] = {}
    while isinstance(plan := split(parsed, facts, values), Question):
        text = _text((yield Query(plan.sql, parameters=bool(parsed.parameters))))
        found = answers(plan, text)
        if not found.keys() - values.keys():
            raise Unproven("a constant that cannot be evaluated")
        values |= found
    plan = yield from _with_scalars(plan, facts)
    yield Run(plan.parts, facts)
    yield Finish(plan, facts)


def _with_scalars(plan: Plan, facts: SessionFacts) -> Generator[Step, str | None, Plan]:
    values: list[ir.Constant] = []
    for each in plan.scalars:
        scalar = yield from _with_scalars(each, facts)
        yield Run(scalar.parts, facts)
        text = _text((yield Query(scalar_query(scalar), parameters=True, parts=scalar.parts)))
        values.append(scalar_value(text))
    return plan.with_scalars(tuple(values))


def _text(answer: str | None) -> str:
    if answer is None:
        raise Unproven("the session returned no row")
    return answer
