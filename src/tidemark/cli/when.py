"""`tidemark when`: the LSN of a time, and the time of an LSN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.cli.options import json_option, lake_argument
from tidemark.errors import ExitCode
from tidemark.mirror.positions import RELATIVE

if TYPE_CHECKING:
    from tidemark.clock import Lsn
    from tidemark.mirror.times import Committed


class _WithRelativeTimes(click.Command):
    """A command whose last argument may be a relative time, such as -5m, which click would take for an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move a relative time behind all options."""
        relative = [each for each in args if RELATIVE.fullmatch(each)]
        if relative and "--" not in args:
            args = [*(each for each in args if each not in relative), "--", *relative]
        return super().parse_args(ctx, args)


@click.command(cls=_WithRelativeTimes)
@lake_argument
@click.argument("when", metavar="POSITION")
@json_option()
def when(lake: Path, when: str, as_json: bool) -> ExitCode:
    """Show the LSN of a time in LAKE, or the time of an LSN.

    Both are shown, with the last commit at or before the LSN.

    POSITION is `latest`, an LSN such as 16/B374D848, a time such as "2026-01-31 09:00", or a relative time such as -5m,
    -1d or "yesterday 09:00". Times are in UTC unless they have a zone.

    Commit times are not in the order of LSNs: `latest` is the greatest commit time up to the LSN, and a read at that
    time includes everything that a read at the LSN includes. For a polled mirror, polls take the place of commits.
    Starts no JVM.
    """
    from tidemark.lake.lake import Lake  # deferred: it imports Delta
    from tidemark.mirror.times import position_of, time_of
    from tidemark.reads.snapshot import LakeView, log_reader

    opened = Lake.open(lake)
    view = LakeView(opened, log_reader(opened))
    lsn = position_of(when, view)
    committed = time_of(lsn, view)
    click.echo(json.dumps(_plain(lsn, committed)) if as_json else "\n".join(_lines(lsn, committed)))
    return ExitCode.OK


def _plain(lsn: Lsn, committed: Committed) -> dict[str, str | int | bool | None]:
    return {
        "lsn": str(lsn),
        "commit_lsn": str(committed.lsn),
        "commit_time": committed.time.isoformat(),
        "xid": committed.xid,
        "polled": committed.xid is None,
        "latest_time": committed.latest.isoformat(),
    }


def _lines(lsn: Lsn, committed: Committed) -> list[str]:
    where = f"{committed.lsn}  at {committed.time.isoformat(' ')}"
    return [
        f"lsn      {lsn}",
        f"poll     {where}" if committed.xid is None else f"commit   {where}  by transaction {committed.xid}",
        f"latest   {committed.latest.isoformat(' ')}",
    ]
