"""`tidemark tables`: which tables can be read, and why others cannot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.options import lake_argument
from tidemark.cli.printing import format_option, print_records
from tidemark.errors import ExitCode

if TYPE_CHECKING:
    from tidemark.lake.status import TableStatus

NAMES = ("table", "state", "rows", "reason", "fix", "columns")


@click.command()
@lake_argument
@format_option
def tables(lake: Path, form: str) -> ExitCode:
    """List the tables in LAKE, with their state, rows and columns.

    The number of rows is shown if it is known without reading the table. For a table that cannot be read up to the
    latest position, `reason` is why, and `fix` is the SQL statement or the command that helps. Starts no JVM and does
    not connect to the source.
    """
    from tidemark.lake.lake import Lake  # deferred: they import Delta
    from tidemark.lake.status import tables_of

    print_records([_record(table) for table in tables_of(Lake.open(lake))], NAMES, form)
    return ExitCode.OK


def _record(table: TableStatus) -> dict[str, Any]:
    return {
        "table": table.name,
        "state": table.state,
        "rows": table.rows,
        "reason": table.reason or None,
        "fix": table.fix or None,
        "columns": [{"name": column.name, "type": column.type} for column in table.columns],
    }
