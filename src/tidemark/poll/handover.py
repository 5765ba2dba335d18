"""From polls to the stream, once the source is able: nothing is lost in between, and most is not copied for it.

The slot is made first, and everything from its position on is received. Then comes a last poll, in a snapshot that is a
plain LSN at or above that: it shows what was committed up to there, and the log has the rest. Making such a snapshot
waits for every transaction that runs, and so for all that began before their tables were published: what those did by
then is in no stream.

Until the last poll is told the lake is polled, and whoever comes next begins here again, with the slot and the log that
are there. What hinders it is said, and polls go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tidemark.errors import LogError, ReceiveFailed, Retry, SourceError, TidemarkError, policy_of
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.poll.glimpse import exact_glimpse
from tidemark.poll.poller import Polled, Poller
from tidemark.receive.client import ReceiveClient
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess
from tidemark.source.capability import Mode, choose_mode
from tidemark.source.session import Session
from tidemark.sync.publishing import Meant, require_published

AGAIN_S = 60.0
SLOT_WAIT_S, LOG_WAIT_S = 10.0, 60.0
_LOOK_S = 0.05


class Handover:
    """Tried now and then, if the source is able. One who `insists` is refused where it is not; else polls go on."""

    def __init__(self, poller: Poller, meant: Meant, log: Path, tell: Callable[[str], None], *, insists: bool) -> None:
        self._poller, self._meant, self._log, self._tell, self._insists = poller, meant, log, tell, insists
        self._next, self._said = 0.0, ""

    def attempt(self) -> Polled | None:
        """The last poll, if it is time and the source is able; None if polls go on."""
        if time.monotonic() < self._next:
            return None
        try:
            return self._last_poll() if self._is_able() else None
        except (SourceError, LogError, ReceiveFailed) as error:
            if self._insists and policy_of(error).retry is Retry.NEVER:
                raise
            if self._said != error.message:
                self._tell(f"it is polled, and cannot follow the stream yet: {error.message}")
            self._said = error.message
            return None
        finally:
            self._next = time.monotonic() + AGAIN_S

    def _is_able(self) -> bool:
        source, names = self._meant.source, self._meant.names
        if not self._insists:
            with Session.open(source, "capability") as session:
                if choose_mode(session, source, names).mode is Mode.POLL:
                    return False
        require_published(self._meant, self._tell)
        return True

    def _last_poll(self) -> Polled:
        options = ReceiveOptions(self._meant.source, self._log, self._meant.names, slot_wait_s=SLOT_WAIT_S)
        with ReceiveProcess.start(options) as receiving:
            with self._connected(receiving) as client, exact_glimpse(self._meant.source, SLOT_WAIT_S) as seen:
                client.wait(seen.lsn, LOG_WAIT_S)
                polled = self._poller.hand_over(seen)
            receiving.stop()
            with suppress(TidemarkError):  # the next one who receives will say it too
                receiving.wait()
        self._tell(f"polled for the last time at {polled.upto}: from there on it follows the stream")
        return polled

    def _connected(self, receiving: ReceiveProcess) -> ReceiveClient:
        """A client once the log has begun and is received into, or what the process says that it cannot."""
        while True:
            mirror = read_mirror(self._log, Disk())
            if mirror is not None and mirror.start is not None:
                with suppress(ReceiveFailed):
                    return ReceiveClient(self._log)
            if receiving.process.poll() is not None:
                receiving.wait()
            time.sleep(_LOOK_S)
