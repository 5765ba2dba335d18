"""Values are sent in binary only between servers that read it alike."""

from __future__ import annotations

import pytest

from tidemark.target.columns import can_stream_binary

pytestmark = pytest.mark.quick


def test_a_stream_is_binary_if_both_servers_read_it_alike() -> None:
    assert can_stream_binary(160014, 180004)
    assert can_stream_binary(180004, 180004)
    assert not can_stream_binary(180004, 160014)  # infinite intervals
    assert not can_stream_binary(130022, 130022)  # arrays of enums
