"""A lake: whose mirror it is, where its log lies, and what its tables are. Reading it needs no JVM."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import LakeDamaged, LakeMissing, NotTheSameSource
from tidemark.lake.files import write_whole
from tidemark.lake.history import TableHistory, of_events
from tidemark.lake.paths import require_plain
from tidemark.lake.registers import Cycle, read_cycle, read_events
from tidemark.source.identity import Identity

NAME = "_tidemark.json"
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Lake:
    """What a lake says of itself, written once. `log` is the folder of the log that it is made from."""

    path: Path
    mirror: str
    system_identifier: int
    database_oid: int
    database: str
    version_num: int
    log: Path

    @classmethod
    def open(cls, path: Path) -> Lake:
        """The lake that lies there."""
        try:
            plain = json.loads((path / NAME).read_bytes())
        except FileNotFoundError as error:
            raise LakeMissing(
                f"there is no lake at {path}: it has no {NAME}", f"tidemark sync SOURCE {path}, which creates one"
            ) from error
        except ValueError as error:
            raise LakeDamaged(f"{path / NAME} is not what we wrote", "a backup of this file") from error
        if not isinstance(plain, dict) or plain.pop("format", None) != _FORMAT:
            raise LakeDamaged(f"{path / NAME} was written by another version", "the version of Tidemark that wrote it")
        try:
            return cls(**{**plain, "path": path, "log": Path(plain["log"])})
        except (KeyError, TypeError) as error:
            raise LakeDamaged(f"{path / NAME} is not what we wrote", "a backup of this file") from error

    def create(self) -> None:
        """Write it, unless it is there; a lake of another mirror is refused."""
        require_plain(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / NAME).exists():
            found = Lake.open(self.path)
            if (found.mirror, found.system_identifier, found.database_oid) != (
                self.mirror,
                self.system_identifier,
                self.database_oid,
            ):
                raise NotTheSameSource(
                    f"{self.path} mirrors database {found.database} of cluster {found.system_identifier} "
                    f"as {found.mirror}, not {self.database} of {self.system_identifier} as {self.mirror}",
                    "another folder for this mirror",
                )
            if found.log == self.log:
                return
        plain = asdict(self) | {"format": _FORMAT, "log": str(self.log)}
        del plain["path"]
        write_whole(self.path / NAME, json.dumps(plain, indent=2))

    def require_own(self, identity: Identity) -> None:
        """Refuse another source."""
        if (self.system_identifier, self.database_oid) != (identity.system_identifier, identity.database_oid):
            raise NotTheSameSource(
                f"{self.path} mirrors database {self.database} of cluster {self.system_identifier}; this is {identity}",
                "the lake's own source, or another folder for this one",
            )

    def is_continued_by(self, identity: Identity, start: Lsn) -> bool:
        """Whether a log of this source, which begins there, leaves out nothing that the lake lacks."""
        ours = (self.system_identifier, self.database_oid) == (identity.system_identifier, identity.database_oid)
        safe = self.cycle().safe
        return ours and (safe == Lsn.ZERO or start <= safe)

    def cycle(self) -> Cycle:
        """How far it has come."""
        return read_cycle(self.path)

    def tables(self) -> dict[int, TableHistory]:
        """What became of every table, by oid."""
        return of_events(read_events(self.path))
