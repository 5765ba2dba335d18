"""`tidemark log`: what a log holds, with every checksum looked at."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.clock import Lsn
from tidemark.errors import ExitCode

if TYPE_CHECKING:
    from tidemark.log.inspection import Inspected


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each segment.")
def log(folder: Path, as_json: bool) -> ExitCode:
    """Check every block of the log in FOLDER and say what it holds. Nothing is changed; it may be in use."""
    from tidemark.log.inspection import inspect  # not before: it brings the compiler, half a second

    total = 0
    for segment in inspect(folder):
        total += segment.commits
        click.echo(json.dumps(asdict(segment), default=_plain) if as_json else _line(segment))
    if not as_json:
        click.echo(f"{total:,} transactions, every block sound")
    return ExitCode.OK


def _line(segment: Inspected) -> str:
    size = f"{segment.segment_bytes or 0:,} bytes in {segment.blocks:,} blocks"
    size = size if segment.segment_bytes is not None else "index only"
    commits = f"{segment.commits:,} transactions" + (f" {segment.first} to {segment.last}" if segment.first else "")
    torn = f", {segment.torn_bytes:,} bytes at the end not whole" if segment.torn_bytes else ""
    return f"{segment.number:012d}  {size}  {commits}  position {segment.position}{torn}"


def _plain(value: object) -> str:
    if isinstance(value, Lsn):
        return str(value)
    raise TypeError(value)
