"""`tidemark catalog`: where each table is stored, for engines other than Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tidemark.cli.options import json_option, lake_argument
from tidemark.errors import ExitCode

_HEADER = ("table", "kind", "state", "versions", "delta version", "LSN")


@click.command()
@lake_argument
@json_option("Print catalog.json unchanged.")
def catalog(lake: Path, as_json: bool) -> ExitCode:
    """List where the tables of LAKE are stored, for other engines.

    The same is in LAKE/catalog.json, which `tidemark sync` keeps up to date. Needs no JVM.
    """
    from tidemark.lake.catalog import read_catalog  # deferred: it imports Delta

    found = read_catalog(lake)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return ExitCode.OK
    for line in _table([_HEADER, *map(_row, [*found["tables"], *found["dropped"]])]):
        click.echo(line)
    click.echo(f"As of {found['lsn']}, written at {found['written_at']}.")
    click.echo(f"The current rows are those of the versions with: {found['reading']['current']}.")
    return ExitCode.OK


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    versions = entry["versions"] or {}
    state = f"dropped at {entry['dropped_lsn']}" if entry["state"] == "dropped" else entry["state"]
    if entry["state"] == "waiting":
        state += f": {entry['reason']}"
    if entry.get("partitions"):
        where = f"partitions: {', '.join(f'tables/{oid}' for oid in entry['partitions'])}"
    else:
        where = versions.get("path", "")
    number = str(versions.get("delta_version", ""))
    return f"{entry['schema']}.{entry['name']}", entry["kind"], state, where, number, versions.get("lsn", "")


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
