"""`tidemark pause`, `resume` and `stop`: requests to the running sync of a lake."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.options import EndType, lake_argument
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, NotAnswerable
from tidemark.lake import controls
from tidemark.lake.controls import StopRequest, request_stop
from tidemark.lake.lake import Lake
from tidemark.lake.pipeline_state import has_pipeline


@click.command()
@lake_argument
def pause(lake: Path) -> ExitCode:
    """Pause the sync of LAKE: changes are received, and not applied.

    The running cycle and copies that have begun are completed; then nothing is written to LAKE until `tidemark resume`,
    also if the sync is started again. The receiver continues, so that the source retains no WAL as long as the budget
    of the log lasts. Reads of positions up to the applied LSN work as before.
    """
    Lake.open(lake)
    if not controls.pause(lake):
        click.echo("the sync is paused already")
    else:
        click.echo("paused" if has_pipeline(lake) else "paused: the next `tidemark sync` starts in this state")
    return ExitCode.OK


@click.command()
@lake_argument
def resume(lake: Path) -> ExitCode:
    """Continue the sync of LAKE after a pause."""
    Lake.open(lake)
    if not controls.resume(lake):
        click.echo("the sync is not paused")
    else:
        click.echo("resumed" if has_pipeline(lake) else "resumed: run `tidemark sync` to continue")
    return ExitCode.OK


@click.command()
@lake_argument
@click.option(
    "--at",
    type=EndType(),
    metavar="LSN|current",
    help="Stop when commits up to this LSN, or the current one, can be read.  [default: at once]",
)
def stop(lake: Path, at: Lsn | str | None) -> ExitCode:
    """Stop the running sync of LAKE after its cycle.

    Without --at it finishes the running cycle, as after SIGTERM. With --at it ends as with `tidemark sync --endpos`. In
    both cases its exit code is 0. If the sync ends before it reaches the position of --at, the next sync ends there.
    """
    Lake.open(lake)
    if not has_pipeline(lake):
        raise NotAnswerable(f"no sync is running for {lake}", "Run `tidemark status` to find out since when.")
    request_stop(lake, StopRequest(at))
    click.echo("stop requested" + ("" if at is None else f" at {at}"))
    if at is not None and controls.is_paused(lake):
        click.echo(f"the sync is paused: it ends after `tidemark resume {lake}`")
    return ExitCode.OK
