"""`tidemark apply`: what the log has, into the lake."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from tidemark.cli.options import DurationType, LsnType, SizeType, name_option, source_argument
from tidemark.cli.spark import spark_options, started
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames
from tidemark.source.session import Session


@click.command()
@source_argument
@click.argument("lake", type=click.Path(path_type=Path))
@click.option("--log", "log", type=click.Path(path_type=Path), required=True, help="The folder of the log.")
@name_option
@click.option("--endpos", type=LsnType(), help="Stop when every commit at or below this LSN is in the lake.")
@click.option("--cycle", "cycle_bytes", type=SizeType(), default="64MB", show_default=True, help="How much at a time.")
@click.option("--cycle-time", "cycle_s", type=DurationType(), default="10s", show_default=True,
              help="How long that may take; larger transactions take longer.")  # fmt: skip
@click.option("--fold/--no-fold", "folds", default=True, show_default=True, help="Fold tables too, where it pays.")
@spark_options
@click.option("--quiet", is_flag=True, help="Say nothing about the progress.")
def apply(
    source: Dsn, lake: Path, log: Path, names: MirrorNames | None, endpos: Lsn | None, cycle_bytes: int,
    cycle_s: float, folds: bool, master: str | None, remote: str | None, conf: tuple[str, ...], quiet: bool,
) -> ExitCode:  # fmt: skip
    """Apply the log of SOURCE to LAKE, until stopped or until --endpos.

    Tables that are empty when they are first seen are mirrored from then on. SOURCE is only asked how its tables are
    defined; what is applied comes from the log, which `tidemark receive` writes.
    """
    if names is None:
        with Session.open(source, "apply") as session:
            names = MirrorNames.of_database(session.row("select current_database()")[0])
    from tidemark.apply.options import ApplyOptions  # not before: it brings Spark
    from tidemark.apply.writer import LakeWriter
    from tidemark.fold.beside import FoldingBeside

    options = ApplyOptions(source, log.absolute(), lake.absolute(), names, cycle_bytes=cycle_bytes, cycle_s=cycle_s)
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    spark = started(master, remote, conf)
    with LakeWriter(options, spark, _say) as writer, ExitStack() as beside:
        if folds:
            beside.enter_context(FoldingBeside(options.lake, spark, _say if not quiet else lambda _: None))
        while not stopped and (endpos is None or min(writer.cycle.safe, writer.cycle.known) < endpos):
            applied = writer.step()
            if applied is None:
                time.sleep(0.05)
            elif not quiet:
                _say(f"{applied.upto}  {applied.transactions:,} transactions  {applied.changes:,} changes")
        writer.tell()
        click.echo(f"done at {writer.cycle.safe}")
    return ExitCode.OK


def _say(text: str) -> None:
    click.echo(f"tidemark apply: {text}", err=True)
