"""`tidemark`: the group of all commands, and the one place where an error becomes words and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tidemark import __version__
from tidemark.cli.doctor import doctor
from tidemark.cli.setup import setup
from tidemark.errors import ExitCode, TidemarkError, policy_of

_CODES = "\n".join(f"  {code.value:>3}  {code.name.lower().replace('_', ' ')}" for code in ExitCode)


@click.group(
    epilog=f"\b\nExit codes:\n{_CODES}\n\nDocumentation: README.md",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="tidemark")
def tidemark() -> None:
    """An exact, columnar mirror of a live PostgreSQL database, in a Delta lake, on Spark."""


tidemark.add_command(doctor)
tidemark.add_command(setup)


def run(arguments: Sequence[str] | None = None) -> ExitCode | int:
    """Run a command and return its exit code, with errors said on standard error."""
    try:
        result = tidemark.main(args=arguments, prog_name="tidemark", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("tidemark: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except TidemarkError as error:
        click.echo(f"tidemark: {error}", err=True)
        return policy_of(error).exit_code
    return result if isinstance(result, int) else ExitCode.OK


def main() -> None:
    """The console script."""
    sys.exit(int(run()))
