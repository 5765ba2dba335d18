"""`tidemark receive`: receive the changes of a source into a log on this machine."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.cli.options import LsnType, log_option, name_option, quiet_option, receive_options, source_argument
from tidemark.cli.signals import StopSignals
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.logs import be_quiet, fields
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.receive.options import ReceiveOptions, WalPolicy
from tidemark.units import format_size

if TYPE_CHECKING:
    from tidemark.receive.receiver import Receiver

LINE_S = 60.0
_STOP_S = 0.1
_LOGGER = logging.getLogger("tidemark.receive")


@click.command()
@source_argument
@log_option(required=True)
@name_option
@click.option("--endpos", type=LsnType(), help="Stop when every commit up to this LSN is in the log.")
@receive_options
@click.option("--text", is_flag=True, help="Request values as text even if all can be sent in binary.")
@quiet_option
def receive(
    source: Dsn, log: Path, names: MirrorNames | None, endpos: Lsn | None, budget_bytes: int, wal_limit_bytes: int,
    wal_policy: str, accept_altered_publication: bool, archive: str | None, text: bool, quiet: bool,
) -> ExitCode:  # fmt: skip
    """Receive the changes of SOURCE into a log.

    It runs until it is stopped, or to --endpos.

    `tidemark setup` must have published the tables. The first run creates the replication slot tidemark_NAME, where
    the log begins; later runs resume. Changes are on disk before they are confirmed to SOURCE.
    """
    with StopSignals() as stopping:
        if names is None:
            with Session.open(source, "receive") as session:
                names = MirrorNames.of_database(session.row("select current_database()")[0])
        options = ReceiveOptions(
            source,
            log,
            names,
            endpos=endpos,
            budget_bytes=budget_bytes,
            wal_limit_bytes=wal_limit_bytes,
            wal_policy=WalPolicy(wal_policy),
            binary=not text,
            accept_altered_publication=accept_altered_publication,
            archive=archive,
        )
        from tidemark.receive.receiver import Receiver  # deferred: it imports the compiler, which takes half a second

        if quiet:
            be_quiet()
        receiver = Receiver(options)
        with stopping.deferred():
            threading.Thread(target=_stop, args=[receiver, stopping], daemon=True).start()
            if not quiet:
                threading.Thread(target=_show, args=[receiver], daemon=True).start()
            done = receiver.run()
        if not stopping():
            click.echo(f"complete up to {done}")
            return ExitCode.OK
        click.echo(f"stopped at {done}")
        return stopping.exit_code(has_end=endpos is not None)


def _stop(receiver: Receiver, stopping: StopSignals) -> None:
    """Stop the receiver after a signal."""
    while not stopping():
        time.sleep(_STOP_S)
    receiver.stop()


def _show(receiver: Receiver) -> None:
    """Log the progress once a minute."""
    before = 0
    while True:
        time.sleep(LINE_S)
        progress = receiver.progress
        if progress is None:
            continue
        rate = (progress.commits - before) / LINE_S
        _LOGGER.info(
            "received %s, flushed %s, log %s, %.1f transactions/s",
            progress.received, progress.durable, format_size(progress.size_bytes), rate,
            extra=fields(received_lsn=progress.received, flushed_lsn=progress.durable,
                         log_bytes=progress.size_bytes, transactions_per_s=round(rate, 1)),
        )  # fmt: skip
        before = progress.commits
