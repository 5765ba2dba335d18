"""psql prints the same for PostgreSQL's own regression files directly and through the server."""

from __future__ import annotations

import pytest

from harness.debian import source_tree
from harness.postgres import Install
from tests.conftest import NEWEST
from tests.sql_parity.regress import (
    BELOW,
    FILES,
    SOURCE,
    SUITE,
    differences,
    regression,
    through_relay,
    through_server,
)

pytestmark = [pytest.mark.full, pytest.mark.spark, NEWEST]


@pytest.fixture(autouse=True)
def _has_files() -> None:
    if source_tree(SOURCE, SUITE, BELOW) is None:
        pytest.skip(f"apt-get cannot download the source of {SOURCE}")


def test_a_relayed_session_prints_what_the_source_prints(install: Install) -> None:
    with regression(install) as made:
        made.again()
        direct = made.outputs(made.server.port, FILES)
        found = list(differences(direct, through_relay(made, FILES)))
    assert not found, "\n".join(found)


def test_a_session_whose_statements_the_mirror_answers_prints_what_the_source_prints(install: Install) -> None:
    with regression(install) as made:
        made.again()
        direct = made.outputs(made.server.port, FILES)
        through, by_mirror = through_server(made, FILES, "spark")
    found = list(differences(direct, through))
    assert not found, "\n".join(found)
    assert by_mirror > 0
