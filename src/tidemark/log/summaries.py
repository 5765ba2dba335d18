"""Summaries of closed indexes, one record for each in one file, from which a search learns which indexes it must read.

The writer appends the record of an index when it closes it, and does not sync it: recovery replaces the file if a
record is missing, is invalid, or belongs to an index that is not closed. A reader ignores invalid records and reads
these indexes instead. The records of removed indexes are dropped when they are more than half of the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tidemark.errors import RESYNC_ALL, LogDamaged
from tidemark.log.blocks import BlockKind, blocks, view
from tidemark.log.disk import Disk
from tidemark.log.index import unpacked_rows
from tidemark.log.segment import INDEX, index_path, numbers
from tidemark.pgoutput.rows import Rows

NAME = "summaries"
_MAGIC = 0x314D5354  # TSM1

# An index: its number, the position at its end, its first and last commit, the range of its transaction IDs, its
# greatest commit time, the number of its commits, and the size of its file. An index without commits has zeros.
SUMMARIES = np.dtype(
    [
        ("number", "<u8"), ("position", "<u8"), ("first", "<u8"), ("last", "<u8"), ("least_xid", "<u8"),
        ("greatest_xid", "<u8"), ("latest", "<i8"), ("commits", "<u8"), ("size_bytes", "<u8"),
    ]
)  # fmt: skip
_RECORD = np.dtype([("summary", SUMMARIES), ("magic", "<u4"), ("checksum", "<u4")])
_CHECKED = _RECORD.itemsize - 4
_SPARE = 1024  # records of removed indexes that are always tolerated


def summary_of(number: int, position: int, size_bytes: int, parts: Iterable[Rows]) -> Rows:
    """The summary, as an array with one element, of an index with these commits."""
    summary = np.zeros(1, SUMMARIES)
    summary["number"], summary["position"], summary["size_bytes"] = number, position, size_bytes
    for commits in parts:
        add_commits(summary, commits)
    return summary


def add_commits(summary: Rows, commits: Rows) -> None:
    """Add further commits to a summary."""
    if not len(commits):
        return
    least, greatest, latest = commits["xid"].min(), commits["xid"].max(), commits["micros"].max()
    if not summary["commits"][0]:
        summary["first"], summary["least_xid"], summary["latest"] = commits["lsn"][0], least, latest
    summary["last"] = commits["lsn"][-1]
    summary["least_xid"] = np.minimum(summary["least_xid"], least)
    summary["greatest_xid"] = np.maximum(summary["greatest_xid"], greatest)
    summary["latest"] = np.maximum(summary["latest"], latest)
    summary["commits"] += np.uint64(len(commits))


def packed_summaries(summaries: Rows) -> bytes:
    """The records of these summaries."""
    records = np.zeros(len(summaries), _RECORD)
    records["summary"], records["magic"] = summaries, _MAGIC
    records["checksum"] = _checksums(records)
    return records.tobytes()


def read_summaries(folder: Path, disk: Disk) -> tuple[Rows, bool]:
    """The valid records in the order of their numbers, and whether all of the file is valid and in this order."""
    path = folder / NAME
    data = disk.read(path) if path.exists() else b""
    whole = len(data) // _RECORD.itemsize
    records = np.frombuffer(data[: whole * _RECORD.itemsize], _RECORD)
    valid = records[(records["magic"] == _MAGIC) & (records["checksum"] == _checksums(records))]["summary"]
    numbers, backwards = np.unique(valid["number"][::-1], return_index=True)
    intact = len(data) == whole * _RECORD.itemsize and len(valid) == whole == len(numbers)
    return valid[::-1][backwards], intact and path.exists()


def has_too_many(size_bytes: int, indexes: int) -> bool:
    """Whether most records of a file are those of removed indexes."""
    return size_bytes // _RECORD.itemsize > 2 * indexes + _SPARE


def repair_summaries(folder: Path, disk: Disk, last: int) -> None:
    """Replace the file, unless it has a valid record of each index before `last`, and of none after."""
    known, intact = read_summaries(folder, disk)
    there = [number for number in numbers(disk.names(folder), INDEX) if number < last]
    missing = sorted(set(there) - set(known["number"].tolist()))
    if (
        intact
        and not missing
        and (known["number"] < last).all()
        and not has_too_many(disk.size(folder / NAME), len(there))
    ):
        return
    read = [_read_summary(folder, disk, number) for number in missing]
    kept = np.concatenate([known[np.isin(known["number"], np.array(there, np.uint64))], *read])
    disk.write_atomically(folder / NAME, packed_summaries(np.sort(kept, order="number")))


def _read_summary(folder: Path, disk: Disk, number: int) -> Rows:
    """Read a closed index for its summary."""
    path = index_path(folder, number)
    data = disk.map(path)
    found = list(blocks(view(data), number))
    end, position = (found[-1].end, max(block.position for block in found)) if found else (0, 0)
    if end != len(data):
        raise LogDamaged(f"{path} is damaged at byte {end}", f"Check the disk and restore the file. {RESYNC_ALL}")
    readable = view(data)
    payloads = (readable[block.start : block.end] for block in found if block.kind == BlockKind.INDEX)
    return summary_of(number, position, end, [unpacked_rows(payloads, str(path)).commits])


def _checksums(records: Rows) -> Rows:
    """The CRC-32 of each record without its checksum, computed for all records byte by byte."""
    data = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), _RECORD.itemsize)
    checksums = np.full(len(records), 0xFFFFFFFF, np.uint32)
    for column in range(_CHECKED):
        checksums = _TABLE[(checksums ^ data[:, column]) & 0xFF] ^ (checksums >> np.uint32(8))
    return checksums ^ np.uint32(0xFFFFFFFF)


def _table() -> Rows:
    """The table of CRC-32: the effect of each byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> np.uint32(1)), table >> np.uint32(1))
    return table


_TABLE = _table()
