"""`tidemark apply`: apply the log of a source to a lake."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path

import click

from tidemark.cli.options import (
    LsnType,
    apply_options,
    fold_option,
    lake_argument,
    log_option,
    name_option,
    quiet_option,
    source_argument,
)
from tidemark.cli.signals import StopSignals
from tidemark.cli.spark import spark_options, started
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.logs import be_quiet, fields
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session

_IDLE_S = 0.05
_LOGGER = logging.getLogger("tidemark.apply")


@click.command()
@source_argument
@lake_argument
@log_option(required=True)
@name_option
@click.option("--endpos", type=LsnType(), help="Stop when every commit up to this LSN can be read.")
@apply_options
@fold_option
@spark_options
@quiet_option
def apply(
    source: Dsn, lake: Path, log: Path, names: MirrorNames | None, endpos: Lsn | None, cycle_bytes: int,
    cycle_s: float, folds: bool, master: str | None, remote: str | None, conf: tuple[str, ...], quiet: bool,
) -> ExitCode:  # fmt: skip
    """Apply a log of SOURCE to LAKE.

    It runs until it is stopped, or to --endpos.

    The changes come from the log that `tidemark receive` writes; SOURCE is read only for table definitions. Tables
    that are empty at first are mirrored; to copy tables with rows, use `tidemark sync`.
    """
    with StopSignals() as stopping:
        if names is None:
            with Session.open(source, "apply") as session:
                names = MirrorNames.of_database(session.row("select current_database()")[0])
        from tidemark.pipeline.apply.lake_applier import lake_applier
        from tidemark.pipeline.apply.options import ApplyOptions  # deferred: these import Spark
        from tidemark.pipeline.fold.background import BackgroundFold

        options = ApplyOptions(source, log, lake, names, cycle_bytes=cycle_bytes, cycle_s=cycle_s)
        if quiet:
            be_quiet()
        with stopping.deferred():
            spark = started(master, remote, conf)
            with lake_applier(options, spark) as writer, ExitStack() as opened:
                if folds:
                    opened.enter_context(BackgroundFold(options.lake, spark))
                complete = False
                while not stopping() and not complete:
                    complete = endpos is not None and writer.cycle.complete >= endpos
                    applied = writer.step() if not complete else None
                    if applied is not None:
                        extra = fields(lsn=applied.upto, changes=applied.changes)
                        _LOGGER.info("applied up to %s: %s changes", applied.upto, f"{applied.changes:,}", extra=extra)
                    elif not complete:
                        time.sleep(_IDLE_S)
                writer.record_progress()
                position = writer.cycle.readable
    click.echo(f"{'complete up to' if complete else 'stopped at'} {position}")
    return ExitCode.OK if complete else stopping.exit_code(has_end=endpos is not None)
