"""A lake: the identity of its mirror, the directory of its log, and its tables. Reading it needs no JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.clock import Lsn
from tidemark.errors import LakeDamaged, LakeError, LakeMissing, NotTheSameSource
from tidemark.lake.paths import require_plain
from tidemark.lake.registers import Cycle, KnownTables, read_cycle, read_tables
from tidemark.postgres.identity import Identity
from tidemark.schema.history import TableHistory
from tidemark.storage import open_storage

NAME = "_tidemark.json"
FORMAT = 1
_RESTORE = f"Restore {NAME} from a backup of the lake."


@dataclass(frozen=True, slots=True)
class Lake:
    """The identity of a lake, as stored in its file. `log` is the directory of the log that is applied to it."""

    path: Path
    mirror: str
    system_identifier: int
    database_oid: int
    database: str
    version_num: int
    log: Path

    @classmethod
    def open(cls, path: Path) -> Lake:
        """Read the lake in a directory."""
        data = open_storage(path).read(NAME)
        if data is None:
            raise LakeMissing(
                f"{path} is not a Tidemark lake (no {NAME})", f"Create one with `tidemark sync SOURCE {path}`."
            )
        try:
            plain = json.loads(data)
        except ValueError as error:
            raise LakeDamaged(f"{path / NAME} is not valid JSON", _RESTORE) from error
        if not isinstance(plain, dict):
            raise LakeDamaged(f"{path / NAME} is not a JSON object", _RESTORE)
        _require_format(path, plain.get("format"))
        try:
            return cls(
                path,
                plain["mirror"],
                plain["system_identifier"],
                plain["database_oid"],
                plain["database"],
                plain["server_version_num"],
                Path(plain["log"]),
            )
        except (KeyError, TypeError) as error:
            raise LakeDamaged(f"{path / NAME} is incomplete: {error}", _RESTORE) from error

    @staticmethod
    def exists(path: Path) -> bool:
        """Return whether there is a lake in a directory."""
        return open_storage(path).read(NAME) is not None

    def create(self) -> None:
        """Write the lake's file if it does not exist or has another `log`. Rejects a lake of another mirror."""
        require_plain(self.path)
        storage = open_storage(self.path)
        storage.create_root()
        if storage.read(NAME) is None and storage.put_if_absent(NAME, self._packed()):
            return
        found = Lake.open(self.path)
        if (found.mirror, found.system_identifier, found.database_oid) != (
            self.mirror,
            self.system_identifier,
            self.database_oid,
        ):
            raise NotTheSameSource(
                f"{self.path} is the lake of mirror {found.mirror} of database {found.database} in cluster "
                f"{found.system_identifier}, not of mirror {self.mirror} of database {self.database} in cluster "
                f"{self.system_identifier}",
                "Use another directory for this mirror.",
            )
        if found.log != self.log:
            storage.write(NAME, self._packed())

    def _packed(self) -> bytes:
        plain = {
            "format": FORMAT,
            "mirror": self.mirror,
            "system_identifier": self.system_identifier,
            "database_oid": self.database_oid,
            "database": self.database,
            "server_version_num": self.version_num,
            "log": str(self.log),
        }
        return json.dumps(plain, indent=2).encode()

    def require_own(self, identity: Identity) -> None:
        """Reject a source other than the lake's."""
        if (self.system_identifier, self.database_oid) != (identity.system_identifier, identity.database_oid):
            raise NotTheSameSource(
                f"{self.path} is a mirror of database {self.database} in cluster {self.system_identifier}, and the "
                f"source is {identity}",
                "Connect to the source of the lake, or use another directory for this source.",
            )

    def is_continued_by(self, identity: Identity, start: Lsn) -> bool:
        """Return whether a log of this source that starts at `start` contains every change missing from the lake."""
        ours = (self.system_identifier, self.database_oid) == (identity.system_identifier, identity.database_oid)
        applied_lsn = self.cycle().applied_lsn
        return ours and (applied_lsn == Lsn.ZERO or start <= applied_lsn)

    def cycle(self) -> Cycle:
        """Return the watermarks of the lake."""
        return read_cycle(self.path)

    def tables(self) -> dict[int, TableHistory]:
        """Return the history of every table, by OID."""
        return dict(self.known_tables().histories)

    def known_tables(self) -> KnownTables:
        """Return the history of every table, and every type of a column."""
        return read_tables(self.path)


def _require_format(path: Path, found: Any) -> None:
    """Reject a lake of another format, whose contents may have another meaning."""
    if found == FORMAT:
        return
    message = f"{path} has lake format {'none' if found is None else found}, and this Tidemark supports format {FORMAT}"
    if isinstance(found, int) and found > FORMAT:
        raise LakeError(message, "Upgrade Tidemark to a version that supports this format.")
    raise LakeError(message, "Create the lake again in another directory with `tidemark sync SOURCE LAKE`.")
