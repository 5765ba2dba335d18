"""`tidemark resync`: have tables copied again, or the whole mirror started over."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.options import DsnType
from tidemark.errors import ExitCode, InvalidValue
from tidemark.lake.history import Kind
from tidemark.lake.lake import Lake
from tidemark.lake.lock import is_held
from tidemark.lake.polls import read_polls
from tidemark.lake.requests import ask_for_restart, ask_for_resync
from tidemark.schema.fingerprint import Fingerprint
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames

_USAGE = "tidemark resync LAKE TABLE…, or tidemark resync LAKE --all [SOURCE]"


@click.command(options_metavar="[--all]")
@click.argument("lake", type=click.Path(path_type=Path))
@click.argument("words", metavar="TABLE…|[SOURCE]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Start the mirror over: a new slot, and every table again.")
def resync(lake: Path, words: tuple[str, ...], everything: bool) -> ExitCode:
    """Have TABLEs of LAKE copied again by the `tidemark sync` that runs, or by the next one.

    Each stays readable meanwhile, and what it was before stays readable for the whole window.

    With --all the mirror is started over in place, when its slot or log is lost or a publication was altered: it gets a
    new slot and a new log, and every table is copied again. What LAKE has applied stays readable; what was committed
    between that and a table's new copy is not known, and reads there are refused. The `tidemark sync` that runs does
    it, or the next one. With SOURCE the new slot is created at once, if no sync runs.
    """
    lake = lake.absolute()
    opened = Lake.open(lake)
    there = [each for each in opened.tables().values() if each.last.kind is not Kind.DROPPED]
    tables = [each.fingerprint for each in there if not each.is_union]  # the others have no rows of their own
    polled = read_polls(lake).last is not None
    if everything:
        return _start_over(opened, words, [each.oid for each in tables] if polled else None)
    if not words:
        raise InvalidValue("no table is named", _USAGE)
    found = _found(lake, tables, words)
    publication = MirrorNames(opened.mirror).publication
    whole = {each.oid for each in tables if publication in {member.publication for member in each.memberships}}
    halves = [] if polled else [table for table, oid in found.items() if oid not in whole]  # polls read all of it
    if halves:
        raise InvalidValue(
            f"{', '.join(halves)} cannot be copied: only inserts and truncates are published",
            "a replica identity, set by the owner; then tidemark setup publishes all of it",
        )
    ask_for_resync(lake, found.values())
    who = "the mirror that runs copies them now" if is_held(lake) else "the next tidemark sync copies them"
    click.echo(f"{len(found)} asked for: {who}")
    return ExitCode.OK


def _found(lake: Path, tables: list[Fingerprint], words: tuple[str, ...]) -> dict[str, int]:
    named = {f"{each.schema}.{each.name}": each.oid for each in tables}
    full = {word: word if "." in word else f"public.{word}" for word in words}
    strange = [word for word, name in full.items() if name not in named]
    if strange:
        raise InvalidValue(
            f"{lake} has no table {', '.join(strange)}", f"one of {', '.join(sorted(named)) or 'none: it is empty'}"
        )
    return {word: named[name] for word, name in full.items()}


def _start_over(lake: Lake, words: tuple[str, ...], polled: list[int] | None) -> ExitCode:
    """Record the request, and carry it out if that is possible now. A polled mirror has no slot to lose."""
    if len(words) > 1:
        raise InvalidValue("--all is for all tables, and names at most a SOURCE", _USAGE)
    source = DsnType().convert(words[0], None, None) if words else None
    if polled is not None:
        ask_for_resync(lake.path, polled)
        click.echo(f"{len(polled)} asked for: the next poll reads them whole")
        return ExitCode.OK
    ask_for_restart(lake.path)
    if is_held(lake.path):
        click.echo("asked for: the mirror that runs is started over now")
    elif source is None:
        click.echo("asked for: the next tidemark sync starts the mirror over, and copies every table")
    else:
        _carry_out(lake, source)
        click.echo("the next tidemark sync copies every table")
    return ExitCode.OK


def _carry_out(lake: Lake, source: Dsn) -> None:
    from tidemark.receive.options import ReceiveOptions
    from tidemark.sync.restart import RestartOptions, start_over

    receive = ReceiveOptions(source, lake.log, MirrorNames(lake.mirror))
    start_over(RestartOptions(receive, lake.path), click.echo)
