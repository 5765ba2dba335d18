"""`tidemark status`: the progress of a mirror or of clones, and the state of each table."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.cli.options import DurationType, LakeOrDsnType, SizeType
from tidemark.errors import ExitCode, InvalidValue, ObjectMissing, ReceiveFailed
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import Endpoint
from tidemark.units import format_duration, format_size

if TYPE_CHECKING:
    from tidemark.receive.client import Position

WATCH_S = 2.0


@click.command()
@click.argument("where", metavar="LAKE|TARGET", type=LakeOrDsnType())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, or one per clone.")
@click.option("--watch", is_flag=True, help="Print it again every 2 seconds, until Ctrl-C.")
@click.option("--check", is_flag=True, help="Print one line, and exit with 13 if the mirror is not well.")
@click.option("--max-lag", "max_lag_s", type=DurationType(), help="With --check: the largest age of the mirror's rows.")
@click.option("--max-bytes", type=SizeType(), help="With --check: the largest distance to the source, as 1GB of WAL.")
def status(
    where: Path | Dsn, as_json: bool, watch: bool, check: bool, max_lag_s: float | None, max_bytes: int | None
) -> ExitCode:
    """Show the progress of a mirror in LAKE, or of clones at TARGET.

    TARGET is a libpq connection string or URI. Starts no JVM and does not connect to the source. For a table that
    cannot be read, the reason and the SQL statement or command that fixes it are printed.

    With --check, a mirror is well if its sync runs, is not paused, reports its progress, is not behind by more than the
    limits, has 64 MB of free disk space, and has a slot for which the source retains all WAL.
    """
    if not check and (max_lag_s is not None or max_bytes is not None):
        raise InvalidValue("--max-lag and --max-bytes are limits of --check", "Add `--check`.")
    if check and (watch or isinstance(where, Dsn)):
        raise InvalidValue("--check prints one line about a lake", "Remove `--watch`, and name a lake.")
    if check:
        assert isinstance(where, Path)  # noqa: S101
        return _check(where, max_lag_s, max_bytes)
    if not watch:
        return _print(where, as_json=as_json)
    with suppress(KeyboardInterrupt):
        while True:
            click.clear()
            _print(where, as_json=as_json)
            time.sleep(WATCH_S)
    return ExitCode.OK


def _print(where: Path | Dsn, *, as_json: bool) -> ExitCode:
    return _clones(where, as_json) if isinstance(where, Dsn) else _lake(where, as_json)


def _check(lake: Path, max_lag_s: float | None, max_bytes: int | None) -> ExitCode:
    from tidemark.lake.health import HealthLimits, lag_s, problems_of  # deferred: they import Delta
    from tidemark.lake.status import status_of

    found = status_of(lake)
    problems, behind_s, state = problems_of(found, HealthLimits(max_lag_s, max_bytes)), lag_s(found), found.pipeline
    lag = [format_size(state.lag_bytes)] if state is not None and state.lag_bytes is not None else []
    lag += [format_duration(behind_s)] if behind_s is not None else []
    running = state.state.value if state is not None and found.is_running else "not running"
    words = "; ".join(problems) if problems else f"{running}, lag {', '.join(lag) or 'unknown'}"
    click.echo(f"{'problem' if problems else 'ok'}: {words}")
    return ExitCode.UNHEALTHY if problems else ExitCode.OK


def _clones(target: Dsn, as_json: bool) -> ExitCode:
    from tidemark.cli.clone_status import clone_json, clone_lines
    from tidemark.target.state import read_clones

    with Session.open(target, "status", server=Endpoint.TARGET) as session:
        clones = read_clones(session)
    if not clones:
        raise ObjectMissing(f"there is no clone at {target}", "Run `tidemark clone SOURCE TARGET` to create one.")
    for number, clone in enumerate(clones):
        if as_json:
            click.echo(json.dumps(clone_json(clone)))
        else:
            click.echo("\n".join([*([""] if number else []), *clone_lines(clone)]))
    return ExitCode.OK


def _lake(lake: Path, as_json: bool) -> ExitCode:
    from tidemark.cli.lake_status import lake_json, lake_lines  # deferred: they import Delta
    from tidemark.lake.status import status_of

    found = status_of(lake)
    receiver = _receiver(found.log) if found.last_poll is None else None
    if as_json:
        click.echo(json.dumps(lake_json(found, receiver), indent=2))
    else:
        for line in lake_lines(found, receiver):
            click.echo(line)
    return ExitCode.OK


def _receiver(log: Path) -> Position | None:
    from tidemark.receive.client import ReceiveClient

    try:
        with ReceiveClient(log) as client:
            return client.position()
    except ReceiveFailed:
        return None
