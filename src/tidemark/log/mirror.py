"""The mirror that a log belongs to: the identity of the source and the mirror's name, in a small file in the directory.

The file is replaced atomically. A log without it was never used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import RESYNC_ALL, LogDamaged
from tidemark.log.disk import Disk
from tidemark.postgres.identity import Identity, Switch
from tidemark.storage.local import LocalStorage

NAME = "mirror.json"


@dataclass(frozen=True, slots=True)
class LogMirror:
    """The mirror of a log; `start` is the start of the log, the position of the slot, or None until the slot exists.

    `marks` identify the state of the publications that passed the checks. `complete` is an endpos that was reached:
    every commit at or below it is in the log, although the server may not have sent a position there to continue from.
    `segment` is the number of the first segment, above those of any earlier log in this directory, so that a reader
    never mistakes a segment of one log for a segment of another.
    """

    identity: Identity
    name: str
    start: Lsn | None
    marks: Mapping[str, str] = field(default_factory=dict)
    complete: Lsn = Lsn.ZERO
    segment: int = 1


def read_mirror(folder: Path, disk: Disk) -> LogMirror | None:
    """The mirror that the log in this directory belongs to, or None."""
    data = LocalStorage(folder, disk).read(NAME)
    if data is None:
        return None
    try:
        plain = json.loads(data)
        history = plain["history"]
        switches = None if history is None else tuple(Switch(line, Lsn.parse(lsn)) for line, lsn in history)
        identity = Identity(
            plain["system_identifier"], plain["database_oid"], plain["database"], plain["timeline"], switches
        )
        start = Lsn.parse(plain["start"]) if plain["start"] else None
        complete = Lsn.parse(plain["complete"])
        return LogMirror(identity, plain["name"], start, dict(plain["marks"]), complete, plain["segment"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{folder / NAME} is damaged", f"Restore the file from a backup. {RESYNC_ALL}") from error


def write_mirror(folder: Path, disk: Disk, mirror: LogMirror) -> None:
    """Record the mirror that the log in this directory belongs to."""
    identity = mirror.identity
    history = None if identity.history is None else [[switch.timeline, str(switch.lsn)] for switch in identity.history]
    plain = {
        "system_identifier": identity.system_identifier,
        "database_oid": identity.database_oid,
        "database": identity.database,
        "timeline": identity.timeline,
        "history": history,
        "name": mirror.name,
        "start": str(mirror.start) if mirror.start is not None else None,
        "marks": dict(mirror.marks),
        "complete": str(mirror.complete),
        "segment": mirror.segment,
    }
    LocalStorage(folder, disk).write(NAME, json.dumps(plain, indent=2).encode() + b"\n")
