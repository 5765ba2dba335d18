"""`tidemark setup`: what the owner of a source runs once."""

from __future__ import annotations

import click

from tidemark.cli.options import name_option, selection_options, source_argument
from tidemark.errors import ExitCode
from tidemark.setup import Plan, carry_out, read_plan, script
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames
from tidemark.source.selection import Pattern, Selection
from tidemark.source.session import Session


@click.command()
@source_argument
@click.option("--print", "print_only", is_flag=True, help="Only print the SQL that SOURCE still needs; run nothing.")
@click.option("--role", metavar="ROLE", help="The role the mirror connects as, if it is not the one in SOURCE.")
@name_option
@selection_options
def setup(
    source: Dsn,
    print_only: bool,
    role: str | None,
    names: MirrorNames | None,
    take: tuple[Pattern, ...],
    leave: tuple[Pattern, ...],
) -> ExitCode:
    """Prepare SOURCE to be mirrored: rights and publications, never more than is missing.

    Runs what the role in SOURCE may run, in one transaction, and prints what is left for others. With --print it runs
    nothing and prints the whole script. Run again, it verifies: exit code 0 means that nothing is left.
    """
    with Session.open(source, "setup") as session:
        plan = read_plan(session, names, Selection(take, leave), role)
        if print_only:
            click.echo(script(plan), nl=False)
            return ExitCode.OK
        for step in carry_out(session, plan.steps):
            click.echo(f"done  {step.statement}")
        left = read_plan(session, names, Selection(take, leave), role)
    return _report(left)


def _report(left: Plan) -> ExitCode:
    click.echo(script(left), nl=False)
    return ExitCode.CHECKS_FAILED if left.steps else ExitCode.OK
