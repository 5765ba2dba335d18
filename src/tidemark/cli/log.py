"""`tidemark log`: verify every checksum of a log and list its segments."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.cli.options import DirectoryType, json_option
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.units import format_size

if TYPE_CHECKING:
    from tidemark.log.inspection import Inspected


@click.command()
@click.argument("directory", type=DirectoryType())
@json_option("Print one JSON object per segment.")
def log(directory: Path, as_json: bool) -> ExitCode:
    """Verify the log or the archive in DIRECTORY and list its segments.

    Every block is read and its checksum verified. The log is not changed, and can be in use.
    """
    from tidemark.log.inspection import inspect  # deferred: it imports the compiler, which takes half a second

    total = 0
    for segment in inspect(directory):
        total += segment.commits
        click.echo(json.dumps(_plain(segment)) if as_json else _line(segment))
    if not as_json:
        click.echo(f"{total:,} transactions, all checksums valid")
    return ExitCode.OK


def _line(segment: Inspected) -> str:
    size = f"{format_size(segment.segment_bytes or 0)} in {segment.blocks:,} blocks"
    size = size if segment.segment_bytes is not None else "index only"
    commits = f"{segment.commits:,} transactions" + (f" {segment.first} to {segment.last}" if segment.first else "")
    torn = f", {format_size(segment.torn_bytes)} incomplete at the end" if segment.torn_bytes else ""
    return f"{segment.number:012d}  {size}  {commits}  position {segment.position}{torn}"


def _plain(segment: Inspected) -> dict[str, str | int | None]:
    values = {each.name: getattr(segment, each.name) for each in fields(segment)}
    return {name: str(value) if isinstance(value, Lsn) else value for name, value in values.items()}
