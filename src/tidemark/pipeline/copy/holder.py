"""A small process that holds the snapshot of a large copy, so that the copy can continue after its driver was killed.

    python -m tidemark.pipeline.copy.holder

It reads a JSON object from standard input, imports the snapshot of the driver, exports it again, and prints one line:

    held NAME        the snapshot is held, and NAME is the new export
    failed JSON      it cannot be held; the error with all its fields as JSON

It ends when the copy has ended, when no process has continued the copy for `hold_s` seconds, or when its connection is
lost. While it runs, the source keeps the rows that the snapshot shows, as for any copy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.errors import TidemarkError, UnexpectedSourceError, error_from_json, error_to_json, policy_of
from tidemark.lake.copy_records import is_copying, is_recorded
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts

HOLD_S = 600.0  # after the driver was killed
_INTERVAL_S, _CHECK_S = 0.5, 30.0
_HOLDING = Timeouts(idle_in_transaction_s=0)


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """The input: the source, the driver's snapshot, and the record of the copy."""

    source: Dsn
    snapshot_id: str
    lake: Path
    record: str
    hold_s: float = HOLD_S

    def as_json(self) -> str:
        """The input as JSON, which may contain a password. Pass it only over a pipe that no other process reads."""
        plain = {"source": self.source.reveal(), "snapshot_id": self.snapshot_id, "lake": str(self.lake)}
        return json.dumps({**plain, "record": self.record, "hold_s": self.hold_s})

    @classmethod
    def from_json(cls, text: str) -> HeldCopy:
        """The input from the result of `as_json`."""
        plain: dict[str, Any] = json.loads(text)
        source, lake = Dsn(plain["source"]), Path(plain["lake"])
        return cls(source, plain["snapshot_id"], lake, plain["record"], plain["hold_s"])


class SnapshotHolder:
    """The process, which outlives this one if that is killed; `snapshot_id` is the name of its export."""

    def __init__(self, copy: HeldCopy) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidemark.pipeline.copy.holder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        assert self._process.stderr is not None  # noqa: S101
        with self._process.stdout as stdout, self._process.stderr as stderr:
            with self._process.stdin as stdin:
                stdin.write(copy.as_json())
            result, _, text = stdout.readline().strip().partition(" ")
            if result != "held":
                reason = stderr.read().strip()
                self.close()
                if result == "failed":
                    raise error_from_json(text)
                raise UnexpectedSourceError(f"the process that holds the snapshot of a copy has ended: {reason}")
            self.snapshot_id = text

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


def hold(copy: HeldCopy) -> None:
    """Export the snapshot, print its name, and hold it."""
    with Session.open(copy.source, "hold snapshot", _HOLDING) as session:
        session.begin(snapshot_id=copy.snapshot_id)
        (name,) = session.row("select pg_export_snapshot()")
        _print(f"held {name}")
        seen = checked = time.monotonic()
        while True:
            now = time.monotonic()
            if is_copying(copy.lake, copy.record):
                seen = now
            elif now - seen > copy.hold_s or not is_recorded(copy.lake, copy.record):
                return
            if now - checked > _CHECK_S:
                session.row("select 1")
                checked = now
            time.sleep(_INTERVAL_S)


def main() -> None:
    """Hold a snapshot until its copy has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        hold(HeldCopy.from_json(sys.stdin.read()))
    except TidemarkError as error:
        _print(f"failed {error_to_json(error)}")
        sys.exit(policy_of(error).exit_code)


def _print(line: str) -> None:
    with suppress(BrokenPipeError):  # the driver reads one line
        os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main()
