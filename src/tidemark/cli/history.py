"""`tidemark history`: every version of one row, with the commits that began and ended it."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.options import lake_argument
from tidemark.cli.printing import print_observed
from tidemark.cli.reading import POSITION, ReadOptions, read_options, with_positions
from tidemark.errors import ExitCode


@click.command()
@lake_argument
@click.argument("table")
@click.argument("key", nargs=-1, required=True)
@click.option("--at", "when", metavar=POSITION, default="latest", show_default=True,
              help="Show versions up to this position.")  # fmt: skip
@click.option("--only", is_flag=True, help="Leave out tables that inherit from TABLE.")
@read_options
@with_positions
def history(lake: Path, table: str, key: tuple[str, ...], when: str, only: bool, read: ReadOptions) -> ExitCode:
    """Show every version of one row of TABLE in LAKE, oldest first.

    KEY is the value of each column of the primary key or replica identity, in its order, as PostgreSQL prints it. Write
    -- before values that begin with a minus sign.
    """
    with read.opened(lake) as mirror, mirror.at(when, tables=(table,), wait=read.wait_s) as moment:
        versions = moment.history(table, key, only=only, text=read.text)
        print_observed(moment.observed)
        read.show(versions, lsns=("_begin_lsn", "_end_lsn"))
    return ExitCode.OK
