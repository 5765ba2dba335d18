"""Check the strings, docstrings and comments of the code, and the documents, against a list of banned phrases.

    python -m tests.wording [PATH…]

Strings are checked if they have at least two words. The list has words that PostgreSQL's manual would not use for
software.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE, DOCUMENTS = ("src", "demo", "bench"), ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs")
BANNED = (
    r"said", r"says?", r"saying", r"told", r"tells?", r"telling", r"hears?", r"heard", r"anew", r"let go", r"lets go",
    r"letting go", r"goes? on", r"went on", r"going on", r"whoever", r"whatever", r"nobody", r"somebody", r"someone",
    r"someone's", r"twins?", r"to be had", r"cannot be had", r"a look", r"looks?", r"looked", r"looking", r"glimpses?",
    r"biograph\w*", r"lenders?", r"lent", r"lends?", r"borrow\w*", r"loans?", r"mend\w*", r"of ours", r"as we wrote",
    r"what we wrote", r"any ?more", r"no more", r"comes? to grief", r"came to grief", r"and its like", r"such ones?",
    r"manieth", r"content with", r"whole paths?", r"lies", r"lie at", r"lie in", r"lay in", r"by whom", r"to whom",
    r"asked", r"asks?", r"asking", r"seen", r"knows", r"who", r"wants?", r"wishes", r"bears?", r"thereof", r"therein",
    r"wherein", r"hereby", r"upto", r"beside it", r"by itself", r"of itself", r"for ever", r"a word", r"without a word",
    r"Try:",
)  # fmt: skip
PATTERN = re.compile(r"(?<![\w`-])(" + "|".join(BANNED) + r")(?![\w`-])", re.IGNORECASE)
QUOTED = re.compile(r"`[^`\n]*`|\]\([^)]*\)")
DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|!)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """A banned phrase and its place."""

    path: Path
    line: int
    phrase: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r} in {self.text.strip()[:140]!r}"


def main(arguments: list[str]) -> int:
    """Print every finding; the exit code is 1 if there is one."""
    paths = [Path(argument) for argument in arguments] or [ROOT / name for name in (*CODE, *DOCUMENTS)]
    findings = [found for path in paths for found in search(path)]
    sys.stdout.writelines(f"{found}\n" for found in [*findings, f"{len(findings)} banned phrases"])
    return bool(findings)


def search(path: Path) -> Iterator[Finding]:
    """The findings in a file, or in all files of a directory."""
    if path.is_dir():
        for file in sorted([*path.rglob("*.py"), *path.rglob("*.md")]):
            yield from search(file)
    elif path.suffix == ".py":
        yield from in_code(path)
    elif path.exists():
        yield from in_document(path)


def in_code(path: Path) -> Iterator[Finding]:
    """The findings in the strings, docstrings and comments of a module."""
    source = path.read_text()
    for node, text in strings(ast.parse(source)):
        yield from in_text(path, node.lineno, text)
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            yield from in_text(path, token.start[0], token.string)


def in_document(path: Path) -> Iterator[Finding]:
    """The findings in a Markdown file outside its code blocks."""
    prose = FENCE.sub(lambda block: "\n" * block[0].count("\n"), path.read_text())
    for number, line in enumerate(prose.splitlines(), 1):
        yield from in_text(path, number, line)


def in_text(path: Path, line: int, text: str) -> Iterator[Finding]:
    """The findings in one text; what stands in backquotes is a name."""
    for match in PATTERN.finditer(QUOTED.sub("``", text)):
        yield Finding(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path, line, match[0], text)


def strings(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    """Strings with at least two words, docstrings included."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        else:
            continue
        if " " in text.strip():
            yield node, text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
