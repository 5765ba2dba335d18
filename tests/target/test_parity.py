"""A clone has the rows of its source at every LSN, under load: see `tests.target.parity`."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.postgres import Server
from tests.conftest import NEWEST
from tests.target.parity import PAIRS, compared, servers

SNAPSHOTS = 34  # for each pair of versions and each format of the stream


FORMATS = pytest.mark.parametrize("ranges", [True, False], ids=["text", "binary"])


@pytest.mark.quick
@NEWEST
@FORMATS
def test_a_clone_equals_its_source_at_every_lsn(server: Server, tmp_path: Path, *, ranges: bool) -> None:
    found = compared(server, server, tmp_path, 3, writers=3, ranges=ranges)
    assert (found.snapshots, found.mismatches) == (3, [])
    assert found.rows > 0


@pytest.mark.full
@FORMATS
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_a_clone_of_another_version_equals_its_source_at_every_lsn(
    pair: tuple[int, int], tmp_path: Path, *, ranges: bool
) -> None:
    with servers(pair) as both:
        found = compared(*both, tmp_path, SNAPSHOTS, ranges=ranges)
    assert (found.snapshots, found.mismatches) == (SNAPSHOTS, [])
