"""`tidemark receive`: everything a source commits, into a log on this machine."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from tidemark.cli.options import LsnType, SizeType, name_option, source_argument
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.receive.options import ReceiveOptions, WalPolicy
from tidemark.source.dsn import Dsn
from tidemark.source.names import MirrorNames
from tidemark.source.session import Session

if TYPE_CHECKING:
    from tidemark.receive.receiver import Receiver

_POLICIES = [policy.value for policy in WalPolicy]


@click.command()
@source_argument
@click.option("--log", "folder", type=click.Path(path_type=Path), required=True, help="The folder of the log.")
@name_option
@click.option("--endpos", type=LsnType(), help="Stop when every commit at or below this LSN is in the log.")
@click.option(
    "--budget",
    "budget_bytes",
    type=SizeType(),
    default="64GB",
    show_default=True,
    help="How large the log may become; then nothing is read until the lake has applied some of it.",
)
@click.option(
    "--wal-limit",
    "wal_limit_bytes",
    type=SizeType(),
    default="32GB",
    show_default=True,
    help="How much WAL the slot may hold back at the source before --wal-policy applies.",
)
@click.option(
    "--wal-policy",
    type=click.Choice(_POLICIES),
    default="warn",
    show_default=True,
    help="warn: report and go on. hold: stop; slot and WAL stay. drop: stop and drop the slot; `tidemark resync LAKE "
    "--all` starts the mirror over.",
)
@click.option(
    "--accept-altered-publication",
    is_flag=True,
    help="Go on although a publication was altered: you are certain that it left no change out.",
)
@click.option("--text", is_flag=True, help="Have values sent as text even where all could come in binary.")
@click.option("--quiet", is_flag=True, help="Say nothing about the progress.")
def receive(
    source: Dsn, folder: Path, names: MirrorNames | None, endpos: Lsn | None, budget_bytes: int, wal_limit_bytes: int,
    wal_policy: str,
    accept_altered_publication: bool, text: bool, quiet: bool,
) -> ExitCode:  # fmt: skip
    """Receive from SOURCE into a log, until stopped or until --endpos.

    The first time, the slot tidemark_NAME is created and the log begins at its position; `tidemark setup` must have
    published the tables. Afterwards it goes on where it was. What was received is on disk before it is confirmed.
    """
    if names is None:
        with Session.open(source, "receive") as session:
            names = MirrorNames.of_database(session.row("select current_database()")[0])
    options = ReceiveOptions(
        source,
        folder,
        names,
        endpos=endpos,
        budget_bytes=budget_bytes,
        wal_limit_bytes=wal_limit_bytes,
        wal_policy=WalPolicy(wal_policy),
        binary=not text,
        accept_altered_publication=accept_altered_publication,
    )
    from tidemark.receive.receiver import Receiver  # not before: it brings the compiler, half a second

    receiver = Receiver(options, lambda said: click.echo(f"tidemark receive: {said}", err=True))
    _stop_on_signals(receiver)
    if not quiet:
        threading.Thread(target=_show, args=[receiver], daemon=True).start()
    done = receiver.run()
    click.echo(f"done at {done}")
    return ExitCode.OK


def _stop_on_signals(receiver: Receiver) -> None:
    def stop(_: int, __: FrameType | None) -> None:
        receiver.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _show(receiver: Receiver) -> None:
    """A line every second in which something came."""
    before, shown = 0, ""
    while True:
        time.sleep(1)
        progress = receiver.progress
        if progress is None:
            continue
        line = f"received {progress.received}  durable {progress.durable}  log {progress.size_bytes:,} bytes"
        if line != shown:
            click.echo(f"{line}  {progress.commits - before:,} transactions/s", err=True)
        before, shown = progress.commits, line
