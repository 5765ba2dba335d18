"""`tidemark diff`: the net difference of a table between two positions."""

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
@click.option("--from", "from_", metavar=POSITION, required=True, help="Compare with the table at this position.")
@click.option("--to", metavar=POSITION, default="latest", show_default=True, help="Show the table at this position.")
@click.option("--only", is_flag=True, help="Leave out tables that inherit from TABLE.")
@read_options
@with_positions
def diff(lake: Path, table: str, from_: str, to: str, only: bool, read: ReadOptions) -> ExitCode:
    """Show the rows of TABLE in LAKE that differ between two positions.

    _change_type is insert or delete, and for a table with a key also update_preimage and update_postimage. Rows that
    changed in between and are equal at both positions are left out: `tidemark changes` shows every change.
    """
    with (
        read.opened(lake) as mirror,
        mirror.at(from_, tables=(table,), wait=read.wait_s) as early,
        mirror.at(to, tables=(table,), wait=read.wait_s) as late,
    ):
        rows = late.diff(table, early.boundary, only=only, text=read.text)
        for moment in (early, late):
            print_observed(moment.observed)
        read.show(rows)
    return ExitCode.OK
