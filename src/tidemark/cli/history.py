"""`tidemark history`: every version of one row, and what began and ended it."""

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
@click.argument("key", nargs=-1, required=True)
@click.option("--at", "when", metavar="latest|LSN|TIMESTAMP", default="latest", show_default=True,
              help="The position up to which the history is told.")  # fmt: skip
@click.option("--only", is_flag=True, help="Leave out the rows of tables that inherit from TABLE.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="table", show_default=True)
@spark_options
def history(
    lake: Path, table: str, key: tuple[str, ...], when: str, only: bool, form: str,
    master: str | None, remote: str | None, conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Tell every version of the row of TABLE in LAKE that has this KEY, oldest first.

    KEY is a value for each column of the key, in its order, as PostgreSQL prints it; after -- where one begins with -.
    """
    from tidemark.lake.lake import Lake

    Lake.open(lake.absolute())
    session = started(master, remote, conf)
    from tidemark.query.mirror import open_mirror  # not before: it brings Spark

    with open_mirror(lake.absolute(), session).at(when) as moment:
        told = moment.history(table, key, only=only)
        say_observed(moment.observed)
        FORMATS[form](told)
    return ExitCode.OK
