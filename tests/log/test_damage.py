"""Bytes that are not as they were written: a torn tail is cut, damage stops us with its place, nothing is made up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.log.history import START, XID, Row, contents
from tests.log.messages import block, frames, plain, stream_commit
from tests.log.worlds import Quick, World, made
from tidemark.clock import Lsn
from tidemark.errors import LogDamaged
from tidemark.log.blocks import Block, BlockKind, blocks
from tidemark.log.inspection import inspect
from tidemark.log.reader import LogReader
from tidemark.log.recovery import last_position, open_log
from tidemark.log.segment import index_path, segment_path
from tidemark.log.writer import LogWriter

pytestmark = pytest.mark.quick

FIRST = [(100, "t", value) for value in (1, 2, 21, 22, 23, 24)]
SECOND = [(140, "t", 3), (150, "t", 4)]
THIRD = [(160, "t", 5)]


@dataclass(frozen=True, slots=True)
class Small:
    """A small log of two segments, as it is on disk."""

    world: World
    segment: str
    index: str
    closed_segment: str
    closed_index: str

    def blocks(self, name: str) -> list[Block]:
        """The blocks of one of its files."""
        return list(blocks(memoryview(self.world[name]), int(name.split(".")[0])))

    def with_bytes(self, name: str, data: bytes) -> World:
        """The same with another content of one file."""
        return {**self.world, name: data}

    def flipped(self, name: str, start: int = 0, end: int | None = None, step: int = 1) -> Iterator[tuple[int, World]]:
        """With each bit of every byte, or of every few bytes, flipped in turn."""
        data = self.world[name]
        for at in range(start, len(data) if end is None else end, step):
            for bit in range(8):
                yield at, self.with_bytes(name, data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])


def write(folder: Path, *, synced: bool) -> Small:
    """Three blocks of transactions, the first in a segment of its own; the last one is synced or not."""
    writer = open_log(folder, START, segment_bytes=600)
    writer.begin_session(b"{}", XID)
    writer.append(frames(*plain(10, 100, *(value for _, _, value in FIRST), described=True)))
    writer.append(frames(*plain(14, 140, 3), *block(20, 4, first=True), stream_commit(20, 150)), Lsn(155))
    writer.sync()
    writer.append(frames(*plain(16, 160, 5)))
    if synced:
        writer.sync()
    writer.close()
    names = sorted(path.name for path in folder.iterdir() if path.name != "lock")
    closed_index, closed_segment, index, segment, _ = names
    world = {name: (folder / name).read_bytes() for name in names}
    return Small(world, segment, index, closed_segment, closed_index)


@pytest.fixture(params=[True, False], ids=["synced", "unsynced"])
def synced(request: pytest.FixtureRequest) -> bool:
    """Whether the last block was synced."""
    return bool(request.param)


class Opening:
    """Opens worlds."""

    def __init__(self, tmp_path: Path) -> None:
        self._path = tmp_path
        self._made = 0

    def folder(self, world: World) -> Path:
        """A folder that holds the world."""
        self._made += 1
        return made(world, self._path / f"world{self._made}")

    def rows(self, world: World) -> list[Row]:
        """Open the log and read all of it."""
        folder = self.folder(world)
        with open_log(folder, START, Quick()) as writer:
            found = contents(LogReader(folder))
            assert writer.received == max(START, Lsn(155) if SECOND[1] in found else START, Lsn(found[-1][0]))
        return found

    def refused(self, world: World, name: str, at: int | None = None) -> bool:
        """Whether the log is refused for damage of this file, with the place."""
        try:
            self.rows(world)
        except LogDamaged as error:
            place = re.search(r"(\d+\.\w+) .*?byte (\d+)", str(error))
            assert place is not None
            assert place[1] == name
            assert at is None or int(place[2]) == at
            return True
        return False


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    """Opens worlds."""
    return Opening(tmp_path)


def test_a_torn_tail_is_cut_at_every_byte_and_is_damage_where_it_was_synced(
    tmp_path: Path, opening: Opening, synced: bool
) -> None:
    small = write(tmp_path / "log", synced=synced)
    last = small.blocks(small.segment)[-1]
    for size in range(last.offset, last.end):
        world = small.with_bytes(small.segment, small.world[small.segment][:size])
        if synced:
            assert opening.refused(world, small.segment, last.offset)
        else:
            assert opening.rows(world) == FIRST + SECOND


def test_a_torn_tail_of_zeros_or_of_other_bytes_is_cut(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=False)
    whole, last = small.world[small.segment], small.blocks(small.segment)[-1]
    for filling in (b"\0", b"TMk1", b"\xff"):
        torn = whole[: last.offset + 9] + filling * 40
        assert opening.rows(small.with_bytes(small.segment, torn)) == FIRST + SECOND
        assert opening.rows(small.with_bytes(small.segment, whole + filling * 40)) == FIRST + SECOND + THIRD


def test_every_bit_flipped_of_the_last_block_is_damage_or_cuts_it(
    tmp_path: Path, opening: Opening, synced: bool, short: bool
) -> None:
    """In the quick tier every bit of every fifth byte."""
    small = write(tmp_path / "log", synced=synced)
    last = small.blocks(small.segment)[-1]
    for _, world in small.flipped(small.segment, last.offset, last.end, 5 if short else 1):
        if synced:
            assert opening.refused(world, small.segment, last.offset)
        else:
            assert opening.rows(world) == FIRST + SECOND


def test_every_bit_flipped_before_the_tail_is_damage_with_its_place(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=False)
    head, *_, last = small.blocks(small.segment)
    for block_ in small.blocks(small.segment)[:-1]:
        for _, world in small.flipped(small.segment, block_.offset, block_.end, 7 if block_ is head else 1):
            assert opening.refused(world, small.segment, block_.offset)
    assert last.synced == last.offset


def test_a_damaged_head_is_damage_also_when_nothing_follows_it(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=True)
    head = small.blocks(small.segment)[0]
    first = small.blocks(small.index)[0]
    bare = {**small.world, small.segment: small.world[small.segment][: head.end]}
    bare[small.index] = small.world[small.index][: first.end]
    assert opening.rows(bare) == FIRST
    trimmed = {name: data for name, data in bare.items() if name != small.closed_segment}
    for world in (bare, trimmed):
        for at in (0, 4, 8, 30, head.end - 1):
            data = bytearray(world[small.segment])
            data[at] ^= 1
            assert opening.refused({**world, small.segment: bytes(data)}, small.segment, 0)


@pytest.mark.full
def test_every_bit_flipped_of_a_closed_index_is_damage_for_writer_and_reader(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=True)
    for at, world in small.flipped(small.closed_index, step=3):
        inside = next(b for b in small.blocks(small.closed_index) if at < b.end)
        assert opening.refused(world, small.closed_index, inside.offset)
        with pytest.raises(LogDamaged, match=rf"{small.closed_index} is damaged at byte {inside.offset}"):
            LogReader(opening.folder(world)).commits()


@pytest.mark.full
def test_every_bit_flipped_of_the_live_index_loses_nothing(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=True)
    for _, world in small.flipped(small.index, step=7):
        assert opening.rows(world) == FIRST + SECOND + THIRD


def test_a_torn_live_index_shows_a_reader_less_and_loses_nothing(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=True)
    whole = FIRST + SECOND + THIRD
    for size in range(0, len(small.world[small.index]), 7):
        world = small.with_bytes(small.index, small.world[small.index][:size])
        seen = contents(LogReader(opening.folder(world)))
        assert seen == whole[: len(seen)]
        assert opening.rows(world) == whole
    assert opening.rows({name: data for name, data in small.world.items() if name != small.index}) == whole


@pytest.mark.full
def test_a_reader_that_meets_a_damaged_block_says_so(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=True)
    for name in (small.closed_segment, small.segment):
        for found in (block_ for block_ in small.blocks(name) if block_.kind == BlockKind.MESSAGES):
            for _, world in small.flipped(name, found.offset, found.end, 5):
                with pytest.raises(LogDamaged, match=rf"{name} is damaged in the block at byte {found.offset}"):
                    contents(LogReader(opening.folder(world)))


def many(folder: Path, segment_bytes: int = 300) -> LogWriter:
    """A log of several segments."""
    writer = open_log(folder, START, segment_bytes=segment_bytes)
    for lsn in range(100, 200, 10):
        writer.append(frames(*plain(lsn, lsn, lsn, described=True)))
    writer.sync()
    writer.close()
    return writer


def test_a_missing_segment_in_the_row_is_damage(tmp_path: Path) -> None:
    many(tmp_path / "log")
    segment_path(tmp_path / "log", 3).unlink()
    with pytest.raises(LogDamaged, match=r"000000000003\.segment is missing"):
        open_log(tmp_path / "log", START)


def test_a_missing_last_segment_is_damage_also_when_all_others_were_trimmed(tmp_path: Path) -> None:
    for applied in (None, Lsn.ZERO, Lsn(200)):
        folder = tmp_path / f"log{applied and applied.value}"
        many(folder)
        if applied is not None:
            with open_log(folder, START) as writer:
                writer.trim(applied)
        last = max(folder.glob("*.segment"))
        last.unlink()
        with pytest.raises(LogDamaged, match=rf"{last.name} is missing, but its index exists"):
            open_log(folder, START)


def test_a_closed_segment_of_another_size_is_damage(tmp_path: Path) -> None:
    many(tmp_path / "log")
    for path in sorted((tmp_path / "log").glob("*.segment"))[:-1]:
        whole = path.read_bytes()
        for other in (whole[:-1], whole + b"\0", b""):
            path.write_bytes(other)
            with pytest.raises(LogDamaged, match=rf"{path.name} has {len(other)} bytes, but had {len(whole)}"):
                open_log(tmp_path / "log", START)
        path.write_bytes(whole)


def test_files_of_other_names_are_let_be(tmp_path: Path) -> None:
    many(tmp_path)
    for name in ("copy.segment", "notes.index", "000000000001.segment.bak"):
        (tmp_path / name).write_text("mine")
    with open_log(tmp_path, START) as writer:
        assert writer.received == Lsn(190)
    assert len(contents(LogReader(tmp_path))) == 10


def test_a_missing_index_of_a_closed_segment_is_damage_for_writer_and_reader(tmp_path: Path) -> None:
    many(tmp_path / "log")
    index_path(tmp_path / "log", 2).unlink()
    with pytest.raises(LogDamaged, match=r"000000000002\.index is missing"):
        open_log(tmp_path / "log", START)
    with pytest.raises(LogDamaged, match=r"000000000002\.index is missing"):
        LogReader(tmp_path / "log")


def test_looking_at_a_log_finds_how_far_it_reaches_and_its_damage(tmp_path: Path, opening: Opening) -> None:
    small = write(tmp_path / "log", synced=True)
    assert last_position(tmp_path / "log") == Lsn(160)
    assert last_position(tmp_path / "none") is None
    torn = small.world[small.segment][:-1]
    with pytest.raises(LogDamaged, match=rf"{small.segment} is damaged at byte"):
        last_position(opening.folder(small.with_bytes(small.segment, torn)))


def test_an_inspection_tells_damage_of_durable_bytes_from_a_torn_tail(
    tmp_path: Path, opening: Opening, synced: bool
) -> None:
    small = write(tmp_path / "log", synced=synced)
    last = small.blocks(small.segment)[-1]
    for _, world in small.flipped(small.segment, last.offset, last.end, 11):
        folder = opening.folder(world)
        if synced:
            with pytest.raises(LogDamaged, match=rf"{small.segment} is damaged at byte {last.offset}"):
                list(inspect(folder))
        else:
            assert list(inspect(folder))[-1].torn_bytes == last.end - last.offset
