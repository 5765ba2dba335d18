"""`tidemark when`: which position a time means, and when a position was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.errors import ExitCode

if TYPE_CHECKING:
    from tidemark.clock import Lsn
    from tidemark.query.times import Committed


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("when", metavar="LSN|TIMESTAMP|latest")
@click.option("--json", "as_json", is_flag=True, help="For programs: one object.")
def when(lake: Path, when: str, as_json: bool) -> ExitCode:
    """Say which LSN a time means in LAKE, and when the last commit at or below an LSN was. Starts no JVM.

    Commits are not in the order of their times. A read at `latest` sees all that one at the LSN sees, and besides only
    commits right after it that are no later. Where LAKE is polled, polls stand for commits.
    """
    from tidemark.lake.lake import Lake  # not before: it brings Delta
    from tidemark.query.snapshot import LakeView, log_reader
    from tidemark.query.times import position_of, time_of

    opened = Lake.open(lake.absolute())
    view = LakeView(opened, log_reader(opened))
    lsn = position_of(when, view)
    committed = time_of(lsn, view)
    click.echo(json.dumps(_plain(lsn, committed)) if as_json else "\n".join(_lines(lsn, committed)))
    return ExitCode.OK


def _plain(lsn: Lsn, committed: Committed) -> dict[str, str | int | bool | None]:
    return {
        "lsn": str(lsn),
        "commit": str(committed.lsn),
        "time": committed.time.isoformat(),
        "xid": committed.xid,
        "observed": committed.xid is None,
        "latest": committed.latest.isoformat(),
    }


def _lines(lsn: Lsn, committed: Committed) -> list[str]:
    where = f"{committed.lsn}  at {committed.time.isoformat(' ')}"
    return [
        f"lsn      {lsn}",
        f"poll     {where}, observed" if committed.xid is None else f"commit   {where}  by transaction {committed.xid}",
        f"latest   {committed.latest.isoformat(' ')}",
    ]
