"""The keys of JSON output, as docs/reference/json.md has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.documentation.reference import ROOT

_PAGE = ROOT / "docs" / "reference" / "json.md"
_KEY = re.compile(r"`([^`]+)`")


def require_documented(command: str, plain: Mapping[str, Any]) -> None:
    """Fail if an object has a key that the page does not name, or lacks one that it names."""
    documented, present = documented_keys(command), set(_paths(plain))
    assert present <= documented, f"{command} --json: not in {_PAGE.name}: {sorted(present - documented)}"
    lacking = {key for key in documented if "." not in key and "[" not in key} - plain.keys()
    assert not lacking, f"{command} --json: documented and not printed: {sorted(lacking)}"


def documented_keys(command: str) -> set[str]:
    """The keys in the table of a command, those above others included."""
    keys = {key for row in table(command) for key in _KEY.findall(row[0])}
    above = {key[: place.start()] for key in keys for place in re.finditer(r"\[\]|\.", key)}
    return keys | {each.removesuffix("[]") for each in above}


def table(command: str) -> list[list[str]]:
    """The rows of the table of a command, without the header."""
    section = _PAGE.read_text().partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def _paths(plain: Any, path: str = "") -> Iterator[str]:
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield path + key
            yield from _paths(value, f"{path}{key}.")
    elif isinstance(plain, list):
        for value in plain:
            if not isinstance(value, dict):
                yield f"{path.removesuffix('.')}[]"
            yield from _paths(value, f"{path.removesuffix('.')}[].")
