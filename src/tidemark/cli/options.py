"""Arguments and options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames
from tidemark.source.selection import Pattern

_SIZE = re.compile(r"([0-9]+)\s*(B|kB|MB|GB|TB)?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS = {"B": 0, "kB": 10, "MB": 20, "GB": 30, "TB": 40}

Command = TypeVar("Command", bound=Callable[..., Any])


class DsnType(click.ParamType[Dsn]):
    """A libpq connection string; what is wrong with one is said without showing it."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Dsn:
        """Wrap the string at once, so that nothing later can print it."""
        try:
            return value if isinstance(value, Dsn) else Dsn(value)
        except InvalidValue as error:
            self.fail(str(error), param, ctx)


class LsnType(click.ParamType[Lsn]):
    """A position in the WAL."""

    name = "lsn"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lsn:
        """Read it as PostgreSQL prints it."""
        try:
            return value if isinstance(value, Lsn) else Lsn.parse(value)
        except InvalidValue as error:
            self.fail(str(error), param, ctx)


class SizeType(click.ParamType[int]):
    """A number of bytes, with the units that PostgreSQL's settings have."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read `512MB`."""
        match = _SIZE.fullmatch(str(value))
        if match is None:
            self.fail(f"not a size: {value!r}; write a number and kB, MB, GB or TB", param, ctx)
        return int(match[1]) << _UNITS[match[2] or "B"]


class DurationType(click.ParamType[float]):
    """A time in seconds, with the units that PostgreSQL's settings have."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read `30min`."""
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"not a time: {value!r}; write a number and ms, s, min, h or d", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class NameType(click.ParamType[MirrorNames]):
    """The name of a mirror."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> MirrorNames:
        """Check the name before anything is done with it."""
        try:
            return value if isinstance(value, MirrorNames) else MirrorNames(value)
        except InvalidValue as error:
            self.fail(str(error), param, ctx)


class PatternType(click.ParamType[Pattern]):
    """A pattern for tables."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pattern:
        """Check the pattern before anything is done with it."""
        try:
            return value if isinstance(value, Pattern) else Pattern(value)
        except InvalidValue as error:
            self.fail(str(error), param, ctx)


def source_argument(command: Command) -> Command:
    """SOURCE, which is whatever psql would take."""
    return click.argument("source", type=DsnType())(command)


def name_option(command: Command) -> Command:
    """--name, which tells mirrors of one database apart."""
    text = "The mirror's name, by default the database's: its slot and publications are called tidemark_NAME."
    return click.option("--name", "names", type=NameType(), help=text)(command)


def selection_options(command: Command) -> Command:
    """--table and --exclude, which choose tables by pattern."""
    take = click.option(
        "--table",
        "take",
        metavar="PATTERN",
        multiple=True,
        type=PatternType(),
        help='Mirror only tables that match: schema.table with * and ?; without a dot in schema public; "Odd.name" in '
        "double quotes; with their partitions, and the tables that inherit from them. Repeatable.",
    )
    leave = click.option(
        "--exclude",
        "leave",
        metavar="PATTERN",
        multiple=True,
        type=PatternType(),
        help="Leave out tables that match, with their partitions. Repeatable.",
    )
    return take(leave(command))
