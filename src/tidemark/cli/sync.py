"""`tidemark sync`: a whole database, mirrored with one command."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.options import DurationType, LsnType, name_option, selection_options, source_argument
from tidemark.cli.polling import PollingOptions, poll
from tidemark.cli.showing import Shown, shown
from tidemark.cli.spark import spark_options, started
from tidemark.clock import Lsn
from tidemark.errors import ExitCode, InvalidValue
from tidemark.lake.lake import NAME, Lake
from tidemark.lake.requests import read_restart
from tidemark.source.capability import Choice, Mode, choose_mode
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames
from tidemark.source.selection import Pattern, Selection
from tidemark.source.session import Session
from tidemark.sync.publishing import Meant

if TYPE_CHECKING:
    from tidemark.sync.mirroring import Mirroring

CURRENT, AUTO = "current", "auto"
LEAST_INTERVAL_S = 5.0


class EndType(click.ParamType[Lsn | str]):
    """An LSN, or where the source is when all tables are copied."""

    name = "end"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lsn | str:
        """Check it before anything is done."""
        return CURRENT if value == CURRENT else LsnType().convert(value, param, ctx)


@click.command()
@source_argument
@click.argument("lake", type=click.Path(path_type=Path))
@click.option("--log", "log", type=click.Path(path_type=Path), help="The folder of the log; by default LAKE/_log.")
@name_option
@selection_options
@click.option("--endpos", type=EndType(), metavar="LSN|current",
              help="Stop when every commit at or below this LSN is in the lake; current: where SOURCE is when all "
              "tables are copied.")  # fmt: skip
@click.option("--once", is_flag=True, help="Stop when all tables are copied and have caught up: --endpos current.")
@click.option("--dry-run", is_flag=True, help="Print what would be done: SQL, tables, parts and bytes.")
@click.option(
    "--accept-altered-publication",
    is_flag=True,
    help="Go on although a publication was altered: you are certain that it left no change out.",
)
@click.option("--fold/--no-fold", "folds", default=True, show_default=True, help="Fold tables too, where it pays.")
@click.option(
    "--mode",
    "asked",
    type=click.Choice([AUTO, *(each.value for each in Mode)]),
    default=AUTO,
    show_default=True,
    help="By logical decoding, or by polling where that is not to be had: auto sees which.",
)
@click.option(
    "--interval",
    "interval_s",
    type=DurationType(),
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="When polling: from one poll to the next, 5s at least.",
)
@click.option(
    "--reconcile-every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="When polling: look for rows that are gone at every Nth poll. In between they stay in the mirror.",
)
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Say everything as JSON lines on standard output.")
@click.option("--quiet", is_flag=True, help="Say nothing about the progress.")
def sync(
    source: Dsn, lake: Path, log: Path | None, names: MirrorNames | None, take: tuple[Pattern, ...],
    leave: tuple[Pattern, ...], endpos: Lsn | str | None, once: bool, dry_run: bool,
    accept_altered_publication: bool, folds: bool, asked: str, interval_s: float, reconcile_every: int,
    master: str | None, remote: str | None, conf: tuple[str, ...], as_json: bool, quiet: bool,
) -> ExitCode:  # fmt: skip
    """Mirror SOURCE, or the tables chosen, into LAKE: publish, copy, and follow until stopped.

    Run again, it goes on where it was. Tables stay readable and fresh while others are copied. Where SOURCE has no
    logical decoding for us it is polled: then LAKE shows what the last poll saw, and nothing is created at SOURCE.
    """
    if names is None:
        with Session.open(source, "sync") as session:
            names = MirrorNames.of_database(session.row("select current_database()")[0])
    there = _made_by(lake.absolute())
    meant = Meant(source, names, Selection(take, leave))
    choice = _chosen(asked, there, meant, lake)
    polled = Mode.POLL in (choice.mode, there)
    if polled and isinstance(endpos, Lsn):
        why = choice.why if choice.mode is Mode.POLL else f"{lake} was made by polls"
        raise InvalidValue(f"--endpos {endpos} is for a mirror that follows the stream ({why})", "--once")
    if polled and interval_s < LEAST_INTERVAL_S:
        raise InvalidValue(f"an interval of {interval_s:g} s is too short", f"--interval {LEAST_INTERVAL_S:g}s or more")
    if dry_run:
        from tidemark.sync.outlook import outlook

        click.echo(f"-- {choice.mode.value}: {choice.why}")
        if read_restart(lake.absolute()) is not None:
            click.echo(f"-- {lake} is started over: a new slot is created, and every table is copied again.")
        if polled and choice.mode is Mode.LOGICAL:
            click.echo(f"-- {lake} is polled: after a last poll it follows the stream, and only what is new is copied.")
        click.echo(outlook(meant, polled=choice.mode is Mode.POLL), nl=False)
        return ExitCode.OK
    with shown(as_json=as_json, quiet=quiet) as show:
        show.say(f"{choice.mode.value}: {choice.why}")
        stopped = _stops()
        from tidemark.sync.mirroring import Mirroring, MirroringOptions, require_log  # not before: it brings Spark
        from tidemark.sync.publishing import publish
        from tidemark.sync.restart import RestartOptions, start_over

        explicit = endpos if isinstance(endpos, Lsn) else None
        options = MirroringOptions(
            source, lake.absolute(), names, log.absolute() if log else None, endpos=explicit, folds=folds,
            accept_altered_publication=accept_altered_publication,
        )  # fmt: skip
        restart = RestartOptions(options.receive, options.lake)
        if not polled:
            publish(meant, show.say, begun=(lake / NAME).exists())
            start_over(restart, show.say, lambda: bool(stopped))
            require_log(options.lake, options.log_folder)
        spark = started(master, remote, conf)
        if polled:
            mode = None if asked == AUTO else Mode(asked)
            once_only = once or endpos == CURRENT
            polling = PollingOptions(interval_s, reconcile_every, once_only, folds, options.log_folder, mode)
            if not poll(meant, options.lake, polling, spark, stopped, show):
                return ExitCode.OK
        until = explicit if explicit is not None else CURRENT if once or endpos == CURRENT else None
        while True:
            with Mirroring(options, spark, show.say, lambda: bool(stopped)) as mirroring:
                follow(mirroring, meant, until, stopped, show)
                if stopped or not mirroring.restart_is_asked_for:
                    show.say(f"done at {mirroring.writer.cycle.safe}")
                    if until is not None and not stopped:
                        mirroring.require_copied()
                    return ExitCode.OK
            start_over(restart, show.say, lambda: bool(stopped))


def _chosen(asked: str, there: Mode | None, meant: Meant, lake: Path) -> Choice:
    """How it is mirrored. One that follows the stream stays so; else it goes by what the source can do."""
    if there is Mode.LOGICAL:
        if asked == Mode.POLL.value:
            raise InvalidValue(f"{lake} follows the stream, and is not polled", "another folder for the lake")
        return Choice(there, f"as {lake} was made")
    if asked != AUTO:
        return Choice(Mode(asked), "as was asked for")
    with Session.open(meant.source, "sync") as session:
        return choose_mode(session, meant.source, meant.names, meant.selection, strict=there is None)


def _made_by(lake: Path) -> Mode | None:
    """How a lake came to have what it has; None if there is nothing."""
    if not (lake / NAME).exists():
        return None
    from tidemark.lake.registers import read_cycle, read_seen  # not before: they bring Delta

    if read_seen(lake) is not None:
        return Mode.POLL
    return Mode.LOGICAL if read_cycle(lake).safe > Lsn.ZERO or Lake.open(lake).log.exists() else None


def follow(mirroring: Mirroring, meant: Meant, until: Lsn | str | None, stopped: list[int], show: Shown) -> None:
    """Let a mirror run until it is stopped, or is to be started over, or can be read up to an end.

    What cannot be copied is not waited for.
    """
    from tidemark.sync.publishing import Publishing

    publishing = Publishing(meant, show.say)
    while not stopped and not mirroring.restart_is_asked_for:
        applied = mirroring.step()
        publishing.step()
        show.progress(mirroring.progress)
        if applied is not None:
            show.applied(applied)
        else:
            mirroring.rest()
        if until is None or mirroring.copies > len(mirroring.unable):
            continue
        if until == CURRENT and mirroring.settled:
            until = mirroring.position()
        if isinstance(until, Lsn) and mirroring.reached(until):
            return
    mirroring.writer.tell()


def _stops() -> list[int]:
    """What stops it: a signal, after which the cycle is finished."""
    stopped: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopped
