"""`tidemark setup`: run or print the SQL that prepares a source for mirroring."""

from __future__ import annotations

import click

from tidemark.cli.options import name_option, selection_options, source_argument
from tidemark.errors import ExitCode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.setup import SetupPlan, read_plan, run_fixes, script
from tidemark.schema.selection import Pattern, Selection


@click.command(short_help="Prepare SOURCE for mirroring: privileges and publications.")
@source_argument
@click.option("--print", "print_only", is_flag=True, help="Print the SQL that SOURCE still needs, and run nothing.")
@click.option("--role", metavar="ROLE", help="Role that the mirror connects as, if it is not the role in SOURCE.")
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
    """Prepare SOURCE for mirroring: privileges and publications.

    Runs the statements that are still needed and that the role in SOURCE may run, in one transaction, and prints the
    others for the owner or a superuser. If statements are left to run, the exit code is 3. With --print it runs
    nothing, prints all of them, and the exit code is 0.
    """
    with Session.open(source, "setup") as session:
        plan = read_plan(session, names, Selection(take, leave), role)
        if print_only:
            click.echo(script(plan), nl=False)
            return ExitCode.OK
        for step in run_fixes(session, plan.steps):
            click.echo(f"done  {step.statement}")
        left = read_plan(session, names, Selection(take, leave), role)
    return _report(left)


def _report(left: SetupPlan) -> ExitCode:
    click.echo(script(left), nl=False)
    return ExitCode.CHECKS_FAILED if left.steps or left.choice is None else ExitCode.OK
