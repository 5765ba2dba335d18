"""`tidemark tables`: which tables can be read, and why others cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.printing import format_option, print_records
from tidemark.errors import ExitCode
from tidemark.lake.paths import local_path

if TYPE_CHECKING:
    from tidemark.lake.status import TableStatus

NAMES = ("table", "state", "rows", "reason", "fix", "columns")


@click.command()
@click.argument("lake")
@format_option
def tables(lake: str, form: str) -> ExitCode:
    """List the tables in LAKE with their states, rows and columns.

    For a table that cannot be read up to the latest position, `reason` is why, and `fix` is the SQL statement or the
    command that helps. Starts no JVM and does not connect to the source.
    """
    from tidemark.lake.lake import Lake  # not before: they import Delta
    from tidemark.lake.status import tables_of

    print_records([_record(table) for table in tables_of(Lake.open(local_path(lake)))], NAMES, form)
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
