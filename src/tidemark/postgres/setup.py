"""The statements that a source still needs, from the unmet requirements.

The list is minimal: it contains a statement only if its effect is missing. It is complete: when all statements have
been run, and the server has been restarted if one requires it, logical decoding works, unless a remedy remains that is
not SQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from tidemark.postgres.names import MirrorNames
from tidemark.postgres.requirements import Choice, Fix, Mode, Requirement, decide, read_state, requirements_of
from tidemark.postgres.requirements.state import SourceState
from tidemark.postgres.session import Session
from tidemark.schema.selection import Selection


@dataclass(frozen=True, slots=True)
class SetupPlan:
    """The unmet requirements of a role and a database.

    `choice` is the mode that `tidemark sync` would use now as that role, as far as SQL can determine; None if neither
    works.
    """

    database: str
    role: str
    choice: Choice | None
    unmet: tuple[Requirement, ...]

    @property
    def steps(self) -> tuple[Fix, ...]:
        """The statements to run."""
        return tuple(fix for each in self.unmet if not each.advice for fix in each.fixes)

    @property
    def blocking(self) -> tuple[Requirement, ...]:
        """The unmet requirements of logical decoding; the others concern single tables or are advice."""
        return tuple(each for each in self.unmet if Mode.LOGICAL in each.modes)


def plan(state: SourceState) -> SetupPlan:
    """Compare a source with the requirements."""
    requirements = requirements_of(state)
    unmet = tuple(each for each in requirements if not each.holds)
    return SetupPlan(state.facts.database, state.role_name, decide(requirements), unmet)


def read_plan(
    session: Session, names: MirrorNames | None, selection: Selection, role: str | None, *, strict: bool = True
) -> SetupPlan:
    """Read the plan for a mirror that connects as `role`, by default the role of this session (see `read_state`)."""
    return plan(read_state(session, names, selection, role, strict=strict))


def run_fixes(session: Session, steps: tuple[Fix, ...]) -> tuple[Fix, ...]:
    """Run, in one transaction, the statements that the role may run and that need no restart; return them."""
    automatic = tuple(step for step in steps if step.automatic)
    if not automatic:
        return ()
    with session.transaction(read_only=False):
        for step in automatic:
            session.execute(sql.SQL("{}").format(sql.SQL(step.statement)), step.statement)
    return automatic


def script(plan: SetupPlan) -> str:
    """Format the plan as SQL for psql, each statement with its purpose. A plan without statements is one comment."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: SetupPlan) -> Iterator[str]:
    database, role = (" ".join(name.split()) for name in (plan.database, plan.role))  # no line breaks in SQL comments
    required = [each for each in plan.unmet if not each.advice]
    if not required:
        yield f'-- Database "{database}" has everything that role "{role}" needs to mirror it.'
    else:
        yield f'-- Database "{database}" needs the following so that role "{role}" can mirror it.'
    if plan.steps:
        yield "-- Run it in this database once, as a superuser or as the owner of the tables."
    immediate = [step for step in plan.steps if not step.restart]
    if immediate:
        yield "begin;"
        yield from (f"{step.statement};  -- {step.purpose}" for step in immediate)
        yield "commit;"
    restarting = [step for step in plan.steps if step.restart]
    if restarting:
        yield "-- The following take effect when the server is restarted:"
        yield from (f"{step.statement};  -- {step.purpose}" for step in restarting)
    for requirement in required:
        if requirement.remedy:
            yield f"-- {_comment(requirement.found)}. {_comment(requirement.remedy)}"
    for requirement in plan.unmet:
        if requirement.advice and requirement.fixes:
            yield "--"
            yield f"-- Optional: {_comment(requirement.found)}. If left: {_comment(requirement.consequence)}."
            yield from (f"--   {_comment(fix.statement)};  -- {_comment(fix.purpose)}" for fix in requirement.fixes)


def _comment(text: str) -> str:
    return " ".join(text.split())
