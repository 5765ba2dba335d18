"""`tidemark resync`: have tables copied anew."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.errors import ExitCode, InvalidValue
from tidemark.lake.history import Kind
from tidemark.lake.lake import Lake
from tidemark.lake.lock import is_held
from tidemark.lake.polls import read_polls
from tidemark.lake.requests import ask_for_resync
from tidemark.source.names import MirrorNames


@click.command()
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("tables", metavar="TABLE…", nargs=-1, required=True)
def resync(lake: Path, tables: tuple[str, ...]) -> ExitCode:
    """Have TABLEs of LAKE copied anew by the `tidemark sync` that runs, or by the next one.

    Each stays readable meanwhile, and what it was before stays readable for the whole window.
    """
    lake = lake.absolute()
    opened = Lake.open(lake)
    there = [each for each in opened.tables().values() if each.last.kind is not Kind.DROPPED]
    tables_of = [each.fingerprint for each in there if not each.is_union]  # the others have no rows of their own
    named = {f"{each.schema}.{each.name}": each.oid for each in tables_of}
    found = {table: named.get(table if "." in table else f"public.{table}") for table in tables}
    strange = [table for table, oid in found.items() if oid is None]
    if strange:
        raise InvalidValue(
            f"{lake} has no table {', '.join(strange)}", f"one of {', '.join(sorted(named)) or 'none: it is empty'}"
        )
    publication = MirrorNames(opened.mirror).publication
    whole = {each.oid for each in tables_of if publication in {member.publication for member in each.memberships}}
    polled = read_polls(lake).last is not None  # then nothing is published, and all is read
    halves = [] if polled else [table for table, oid in found.items() if oid not in whole]
    if halves:
        raise InvalidValue(
            f"{', '.join(halves)} cannot be copied: only inserts and truncates are published",
            "a replica identity, set by the owner; then tidemark setup publishes all of it",
        )
    ask_for_resync(lake, [oid for oid in found.values() if oid is not None])
    who = "the mirror that runs copies them now" if is_held(lake) else "the next tidemark sync copies them"
    click.echo(f"{len(found)} asked for: {who}")
    return ExitCode.OK
