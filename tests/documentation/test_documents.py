"""The documents name commands, options, files and tests that exist, and the generated pages are up to date."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import get_args

import click
import pytest

from tests.documentation.keys import table
from tests.documentation.reference import ROOT, pages, walk
from tests.documentation.transcripts import DOCUMENTS, document_commands
from tidemark.cli.showing import Message
from tidemark.lake.pipeline_state import Copies, TableCopyProgress
from tidemark.pipeline.events import SyncEvent

pytestmark = pytest.mark.quick

COMMANDS = {path: command for path, command, _ in walk()}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
QUOTED = re.compile(r"`(tidemark [^`\n]+)`")
BLOCK = re.compile(r"^```(?:sh|console|text)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"`make ([a-z-]+)")


def mentioned(text: str) -> list[str]:
    """The commands that a document mentions, in backquotes and in blocks of shell commands."""
    lines = [line.removeprefix("$ ") for block in BLOCK.findall(text) for line in block.splitlines()]
    return [*QUOTED.findall(text), *(line for line in lines if line.startswith("tidemark "))]


def unknown(mention: str) -> list[str]:
    """What a mentioned command has that does not exist: the command itself, or options."""
    words = shlex.split(mention.replace("…", " "), comments=True)
    name = " ".join(words[:2])
    if words[1].startswith("-"):
        name, words = "tidemark", ["tidemark", *words]
    command = COMMANDS.get(name)
    if command is None:
        return [] if not words[1].isalpha() else [name]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
    given = (word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word))
    return [f"{name} {option}" for option in given if option not in known]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_names_what_exists(path: Path) -> None:
    text = path.read_text()
    generated = str(path.relative_to(ROOT)) in pages()
    assert not [found for each in mentioned(text) if not generated for found in unknown(each)]
    local = [link for link in LINK.findall(text) if "://" not in link]
    assert not [link for link in local if not (path.parent / link).exists()]
    targets = re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    benches = {f"bench-{each.stem}" for each in (ROOT / "bench").glob("*.py")}
    assert not set(TARGET.findall(text)) - set(targets) - benches - {"bench-"}


@pytest.mark.parametrize("path", list(pages()))
def test_a_generated_page_is_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text() == pages()[path](), "run `make docs`"


def test_the_readme_is_short_and_both_documents_have_commands() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
    for name in DOCUMENTS:
        assert any(each.text.startswith("tidemark sync") for each in document_commands((ROOT / name).read_text()))


def test_commands_have_help() -> None:
    assert all(isinstance(each, click.Group) or each.help for each in COMMANDS.values())


def test_the_events_of_sync_are_documented_with_their_keys() -> None:
    documented, name = dict[str, set[str]](), ""
    for event, keys, _ in table("sync"):
        name = event.strip("`") or name
        documented.setdefault(name, set()).update(re.findall(r"`(\w+)`", keys))
    classes = (*get_args(SyncEvent), Message)
    assert documented == {each.event: {field.name for field in fields(each)} for each in classes}
    page = (ROOT / "docs" / "reference" / "json.md").read_text()
    copies = page.partition("\n`copies` has")[2].partition("\n\n")[0]
    named = {field.name for each in (Copies, TableCopyProgress) for field in fields(each)}
    assert named <= set(re.findall(r"`(\w+)`", copies))


def test_the_guide_for_contributors_names_modules_and_packages_that_exist() -> None:
    text, package = (ROOT / "CONTRIBUTING.md").read_text(), ROOT / "src" / "tidemark"
    modules = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", text))
    assert len(modules) > 15
    assert not [
        module for module in sorted(modules) if not (package / module).exists() and not (ROOT / module).exists()
    ]
    rows = re.findall(r"^\| (`[^|]+`) \| ", text.partition("## Layout")[2].partition("\n## ")[0], re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    present = {path.name for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert listed == present - {"__init__.py"}
