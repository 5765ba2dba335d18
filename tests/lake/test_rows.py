"""Rows of `changes`: what a stream said, with everything that was sent and a mark for what was not."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.recorded import Recording, decode
from tidemark.lake.columns import OURS, StoredColumn
from tidemark.lake.rows import change_rows
from tidemark.pgoutput.changes import ChangeBatch

pytestmark = pytest.mark.quick

OID, LSN, MICROS, XID = 16384, 0x1_0000_0100, 86_400_000_000, 700
ID, VALUE, AT = (1, "id", 23), (2, "v", 25), (3, "at", 1184)
STORED = (
    StoredColumn("id", 1, pa.int32()),
    StoredColumn("v", 2, pa.string()),
    StoredColumn("at~7", 7, pa.timestamp("us", "UTC")),
)
UNSENT = b"u"

Cell = str | bytes | None


def relation(identity: str = "d") -> bytes:
    columns = b"".join(
        struct.pack("!B", attnum == 1) + name.encode() + b"\0" + struct.pack("!ii", kind, -1)
        for attnum, name, kind in (ID, VALUE, AT)
    )
    return b"R" + struct.pack("!i", OID) + b"public\0t\0" + identity.encode() + struct.pack("!h", 3) + columns


def row(*cells: Cell) -> bytes:
    said = [struct.pack("!h", len(cells))]
    for cell in cells:
        if isinstance(cell, str):
            said.append(b"t" + struct.pack("!i", len(cell.encode())) + cell.encode())
        else:
            said.append(cell or b"n")
    return b"".join(said)


def change(letter: str, *parts: bytes) -> bytes:
    return letter.encode() + struct.pack("!i", OID) + b"".join(parts)


def insert(*cells: Cell) -> bytes:
    return change("I", b"N", row(*cells))


TRUNCATE = b"T" + struct.pack("!ibi", 1, 3, OID)


def transaction(*messages: bytes, n: int = 0) -> list[bytes]:
    start, end = LSN + 100 * n, LSN + 100 * n + 8
    begin = b"B" + struct.pack("!qqi", start, MICROS + n, XID + n)
    commit = b"C" + struct.pack("!bqqq", 0, start, end, MICROS + n)
    return [begin, *messages, commit]


def batch_of(*transactions: Iterable[bytes], identity: str = "d") -> ChangeBatch:
    messages = [message for each in transactions for message in each]
    messages.insert(1, relation(identity))
    (batch,) = decode(Recording.of(messages), {})
    return batch


def values(rows: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))


def test_each_kind_of_change_is_a_row_and_an_update_with_an_old_key_is_two() -> None:
    batch = batch_of(
        transaction(
            insert("1", "one", None),
            change("U", b"N", row("1", "uno", None)),
            change("U", b"K", row("1", None, None), b"N", row("2", "dos", None)),
            change("D", b"K", row("2", None, None)),
            TRUNCATE,
        )
    )
    rows = change_rows(batch, STORED)
    assert values(rows, "_change_type", "_ordinal", "id", "v", "_truncate") == [
        ("insert", 0, 1, "one", None),
        ("update_postimage", 1, 1, "uno", None),
        ("update_preimage", 2, 1, None, None),
        ("update_postimage", 2, 2, "dos", None),
        ("delete", 3, 2, None, None),
        ("truncate", 4, None, None, 3),
    ]


def test_every_row_says_who_committed_it_when_and_where() -> None:
    rows = change_rows(batch_of(transaction(insert("1", "a", None)), transaction(insert("2", "b", None), n=1)), STORED)
    day = datetime(2000, 1, 2, tzinfo=UTC)
    assert values(rows, "_commit_version", "_xid", "_commit_timestamp") == [
        (LSN + 8, XID, day),
        (LSN + 108, XID + 1, day.replace(microsecond=1)),
    ]
    assert rows.schema.names == ["id", "v", "at~7", *OURS.names]
    assert rows.schema.field("at~7").metadata[b"tidemark.attnum"] == b"7"


def test_an_unchanged_value_is_taken_from_an_old_row_that_is_whole() -> None:
    old, new = row("1", "large", "2020-01-01 00:00:00+00"), row("1", UNSENT, None)
    rows = change_rows(batch_of(transaction(change("U", b"O", old, b"N", new)), identity="f"), STORED)
    assert values(rows, "_change_type", "v", "_unchanged") == [
        ("update_preimage", "large", None),
        ("update_postimage", "large", None),
    ]
    assert rows["at~7"].null_count == 1


def test_an_unchanged_value_of_an_old_row_that_was_null_stays_null() -> None:
    old, new = row("1", None, None), row("1", UNSENT, None)
    rows = change_rows(batch_of(transaction(change("U", b"O", old, b"N", new)), identity="f"), STORED)
    assert values(rows, "v", "_unchanged") == [(None, None), (None, None)]


@pytest.mark.parametrize("key", [False, True])
def test_an_unchanged_value_without_an_old_row_is_marked_by_attnum(key: bool) -> None:
    old = [b"K", row("1", None, None)] if key else []
    batch = batch_of(transaction(change("U", *old, b"N", row("2", UNSENT, UNSENT)), insert("3", "c", None)))
    marks = values(change_rows(batch, STORED), "_change_type", "_unchanged")
    preimage = [("update_preimage", None)] if key else []
    assert marks == [*preimage, ("update_postimage", ",2,7,"), ("insert", None)]


def test_a_value_without_a_twin_has_its_text_beside_it_in_old_and_new_rows() -> None:
    old, new = row("1", "a", "infinity"), row("1", "a", "2020-01-01 00:00:00+00")
    batch = batch_of(transaction(change("U", b"O", old, b"N", new), insert("2", "b", "-infinity")), identity="f")
    rows = change_rows(batch, STORED)
    assert values(rows, "at~7", "at~7~text") == [
        (None, "infinity"),
        (datetime(2020, 1, 1, tzinfo=UTC), None),
        (None, "-infinity"),
    ]
    assert b"tidemark.text" in rows.schema.field("at~7~text").metadata


def test_an_unchanged_value_without_a_twin_is_taken_with_its_text() -> None:
    old, new = row("1", "a", "infinity"), row("2", "b", UNSENT)
    rows = change_rows(batch_of(transaction(change("U", b"O", old, b"N", new)), identity="f"), STORED)
    assert values(rows, "at~7", "at~7~text", "_unchanged") == [(None, "infinity", None), (None, "infinity", None)]


def test_only_the_changes_that_are_chosen_are_given_with_both_their_rows() -> None:
    moved = change("U", b"K", row("1", None, None), b"N", row("2", "b", None))
    batch = batch_of(transaction(insert("1", "a", None)), transaction(moved, n=1))
    rows = change_rows(batch, STORED, np.array([False, True]))
    assert values(rows, "_change_type", "id") == [("update_preimage", 1), ("update_postimage", 2)]
    assert len(change_rows(batch, STORED, np.array([False, False]))) == 0


texts = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5))
updates = st.tuples(st.sampled_from("OK-"), st.booleans(), texts, texts)


@given(st.lists(st.one_of(updates, st.just("I"), st.just("D"), st.just("T")), min_size=1, max_size=8))
def test_whatever_stands_beside_it_a_change_gives_the_same_rows(changes: list[Any]) -> None:
    """A batch at once, and its changes one by one."""
    messages = [_message(each, n) for n, each in enumerate(changes)]
    batch = batch_of(transaction(*messages), identity="f")
    together = change_rows(batch, STORED).to_pylist()
    alone = []
    for n, message in enumerate(messages):
        rows = change_rows(batch_of(transaction(message), identity="f"), STORED).to_pylist()
        alone += [{**each, "_ordinal": n} for each in rows]
    assert together == alone


def _message(said: Any, n: int) -> bytes:
    if said == "T":
        return TRUNCATE
    if said == "I":
        return insert(str(n), "new", None)
    if said == "D":
        return change("D", b"O", row(str(n), "old", None))
    old, unsent, before, after = said
    parts = {"O": [b"O", row(str(n), before, None)], "K": [b"K", row(str(n), None, None)], "-": []}[old]
    return change("U", *parts, b"N", row(str(n + 1), UNSENT if unsent else after, None))
