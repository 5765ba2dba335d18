"""`tidemark status`: how far a mirror has come, and which of its tables can be read where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.observed import unreconciled
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, ReceiveFailed
from tidemark.source.capability import Mode

if TYPE_CHECKING:
    from tidemark.lake.polls import Poll
    from tidemark.lake.status import LakeStatus, TableStatus
    from tidemark.receive.client import Position


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For programs: one object.")
def status(lake: Path, as_json: bool) -> ExitCode:
    """Say how far the mirror in LAKE has come. Starts no JVM and asks the source nothing."""
    from tidemark.lake.status import status_of  # not before: it brings Delta

    found = status_of(lake.absolute())
    receiving = _receiving(found.log) if found.polled is None else None
    if as_json:
        click.echo(json.dumps(_plain(found, receiving), indent=2))
    else:
        for line in _lines(found, receiving):
            click.echo(line)
    return ExitCode.OK


def _receiving(log: Path) -> Position | None:
    from tidemark.receive.client import ReceiveClient

    try:
        with ReceiveClient(log) as client:
            return client.position()
    except ReceiveFailed:
        return None


def _plain(found: LakeStatus, receiving: Position | None) -> dict[str, Any]:
    received, poll = receiving.received if receiving else found.received, found.polled
    return {
        "lake": str(found.lake),
        "mirror": found.mirror,
        "database": found.database,
        "mode": (Mode.LOGICAL if poll is None else Mode.POLL).value,
        "polled_at": poll.time.isoformat() if poll is not None else None,
        "snapshot": str(poll.seen.snapshot) if poll is not None else None,
        "reconciled": str(poll.seen.reconciled) if poll is not None else None,
        "log": str(found.log),
        "received": _text(received),
        "durable": _text(receiving.durable if receiving else None),
        "safe": str(found.safe),
        "known": str(found.known),
        "retained": str(found.retained),
        "behind_bytes": received - found.safe if received is not None else None,
        "receiving": receiving.state if receiving else None,
        "writing": str(found.writer) if found.writer else None,
        "reading": [str(reader) for reader in found.readers],
        "restart_asked_at": found.restart.asked_at if found.restart else None,
        "tables": [_plain_table(table) for table in found.tables],
    }


def _plain_table(table: TableStatus) -> dict[str, Any]:
    return {
        "name": table.name,
        "state": table.state,
        "observed": table.observed,
        "path": table.path,
        "applied": str(table.applied),
        "folded": _text(table.folded),
        "readable": [[str(begin), _text(end)] for begin, end in table.readable],
        "reason": table.reason or None,
        "files": table.files,
        "bytes": table.size_bytes,
        "version_files": table.version_files,
        "version_bytes": table.version_bytes,
    }


def _lines(found: LakeStatus, receiving: Position | None) -> list[str]:
    lines = [*_progress(found, receiving), *(f"reading   {reader}" for reader in found.readers), ""]
    width = max((len(table.name) for table in found.tables), default=0)
    for table in found.tables:
        where = ", ".join(f"{begin} to {end or 'now'}" for begin, end in table.readable) or "nowhere"
        why = f"  ({table.reason})" if table.reason else ""
        folded = f", folded to {table.folded}" if table.folded is not None else ""
        observed = ", observed" if table.observed else ""
        lines.append(f"{table.name:<{width}}  {table.state:<9}  readable {where}{observed}{folded}{why}")
    return lines


def _progress(found: LakeStatus, receiving: Position | None) -> list[str]:
    retained = [f"retained  {found.retained}"] if found.retained > Lsn.ZERO else []
    mirror = f"mirror    {found.mirror} of database {found.database}"
    if found.polled is not None:
        return [f"{mirror}, polled: it is as observed by the last poll", *_polled(found, found.polled), *retained]
    received = receiving.received if receiving else found.received
    behind = f", {received - found.safe:,} bytes behind" if received is not None and received > found.safe else ""
    return [
        mirror,
        f"received  {_text(received) or 'unknown'}  ({receiving.state if receiving else 'nobody receives'})",
        f"safe      {found.safe}{behind}  ({found.writer or 'nobody applies'})",
        f"known     {found.known}",
        *retained,
        *([f"restart   asked for at {found.restart.asked_at}: tidemark sync starts over"] if found.restart else []),
    ]


def _polled(found: LakeStatus, poll: Poll) -> list[str]:
    when = f"{poll.lsn}  at {poll.time.isoformat(' ', 'seconds')}  by snapshot {poll.seen.snapshot}"
    return [
        f"polled    {when}  ({found.writer or 'nobody polls'})",
        f"deletes   {'reconciled by it' if poll.is_reconciled else unreconciled(poll)}",
    ]


def _text(lsn: Lsn | None) -> str | None:
    return str(lsn) if lsn is not None else None
