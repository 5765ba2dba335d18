"""Reading what a source has, printing the script for its owner, and running what the connected role may run."""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

from tidemark.setup.plan import Plan, Present, Step, plan
from tidemark.source.catalog import read_catalog
from tidemark.source.facts import read_facts, read_role
from tidemark.source.names import MirrorNames
from tidemark.source.publication import read_publication, wanted
from tidemark.source.selection import Selection, choose
from tidemark.source.session import Session
from tidemark.source.slot import read_slot


def read_plan(
    session: Session, names: MirrorNames | None, selection: Selection, role: str | None, *, strict: bool = True
) -> Plan:
    """The plan for a mirror that connects as `role`, by default the role of this session.

    Strictly, every pattern of the selection must match a table. For a mirror that has begun that is not asked, and a
    publication that has nothing to publish any more stays: its stream would end with it.
    """
    with session.transaction():
        facts = read_facts(session)
        role = role or facts.role.name
        names = names or MirrorNames.of_database(facts.database)
        chosen = choose(read_catalog(session, role), selection, strict=strict)
        wants = [each for each in wanted(names, chosen.tables, facts.version_num) if each.tables or strict]
        return plan(
            Present(
                facts=facts,
                role_name=role,
                role=read_role(session, role),
                chosen=chosen,
                publications=tuple((want, read_publication(session, want.name)) for want in wants),
                has_slot=read_slot(session, names.slot) is not None,
                public_connects=session.row(_PUBLIC_CONNECTS)[0],
                database_owned=session.row(_DATABASE_OWNED)[0],
            )
        )


_PUBLIC_CONNECTS = "select has_database_privilege('public', current_database(), 'CONNECT')"
_DATABASE_OWNED = "select pg_has_role(datdba, 'USAGE') from pg_database where datname = current_database()"


def carry_out(session: Session, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Run the steps that the session's role may run and that need no restart, all or none; returns them."""
    mine = tuple(step for step in steps if step.allowed and not step.restart)
    if not mine:
        return ()
    with session.transaction(read_only=False):
        for step in mine:
            statement = sql.SQL("{}").format(sql.SQL(step.statement))
            session.execute(statement, step.statement)
    return mine


def script(plan: Plan) -> str:
    """The plan as SQL for psql, complete with reasons. Nothing to do is a script of one comment."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    database, role = (" ".join(name.split()) for name in (plan.database, plan.role))  # no line breaks in a comment
    if not plan.steps:
        yield f'-- Database "{database}" has all that role "{role}" needs to mirror it.'
    else:
        yield f'-- What database "{database}" needs so that role "{role}" can mirror it.'
        yield "-- Run it there once, as a superuser or as the owner of the tables."
    at_once = [step for step in plan.steps if not step.restart]
    later = [step for step in plan.steps if step.restart]
    if at_once:
        yield "begin;"
        yield from (f"{step.statement};  -- {step.why}" for step in at_once)
        yield "commit;"
    if later:
        yield "-- These take effect when the server is restarted:"
        yield from (f"{step.statement};  -- {step.why}" for step in later)
    for advice in plan.advice:
        yield "--"
        yield from (f"-- {line}" for line in advice.splitlines())
