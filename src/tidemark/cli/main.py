"""`tidemark`: the group of all commands, and the one place that turns errors into messages and exit codes."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import click
from click.shell_completion import get_completion_class

from tidemark import __version__, logs
from tidemark.cli.signals import Terminated, raise_terminated
from tidemark.errors import ExitCode, InvalidValue, TidemarkError, policy_of

PROGRAM = "tidemark"
GROUPS = {
    "Set up": ("doctor", "setup", "completion"),
    "Run": ("sync", "run", "config", "status", "pause", "resume", "stop", "resync", "expire", "catalog"),
    "Clone": ("clone",),
    "Read": ("tables", "query", "changes", "diff", "history", "when", "compare"),
    "Serve": ("serve",),
    "Parts of sync": ("receive", "apply", "fold", "log"),
}
MODULES = {"pause": "control", "resume": "control", "stop": "control"}  # others have a module of their name
SHELLS = ("bash", "zsh", "fish")
_COMPLETE = "_TIDEMARK_COMPLETE"
_CODES = "\n".join(f"  {code.value:>3}  {code.description}" for code in ExitCode)
_SECRET = re.compile(r"[=@]|^postgres|://[^/]*:")
_REPORT = (
    "This is a bug in Tidemark. Report it to its maintainers, with the output of `tidemark --log-level debug` for the "
    "same command."
)


class UmaskType(click.ParamType[int]):
    """A umask in octal digits that leaves the owner all rights."""

    name = "octal"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse octal digits."""
        if isinstance(value, int):
            return value
        if not re.fullmatch("0*[0-7]{1,3}", str(value), re.ASCII) or int(str(value), 8) & 0o700:
            self.fail(f"invalid umask: {value!r}; use 077, or 027 to let the group read", param, ctx)
        return int(str(value), 8)


class Commands(click.Group):
    """The commands, each imported when it is used, and listed in groups."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return all names; each is that of a command in a module, except `completion`."""
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command with a name, or None."""
        if name not in self.list_commands(context):
            return None
        if name == "completion":
            return completion
        command: click.Command = getattr(import_module(f"tidemark.cli.{MODULES.get(name, name)}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per command, not truncated."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in GROUPS.items():
            with formatter.section(title):
                commands = [(name, self.get_command(ctx, name)) for name in names]
                for name, command in commands:
                    if command is not None:
                        formatter.write(f"  {name:<{width}}  {summary(command)}\n")


def summary(command: click.Command) -> str:
    """Return the first line of a command's help."""
    return (command.help or "").strip().partition("\n")[0]


@click.group(
    cls=Commands,
    epilog=f"\b\nExit codes:\n{_CODES}\n\nRun `tidemark COMMAND --help` for the options of a command.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--log-level",
    type=click.Choice(logs.LEVELS),
    metavar="LEVEL",
    default="info",
    show_default=True,
    envvar="TIDEMARK_LOG_LEVEL",
    help="Log from debug, info, warning or error up.",
)
@click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default="text",
    show_default=True,
    envvar="TIDEMARK_LOG_FORMAT",
    metavar="FORMAT",
    help="Log as text or as json lines, to stderr.",
)
@click.option(
    "--umask",
    type=UmaskType(),
    default="077",
    show_default=True,
    envvar="TIDEMARK_UMASK",
    metavar="OCTAL",
    help="Create files with this umask; with 027 the group can read them.",
)
@click.version_option(__version__, prog_name=PROGRAM)
def tidemark(log_level: str, log_format: str, umask: int) -> None:
    """Mirror a live PostgreSQL database exactly into a Delta lake, on Spark.

    A query on the mirror returns what PostgreSQL would have returned, now or at any past commit.
    """
    logs.configure(log_level, log_format)
    os.umask(umask)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> ExitCode:
    """Print the completion script of a shell: bash, zsh or fish.

    \b
    bash:  add to ~/.bashrc:   eval "$(tidemark completion bash)"
    zsh:   add to ~/.zshrc:    eval "$(tidemark completion zsh)"
    fish:  tidemark completion fish > ~/.config/fish/completions/tidemark.fish
    """  # noqa: D301 - for click, the backspace character keeps the lines
    script = get_completion_class(shell)
    assert script is not None  # noqa: S101
    click.echo(script(tidemark, {}, PROGRAM, _COMPLETE).source())
    return ExitCode.OK


def run(arguments: Sequence[str] | None = None) -> ExitCode | int:
    """Run a command and return its exit code; errors are reported on standard error."""
    before = os.umask(0o077)
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    finally:
        os.umask(before)


def _run(typed: list[str]) -> ExitCode | int:
    try:
        result = tidemark.main(args=typed, prog_name=PROGRAM, complete_var=_COMPLETE, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.UsageError as error:
        click.UsageError(_redacted(error.format_message(), typed), error.ctx).show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return _failed("stopped by SIGINT", "", ExitCode.INTERRUPTED)
    except Terminated:
        return _failed("stopped by SIGTERM", "", ExitCode.TERMINATED)
    except InvalidValue as error:
        return _failed(_redacted(error.message, typed), _redacted(error.hint, typed), policy_of(error).exit_code)
    except TidemarkError as error:
        return _failed(error.message, error.hint, policy_of(error).exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        return _failed(what, "Check that the path exists, that it can be written, and that the disk is not full.")
    except Exception as error:  # noqa: BLE001 - any other error: one line, and how to report it
        first = (str(error).splitlines() or [""])[0]
        return _failed(_redacted(f"unexpected {type(error).__name__}: {first}", typed), _REPORT)
    return result if isinstance(result, int) else ExitCode.OK


def _failed(message: str, hint: str, code: ExitCode = ExitCode.UNEXPECTED) -> ExitCode:
    """Report an error, with its traceback at level debug."""
    logger = logging.getLogger(logs.ROOT)
    if logs.is_json():
        extra = logs.fields(hint=hint or None, exit_code=int(code))
        logger.error("%s", message, extra=extra, exc_info=logs.is_debug())
        return code
    if logs.is_debug() and sys.exc_info()[0] is not None:
        logger.debug("traceback:", exc_info=True)
    click.echo(f"tidemark: {message}" + (f"\nHint: {hint}" if hint else ""), err=True)
    return code


def _redacted(text: str, typed: Sequence[str]) -> str:
    """Return a message without the arguments in it that could be part of a connection string."""
    for word in sorted(typed, key=len, reverse=True):
        if _SECRET.search(word):
            for form in (repr(word)[1:-1], word):
                text = text.replace(form, "…")
    return text


def main() -> None:
    """Run the console script."""
    signal.signal(signal.SIGTERM, raise_terminated)
    try:
        code = int(run())
        sys.stdout.flush()
    except BrokenPipeError:  # such as `tidemark query … | head`
        sys.stderr.close()
        code = ExitCode.UNEXPECTED
    sys.exit(code)
