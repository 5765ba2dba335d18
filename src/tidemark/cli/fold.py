"""`tidemark fold`: merge changes into versions, so that reads are plain scans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.options import json_option, lake_argument
from tidemark.cli.spark import spark_options, started
from tidemark.errors import ExitCode, InvalidValue
from tidemark.units import format_size

if TYPE_CHECKING:
    from tidemark.pipeline.fold.compactor import Foldable, Folded


@click.command()
@lake_argument
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Fold also tables for which it does not pay yet.")
@click.option("--dry-run", is_flag=True, help="Print which tables would be folded, and stop.")
@spark_options
@json_option("Print one JSON object per table.")
def fold(
    lake: Path, tables: tuple[str, ...], everything: bool, dry_run: bool,
    master: str | None, remote: str | None, conf: tuple[str, ...], as_json: bool,
) -> ExitCode:  # fmt: skip
    """Merge the changes of TABLEs of LAKE into their versions.

    Without TABLE, every table is folded for which it pays. Then many small files of folded changes become larger ones.
    Reads return the same rows before, during and after. `tidemark sync` and `tidemark apply` fold in the background
    unless run with --no-fold; this command can run at the same time.
    """
    from tidemark.lake.lake import Lake

    opened = Lake.open(lake)
    known = {each.fingerprint.qualified for each in opened.tables().values()}
    wanted = {name if "." in name else f"public.{name}" for name in tables}
    if unknown := sorted(wanted - known):
        raise InvalidValue(
            f"{lake} has no table {unknown[0]}", f"Run `tidemark tables {lake}` to list the tables that can be read."
        )
    session = started(master, remote, conf)
    from tidemark.lake.shared import shared_folder
    from tidemark.pipeline.fold.compactor import Compactor
    from tidemark.pipeline.sinks.reach import require_reach  # deferred: these import Spark

    require_reach(session, shared_folder(opened.path))
    with Compactor(opened.path, session) as compactor:
        found = compactor.foldable()
        for name in sorted(wanted - {table.name for table in found}):
            _report({"table": name, "result": "nothing to fold"}, as_json=as_json)
        for table in found:
            if wanted and table.name not in wanted:
                continue
            if not (wanted or everything or table.burden.pays):
                _report(_plain(table, "skipped"), as_json=as_json)
            elif dry_run:
                _report(_plain(table, "would be folded"), as_json=as_json)
            else:
                _report(_plain(table, "folded", compactor.fold(table)), as_json=as_json)
        small = [] if dry_run else compactor.compactable()
        for changes in [each for each in small if not wanted or each.name in wanted]:
            done = compactor.compact(changes)
            if done.before:
                files = {"files": done.before, "files_after": done.after}
                _report({"table": changes.name, "result": "compacted", **files}, as_json=as_json)
    return ExitCode.OK


def _plain(table: Foldable, result: str, done: Folded | None = None) -> dict[str, Any]:
    burden = table.burden
    return {
        "table": table.name,
        "result": result,
        "lsn": str(done.upto if done is not None else table.upto),
        "changes": burden.changed_rows,
        "changes_bytes": burden.changed_bytes,
        "rewrite_bytes": round(burden.rewritten_bytes),
        "buckets": done.buckets if done is not None else None,
        "written_bytes": done.size_bytes if done is not None else None,
        "files": None,
        "files_after": None,
    }


def _report(plain: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(plain))
        return
    line = f"{plain['table']}  {plain['result']}"
    if plain.get("files") is not None:
        line += f"  ({plain['files']:,} files of changes became {plain['files_after']:,})"
    if "lsn" in plain:
        line += "" if plain["result"] == "skipped" else f" to {plain['lsn']}"
        line += f"  ({plain['changes']:,} changes, {format_size(plain['changes_bytes'])}"
        line += f"; about {format_size(plain['rewrite_bytes'])} to rewrite"
        line += f"; {format_size(plain['written_bytes'])} written" if plain["written_bytes"] is not None else ""
        line += "; does not pay yet, use --all)" if plain["result"] == "skipped" else ")"
    click.echo(line)
