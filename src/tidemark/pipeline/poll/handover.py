"""The change from polling to the stream once the source supports it: without loss, and with few copies.

The slot is created first, and everything from its position on is received. Then the last poll runs in a snapshot at an
exact LSN at or above that position: it shows what was committed up to that LSN, and the log has the rest. The creation
of such a snapshot waits for every running transaction, and thus for all that began before their tables were published:
what those transactions had written by then is not in the stream.

Until the last poll is recorded, the lake is in poll mode and depends on neither the slot nor the log: an attempt that
fails, or is found later to have been killed, leaves neither behind. The obstacle is logged, and polling continues.
"""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import (
    LogError,
    ObjectExists,
    ReceiveFailed,
    Retry,
    SourceError,
    TidemarkError,
    policy_of,
)
from tidemark.lake.registers import read_cycle, read_seen
from tidemark.log.disk import Disk
from tidemark.log.emptying import empty_log
from tidemark.log.mirror import read_mirror
from tidemark.log.segment import SEGMENT, numbers
from tidemark.log.writer import LOCK, LogLock
from tidemark.logs import fields
from tidemark.pipeline.plan import PipelineOptions
from tidemark.pipeline.poll.poller import Polled, Poller
from tidemark.pipeline.poll.snapshot_session import exact_poll_snapshot
from tidemark.pipeline.publishing import require_published
from tidemark.postgres.capability import Mode, choose_mode
from tidemark.postgres.catalog_reading import read_within
from tidemark.postgres.session import Session
from tidemark.postgres.slot import drop_slot_when_free, read_slot
from tidemark.receive.client import ReceiveClient
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess
from tidemark.schema.fingerprint import Fingerprint
from tidemark.storage import Storage, open_storage

MARK = "_handover"  # contains the log directory of an attempt that has not ended
AGAIN_S = 60.0
SLOT_WAIT_S, LOG_WAIT_S, DROP_WAIT_S = 10.0, 60.0, 10.0
_LOOK_S = 0.05
_LOGGER = logging.getLogger("tidemark.pipeline")


class Handover:
    """Attempts the change every `AGAIN_S` seconds.

    With `insists`, an unmet requirement is an error; otherwise polling continues.
    """

    def __init__(self, poller: Poller, options: PipelineOptions, *, insists: bool) -> None:
        self._poller, self._options, self._log, self._insists = poller, options, options.log_folder, insists
        self._next = 0.0
        self._obstacle = ""  # as last logged

    def attempt(self) -> Polled | None:
        """Run the last poll if an attempt is due and the source supports it; None if polling continues."""
        if time.monotonic() < self._next:
            return None
        try:
            return self._last_poll() if self._is_able() else None
        except (SourceError, LogError, ReceiveFailed) as error:
            if self._insists and policy_of(error).retry is Retry.NEVER:
                raise
            if self._obstacle != error.message:
                _LOGGER.warning("polling continues, logical decoding is not possible yet: %s", error.message)
            self._obstacle = error.message
            return None
        finally:
            self._next = time.monotonic() + AGAIN_S

    def tidy(self) -> None:
        """Remove what an unfinished attempt left behind; log a warning if that is not possible now."""
        try:
            self.discard()
        except (SourceError, LogError) as error:
            slot, message = self._options.names.slot, "could not remove replication slot %s and its log, will retry: %s"
            _LOGGER.warning(message, slot, error.message, extra=fields(slot=slot))

    def discard(self) -> None:
        """Drop the slot and remove the log of an unfinished attempt, while the lake is in poll mode."""
        data = self._storage.read(MARK)
        if data is None:
            return
        if self._follows_the_stream():
            self._storage.delete(MARK)
            return
        with Session.open(self._options.source, "handover") as session:
            drop_slot_when_free(session, self._options.names.slot, DROP_WAIT_S)
        _remove_log(Path(data.decode()))
        self._storage.delete(MARK)

    def _follows_the_stream(self) -> bool:
        lake = self._options.lake
        return read_cycle(lake).applied_lsn > Lsn.ZERO and read_seen(lake) is None

    @property
    def _storage(self) -> Storage:
        return open_storage(self._options.lake)

    def _is_able(self) -> bool:
        source, names = self._options.source, self._options.names
        if not self._insists:
            with Session.open(source, "capability") as session:
                choice = choose_mode(session, source, names, self._options.selection, strict=False)
            if choice.mode is Mode.POLL:
                self._keep_polling(choice.why)
                return False
        self.discard()
        self._require_nothing_there()
        require_published(self._options)
        return True

    def _keep_polling(self, why: str) -> None:
        """Log the reason when it changes; the first one was reported when the mode was chosen."""
        if self._obstacle not in ("", why):
            _LOGGER.info("polling continues: %s", why)
        self._obstacle = why

    def _require_nothing_there(self) -> None:
        """Raise an error if the log or the slot exists: an attempt removes only what it has created."""
        if not _is_unused(self._log, self._options.names.mirror):
            raise ObjectExists(
                f"cannot create a log in {self._log}: the directory is not empty", "Use another directory with `--log`."
            )
        with Session.open(self._options.source, "handover") as session:
            if (slot := read_slot(session, self._options.names.slot)) is not None:
                raise ObjectExists(
                    f"replication slot {slot.name} already exists",
                    f"If the slot is not used, run `SELECT pg_drop_replication_slot('{slot.name}');`; otherwise use "
                    "another mirror name with `--name`.",
                )

    def _last_poll(self) -> Polled:
        mark_attempt(self._storage, self._log)
        done: list[Polled] = []
        try:
            self._poll_beside_the_log(done)
        except BaseException as error:
            if not done or not isinstance(error, TidemarkError):
                self.tidy()
                raise
            # The last poll is recorded.
            _LOGGER.warning("the receiver stopped and is restarted: %s", error.message)
        self._storage.delete(MARK)
        lsn = done[0].upto
        _LOGGER.info("changed from polling to logical decoding at %s", lsn, extra=fields(lsn=lsn))
        return done[0]

    def _poll_beside_the_log(self, done: list[Polled]) -> None:
        source, names = self._options.source, self._options.names
        with ReceiveProcess.start(ReceiveOptions(source, self._log, names, slot_wait_s=SLOT_WAIT_S)) as receiving:
            with self._connected(receiving) as client:
                published = self._published()
                with exact_poll_snapshot(source, SLOT_WAIT_S) as seen:
                    client.wait(seen.lsn, LOG_WAIT_S)
                    done.append(self._poller.hand_over(seen, published))
            receiving.stop()
            receiving.wait()

    def _published(self) -> dict[int, Fingerprint]:
        with Session.open(self._options.source, "handover") as session, session.transaction():
            return dict(read_within(session, self._options.names).tables)

    def _connected(self, receiving: ReceiveProcess) -> ReceiveClient:
        """A client as soon as the log has begun and the receiver accepts it; raises the receiver's error if it ends."""
        while True:
            mirror = read_mirror(self._log, Disk())
            if mirror is not None and mirror.start is not None:
                with suppress(ReceiveFailed):
                    return ReceiveClient(self._log)
            if receiving.process.poll() is not None:
                receiving.wait()
            time.sleep(_LOOK_S)


def _is_unused(folder: Path, name: str) -> bool:
    """Whether a directory has no log, or one that was emptied when this mirror stopped following the stream."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    mirror = read_mirror(folder, Disk()) if names else None
    if mirror is None:
        return names in ([], [LOCK])
    is_emptied = mirror.start is None and mirror.segment > 1 and not numbers(names, SEGMENT)
    return is_emptied and mirror.name == name


def _remove_log(folder: Path) -> None:
    """Remove a log. If the directory had another one before, it is emptied: the numbers of segments are not reused."""
    mirror = read_mirror(folder, Disk()) if folder.exists() else None
    if mirror is None or mirror.segment == 1:
        shutil.rmtree(folder, ignore_errors=True)
        return
    lock = LogLock(folder)
    try:
        empty_log(folder, Disk(), mirror.identity, mirror.name)
    finally:
        lock.release()


def mark_attempt(lake: Storage, log: Path) -> None:
    """Record an attempt before it creates the slot and the log, so that the next process can remove them."""
    lake.write(MARK, str(log).encode())
