"""The gate: a read at a position waits until the log contains everything up to it, and logs how long that took."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import LogBehind, NotAnswerable, ReceiveFailed
from tidemark.log.reader import LogReader
from tidemark.receive.client import ReceiveClient
from tidemark.units import format_size

LIMIT_S = 10.0
_LOGGER = logging.getLogger("tidemark.mirror")


@dataclass(frozen=True, slots=True)
class Passed:
    """The position up to which the log is complete, the time waited, and the bytes of WAL missing at the start."""

    lsn: Lsn
    seconds: float
    behind_bytes: int


def pass_gate(reader: LogReader, log: Path, lsn: Lsn, limit_s: float = LIMIT_S) -> Passed:
    """Wait until everything up to `lsn` is in the log; raise NotAnswerable after `limit_s` or if no receiver runs.

    If `lsn` is just after the header of a WAL page, the log may end before that header. No commit is in between, so
    the position that was reached is equivalent and is returned.
    """
    begin = time.monotonic()
    reader.refresh()
    behind = max(0, lsn.value - reader.received.value)
    if behind:
        try:
            with ReceiveClient(log) as client:
                lsn = min(lsn, client.wait(lsn, limit_s))
        except LogBehind as error:
            raise NotAnswerable(
                f"{lsn} was not received within {limit_s:g} s: the log is {format_size(behind)} behind",
                "Retry the command with a longer `--wait`, or use `latest`.",
            ) from error
        except ReceiveFailed as error:
            raise NotAnswerable(
                f"{lsn} cannot be read: no process receives from the source, and the log ends at {reader.received}",
                "Run `tidemark sync`, or use `latest`.",
            ) from error
        reader.refresh()
    passed = Passed(lsn, time.monotonic() - begin, behind)
    _LOGGER.debug("waited %.1f ms for %s, %d bytes behind", passed.seconds * 1000, passed.lsn, passed.behind_bytes)
    return passed
