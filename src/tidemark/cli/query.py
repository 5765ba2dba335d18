"""`tidemark query`: run a query in Spark's SQL at one position."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from tidemark.cli.options import lake_argument
from tidemark.cli.printing import print_observed
from tidemark.cli.reading import POSITION, ReadOptions, read_options, with_positions
from tidemark.errors import ExitCode


@click.command()
@lake_argument
@click.argument("sql")
@click.option("--at", "when", metavar=POSITION, default="latest", show_default=True,
              help="Read every table at this position.")  # fmt: skip
@click.option("--snapshot", metavar="xmin:xmax:xip",
              help="Read what a session with this snapshot saw; --at is its LSN.")  # fmt: skip
@click.option("--dialect", type=click.Choice(["spark", "postgres"]), default="spark", show_default=True,
              help="Read SQL as Spark's, or as PostgreSQL's, with --source.")  # fmt: skip
@read_options
@with_positions
def query(
    lake: Path, sql: str, when: str, snapshot: str | None, dialect: Literal["spark", "postgres"], read: ReadOptions
) -> ExitCode:
    """Run a query in Spark's SQL on the tables in LAKE, at one position.

    SQL is Spark's dialect: docs/reference/spark-dialect.md lists the differences to PostgreSQL's. With --dialect
    postgres it is PostgreSQL's, and the result is exactly PostgreSQL's: Spark computes what is proven to be equal, and
    a session at the source finishes the statement; any other statement is refused. Tables are named
    schema.table, or table for one in public; ONLY is PostgreSQL's. Names that need quotes stand in backticks.

    For --snapshot, run `select pg_current_snapshot(), pg_current_wal_insert_lsn()` in one statement, and give both
    values: the result is what that session saw.
    """
    with read.opened(lake) as mirror:
        tables = mirror.named_in(sql) if dialect == "spark" else None
        if snapshot is None:
            moment = mirror.at(when, tables=tables, wait=read.wait_s)
        else:
            moment = mirror.at(tables=tables, snapshot=snapshot, lsn=when, wait=read.wait_s)
        with moment:
            rows = moment.sql(sql, text=read.text, dialect=dialect)
            print_observed(moment.observed)
            read.show(rows)
    return ExitCode.OK
