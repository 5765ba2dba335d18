"""The bytes of assembled rows: segments are mapped into memory, and the checksum of every block is verified before use.

This requires the rows but no index, so any process with access to the directory can read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from tidemark.errors import RESYNC_ALL, LogDamaged, LogDiskFailed, LogTrimmed, MalformedMessage
from tidemark.log.blocks import block_at, view
from tidemark.log.disk import Disk
from tidemark.log.segment import segment_path
from tidemark.pgoutput import scan
from tidemark.pgoutput.changes import ChangeBatch, Limits, LocatedChanges, Scope, Undecodable
from tidemark.pgoutput.extents import ExtentInputs, decode_assembled, locate_assembled
from tidemark.pgoutput.frames import HEAD
from tidemark.pgoutput.messages import Reader, read_relation
from tidemark.pgoutput.rows import Assembled, Rows
from tidemark.schema.relation import Relation
from tidemark.values.kernels import Bytes
from tidemark.values.types import Types


def decoded(
    part: Assembled, folder: Path, types: Types, limits: Limits | None = None, disk: Disk | None = None
) -> Iterator[ChangeBatch | Undecodable]:
    """Decode the changes of these transactions in commit order, starting with the relations in `part.standing`."""
    inputs = ExtentInputs(mapped_segments(part, folder, disk), Scope(), limits or Limits())
    yield from decode_assembled(part, inputs, types)


def located(part: Assembled, folder: Path, limits: Limits | None = None) -> Iterator[LocatedChanges]:
    """Like `decoded`, with the locations of the values instead of the values."""
    yield from locate_assembled(part, ExtentInputs(mapped_segments(part, folder), Scope(), limits or Limits()))


def mapped_segments(part: Assembled, folder: Path, disk: Disk | None = None) -> Mapping[int, Bytes]:
    """Map the segments that these rows refer to, and verify the checksum of every block that contains one of them."""
    disk = disk or Disk()
    wanted = sorted({each for rows in (part.extents, part.standing) for each in _blocks(rows)})
    buffers: dict[int, Bytes] = {}
    for place, offset in wanted:
        path = segment_path(folder, place)
        if place not in buffers:
            buffers[place] = _segment(folder, place, disk)
        if block_at(view(buffers[place]), place, offset) is None:
            raise LogDamaged(
                f"{path} is damaged in the block at byte {offset}",
                f"Run `tidemark log {folder}` to check the log. {RESYNC_ALL}",
            )
    return buffers


def changed_tables(part: Assembled, folder: Path, disk: Disk | None = None) -> frozenset[int]:
    """Return the OIDs of the tables that these transactions change, or changed before a rollback to a savepoint.

    Checksums are verified only if a message is malformed: decoding the changes verifies them.
    """
    disk, found = disk or Disk(), set[int]()
    streamed = np.repeat(part.commits["streamed"] != 0, part.commits["extents"])
    for place in np.unique(part.extents["place"]).tolist():
        chosen = part.extents["place"] == place
        extents = part.extents[chosen]
        starts, ends = extents["start"].astype(np.int64), extents["end"].astype(np.int64)
        try:
            found |= scan.changed_tables(_segment(folder, place, disk), starts, ends, streamed[chosen])
        except MalformedMessage:
            mapped_segments(part, folder, disk)
            raise
    return frozenset(found)


def _segment(folder: Path, place: int, disk: Disk) -> Bytes:
    """Map a segment that must exist."""
    path = segment_path(folder, place)
    found = mapped_file(path, disk)
    if found is None:
        raise LogTrimmed(f"{path} was removed after it was applied", "Retry the command.")
    return found[1]


def _blocks(rows: Rows) -> list[tuple[int, int]]:
    """The blocks that contain the rows, as segment number and offset; runs of rows in the same block count once."""
    place, block = rows["place"].astype(np.int64), rows["block"].astype(np.int64)
    first = np.flatnonzero((np.diff(place, prepend=-1) != 0) | (np.diff(block, prepend=-1) != 0))
    return list(zip(place[first].tolist(), block[first].tolist(), strict=True))


def mapped_file(path: Path, disk: Disk) -> tuple[int, Bytes] | None:
    """The inode number and the map of a file, or None if it does not exist."""
    try:
        return disk.identify(path)
    except LogDiskFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def descriptions(relations: Rows, folder: Path, disk: Disk | None = None) -> tuple[Relation, ...]:
    """Read the Relation messages at these locations; equal ones are returned once, in order of location."""
    relations = np.unique(relations)
    buffers = mapped_segments(Assembled(standing=relations), folder, disk)
    found: dict[Relation, None] = {}
    for place, _, start, end, _, streamed in relations.tolist():
        reader = Reader(buffers[place], start + HEAD, end - start - HEAD)
        reader.bytes(4 if streamed else 0)
        found[read_relation(reader)] = None
    return tuple(found)


def sync_segments(folder: Path, places: Iterable[int], disk: Disk | None = None) -> None:
    """Sync segments that another process writes, before data read from them is relied on."""
    disk = disk or Disk()
    for place in sorted(places):
        disk.sync_path(segment_path(folder, place))
