"""The first start of a mirror's receiving: whose log it is, the slot, and where the log begins."""

from __future__ import annotations

from tidemark.clock import Lsn
from tidemark.errors import LogDamaged, NotTheSameSource
from tidemark.log.disk import Disk
from tidemark.log.mirror import NAME, Mirror, read_mirror, write_mirror
from tidemark.log.segment import SEGMENT, numbers
from tidemark.receive.checks import check_slot, check_source
from tidemark.receive.options import ReceiveOptions
from tidemark.source.session import Session
from tidemark.source.slot import create_slot, read_slot


def mirror_of(options: ReceiveOptions, disk: Disk) -> Mirror:
    """Whose log this is. The first time, the slot is created and the log begins at its position.

    A slot that a first start left behind when it was killed is taken over: nothing was confirmed on it.
    """
    mirror = read_mirror(options.folder, disk)
    if mirror is None:
        return _begin(options, disk)
    if mirror.name != options.names.mirror:
        raise NotTheSameSource(
            f"the log in {options.folder} belongs to mirror {mirror.name!r}, not to {options.names.mirror!r}",
            "that mirror's name, or another folder",
        )
    return mirror


def _begin(options: ReceiveOptions, disk: Disk) -> Mirror:
    disk.make_folder(options.folder)
    if numbers(disk.names(options.folder), SEGMENT):
        raise LogDamaged(f"{options.folder} has segments and no {NAME}", "a backup of that file, or another folder")
    with Session.open(options.source, "begin") as session:
        source = check_source(session, options.source, options.names, None, Lsn.ZERO)
        if read_slot(session, options.names.slot) is None:
            start = create_slot(options.source, options.names.slot, options.slot_wait_s).consistent_point
        else:
            start = check_slot(session, options.names, None).confirmed_flush or Lsn.ZERO
    mirror = Mirror(source.identity, options.names.mirror, start, source.marks)
    write_mirror(options.folder, disk, mirror)
    return mirror
