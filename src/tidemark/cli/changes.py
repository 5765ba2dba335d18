"""`tidemark changes`: every change of a table between two positions."""

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
@click.option("--from", "from_", metavar=POSITION,
              help="Show commits after this position.  [default: all that are kept]")  # fmt: skip
@click.option("--to", metavar=POSITION, default="latest", show_default=True,
              help="Show commits up to and including this position.")  # fmt: skip
@click.option("--only", is_flag=True, help="Leave out tables that inherit from TABLE.")
@read_options
@with_positions
def changes(lake: Path, table: str, from_: str | None, to: str, only: bool, read: ReadOptions) -> ExitCode:
    """Show every change of TABLE in LAKE between two positions.

    Changes are in the order of commits. Columns are those of TABLE at --to, and: _change_type (insert, update_preimage,
    update_postimage, delete, truncate), _commit_version (the LSN of the commit), _commit_timestamp, _ordinal, _xid,
    _unchanged (the attnums of large values that PostgreSQL did not send because they did not change), _truncate.
    """
    with read.opened(lake) as mirror, mirror.at(to, tables=(table,), wait=read.wait_s) as moment:
        rows = moment.changes(table, from_, only=only, text=read.text).orderBy("_commit_version", "_ordinal")
        print_observed(moment.observed)
        read.show(rows, lsns=("_commit_version",))
    return ExitCode.OK
