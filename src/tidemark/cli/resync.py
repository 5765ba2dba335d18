"""`tidemark resync`: request new copies of tables, or restart the whole mirror."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from tidemark.cli.options import lake_argument, source_option
from tidemark.errors import ExitCode, InvalidValue, NotAnswerable
from tidemark.lake.lake import Lake
from tidemark.lake.lock import has_writer
from tidemark.lake.pipeline_state import has_pipeline, read_pipeline_state
from tidemark.lake.polls import read_polls
from tidemark.lake.requests import read_restart, request_restart, request_resync, resyncs_of
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import TableEventKind

_LOOK_S = 0.2
_USAGE = "Run `tidemark resync LAKE TABLE…` for some tables, or `tidemark resync LAKE --all`."


@click.command()
@lake_argument
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Restart the mirror: new slot, new log, all tables.")
@source_option(purpose=", and with --all create the new slot at once if no sync runs")
@click.option("--wait", is_flag=True, help="Wait until the running sync has copied them.")
def resync(lake: Path, tables: tuple[str, ...], everything: bool, source: Dsn | None, wait: bool) -> ExitCode:
    """Copy TABLEs of LAKE again, or all of them with --all.

    The running `tidemark sync` copies them, or the next one. Each table stays readable during the copy, and its history
    stays readable for the whole retention.

    --all restarts the mirror in place, after its slot or log is lost or a publication was altered. Commits between the
    applied LSN and a table's new copy are missing from LAKE, and reads there are refused.
    """
    opened = Lake.open(lake)
    if wait:
        _require_pipeline(lake)
    live = [each for each in opened.tables().values() if each.last.kind is not TableEventKind.DROPPED]
    stored = [each.fingerprint for each in live if not each.is_union]  # a partitioned table has no rows
    polled = read_polls(lake).last is not None
    if everything:
        if tables:
            raise InvalidValue("--all and tables cannot be combined", _USAGE)
        _restart(opened, source, [each.oid for each in stored] if polled else None)
        return _waited(lake, {each.oid for each in stored}) if wait else ExitCode.OK
    if not tables:
        raise InvalidValue("no table to resync", _USAGE)
    found = _found(lake, stored, tables)
    publication = MirrorNames(opened.mirror).publication
    whole = {each.oid for each in stored if publication in {member.publication for member in each.memberships}}
    partial = [] if polled else [table for table, oid in found.items() if oid not in whole]  # a poll reads all rows
    if partial:
        raise InvalidValue(
            f"cannot copy {', '.join(partial)}: only inserts and truncates are published",
            f"Run `ALTER TABLE {partial[0]} REPLICA IDENTITY FULL`, then `tidemark setup SOURCE`.",
        )
    request_resync(lake, found.values())
    by = "the running sync copies them now" if has_writer(lake) else "the next `tidemark sync` copies them"
    click.echo(f"resync of {len(found)} table{'s' * (len(found) != 1)} requested: {by}")
    return _waited(lake, set(found.values())) if wait else ExitCode.OK


def _found(lake: Path, stored: list[Fingerprint], tables: tuple[str, ...]) -> dict[str, int]:
    oids = {each.qualified: each.oid for each in stored}
    names = {table: table if "." in table else f"public.{table}" for table in tables}
    unknown = [table for table, name in names.items() if name not in oids]
    if unknown:
        raise InvalidValue(
            f"{lake} has no table {', '.join(unknown)}", f"Run `tidemark status {lake}` to list the tables."
        )
    return {table: oids[name] for table, name in names.items()}


def _waited(lake: Path, oids: set[int]) -> ExitCode:
    """Wait until tables have been copied; report the reasons of attempts that failed."""
    reported: set[str] = set()
    restarting = read_restart(lake) is not None
    restarted_at = datetime.now(UTC)
    while True:
        pending = {oid: reason for oid, reason in resyncs_of(lake).items() if oid in oids}
        for text in {reason.text for reason in pending.values() if reason.text} - reported:
            click.echo(f"tidemark: {text}", err=True)
            reported.add(text)
        if read_restart(lake) is not None:
            restarted_at = datetime.now(UTC)
        elif not pending and (not restarting or _is_complete(lake, restarted_at)):
            click.echo("copied")
            return ExitCode.OK
        _require_pipeline(lake)
        time.sleep(_LOOK_S)


def _is_complete(lake: Path, restarted_at: datetime) -> bool:
    """Return whether a restarted mirror has copied its tables, or all that it can."""
    if not any(history.last.kind is TableEventKind.RESTARTED for history in Lake.open(lake).tables().values()):
        return True
    state = read_pipeline_state(lake)
    return state is not None and state.state.is_ready and state.since > restarted_at


def _require_pipeline(lake: Path) -> None:
    if not has_pipeline(lake):
        raise NotAnswerable(
            f"no sync is running for {lake}", "Run `tidemark sync SOURCE LAKE`, which copies the tables."
        )


def _restart(lake: Lake, source: Dsn | None, polled: list[int] | None) -> None:
    """Record the request, and carry it out now if no sync runs and `source` is given. A polled mirror has no slot."""
    if polled is not None:
        request_resync(lake.path, polled)
        click.echo(f"resync of {len(polled)} tables requested: the next poll reads them completely")
        return
    request_restart(lake.path)
    if has_writer(lake.path):
        click.echo("restart requested: the running sync restarts the mirror now")
    elif source is None:
        click.echo("restart requested: the next `tidemark sync` restarts the mirror and copies every table")
    else:
        _carry_out(lake, source)
        click.echo("the next `tidemark sync` copies every table")


def _carry_out(lake: Lake, source: Dsn) -> None:
    from tidemark.pipeline.plan import PipelineOptions
    from tidemark.pipeline.restart import restart_if_requested

    restarted = restart_if_requested(PipelineOptions(source, lake.path, MirrorNames(lake.mirror), log=lake.log))
    if restarted is not None:
        click.echo(restarted)
