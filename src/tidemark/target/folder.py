"""The local directory of a clone: the log, the dumped schema, and a file that names the clone they belong to.

The file is written when the clone is recorded at its target. So the directory of a clone that another target relies on
is never used for this one, and one that no target relies on is used again.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tidemark.errors import LogInUse, NotPermitted, NotTheSameSource, ObjectExists
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.log.writer import LogLock
from tidemark.postgres.capability import Mode
from tidemark.postgres.identity import Identity, locate
from tidemark.postgres.slot import drop_slot_when_free, read_slot
from tidemark.receive.supervision import ORPHAN_S
from tidemark.storage.local import LocalStorage
from tidemark.target.options import CloneOptions
from tidemark.target.schema import DUMPS
from tidemark.target.state import CloneState

NAME = "clone.json"
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class _Owner:
    """The clone of a directory; `target` identifies the database, and `shown` is for messages."""

    id: str
    target: str
    shown: str


class CloneFolder:
    """The directory of the clone with these options."""

    def __init__(self, options: CloneOptions) -> None:
        self._options = options
        self._storage = LocalStorage(options.folder, Disk())

    def own(self, unique: str) -> None:
        """Record that the directory belongs to the clone with this `id`, which the target has recorded."""
        owner = _Owner(unique, self._target(), str(self._options.target))
        self._storage.create_root()
        self._storage.write(NAME, json.dumps(asdict(owner)).encode())

    def is_of(self, state: CloneState) -> bool:
        """Whether no other clone uses the directory."""
        owner = self._owner()
        return owner is None or owner.id == state.id

    def prepare(self, source: Identity, state: CloneState | None, mode: Mode) -> None:
        """Refuse the directory of another clone, and remove what is left of one that no longer exists."""
        owner, log = self._owner(), self._options.log
        mirror = read_mirror(log, Disk()) if log.exists() else None
        if state is not None:
            if not self.is_of(state):
                raise self._refusal(owner)
            self.own(state.id)
            return
        if mirror is not None and not _is_same(mirror.identity, source):
            raise NotTheSameSource(
                f"the log in {log} is that of a clone of {mirror.identity}, not of {source}", self._other()
            )
        if mirror is not None and mirror.name != self._options.names.mirror:
            raise ObjectExists(f"{self._options.folder} is the directory of clone {mirror.name}", self._other())
        is_ours = owner is None or owner.target == self._target()
        has_slot = mode is Mode.LOGICAL and self._has_slot()
        if has_slot and mirror is None:
            slot = self._options.names.slot
            raise ObjectExists(
                f"slot {slot} exists, but {log} is not its log",
                "Pass the directory of its clone with `--state`, or use another `--name`. If that clone is no longer "
                f"needed, run `select pg_drop_replication_slot('{slot}')` at the source.",
            )
        if not is_ours and (has_slot or mirror is None):
            raise self._refusal(owner)
        if owner is not None or (mirror is not None and mirror.start is not None and not has_slot):
            self.remove(slot=has_slot)

    def remove(self, *, slot: bool = False) -> None:
        """Remove the log, and with `slot` its slot, and the dumped schema, which no clone needs."""
        log = self._options.log
        if log.exists():
            lock = _locked(log)
            try:
                if slot:
                    with self._options.open_source() as session:
                        drop_slot_when_free(session, self._options.names.slot)
                shutil.rmtree(log)
            finally:
                lock.release()
        for name in DUMPS:
            shutil.rmtree(self._options.folder / name, ignore_errors=True)
        self._storage.delete(NAME)
        with suppress(OSError):  # it has files of others
            self._options.folder.rmdir()

    def _owner(self) -> _Owner | None:
        data = self._storage.read(NAME)
        return _Owner(**json.loads(data)) if data is not None else None

    def _target(self) -> str:
        """What identifies the database of the target: its server, by address if the role may not read its identity."""
        with self._options.open_target() as session:
            (database,) = session.row("select current_database()::text")
            try:
                found = locate(session, self._options.target, may_replicate=False).identity
            except NotPermitted:
                return f"{session.connection.info.host}:{session.connection.info.port}/{database}"
        return f"{found.system_identifier}/{database}"

    def _has_slot(self) -> bool:
        with self._options.open_source() as session:
            return read_slot(session, self._options.names.slot) is not None

    def _refusal(self, owner: _Owner | None) -> ObjectExists:
        shown = f" into {owner.shown}" if owner is not None else ""
        return ObjectExists(f"{self._options.folder} is the directory of another clone{shown}", self._other())

    def _other(self) -> str:
        return (
            "Use another `--name` for this clone, and another directory if it is given with `--state`. If the other "
            f"clone is no longer needed, drop its slot at its source, and remove {self._options.folder}."
        )


def _locked(log: Path) -> LogLock:
    """Lock the log; wait for the receiver of a killed process, which detects that and stops."""
    deadline = time.monotonic() + ORPHAN_S
    while True:
        try:
            return LogLock(log)
        except LogInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _is_same(one: Identity, other: Identity) -> bool:
    return (one.system_identifier, one.database_oid) == (other.system_identifier, other.database_oid)
