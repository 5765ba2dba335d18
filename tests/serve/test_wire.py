"""Frames, startup packets and messages: what is malformed is refused, in however many pieces it is received."""

from __future__ import annotations

import contextlib
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import MalformedMessage
from tidemark.serve import messages
from tidemark.serve.messages import SYNC, BindMessage, FieldDescription
from tidemark.serve.wire import (
    KEY_LIMIT,
    STARTUP_LIMIT,
    Opening,
    frames,
    read_startup,
    request_packet,
    startup_packet,
)

pytestmark = pytest.mark.quick

names = st.binary(max_size=20).filter(lambda name: b"\0" not in name)
values = st.lists(st.none() | st.binary(max_size=20), max_size=5).map(tuple)
formats = st.lists(st.integers(0, 1), max_size=5).map(tuple)


def body(message: bytes) -> bytes:
    ((_, found),) = frames(message)
    return found


@given(st.builds(BindMessage, names, names, formats, values, formats))
def test_a_bind_is_read_as_it_was_built(bound: BindMessage) -> None:
    assert messages.read_bind(body(messages.bind(bound))) == bound


@given(names, names, st.lists(st.integers(0, 0xFFFFFFFF), max_size=5).map(tuple))
def test_a_parse_is_read_as_it_was_built(name: bytes, text: bytes, types: tuple[int, ...]) -> None:
    assert messages.read_parse(body(messages.parse(name, text, types))) == (name, text, types)


@given(
    st.lists(
        st.builds(
            FieldDescription,
            names,
            st.integers(0, 2**32 - 1),
            st.integers(-6, 1600),
            st.integers(0, 2**32 - 1),
            st.integers(-2, 500),
            st.integers(-1, 2**31 - 1),
            st.integers(0, 1),
        ),
        max_size=4,
    )
)
def test_a_row_description_is_read_as_it_was_built(fields: list[FieldDescription]) -> None:
    assert messages.read_row_description(body(messages.row_description(fields))) == tuple(fields)


@given(st.data(), st.builds(BindMessage, names, names, formats, values, formats))
def test_a_bind_that_is_cut_or_too_long_is_refused(data: st.DataObject, bound: BindMessage) -> None:
    whole = body(messages.bind(bound))
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(MalformedMessage):
            messages.read_bind(wrong)


@given(
    st.dictionaries(st.sampled_from(["user", "database", "options"]), st.text("abc é", max_size=9)), st.integers(0, 2)
)
def test_a_startup_packet_is_read_when_it_is_complete(parameters: dict[str, str], minor: int) -> None:
    packet = startup_packet(parameters, (3 << 16) + minor)
    assert all(read_startup(packet[:size]) is None for size in range(len(packet)))
    found = read_startup(packet + b"more")
    assert found is not None
    assert (found.opening, found.raw, found.parameters) == (Opening.SESSION, packet, parameters)


@pytest.mark.parametrize("size", [4, 32, KEY_LIMIT])
def test_a_cancel_request_has_a_key_of_4_to_256_bytes(size: int) -> None:
    key = bytes(range(1, 5)) + bytes(size)
    found = read_startup(request_packet(Opening.CANCEL, key))
    assert found is not None
    assert (found.opening, found.cancel_key) == (Opening.CANCEL, key)


@pytest.mark.parametrize(
    "packet",
    [
        pack("!I", 7),
        pack("!I", STARTUP_LIMIT + 1),
        pack("!I", 0xFFFFFFFF),
        b"GET / HTTP/1.1\r\n\r\n",
        pack("!II", 8, 2 << 16),
        pack("!II", 9, 80877103) + b"x",
        request_packet(Opening.CANCEL, bytes(7)),
        request_packet(Opening.CANCEL, bytes(KEY_LIMIT + 5)),
        pack("!II", 16, 3 << 16) + b"user\0ab\0",
        pack("!II", 15, 3 << 16) + b"user\0\0x",
        pack("!II", 14, 3 << 16) + b"user\0\0",
    ],
)
def test_a_malformed_startup_packet_is_refused(packet: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_startup(packet)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (
        read_startup,
        messages.read_bind,
        messages.read_parse,
        messages.read_execute,
        messages.read_row_description,
        messages.read_data_row,
        messages.read_report,
        messages.read_parameter_status,
        lambda each: list(frames(each)),
    ):
        with contextlib.suppress(MalformedMessage):
            read(data)


def test_frames_are_cut_at_their_lengths() -> None:
    assert list(frames(SYNC + messages.query(b"x"))) == [(ord("S"), b""), (ord("Q"), b"x\0")]
    assert messages.text_array(["a", None, 'b"\\']) == b'{"a",NULL,"b\\"\\\\"}'
