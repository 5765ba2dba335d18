"""A thread with a second, ordinary session on the source, which monitors the slot and emits nudges.

A nudge is one transactional logical message, committed with synchronous_commit=local. It advances the stream past all
earlier commits, for all waiting clients. At intervals the thread checks the slot, the WAL that it retains and the
publications, and reads the current transaction ID. If the connection fails, the checks are repeated later; a failed
check ends the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from psycopg import sql

from tidemark.clock import Lsn, Xid8
from tidemark.errors import (
    RESYNC_ALL,
    NotPermitted,
    Retry,
    TidemarkError,
    UnexpectedSourceError,
    UnsupportedServer,
    WalLimitReached,
    policy_of,
)
from tidemark.logs import fields
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.slot import drop_slot_when_free
from tidemark.receive.checks import check_marks, check_publications, check_slot_alive, read_xid
from tidemark.receive.options import ReceiveOptions, WalPolicy
from tidemark.restarts import next_pause_s
from tidemark.units import format_size

PREFIX = "tidemark"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_SHARES = (0.5, 0.8)  # fractions of the limit at which a warning is logged
_LOGGER = logging.getLogger("tidemark.receive")


@dataclass(frozen=True, slots=True)
class Nudged:
    """The last nudge: the last request that it covers, and the LSN of its message or the reason for its failure."""

    number: int
    lsn: Lsn
    failure: TidemarkError | None


class Watch:
    """The monitoring thread; the main loop sets `marks`, calls `nudge`, and reads the other public attributes.

    `renewed` are the marks to store from now on, after a change to a publication that omitted no changes.
    """

    def __init__(self, options: ReceiveOptions) -> None:
        self._options = options
        self._wanted = threading.Event()
        self._stopping = False
        self._asked = 0
        self.nudged = Nudged(0, Lsn.ZERO, None)
        self._warned = 0.0
        self.marks: Mapping[str, str] = {}
        self.renewed: Mapping[str, str] | None = None
        self._lost: set[str] = set()
        self.xid: Xid8 | None = None
        self.failure: TidemarkError | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def nudge(self) -> int:
        """Request a nudge, and return the number of the request.

        One message serves all requests that are made before it is emitted.
        """
        self._asked += 1
        self._wanted.set()
        return self._asked

    def close(self) -> None:
        """End the thread."""
        self._stopping = True
        self._wanted.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping:
            try:
                with Session.open(self._options.source, "watch", Timeouts(statement_s=10)) as session:
                    pause_s = 0.0
                    self._serve(session)
            except TidemarkError as error:
                self.nudged = Nudged(self._asked, self.nudged.lsn, error)
                if policy_of(error).retry is Retry.NEVER and not self._stopping:
                    self.failure = error
                    return
                pause_s = next_pause_s(pause_s, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                time.sleep(pause_s)
            except Exception as error:  # noqa: BLE001 - monitoring must not end without an error
                self.failure = UnexpectedSourceError(
                    f"monitoring the source failed: {error!r}", "Report the error as a bug."
                )
                return

    def _serve(self, session: Session) -> None:
        looked = 0.0
        while not self._stopping:
            if time.monotonic() - looked >= self._options.watch_interval_s:
                self._look(session)
                looked = time.monotonic()
            if self._asked > self.nudged.number:
                self.nudged = self._emit(session, self._asked)
            left_s = looked + self._options.watch_interval_s - time.monotonic()
            if self._wanted.wait(max(0.0, left_s)):
                self._wanted.clear()

    def _emit(self, session: Session, number: int) -> Nudged:
        """Emit a logical message.

        If the role lacks the privilege or the source is a standby, only the clients that requested it get the error.
        """
        try:
            with session.transaction(read_only=False):
                session.execute(sql.SQL("set local synchronous_commit = local").format(), "emitting a logical message")
                (lsn,) = session.row("select pg_logical_emit_message(true, %s, '')::text", [PREFIX])
            return Nudged(number, Lsn.parse(lsn), None)
        except (NotPermitted, UnsupportedServer) as error:
            return Nudged(number, self.nudged.lsn, error)

    def _look(self, session: Session) -> None:
        slot = check_slot_alive(session, self._options.names)
        with session.transaction():
            check_publications(session, self._options.names)
            present = check_marks(session, self._options.names, self.marks)
        self._notice_lost(present)
        kept = {key: present.get(key, mark) for key, mark in self.marks.items()}
        if kept != self.marks:
            self.marks = self.renewed = kept
        self.xid = read_xid(session)
        self._judge(slot.retained_bytes or 0)

    def _notice_lost(self, present: Mapping[str, str]) -> None:
        for lost in sorted(set(self.marks) - set(present) - self._lost):
            self._lost.add(lost)
            warn_not_published(lost)

    def _judge(self, retained: int) -> None:
        share = retained / self._options.wal_limit_bytes
        step = max((step for step in (*_SHARES, 1.0) if share >= step), default=0.0)
        if step > self._warned:
            slot, limit = self._options.names.slot, self._options.wal_limit_bytes
            _LOGGER.warning(
                "slot %s retains %s of WAL, %.0f%% of the limit; %s",
                slot, format_size(retained), 100 * share, stated(self._options),
                extra=fields(slot=slot, retained_bytes=retained, limit_bytes=limit),
            )  # fmt: skip
        self._warned = step
        if share < 1.0 or self._options.wal_policy is WalPolicy.WARN:
            return
        raise WalLimitReached(
            f"slot {self._options.names.slot} retains {format_size(retained)} of WAL; {stated(self._options)}",
            _HINTS[self._options.wal_policy],
        )


_HINTS = {
    WalPolicy.HOLD: "Run `tidemark status LAKE` to find what is behind, or raise `--wal-limit`.",
    WalPolicy.DROP: RESYNC_ALL,
}
_OUTCOMES = {
    WalPolicy.WARN: "log a warning",
    WalPolicy.HOLD: "stop and keep the slot",
    WalPolicy.DROP: "stop and drop the slot",
}


def stated(options: ReceiveOptions) -> str:
    """The WAL retention limit and its policy, for messages."""
    limit, policy = format_size(options.wal_limit_bytes), options.wal_policy
    return f"WAL retention limit {limit}, policy: {policy.value} ({_OUTCOMES[policy]})"


def warn_not_published(mark: str) -> None:
    """Log a warning that a table was removed from a publication."""
    publication, _, oid = mark.partition(" oid ")
    _LOGGER.warning(
        "the table with oid %s was removed from publication %s: its changes are not received",
        oid, publication, extra=fields(oid=oid, publication=publication),
    )  # fmt: skip


def drop_slot_by_policy(options: ReceiveOptions, error: TidemarkError) -> None:
    """Drop the slot if the policy is `drop` and `error` is the reached limit; waits until the slot is free."""
    if isinstance(error, WalLimitReached) and options.wal_policy is WalPolicy.DROP:
        with Session.open(options.source, "drop slot") as session:
            drop_slot_when_free(session, options.names.slot)
