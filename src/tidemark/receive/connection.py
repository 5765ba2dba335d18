"""The replication connection: starts the stream, sends status updates, and detects that the server is gone.

r  Status update   int64 written, int64 flushed, int64 applied, int64 client's time, int8 1 to request a reply
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import psycopg
from psycopg import pq, sql

from tidemark.clock import Lsn
from tidemark.clock.epoch import EPOCH_S
from tidemark.errors import (
    RESYNC_ALL,
    ConnectionLost,
    DecodingFailed,
    ObjectMissing,
    PublicationDiffers,
    SourceError,
)
from tidemark.postgres.session import Session, answered
from tidemark.postgres.sqlstate import error_for, translated
from tidemark.quoting import double_quoted
from tidemark.receive.drain import Drain, Dry
from tidemark.values.kernels import Bytes

_STATUS = struct.Struct("!cQQQqB")
_UNDECODABLE = ("58", "XX")  # the classes of missing and damaged files, and of defects of the server


@dataclass(frozen=True, slots=True)
class Plugin:
    """The options of the pgoutput plugin for a stream."""

    publications: tuple[str, ...]
    streaming: bool
    binary: bool
    as_stored: bool = False  # texts are sent in the encoding of the database; see `conversion`

    def options(self) -> Sequence[tuple[str, str]]:
        """The options of START_REPLICATION.

        Protocol 2 is sufficient: it has streamed transactions, and all supported server versions implement it.
        """
        options = [
            ("proto_version", "2" if self.streaming else "1"),
            ("publication_names", ", ".join(map(double_quoted, self.publications))),
            ("messages", "true"),
        ]
        return options + [(name, "true") for name in ("streaming", "binary") if getattr(self, name)]


class Replication:
    """A running stream, on a non-blocking connection."""

    def __init__(self, session: Session, slot: str, start: Lsn, plugin: Plugin, silence_s: float) -> None:
        self._session = session
        self._pgconn = session.connection.pgconn
        self._silence_s = silence_s
        self._received_at = self._sent_at = time.monotonic()
        self._unsent = False
        self._start(slot, start, plugin)
        self._pgconn.nonblocking = 1
        self.drain = Drain(self._pgconn)

    def _start(self, slot: str, start: Lsn, plugin: Plugin) -> None:
        options = [sql.SQL("{} {}").format(sql.SQL(name), sql.Literal(value)) for name, value in plugin.options()]
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
            sql.Identifier(slot), sql.SQL(str(start)), sql.SQL(", ").join(options)
        )
        doing = f"starting to stream from slot {slot}"
        start_command = command.as_bytes(self._session.connection)
        self._session.send_as_stored(local=False, always=plugin.as_stored)
        with translated(doing):
            self._pgconn.send_query(start_command)
            if not answered(self._pgconn, self._silence_s):
                raise ConnectionLost(
                    f"{doing}: the server did not answer within {self._silence_s:g} s", "Retry the command."
                )
            result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise _refused(doing, result)

    @property
    def socket(self) -> int:
        """The file descriptor to poll."""
        return self._pgconn.socket

    @property
    def wants(self) -> int:
        """The events to poll for; POLLOUT only while data is unsent."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def read(self, buffer: Bytes, used: int) -> tuple[Dry, int]:
        """Fill the buffer from `used` on; returns why reading stopped, and the new end of the data.

        At the end of the stream, `ended` returns the reason.
        """
        before = self.drain.messages
        why, used = self.drain.into(buffer, used)
        if self.drain.messages > before:
            self._received_at = time.monotonic()
        return why, used

    def ended(self) -> SourceError:
        """The error that describes why the stream ended."""
        doing = "receiving from the source"
        if self._pgconn.status == pq.ConnStatus.BAD:
            return ConnectionLost(f"{doing}: {_line(self._pgconn.get_error_message())}", "Retry the command.")
        result = self._pgconn.get_result()
        if result is not None and result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COMMAND_OK):
            return ConnectionLost(
                f"{doing}: the server ended the stream", "Retry the command: the server is shutting down."
            )
        refused = _refused(doing, result)
        if isinstance(refused, ObjectMissing):
            # Before version 18, a change made while the publication did not exist can never be decoded.
            return PublicationDiffers(refused.message, f"The slot cannot pass that change. {RESYNC_ALL}")
        return refused

    def report(self, written: Lsn, flushed: Lsn, *, wants_reply: bool = False) -> None:
        """Report the written and flushed LSNs to the server, which retains WAL that is not flushed."""
        micros = int((time.time() - EPOCH_S) * 1e6)
        update = _STATUS.pack(b"r", written.value, flushed.value, flushed.value, micros, wants_reply)
        with translated("sending the received LSN to the source"):
            self._pgconn.put_copy_data(update)
        self._sent_at = time.monotonic()
        self.flush()

    def flush(self) -> None:
        """Send unsent data, as far as the socket accepts it."""
        with translated("sending the received LSN to the source"):
            self._unsent = self._pgconn.flush() == 1

    def silent_for_s(self) -> float:
        """The time since the last message from the server."""
        return time.monotonic() - self._received_at

    def reset_silence(self) -> None:
        """Restart the silence timeout: while the receiver does not read, silence does not mean a lost connection."""
        self._received_at = time.monotonic()

    def since_sent_s(self) -> float:
        """The time since the last status update."""
        return time.monotonic() - self._sent_at

    def require_alive(self) -> None:
        """Raise ConnectionLost after `silence_s` without a message, even if the socket reports no error."""
        if self.silent_for_s() > self._silence_s:
            raise ConnectionLost(f"the source sent nothing for {self._silence_s:g} s", "Retry the command.")

    def finish(self, patience_s: float = 2.0) -> None:
        """End the stream with CopyDone, so that the slot is released soon; messages that still arrive are discarded."""
        scratch, deadline = np.empty(1 << 20, np.uint8), time.monotonic() + patience_s
        waiting = select.poll()
        waiting.register(self._pgconn.socket, select.POLLIN)
        with suppress(psycopg.Error):
            self._pgconn.put_copy_end()
            while time.monotonic() < deadline and self.read(scratch, 0)[0] is not Dry.ENDED:
                self._pgconn.flush()
                waiting.poll(100)
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


def _refused(doing: str, result: pq.abc.PGresult | None) -> SourceError:
    if result is None:
        return ConnectionLost(f"{doing}: the server closed the connection", "Retry the command.")
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    text = message.decode(errors="replace") if message else _line(result.get_error_message())
    error = error_for(state.decode() if state else None, doing, text)
    if error.sqlstate is not None and error.sqlstate[:2] in _UNDECODABLE:
        hint = f"Read the log of the server, and retry the command. If the server cannot decode its WAL: {RESYNC_ALL}"
        return DecodingFailed(error.message, hint, error.sqlstate)
    return error


def _line(text: str) -> str:
    return " ".join(text.split())
