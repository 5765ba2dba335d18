"""The first start of a mirror's receiver: creates `mirror.json` and the slot, at whose position the log starts."""

from __future__ import annotations

from dataclasses import replace

from tidemark.clock import Lsn
from tidemark.errors import RESYNC_ALL, LogDamaged, NotTheSameSource, ObjectExists
from tidemark.log.disk import Disk
from tidemark.log.mirror import NAME, LogMirror, read_mirror, write_mirror
from tidemark.log.segment import SEGMENT, numbers
from tidemark.postgres.session import Session
from tidemark.postgres.slot import SlotWait, create_slot, end_creation, read_slot
from tidemark.receive.checks import check_slot, check_source
from tidemark.receive.options import ReceiveOptions


def mirror_of(options: ReceiveOptions, disk: Disk, wait: SlotWait) -> LogMirror:
    """The mirror that the log belongs to; on the first start the slot is created, and the log starts at its position.

    The caller must hold the lock of the log.
    """
    mirror = read_mirror(options.folder, disk)
    if mirror is not None and mirror.name != options.names.mirror:
        raise NotTheSameSource(
            f"the log in {options.folder} belongs to mirror {mirror.name!r}, not to {options.names.mirror!r}",
            "Pass the `--name` of that mirror, or another directory with `--log`.",
        )
    return mirror if mirror is not None and mirror.start is not None else _begin(options, disk, mirror, wait)


def _begin(options: ReceiveOptions, disk: Disk, begun: LogMirror | None, wait: SlotWait) -> LogMirror:
    """Write `mirror.json` without a start position, then create the slot, then write `mirror.json` with the position.

    After a crash in between, the file proves that an existing slot was created for this log. Without the file, a slot
    belongs to another log, and continuing from its position would miss the data of that log.
    """
    if numbers(disk.names(options.folder), SEGMENT):
        raise LogDamaged(
            f"{options.folder} has segments but no {NAME}", f"Restore that file from a backup. {RESYNC_ALL}"
        )
    with Session.open(options.source, "begin") as session:
        source = check_source(session, options.source, options.names, None, Lsn.ZERO)
        if begun is not None:
            end_creation(session, options.names.slot)
        found = read_slot(session, options.names.slot)
        if found is not None and begun is None:
            raise ObjectExists(
                f"slot {options.names.slot} exists, but {options.folder} is not its log",
                f"Pass the directory of its log with `--log`, or another `--name`. {RESYNC_ALL}",
            )
        segment = begun.segment if begun is not None else 1
        mirror = LogMirror(source.identity, options.names.mirror, None, source.marks, segment=segment)
        write_mirror(options.folder, disk, mirror)
        if found is None:
            start = create_slot(options.source, options.names.slot, wait).consistent_point
        else:
            start = check_slot(session, options.names, None).confirmed_flush or Lsn.ZERO
    mirror = replace(mirror, start=start)
    write_mirror(options.folder, disk, mirror)
    return mirror
