"""The options of a receiver process, as one value that can be passed as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.units import format_size

PROCESS = "receive"  # `processName` of the receiver's log records in the parent
BUDGET_BYTES, WAL_LIMIT_BYTES = 64 << 30, 32 << 30
BUFFER_BYTES, BUFFERS = 1 << 20, 8  # data that is read and not yet written


class WalPolicy(Enum):
    """The action when the slot retains more WAL at the source than `wal_limit_bytes`."""

    WARN = "warn"  # log a warning and continue
    HOLD = "hold"  # stop; the slot retains the WAL
    DROP = "drop"  # stop and drop the slot, so that the source can remove WAL; resync --all is required then


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """The options of one receiver process; the suffixes `_s` and `_bytes` are the units."""

    source: Dsn
    folder: Path
    names: MirrorNames
    endpos: Lsn | None = None
    sync_interval_s: float = 0.2
    sync_bytes: int = 32 << 20
    segment_bytes: int = 128 << 20
    budget_bytes: int = BUDGET_BYTES
    wal_limit_bytes: int = WAL_LIMIT_BYTES
    wal_policy: WalPolicy = WalPolicy.WARN
    status_interval_s: float = 10.0
    silence_s: float = 60.0
    watch_interval_s: float = 5.0
    in_use_patience_s: float = 90.0
    as_stored_s: float = 60.0  # how long `conversion` is used after a text that the server could not convert
    slot_wait_s: float | None = None  # how long the first start waits for running transactions; None: no limit
    streaming: bool = True
    binary: bool = True
    accept_altered_publication: bool = False
    archive: str | None = None  # a directory or command, see `log.archive`

    def __post_init__(self) -> None:
        if self.archive is not None and "%p" not in self.archive and not Path(self.archive).is_absolute():
            raise InvalidValue(
                f"invalid archive: {self.archive!r}",
                "Use the absolute path of a directory, or a shell command that contains %p, the path of a file.",
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_s", "_bytes")) and value is not None and not value > 0:
                raise InvalidValue(f"{field.name} must be greater than 0, not {value!r}")
        if self.budget_bytes < 2 * max(self.segment_bytes, BUFFER_BYTES):  # a segment can be one larger block
            raise InvalidValue(
                f"a log budget of {format_size(self.budget_bytes)} is too small for two segments of "
                f"{format_size(self.segment_bytes)}",
                f"Use a `--budget` of at least {format_size(2 * self.segment_bytes)}.",
            )

    def as_json(self) -> str:
        """The options as JSON, which may contain a password in the connection string.

        Pass them only over a pipe that no process but the child reads.
        """
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain |= {
            "source": self.source.reveal(),
            "folder": str(self.folder),
            "names": self.names.mirror,
            "endpos": str(self.endpos) if self.endpos else None,
            "wal_policy": self.wal_policy.value,
        }
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> ReceiveOptions:
        """The options from the result of `as_json`."""
        plain = json.loads(text)
        plain |= {
            "source": Dsn(plain["source"]),
            "folder": Path(plain["folder"]),
            "names": MirrorNames(plain["names"]),
            "endpos": Lsn.parse(plain["endpos"]) if plain["endpos"] else None,
            "wal_policy": WalPolicy(plain["wal_policy"]),
        }
        return cls(**plain)
