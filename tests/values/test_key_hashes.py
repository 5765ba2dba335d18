"""Hashes of keys: SipHash as its authors define it, equal for equal keys and different for different ones."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values.test_hashes import COLUMNS
from tidemark.values.kernels import read_only
from tidemark.values.key_hashes import key_hashes, siphash

pytestmark = pytest.mark.quick

SECRET = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
MASK = (1 << 64) - 1


def hashed(keys: list[tuple[pa.Array, pa.Array | None]]) -> list[tuple[int, int]]:
    return list(zip(*(half.tolist() for half in key_hashes(keys, SECRET)), strict=True))


def plain(data: bytes, secret: tuple[int, int]) -> bytes:
    """SipHash-2-4-128 in Python, after the reference implementation."""
    words = (0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573)
    v = [word ^ secret[at % 2] for at, word in enumerate(words)]

    def rounds(count: int) -> None:
        for _ in range(count):
            for a, b, by, then in ((0, 1, 13, 32), (2, 3, 16, 0), (0, 3, 21, 0), (2, 1, 17, 32)):
                v[a] = (v[a] + v[b]) & MASK
                v[b] = ((v[b] << by | v[b] >> (64 - by)) & MASK) ^ v[a]
                v[a] = (v[a] << then | v[a] >> (64 - then)) & MASK

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", low, v[0] ^ v[1] ^ v[2] ^ v[3])


def compiled(data: bytes) -> bytes:
    array = read_only(np.frombuffer(data, np.uint8))
    return struct.pack("<QQ", *map(int, siphash(array, 0, len(data), *map(np.uint64, SECRET))))


def test_the_hash_is_siphash_with_the_results_that_its_authors_publish() -> None:
    published = (
        "a3817f04ba25a8e66df67214c7550293",
        "da87c1d86b99af44347659119b22fc45",
        "8177228da4a45dc7fca38bdef60affe4",
    )
    for size, wanted in enumerate(published):
        assert compiled(bytes(range(size))).hex() == wanted == plain(bytes(range(size)), SECRET).hex()


@given(st.binary(max_size=300))
def test_the_hash_of_any_bytes_is_siphash(data: bytes) -> None:
    assert compiled(data) == plain(data, SECRET)


@pytest.mark.parametrize("name", COLUMNS)
def test_equal_values_have_equal_hashes_and_different_values_different_ones(name: str) -> None:
    kind, values = COLUMNS[name]
    array = pa.array(values, kind)
    found = hashed([(array, None)])
    again = hashed([(pa.concat_arrays([pa.array(values[:3], kind), array]).slice(3), None)])
    assert again == found, "a slice has the hashes of its rows"
    by_value: dict[Any, set[tuple[int, int]]] = {}
    for value, each in zip(array.to_pylist(), found, strict=True):
        same = "NaN" if value != value else 0.0 if value == 0 and isinstance(value, float) else value
        by_value.setdefault(same, set()).add(each)
    assert all(len(each) == 1 for each in by_value.values())
    assert len({each for some in by_value.values() for each in some}) == len(by_value)


def test_cells_do_not_run_into_each_other_and_null_is_not_empty() -> None:
    texts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), (None, "abc"), ("abc", None), (None, None), ("", "")]
    columns = [pa.array([each[at] for each in texts], pa.string()) for at in (0, 1)]
    assert len(set(hashed([(columns[0], None), (columns[1], None)]))) == len(texts)


def test_a_text_fallback_counts_where_there_is_one_and_only_there() -> None:
    values = pa.array([Decimal("1.5"), None, None], pa.decimal128(5, 2))
    fallback = pa.array([None, "NaN", "Infinity"], pa.string())
    without, beside = hashed([(values, None)]), hashed([(values, fallback)])
    assert beside[0] == without[0]
    assert len({*without, *beside}) == 4
