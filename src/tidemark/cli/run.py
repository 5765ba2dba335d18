"""`tidemark run`: several mirrors in one process."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from tidemark.cli.options import json_option, quiet_option
from tidemark.cli.showing import JsonDisplay, LogDisplay
from tidemark.cli.signals import StopSignals
from tidemark.cli.spark import started
from tidemark.daemon.config import read_config
from tidemark.errors import ExitCode


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default="tidemark.toml")
@json_option("Print events as JSON lines on standard output.")
@quiet_option
def run(file: Path, as_json: bool, quiet: bool) -> ExitCode:
    """Run the mirrors that FILE lists in one process.

    FILE is tidemark.toml by default. The mirrors share one Spark session, and each has the options of `tidemark sync`.
    One that fails is started again after a pause of up to five minutes; the others continue. `tidemark config` shows
    the effective values.

    Ctrl-C or SIGTERM stops all of them after their running cycles, a second one at once.
    """
    config = read_config(file)
    from tidemark.daemon.process import run_mirrors  # deferred: these import Spark
    from tidemark.monitoring.endpoint import MonitoringEndpoint
    from tidemark.monitoring.metrics import Metrics
    from tidemark.pipeline.pipeline import SparkSessions

    spark, metrics = config.spark, Metrics()
    sessions = SparkSessions(lambda: started(spark.master, spark.remote, spark.conf), is_ours=True)
    with (
        StopSignals() as stopping,
        MonitoringEndpoint(config.listen, metrics) if config.listen else nullcontext(),
        stopping.deferred(),
        JsonDisplay() if as_json else LogDisplay(quiet=quiet, name="run") as shown,
    ):
        run_mirrors(config, sessions, metrics, shown.emit, stopping)
    return stopping.exit_code(has_end=False)
