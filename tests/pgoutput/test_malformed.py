"""Damaged input: refused by a typed error with its place, never a crash, a hang or a made-up value."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.decoding import StreamDecoder
from harness.recorded import Recording, decode
from tidemark.clock import Lsn
from tidemark.errors import DecodeError, MalformedMessage, MalformedValue
from tidemark.pgoutput.changes import ChangeBatch, Undecodable
from tidemark.pgoutput.frames import framed
from tidemark.values.cells import Cells
from tidemark.values.copy import SIGNATURE, CopyDecoder
from tidemark.values.types import Types, decoding_of

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_two_hundred_thousand_damaged_frames_are_decoded_or_refused() -> None:
    """A process of `make fuzz`, with kernels that check their bounds; a hang would end it by the time limit."""
    command = [sys.executable, "-m", "tests.pgoutput.fuzz", "--frames", "200000", "--seed", "1"]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2700, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "200000 damaged frames" in done.stdout
    assert "with bounds checks" in done.stdout


INT4, TEXT = (decoding_of(oid, -1, Types()) for oid in (23, 25))
ROW = b"\0\2\0\0\0\4\0\0\0\7\0\0\0\3abc"
HEADER = SIGNATURE + bytes(8)
COPY = HEADER + ROW * 3 + b"\xff\xff"


def copied(*pieces: bytes) -> list[tuple[int, str]]:
    decoder = CopyDecoder([INT4, TEXT], batch_rows=2, chunk_bytes=0)
    batches = [batch for piece in pieces for batch in decoder.feed(piece)]
    batches += decoder.finish()
    assert max((batch.rows for batch in batches), default=0) <= 2
    columns = ([column.array.to_pylist() for column in batch.columns] for batch in batches)
    return [(number, text) for numbers, texts in columns for number, text in zip(numbers, texts, strict=True)]


def test_a_copy_split_at_any_byte_or_at_every_byte_is_the_same() -> None:
    whole = [(7, "abc")] * 3
    assert copied(COPY) == whole
    for at in range(len(COPY) + 1):
        assert copied(COPY[:at], COPY[at:]) == whole
    assert copied(*(COPY[at : at + 1] for at in range(len(COPY)))) == whole


def test_a_copy_of_no_rows_and_one_with_an_extension() -> None:
    assert copied(HEADER + b"\xff\xff") == []
    extended = SIGNATURE + b"\0\0\0\0\0\0\0\3xyz" + ROW + b"\xff\xff"
    assert copied(extended) == copied(extended[:21], extended[21:]) == [(7, "abc")]


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((b"PGCOPX",), "signature"),
        ((SIGNATURE + b"\0\1\0\0\0\0\0\0",), "flags"),
        ((SIGNATURE + b"\0\0\0\0\xff\xff\xff\xff",), "extension"),
        ((HEADER + ROW,), "without a trailer"),
        ((HEADER + ROW[:9],), "without a trailer"),
        ((b"",), "without a trailer"),
        ((HEADER + b"\0\1\0\0\0\4\0\0\0\7",), "not a row of 2 fields"),
        ((HEADER + b"\0\2\xff\xff\xff\xfe",), "not a row of 2 fields"),
        ((COPY + b"x",), "after the trailer"),
        ((COPY, b"x"), "after the trailer"),
        ((COPY, COPY), "after the trailer"),
    ],
)
def test_a_copy_that_is_none_is_refused(pieces: tuple[bytes, ...], said: str) -> None:
    with pytest.raises(MalformedMessage, match=said):
        copied(*pieces)


def test_a_length_that_is_absurd_waits_for_bytes_and_allocates_nothing() -> None:
    decoder = CopyDecoder([INT4, TEXT], chunk_bytes=0)
    assert list(decoder.feed(HEADER + b"\0\2\x7f\xff\xff\xff" + bytes(100))) == []
    with pytest.raises(MalformedMessage, match="without a trailer"):
        list(decoder.finish())


def test_a_row_larger_than_its_pieces_is_looked_at_once_it_is_whole() -> None:
    text = b"x" * 3_000_000
    raw = HEADER + b"\0\2\0\0\0\4\0\0\0\7" + len(text).to_bytes(4) + text + b"\xff\xff"
    assert copied(*(raw[at : at + 1000] for at in range(0, len(raw), 1000))) == [(7, text.decode())]


def test_a_table_without_columns_has_rows_all_the_same() -> None:
    decoder = CopyDecoder([])
    assert [batch.rows for batch in (*decoder.feed(HEADER + b"\0\0" * 5 + b"\xff\xff"), *decoder.finish())] == [5]


def test_a_relation_of_absurdly_many_columns_allocates_nothing_for_rows_that_have_none() -> None:
    wide = b"R\0\0\0\1s\0t\0d\x06\x40" + b"\0c\0\0\0\0\x17\xff\xff\xff\xff" * 1600
    rows = [b"I\0\0\0\1N\x06\x40"] * 60_000
    with pytest.raises(MalformedMessage, match="not a change of 1600 columns"):
        decode(Recording.of([b"B" + bytes(20), wide, *rows, b"C" + bytes(25)]), {})


def test_a_bad_value_is_named_with_its_type_place_and_bytes() -> None:
    with pytest.raises(
        MalformedValue, match=r"invalid value of type int4 \(3 bytes at offset 25\): 00 00 07"
    ) as caught:
        copied(HEADER + b"\0\2\0\0\0\3\0\0\7\0\0\0\3abc\xff\xff")
    assert caught.value.offset == 25
    assert caught.value.hint


BAD_TEXTS = {
    16: ["", "x", "tt"],
    21: ["", "-", "1a", "32768", "-32769", "+1", " 1"],
    20: ["9223372036854775808", "-9223372036854775809", "99999999999999999999"],
    26: ["-1", "4294967296"],
    701: ["", "x", "1e999", "inf", "-nan", "1.0x"],
    700: ["1e300"],
    1700: ["", "-", ".", "1.", ".5", "hello", "1e5", "NaNa", "InABCDEy", "1.2.3"],
    17: ["", "x", "\\x0", "\\xzz", "ff"],
    1082: ["", "2020-13-01", "2020-02-30", "2020-1-1", "x020-01-01", "infinite", "12345-13-01"],
    1114: [
        "2020-01-01",
        "2020-01-01 24:00:00",
        "2020-01-01 00:00:00.",
        "2020-01-01 00:00:00+00",
        "2020-01-01T00:00:00",
    ],
    1184: ["2020-01-01 00:00:00", "2020-01-01 00:00:00+01"],
    1083: ["", "99:99", "12:60:00", "12:00:00.", "12:00:00.1234567", "12:00"],
    1266: ["12:00:00", "12:00:00+1", "12:00:00+00:", "12:00:00 00"],
    1186: ["", "1 week", "<1 day>"],
    2950: ["", "zz", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1g", "a0eebc999c0b-4ef8-bb6d-6bb9bd380a111"],
    1007: ["", "{", "1", "{1", "{1,}", "{,1}", "{1}}", "[0:0]{1}x", '{"1}', "{a}"],
}


@pytest.mark.parametrize(("oid", "value"), [(oid, value) for oid, values in BAD_TEXTS.items() for value in values])
def test_a_text_that_is_no_value_of_its_type_is_refused(oid: int, value: str) -> None:
    raw = np.frombuffer(value.encode(), np.uint8)
    cells = Cells(raw, np.zeros(1, np.int64), np.array([len(raw)], np.int32))
    with pytest.raises(MalformedValue):
        decoding_of(oid, -1, Types()).decode(cells, False)


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(MalformedValue, match="type text"):
        copied(HEADER + b"\0\2\0\0\0\4\0\0\0\7\0\0\0\2\xff\xfe\xff\xff")


def test_formats_that_change_in_the_middle_of_a_stream_are_both_read() -> None:
    """A mirror that was restarted with the option binary: the log holds both."""
    relation = b"R\0\0\0\1s\0t\0d\0\2" + b"\1id\0\0\0\0\x17\xff\xff\xff\xff" + b"\0v\0\0\0\4\x3a\xff\xff\xff\xff"
    text = b"I\0\0\0\1N\0\2t\0\0\0\0017t\0\0\0\x0a2020-01-02"
    binary = b"I\0\0\0\1N\0\2b\0\0\0\4\0\0\0\x08b\0\0\0\4\0\0\0\0"
    far = b"I\0\0\0\1N\0\2b\0\0\0\4\0\0\0\x09b\0\0\0\4\x7f\xff\xff\xff"
    (batch,) = decode(Recording.of([b"B" + bytes(20), relation, text, binary, far, b"C" + bytes(25)]), {})
    assert batch.new[0].array.to_pylist() == [7, 8, 9]
    assert [None if day is None else day.isoformat() for day in batch.new[1].array.to_pylist()] == [
        "2020-01-02",
        "2000-01-01",
        None,
    ]
    assert batch.new[1].fallback is not None
    assert batch.new[1].fallback.to_pylist() == [None, None, "infinity"]


def test_every_refusal_is_a_decode_error_with_an_offset() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(Recording.of([b"B" + bytes(20), b"I\0\0\0\1N"]), {})
        decode(Recording.of([b"B" + bytes(20), b"I\0\0\0\1N", b"C" + bytes(25)]), {})
    assert caught.value.offset == 29  # after a frame of 4 + 21 bytes and a length


def inserts(*columns: list[bytes]) -> list[bytes]:
    """A table of one text column for each of these, all filled row by row by transactions that commit at 16, 32, …"""
    messages = []
    for number, texts in enumerate(zip(*columns, strict=True), 1):
        lsn = (16 * number).to_bytes(8)
        messages.append(b"B" + lsn + bytes(8) + number.to_bytes(4))
        for oid, text in enumerate(texts, 1):
            relation = b"R" + oid.to_bytes(4) + b"public\0t\0d\0\1\0v\0\0\0\0\x19\xff\xff\xff\xff"
            messages += [relation] if number == 1 else []
            messages.append(b"I" + oid.to_bytes(4) + b"N\0\1t" + len(text).to_bytes(4) + text)
        messages.append(b"C\0" + lsn + lsn + bytes(8))
    return messages


@pytest.mark.parametrize("at", [0, 1, 37, 99])
def test_a_table_ends_at_its_first_value_that_cannot_be_decoded_and_others_go_on(at: int) -> None:
    good = [b"v%d" % number for number in range(100)]
    bad = [*good[:at], *(b"\xff" for _ in good[at:])]
    items = list(StreamDecoder(Types()).feed(framed(inserts(bad, good))))
    found: dict[int, list[str]] = {1: [], 2: []}
    for batch in items:
        if isinstance(batch, ChangeBatch):
            found[batch.relation.oid] += batch.new[0].array.to_pylist()
    assert found == {1: [text.decode() for text in good[:at]], 2: [text.decode() for text in good]}
    (ended,) = [item for item in items if isinstance(item, Undecodable)]
    assert (ended.relation.oid, ended.commit_lsn) == (1, Lsn(16 * (at + 1)))
    assert "column v: invalid value of type text in UTF-8 (1 bytes at offset" in ended.reason
