"""The options of the commands that read tables with Spark, and the mirror that they open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.options import DurationType, source_option
from tidemark.cli.printing import format_option
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode
from tidemark.postgres.dsn import Dsn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemark.mirror.mirror import Mirror

POSITION = "POSITION"
POSITIONS = """
    POSITION is `latest`, `now`, an LSN such as 16/B374D848, a time such as "2026-01-31 09:00", or a relative time such
    as -5m, -2h30m, -1d, "today 06:00" or "yesterday 09:00". Times are in UTC unless they have a zone: "2026-01-31
    09:00+02", "today 06:00 Europe/Berlin". `now` requires --source.
"""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read."""

    text: tuple[str, ...]
    form: str
    source: Dsn | None
    wait_s: float
    master: str | None
    remote: str | None
    conf: tuple[str, ...]

    @contextmanager
    def opened(self, lake: Path) -> Iterator[Mirror]:
        """Open the mirror in a lake; the lake is checked before Spark starts."""
        from tidemark.lake.lake import Lake  # deferred: it imports Delta

        Lake.open(lake)
        session = started(self.master, self.remote, self.conf)
        from tidemark.mirror.mirror import open_mirror  # deferred: it imports Spark

        with open_mirror(lake, session, source=self.source) as mirror:
            yield mirror

    def show(self, rows: DataFrame, lsns: Collection[str] = ()) -> None:
        """Print rows; LSNs, which are numbers in a DataFrame, are printed as PostgreSQL prints them."""
        from tidemark.cli.frames import print_frame  # deferred: it imports Spark

        print_frame(rows, self.form, lsns)


def read_options(command: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
    """Add --text, --format, --source, --wait and Spark's options, passed to the command as the argument `read`."""

    @click.option("--text", multiple=True, metavar="COLUMN",
                  help="Read a column as PostgreSQL's text, such as orders.due. Repeatable.")  # fmt: skip
    @format_option
    @source_option(purpose=", for reads at `now`")
    @click.option("--wait", "wait_s", type=DurationType(), default="10s", show_default=True,
                  help="Wait at most this long for `now` or a snapshot to be received.")  # fmt: skip
    @spark_options
    @wraps(command)
    def run(
        text: tuple[str, ...], form: str, source: Dsn | None, wait_s: float,
        master: str | None, remote: str | None, conf: tuple[str, ...], **others: Any,
    ) -> ExitCode:  # fmt: skip
        return command(read=ReadOptions(text, form, source, wait_s, master, remote, conf), **others)

    return run


def with_positions(command: Callable[..., ExitCode]) -> Callable[..., ExitCode]:
    """Add the forms of POSITION to the help of a command."""
    command.__doc__ = (command.__doc__ or "").rstrip() + "\n" + POSITIONS
    return command
