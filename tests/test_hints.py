"""Every command and flag that a message or help text names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from tests.wording import strings
from tidemark.cli.main import tidemark

pytestmark = pytest.mark.quick

SOURCE = Path(__file__).parent.parent / "src"
QUOTED = re.compile(r"`([^`\n]+)`")
PLAIN = re.compile(r"\btidemark [a-z]+[^`.;:,()\n]*")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def flags_of(command: click.Command) -> set[str]:
    return {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}


def commands() -> dict[str, set[str]]:
    context = click.Context(tidemark)
    names = tidemark.list_commands(context)
    return {name: flags_of(command) for name in names if (command := tidemark.get_command(context, name)) is not None}


def wrong(text: str, known: Mapping[str, set[str]]) -> Iterator[str]:
    """What a text names that does not exist: in backquotes, or after the word tidemark."""
    quoted = QUOTED.findall(text)
    for mention in [*quoted, *PLAIN.findall(QUOTED.sub("", text))]:
        words = mention.split()
        if words[0] == "tidemark":
            rest = words[1:]
            while rest and rest[0] in flags_of(tidemark):
                rest = rest[2:]
            name = rest[0] if rest else ""
            if name not in known and (mention in quoted or FLAG.search(mention)) and re.fullmatch("[a-z]+", name):
                yield f"no command {name!r} in {mention!r}"
            flags = known.get(name, set()) | flags_of(tidemark)
        else:
            flags = flags_of(tidemark).union(*known.values())
        yield from (f"no flag {flag} in {mention!r}" for flag in FLAG.findall(mention) if flag not in flags)


def test_every_hint_names_a_command_and_flags_that_exist() -> None:
    known = commands()
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {failure}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node, text in strings(ast.parse(path.read_text()))
        for failure in wrong(text, known)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Run `tidemark sync SOURCE LAKE --once`.", 0),
        ("Run `tidemark --log-level debug sync SOURCE LAKE`.", 0),
        ("Run `tidemark synch`.", 1),
        ("Run `tidemark status LAKE --once`.", 1),
        ("Use `--copy-parallelism 2`.", 0),
        ("Use `--no-such-flag`.", 1),
        ("tidemark resync LAKE --everything, and more", 1),
    ],
)
def test_the_check_finds_what_does_not_exist(text: str, count: int) -> None:
    assert len(list(wrong(text, commands()))) == count
