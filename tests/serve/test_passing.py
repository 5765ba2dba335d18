"""The first word of a statement, what reads only catalogs, and the settings of a session."""

from __future__ import annotations

import pytest

from tidemark.errors import InvalidValue
from tidemark.serve.conversation import Ask, Frames, Told, packed
from tidemark.serve.passing import is_harmless, keyword_of, reads_only_catalogs
from tidemark.serve.session_settings import Prefer, Route, ServeSettings

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"select 1", "select"),
        (b"  -- a comment\n/* another */ WITH x as (select 1) table x", "with"),
        (b"(select 1)", "("),
        (b"", ""),
        (b"/* not closed", ""),
        (b"-- only", ""),
    ],
)
def test_the_first_word_of_a_statement(text: bytes, word: str) -> None:
    assert keyword_of(text) == word


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        (b"set tidemark.at = 'now'", True),
        (b"begin;", True),
        (b"commit", True),
        (b"begin; delete from t; commit", False),
        (b"select 1", False),
        (b"prepare p as delete from t", False),
        (b"copy t to stdout", False),
    ],
)
def test_statements_that_read_no_table(text: bytes, harmless: bool) -> None:
    assert is_harmless(text) is harmless


@pytest.mark.parametrize(
    ("text", "catalogs"),
    [
        (b"select relname from pg_catalog.pg_class c, information_schema.tables", True),
        (b"select * from pg_class where pg_catalog.pg_table_is_visible(oid)", True),
        (b"select version()", True),
        (b"select f()", False),
        (b"select public.version()", False),
        (b"select * from orders", False),
        (b"select * from pg_catalog.pg_class where exists (select from orders)", False),
        (b"delete from pg_catalog.pg_class", False),
        (b"select", True),
        (b"select )", False),
    ],
)
def test_statements_that_read_only_catalogs(text: bytes, catalogs: bool) -> None:
    assert reads_only_catalogs(text) is catalogs


def test_settings_of_a_session_come_before_those_of_the_server() -> None:
    default = ServeSettings(Route.AUTO, "", 5.0, False, Prefer.SPEED)
    assert ServeSettings.read({}, default) == default
    assert ServeSettings.read(dict.fromkeys(("tidemark.route", "tidemark.at"), ""), default) == default
    names = ("route", "at", "cost", "notice", "prefer")
    values = ("mirror", "-1h", "7", "on", "offload")
    found = ServeSettings.read({f"tidemark.{n}": v for n, v in zip(names, values, strict=True)}, default)
    assert found == ServeSettings(Route.MIRROR, "-1h", 7.0, True, Prefer.OFFLOAD)
    assert found.must_answer


@pytest.mark.parametrize("name", ["route", "cost", "notice", "prefer"])
def test_an_invalid_setting_is_named(name: str) -> None:
    with pytest.raises(InvalidValue, match=f"invalid value for tidemark.{name}: 'x'"):
        ServeSettings.read({f"tidemark.{name}": "x"}, ServeSettings())


def test_messages_arrive_whole_however_they_are_cut() -> None:
    sent: list[Ask | Told] = [Ask(1, "select 1"), Told(1, "x" * 1000), Told(2, None)]
    data, frames = b"".join(packed(each) for each in sent), Frames()
    assert [message for at in range(0, len(data), 7) for message in frames.take(data[at : at + 7])] == sent
