"""Whose log this is: the identity of the source, the slot and the publications, in a small file beside the segments.

It is written whole or not at all. A log without it was never used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import RESYNC_ALL, LogDamaged
from tidemark.log.disk import Disk, write_whole
from tidemark.postgres.identity import Identity, Switch

NAME = "mirror.json"


@dataclass(frozen=True, slots=True)
class Mirror:
    """What a log belongs to. `start` is where it begins: the position of its slot; None while that is being created.

    `marks` tell whether its publications are still the ones that were found fit. `complete` is an end that was reached:
    every commit at or below it is in the log, though the server may have named no position there to go on from.
    `segment` is the number of its first segment: above those of a log that lay here before, so that no reader takes a
    segment of the one for a segment of the other.
    """

    identity: Identity
    name: str
    start: Lsn | None
    marks: Mapping[str, str] = field(default_factory=dict)
    complete: Lsn = Lsn.ZERO
    segment: int = 1


def read_mirror(folder: Path, disk: Disk) -> Mirror | None:
    """The mirror that this folder belongs to, or None."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        plain = json.loads(disk.read(path))
        history = plain["history"]
        switches = None if history is None else tuple(Switch(line, Lsn.parse(lsn)) for line, lsn in history)
        identity = Identity(
            plain["system_identifier"], plain["database_oid"], plain["database"], plain["timeline"], switches
        )
        start = Lsn.parse(plain["start"]) if plain["start"] else None
        complete = Lsn.parse(plain["complete"])
        return Mirror(identity, plain["name"], start, dict(plain["marks"]), complete, plain["segment"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{path} is damaged", f"Restore the file from a backup. {RESYNC_ALL}") from error


def write_mirror(folder: Path, disk: Disk, mirror: Mirror) -> None:
    """Make the folder this mirror's."""
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
    write_whole(disk, folder / NAME, json.dumps(plain, indent=2).encode() + b"\n")
