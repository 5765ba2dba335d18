"""`tidemark`: the group of all commands, and the one place where an error becomes words and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from tidemark import __version__
from tidemark.errors import ExitCode, InvalidValue, TidemarkError, policy_of

_NAMES = (
    "apply", "catalog", "changes", "compare", "diff", "doctor", "expire", "fold", "history", "log", "query", "receive",
    "resync", "setup", "status", "sync", "tables", "when",
)  # fmt: skip
_CODES = "\n".join(f"  {code.value:>3}  {code.name.lower().replace('_', ' ')}" for code in ExitCode)


class Commands(click.Group):
    """Commands that are imported when they are asked for: most of them are made of much that the others do not need."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Their names, each that of a module and of the command in it."""
        return [*_NAMES]

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        """One of them."""
        if name not in _NAMES:
            return None
        command: click.Command = getattr(import_module(f"tidemark.cli.{name}"), name)
        return command


@click.group(
    cls=Commands,
    epilog=f"\b\nExit codes:\n{_CODES}\n\nDocumentation: README.md",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="tidemark")
def tidemark() -> None:
    """An exact, columnar mirror of a live PostgreSQL database, in a Delta lake, on Spark."""


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
