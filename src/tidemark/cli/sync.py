"""`tidemark sync`: copy the tables of a database into a lake and follow their changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.addresses import ListenAddress
from tidemark.cli.options import (
    AddressType,
    Command,
    DurationType,
    EndType,
    ValueType,
    apply_options,
    fold_option,
    json_option,
    lake_argument,
    log_option,
    name_option,
    quiet_option,
    receive_options,
    selection_options,
    source_argument,
)
from tidemark.cli.showing import display
from tidemark.cli.signals import StopSignals
from tidemark.cli.spark import spark_options, started
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, Stopped
from tidemark.lake.controls import CURRENT
from tidemark.pipeline.plan import AUTO, PipelineOptions, plan_pipeline
from tidemark.postgres.capability import Mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.receive.options import WalPolicy
from tidemark.schema.selection import Pattern, Selection
from tidemark.units import parse_keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.pipeline.events import SyncEnded, SyncEvent


class KeepType(ValueType[float | None]):
    """A duration, or `forever`, which is None."""

    name = "keep"

    def parse(self, value: Any) -> float | None:
        """Parse a retention period."""
        return parse_keep(value)


def mode_option(command: Command) -> Command:
    """Add `--mode`; the value is None for `auto`."""
    return click.option(
        "--mode",
        type=click.Choice([AUTO, *(mode.value for mode in Mode)]),
        default=AUTO,
        show_default=True,
        callback=lambda _, __, value: Mode(value) if value != AUTO else None,
        help="Select the replication mode; auto polls if the source cannot decode.",
    )(command)


def interval_option(command: Command) -> Command:
    """Add `--interval`."""
    return click.option(
        "--interval",
        "interval_s",
        type=DurationType(),
        default="10s",
        show_default=True,
        help="In mode poll, poll at this interval (at least 5s).",
    )(command)


@click.command()
@source_argument
@lake_argument
@log_option(required=False)
@name_option
@selection_options
@mode_option
@click.option("--once", is_flag=True, help="Stop when all tables are copied and have caught up.")
@click.option(
    "--endpos",
    type=EndType(),
    metavar="LSN|current",
    help="Stop when every commit up to this LSN can be read; current is --once.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and stop: mode, SQL, tables, sizes.")
@receive_options
@apply_options
@click.option(
    "--copy-parallelism",
    type=click.IntRange(1),
    metavar="N",
    help="Copy with N Spark tasks at a time.  [default: all but one]",
)
@fold_option
@click.option(
    "--keep",
    "keep_s",
    type=KeepType(),
    default="7d",
    show_default=True,
    metavar="DURATION|forever",
    help="Delete history older than this in the background.",
)
@interval_option
@click.option(
    "--reconcile-every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="In mode poll, detect deleted rows at every Nth poll only.",
)
@click.option(
    "--listen",
    type=AddressType(),
    metavar="HOST:PORT",
    help="Serve /metrics for Prometheus, /health and /ready at this address.",
)
@spark_options
@json_option("Print events as JSON lines on standard output.")
@quiet_option
def sync(
    dry_run: bool, listen: ListenAddress | None, master: str | None, remote: str | None, conf: tuple[str, ...],
    as_json: bool, quiet: bool, **how: Any,
) -> ExitCode:  # fmt: skip
    """Copy the tables of SOURCE into LAKE, then follow their changes.

    SOURCE is a libpq connection string or URI, as for psql; LAKE is a directory, created if it does not exist. Run it
    again after a stop or a crash: it resumes where it stopped. Tables can be read while others are copied.

    PATTERN is schema.table with * and ?, or "Quoted"."Name"; partitions and inheriting tables are included.

    Without logical decoding SOURCE is polled: LAKE then shows the source as of the last poll, and nothing is created
    at SOURCE.

    Ctrl-C or SIGTERM stops it after the running cycle; a second one stops it at once, and loses nothing. The exit code
    is 130 after Ctrl-C. After SIGTERM it is 0, or 143 if --once or --endpos was not reached.
    """
    options = options_of(**how)
    with StopSignals() as stopping:
        if dry_run:
            click.echo(plan_pipeline(options).describe(), nl=False)
            return ExitCode.OK
        try:
            ended = _run(options, lambda: started(master, remote, conf), stopping, listen, as_json=as_json, quiet=quiet)
        except Stopped as error:
            click.echo(f"tidemark: {error.message}", err=True)
            return stopping.exit_code(has_end=options.has_end)
    return ExitCode.OK if ended.complete else stopping.exit_code(has_end=options.has_end)


def _run(
    options: PipelineOptions, spark: Callable[[], SparkSession], stopping: StopSignals, listen: ListenAddress | None,
    *, as_json: bool, quiet: bool,
) -> SyncEnded:  # fmt: skip
    from tidemark.monitoring.endpoint import MonitoringEndpoint  # deferred: these import Spark
    from tidemark.monitoring.metrics import Metrics
    from tidemark.monitoring.service import ServiceManager
    from tidemark.pipeline.pipeline import Pipeline, SparkSessions
    from tidemark.pipeline.recording import StateRecord

    metrics = Metrics()
    counted, notify = metrics.of(options.lake), ServiceManager().of()
    with StateRecord(options.lake) as record, MonitoringEndpoint(listen, metrics) if listen else nullcontext():
        plan = plan_pipeline(options)
        with stopping.deferred(), display(as_json=as_json, quiet=quiet, stopping=stopping) as shown:

            def emit(event: SyncEvent) -> None:
                shown.emit(event)
                counted(event)
                notify(event)

            return Pipeline(plan, SparkSessions(spark, is_ours=True), record, emit).run(stopping)


def options_of(
    *, source: Dsn, lake: Path, log: Path | None, names: MirrorNames | None, take: tuple[Pattern, ...],
    leave: tuple[Pattern, ...], mode: Mode | None, once: bool, endpos: Lsn | str | None, budget_bytes: int,
    wal_limit_bytes: int, wal_policy: str, accept_altered_publication: bool, cycle_bytes: int, cycle_s: float,
    copy_parallelism: int | None, archive: str | None, folds: bool, keep_s: float | None, interval_s: float,
    reconcile_every: int,
) -> PipelineOptions:  # fmt: skip
    """Return the options of the command line as those of the pipeline."""
    return PipelineOptions(
        source,
        lake,
        names,
        Selection(take, leave),
        log,
        mode,
        endpos if isinstance(endpos, Lsn) else None,
        once or endpos == CURRENT,
        folds,
        keep_s,
        interval_s,
        reconcile_every,
        budget_bytes,
        wal_limit_bytes,
        WalPolicy(wal_policy),
        accept_altered_publication,
        cycle_bytes,
        cycle_s,
        copy_parallelism,
        archive,
    )
