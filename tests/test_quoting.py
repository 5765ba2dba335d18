"""Names and texts are quoted by `tidemark.quoting` alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tidemark.quoting import array_element, backticked, double_quoted, duckdb_text, postgres_text, spark_text

pytestmark = pytest.mark.quick

SOURCE = Path(__file__).parents[1] / "src" / "tidemark"
QUOTES = ("'", '"', "`")
# What these packages and modules put together is executed by PostgreSQL, DuckDB or Spark.
STATEMENTS = ("engines", "mirror/sql", "mirror/compare", "postgres/catalog.py", "reads", "split", "target/merging.py")


def quotes(tree: ast.AST) -> Iterator[int]:
    """Lines that double or escape quotation marks."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "replace"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and node.args[0].value in QUOTES
        ):
            yield node.lineno


def inserts(tree: ast.AST) -> Iterator[int]:
    """Lines with an f-string that has a value between quotation marks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts = [str(part.value) if isinstance(part, ast.Constant) else None for part in node.values]
            for before, (value, after) in zip(texts, pairwise(texts[1:]), strict=False):
                if value is None and before and after and before[-1] in QUOTES[:2] and after[0] == before[-1]:
                    yield node.lineno


def found(lines: str) -> list[str]:
    tree = ast.parse(lines)
    return [f"{check.__name__}:{line}" for check in (quotes, inserts) for line in check(tree)]


def test_only_one_module_quotes() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        name, tree = path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())
        checks = [quotes, *([inserts] if name.startswith(STATEMENTS) else [])] if name != "quoting.py" else []
        wrong += [f"src/tidemark/{name}:{line}" for check in checks for line in check(tree)]
    assert not wrong, f"use a function of tidemark.quoting in: {', '.join(wrong)}"


def test_the_check_finds_what_quotes() -> None:
    assert found("""x = '"' + name.replace('"', '""') + '"'""") == ["quotes:1"]
    assert found("""x = f"select '{name}' from t" """) == ["inserts:1"]
    assert found("""x = f"select {name} from t" """) == []


@pytest.mark.parametrize("text", ["plain", "", "it's", 'a "b"', "back`tick", "a\\'b", "${x}", "{0}", "line\nbreak"])
def test_what_is_quoted_is_read_back(text: str) -> None:
    assert double_quoted(text)[1:-1].replace('""', '"') == text
    assert backticked(text)[1:-1].replace("``", "`") == text
    assert duckdb_text(text)[1:-1].replace("''", "'") == text
    assert ("\\" in text) == postgres_text(text).startswith("E'")
    assert array_element(text)[1:-1].replace('\\"', '"').replace("\\\\", "\\") == text
    assert spark_text(text) == (f"'{text}'" if text in ("plain", "") else f"CAST(X'{text.encode().hex()}' AS STRING)")
