"""The commands in README.md and the quickstart run, and print what the documents show."""

from __future__ import annotations

import pytest

from tests.documentation.transcripts import DOCUMENTS, ROOT, alike, document_commands, shell

pytestmark = [pytest.mark.full, pytest.mark.spark]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_can_be_followed(name: str) -> None:
    with shell() as running:
        for command in document_commands((ROOT / name).read_text()):
            printed = running.run(command)
            shown = command.shown
            assert not command.is_repeatable or alike(shown, printed), f"{command.text}\n{printed}: `make transcripts`"
