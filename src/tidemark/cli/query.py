"""`tidemark query`: a question in Spark's SQL, answered as of one position."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.printing import FORMATS
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("sql")
@click.option("--at", "when", metavar="latest|LSN|TIMESTAMP", default="latest", show_default=True,
              help="The position: every table of the query is read as it was there.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="table", show_default=True)
@spark_options
def query(
    lake: Path, sql: str, when: str, form: str, master: str | None, remote: str | None, conf: tuple[str, ...]
) -> ExitCode:
    """Answer SQL from LAKE as PostgreSQL would have answered it there.

    Tables are named schema.table, or table for one in public.
    """
    from tidemark.lake.lake import Lake

    Lake.open(lake.absolute())
    session = started(master, remote, conf)
    from tidemark.query.mirror import open_mirror  # not before: it brings Spark

    FORMATS[form](open_mirror(lake.absolute(), session).at(when).sql(sql))
    return ExitCode.OK
