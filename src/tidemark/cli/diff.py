"""`tidemark diff`: what became of a table between two positions."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.observed import say_observed
from tidemark.cli.printing import FORMATS
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("table")
@click.argument("start", metavar="FROM")
@click.argument("end", metavar="TO", default="latest")
@click.option("--only", is_flag=True, help="Leave out the rows of tables that inherit from TABLE.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="table", show_default=True)
@spark_options
def diff(
    lake: Path, table: str, start: str, end: str, only: bool, form: str,
    master: str | None, remote: str | None, conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Tell how TABLE in LAKE at TO differs from what it was at FROM: LSNs, times or latest.

    Rows that went and came, and with a key also what updated ones were before and are now. What was changed in between
    and is as it was is not told.
    """
    from tidemark.lake.lake import Lake

    Lake.open(lake.absolute())
    session = started(master, remote, conf)
    from tidemark.query.mirror import open_mirror  # not before: it brings Spark

    mirror = open_mirror(lake.absolute(), session)
    with mirror.at(start) as early, mirror.at(end) as late:
        differing = late.diff(table, early.boundary, only=only)
        for moment in (early, late):
            say_observed(moment.observed)
        FORMATS[form](differing)
    return ExitCode.OK
