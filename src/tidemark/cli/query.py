"""`tidemark query`: a question in Spark's SQL, answered as of one position."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.observed import say_observed
from tidemark.cli.options import DsnType, DurationType
from tidemark.cli.printing import FORMATS
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode
from tidemark.source.dsn import Dsn


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("sql")
@click.option("--at", "when", metavar="latest|now|LSN|TIMESTAMP", default="latest", show_default=True,
              help="The position: every table of the query is read as it was there. now is what a session on "
              "the source sees at this moment.")  # fmt: skip
@click.option("--snapshot", metavar="xmin:xmax:xip", help="What a session saw whose pg_current_snapshot() this was; "
              "--at is the pg_current_wal_insert_lsn() of the same statement.")  # fmt: skip
@click.option("--source", type=DsnType(), envvar="TIDEMARK_SOURCE", metavar="SOURCE",
              help="The database that is mirrored, for --at now; also by the variable TIDEMARK_SOURCE.")  # fmt: skip
@click.option("--wait", "limit_s", type=DurationType(), default="10s", show_default=True, metavar="DURATION",
              help="How long to wait for now, or for a snapshot, to be received.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="table", show_default=True)
@spark_options
def query(
    lake: Path, sql: str, when: str, snapshot: str | None, source: Dsn | None, limit_s: float, form: str,
    master: str | None, remote: str | None, conf: tuple[str, ...],
) -> ExitCode:  # fmt: skip
    """Answer SQL from LAKE as PostgreSQL would have answered it there.

    Tables are named schema.table, or table for one in public.
    """
    from tidemark.lake.lake import Lake

    Lake.open(lake.absolute())
    session = started(master, remote, conf)
    from tidemark.query.mirror import open_mirror  # not before: it brings Spark

    mirror = open_mirror(lake.absolute(), session, source=source)
    try:
        if snapshot is None:
            moment = mirror.at(when, limit_s=limit_s)
        else:
            moment = mirror.at(snapshot=snapshot, lsn=when, limit_s=limit_s)
        answer = moment.sql(sql)
        say_observed(moment.observed)
        FORMATS[form](answer)
    finally:
        mirror.close()
    return ExitCode.OK
