"""Every mutation still fits the code that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, Mutation, mutated

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_code(mutation: Mutation) -> None:
    assert mutated(mutation, ROOT) != (ROOT / "src" / "tidemark" / mutation.file).read_text()
    assert (ROOT / mutation.tests[0]).exists()
