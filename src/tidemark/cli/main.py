"""`tidemark`: the group of all commands, and the one place where an error becomes words and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tidemark import __version__
from tidemark.cli.apply import apply
from tidemark.cli.compare import compare
from tidemark.cli.diff import diff
from tidemark.cli.doctor import doctor
from tidemark.cli.fold import fold
from tidemark.cli.history import history
from tidemark.cli.log import log
from tidemark.cli.query import query
from tidemark.cli.receive import receive
from tidemark.cli.resync import resync
from tidemark.cli.setup import setup
from tidemark.cli.status import status
from tidemark.cli.sync import sync
from tidemark.cli.vacuum import vacuum
from tidemark.cli.when import when
from tidemark.errors import ExitCode, InvalidValue, TidemarkError, policy_of

_CODES = "\n".join(f"  {code.value:>3}  {code.name.lower().replace('_', ' ')}" for code in ExitCode)


@click.group(
    epilog=f"\b\nExit codes:\n{_CODES}\n\nDocumentation: README.md",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="tidemark")
def tidemark() -> None:
    """An exact, columnar mirror of a live PostgreSQL database, in a Delta lake, on Spark."""


tidemark.add_command(apply)
tidemark.add_command(compare)
tidemark.add_command(diff)
tidemark.add_command(doctor)
tidemark.add_command(fold)
tidemark.add_command(history)
tidemark.add_command(log)
tidemark.add_command(query)
tidemark.add_command(receive)
tidemark.add_command(resync)
tidemark.add_command(setup)
tidemark.add_command(status)
tidemark.add_command(sync)
tidemark.add_command(vacuum)
tidemark.add_command(when)


def run(arguments: Sequence[str] | None = None) -> ExitCode | int:
    """Run a command and return its exit code, with errors said on standard error."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    try:
        result = tidemark.main(args=typed, prog_name="tidemark", standalone_mode=False)
    except click.UsageError as error:
        click.UsageError(_redacted(error.format_message(), typed), error.ctx).show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("tidemark: interrupted", err=True)
        return ExitCode.INTERRUPTED
    except InvalidValue as error:
        click.echo(f"tidemark: {_redacted(str(error), typed)}", err=True)
        return policy_of(error).exit_code
    except TidemarkError as error:
        click.echo(f"tidemark: {error}", err=True)
        return policy_of(error).exit_code
    return result if isinstance(result, int) else ExitCode.OK


def _redacted(said: str, typed: Sequence[str]) -> str:
    """What was said about the command line, without any word of it that could be part of a connection string."""
    for word in sorted(typed, key=len, reverse=True):
        if any(mark in word for mark in ("=", "@", "://")):
            for form in (repr(word)[1:-1], word):
                said = said.replace(form, "…")
    return said


def main() -> None:
    """The console script."""
    sys.exit(int(run()))
