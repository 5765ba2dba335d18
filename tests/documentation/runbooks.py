"""docs/runbooks.md as data: for each runbook the lines of `tidemark status` that show its symptom, and its steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "runbooks.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """What an operator is to run: `sh` for commands, `sql` for a statement at the source."""

    language: str
    text: str


@dataclass(frozen=True)
class Runbook:
    """One runbook. In a line of its symptom, `…` is any text and `PID` a number."""

    title: str
    symptom: tuple[str, ...]
    steps: tuple[Step, ...]

    def missing(self, status: str, database: str) -> list[str]:
        """Return the lines of the symptom that an output of `tidemark status` does not have."""
        return [
            line
            for line in self.symptom
            if not re.search(_pattern(line.replace("shop", database)), status, re.MULTILINE)
        ]


def _pattern(line: str) -> str:
    return "^" + re.escape(line).replace("…", ".*").replace("PID", r"\d+") + "$"


def runbooks() -> dict[str, Runbook]:
    """Read the document."""
    return {book.title: book for book in _read(DOCUMENT.read_text())}


def _read(text: str) -> Iterator[Runbook]:
    for section in text.split("\n## ")[1:]:
        (language, symptom), *steps = _BLOCK.findall(section)
        assert language == "text", "a runbook begins with its symptom"
        yield Runbook(section.partition("\n")[0], tuple(symptom.splitlines()), tuple(Step(*step) for step in steps))
