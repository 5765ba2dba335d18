"""Arguments and options that several commands share, so that they have the same names and meaning everywhere."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tidemark.addresses import ListenAddress
from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.lake.controls import CURRENT
from tidemark.lake.paths import directory_or_command, local_path
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.receive.options import WalPolicy
from tidemark.schema.selection import Pattern
from tidemark.units import parse_duration, parse_size

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")
_URI, _KEYWORD = re.compile(r"postgres(?:ql)?://"), re.compile(r"\s*\w+\s*=")


class ValueType(click.ParamType[Value], ABC):
    """A value that is parsed before the command runs; its `InvalidValue` becomes a usage error."""

    @abstractmethod
    def parse(self, value: Any) -> Value:
        """Parse a text; a value that is already parsed is returned unchanged."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Value:
        """Parse the text of the command line."""
        try:
            return self.parse(value)
        except InvalidValue as error:
            self.fail(str(error), param, ctx)


class DsnType(ValueType[Dsn]):
    """A libpq connection string, wrapped at once so that no message can show it."""

    name = "source"

    def parse(self, value: Any) -> Dsn:
        """Parse a connection string as psql does."""
        return value if isinstance(value, Dsn) else Dsn(value)


class LakeOrDsnType(ValueType[Path | Dsn]):
    """The directory of a lake, or a connection string: a URI of PostgreSQL, or keywords such as `host=…`."""

    name = "lake|source"

    def parse(self, value: Any) -> Path | Dsn:
        """Parse a connection string if the text is one for libpq and no directory has this path."""
        if isinstance(value, Path | Dsn):
            return value
        return Dsn(value) if is_connection_string(value) else local_path(value)


def is_connection_string(text: str) -> bool:
    """Return whether libpq reads a text as a connection string and not as the name of a database."""
    return _URI.match(text) is not None or (_KEYWORD.match(text) is not None and not Path(text).exists())


class LsnType(ValueType[Lsn]):
    """A WAL position."""

    name = "lsn"

    def parse(self, value: Any) -> Lsn:
        """Parse an LSN as PostgreSQL prints it."""
        return value if isinstance(value, Lsn) else Lsn.parse(value)


class EndType(LsnType):
    """An LSN, or `current`."""

    name = "end"

    def parse(self, value: Any) -> Any:
        """Parse an LSN; `current` is returned unchanged."""
        return value if value == CURRENT else super().parse(value)


class SizeType(ValueType[int]):
    """A number of bytes."""

    name = "size"

    def parse(self, value: Any) -> int:
        """Parse a size such as `512MB`."""
        return parse_size(value)


class DurationType(ValueType[float]):
    """A number of seconds."""

    name = "duration"

    def parse(self, value: Any) -> float:
        """Parse a duration such as `30min`."""
        return parse_duration(value)


class AddressType(ValueType[ListenAddress]):
    """An address to listen on."""

    name = "host:port"

    def parse(self, value: object) -> ListenAddress:
        """Parse HOST:PORT."""
        return value if isinstance(value, ListenAddress) else ListenAddress.parse(str(value))


class NameType(ValueType[MirrorNames]):
    """The name of a mirror."""

    name = "name"

    def parse(self, value: Any) -> MirrorNames:
        """Parse a name that can be part of a slot name."""
        return value if isinstance(value, MirrorNames) else MirrorNames(value)


class PatternType(ValueType[Pattern]):
    """A pattern for tables."""

    name = "pattern"

    def parse(self, value: Any) -> Pattern:
        """Parse a pattern such as `sales.*`."""
        return value if isinstance(value, Pattern) else Pattern(value)


class DirectoryType(ValueType[Path]):
    """The absolute path of a directory, which need not exist. Files and URIs are refused."""

    name = "directory"

    def parse(self, value: Any) -> Path:
        """Parse a path, relative to the working directory."""
        return local_path(value)


class ArchiveType(ValueType[str]):
    """The absolute path of a directory, or a command that contains %p."""

    name = "directory|command"

    def parse(self, value: Any) -> str:
        """Parse a path, relative to the working directory; a command is returned unchanged."""
        return directory_or_command(value)


def source_argument(command: Command) -> Command:
    """Add SOURCE, a connection string as for psql."""
    return click.argument("source", type=DsnType())(command)


def target_argument(command: Command) -> Command:
    """Add TARGET, a connection string as for psql."""
    return click.argument("target", type=DsnType())(command)


def source_option(*, required: bool = False, purpose: str = "") -> Callable[[Command], Command]:
    """Add --source, also read from TIDEMARK_SOURCE, for commands whose argument is a lake."""
    return click.option(
        "--source",
        type=DsnType(),
        envvar="TIDEMARK_SOURCE",
        show_envvar=True,
        metavar="SOURCE",
        required=required,
        help=f"Connect to this database{purpose}.",
    )


def lake_argument(command: Command) -> Command:
    """Add LAKE, a directory."""
    return click.argument("lake", type=DirectoryType())(command)


def log_option(*, required: bool) -> Callable[[Command], Command]:
    """Add --log, the directory of the log."""
    default = "" if required else "  [default: LAKE/_log]"
    return click.option(
        "--log", type=DirectoryType(), required=required, help=f"Keep the log in this directory.{default}"
    )


def name_option(command: Command) -> Command:
    """Add --name, which distinguishes several mirrors of one database."""
    text = "Name the mirror; its slot and publications are called tidemark_NAME.  [default: the database]"
    return click.option("--name", "names", type=NameType(), help=text)(command)


def selection_options(command: Command) -> Command:
    """Add --table and --exclude, which select tables by pattern."""
    take = click.option(
        "--table",
        "take",
        metavar="PATTERN",
        multiple=True,
        type=PatternType(),
        help="Mirror only tables that match, such as sales.* (default schema: public). Repeatable.",
    )
    leave = click.option(
        "--exclude",
        "leave",
        metavar="PATTERN",
        multiple=True,
        type=PatternType(),
        help="Skip tables that match. Repeatable.",
    )
    return take(leave(command))


def receive_options(command: Command) -> Command:
    """Add the options of receiving, for `receive` and `sync`."""
    budget = click.option(
        "--budget",
        "budget_bytes",
        type=SizeType(),
        default="64GB",
        show_default=True,
        help="Limit the size of the log; at the limit, receiving waits for apply.",
    )
    limit = click.option(
        "--wal-limit",
        "wal_limit_bytes",
        type=SizeType(),
        default="32GB",
        show_default=True,
        help="Limit the WAL that the slot retains at the source (see --wal-policy).",
    )
    policy = click.option(
        "--wal-policy",
        type=click.Choice([policy.value for policy in WalPolicy]),
        default=WalPolicy.WARN.value,
        show_default=True,
        help="At --wal-limit: warn; hold: stop and keep the slot; drop: stop and drop it.",
    )
    accept = click.option(
        "--accept-altered-publication",
        is_flag=True,
        help="Continue although a publication was altered, if no change was missed.",
    )
    archive = click.option(
        "--archive",
        type=ArchiveType(),
        help="Store closed segments of the log in a directory, or with a shell command that contains %p.",
    )
    return budget(limit(policy(accept(archive(command)))))


def apply_options(command: Command) -> Command:
    """Add the limits of applying, for `apply` and `sync`."""
    size = click.option(
        "--cycle",
        "cycle_bytes",
        type=SizeType(),
        default="64MB",
        show_default=True,
        help="Apply at most this much of the log in one commit.",
    )
    seconds = click.option(
        "--cycle-time",
        "cycle_s",
        type=DurationType(),
        default="10s",
        show_default=True,
        help="Aim at this duration of a commit; large transactions take longer.",
    )
    return size(seconds(command))


def fold_option(command: Command) -> Command:
    """Add --fold/--no-fold."""
    return click.option(
        "--fold/--no-fold", "folds", default=True, show_default=True, help="Fold tables in the background."
    )(command)


def json_option(text: str = "Print the report as JSON.") -> Callable[[Command], Command]:
    """Add --json, an option of every report."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def quiet_option(command: Command) -> Command:
    """Add --quiet, an option of every command that reports progress."""
    return click.option("--quiet", is_flag=True, help="Print only warnings and errors.")(command)
