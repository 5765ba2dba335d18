"""The error tree: complete tables, and errors that survive the way from an executor."""

import pickle
from datetime import UTC, datetime

import pytest

from tidemark import errors
from tidemark.errors import (
    POLICY,
    Blocker,
    ExitCode,
    Retry,
    SlotBlocked,
    SourceError,
    TidemarkError,
    error_from_json,
    error_to_json,
    policy_of,
)
from tidemark.postgres.sqlstate import RULES, error_for, rule_for

pytestmark = pytest.mark.quick

MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def tree(root: type[TidemarkError] = TidemarkError) -> list[type[TidemarkError]]:
    return [root, *(each for child in root.__subclasses__() for each in tree(child))]


def test_every_error_has_its_row_and_no_row_is_left_over() -> None:
    assert set(tree()) == set(POLICY)


def test_the_drawing_at_the_top_names_every_error() -> None:
    drawing = errors.__doc__ or ""
    assert [kind.__name__ for kind in tree() if kind.__name__ not in drawing] == []


@pytest.mark.parametrize("kind", tree())
def test_an_error_pickles_with_all_it_says(kind: type[TidemarkError]) -> None:
    error = kind("it broke", "Repair it.")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), copy.hint) == (kind, "it broke\nHint: Repair it.", "Repair it.")


def test_what_an_error_carries_pickles_too() -> None:
    blocked = SlotBlocked("waits", "later", (Blocker(4711, None, "app", MOMENT, "psql"),))
    assert pickle.loads(pickle.dumps(blocked)).blockers == blocked.blockers  # noqa: S301
    source = SourceError("no", "yes", "42501")
    assert pickle.loads(pickle.dumps(source)).sqlstate == "42501"  # noqa: S301


@pytest.mark.parametrize("kind", tree())
def test_an_error_of_another_process_has_all_its_fields(kind: type[TidemarkError]) -> None:
    error = kind("it broke", "Repair it.")
    copy = error_from_json(error_to_json(error))
    assert (type(copy), copy.args, vars(copy)) == (kind, error.args, vars(error))


def test_what_an_error_carries_reaches_another_process_too() -> None:
    known, unknown = Blocker(4711, None, "app", MOMENT, "psql"), Blocker(None, "tx1", None, None)
    blocked = error_from_json(error_to_json(SlotBlocked("waits", "later", (known, unknown))))
    assert isinstance(blocked, SlotBlocked)
    assert blocked.blockers == (known, unknown)
    source = error_from_json(error_to_json(SourceError("no", "yes", "42501")))
    assert isinstance(source, SourceError)
    assert source.sqlstate == "42501"


def test_a_blocker_is_named_as_far_as_it_is_known() -> None:
    assert str(Blocker(4711, None, "app", MOMENT, "psql")) == "pid 4711 of app (psql), since 2026-03-01 12:00:00 UTC"
    assert str(Blocker(4711, None, None, None)) == "pid 4711"
    assert (
        str(Blocker(None, "tx1", "app", MOMENT)) == "prepared transaction 'tx1' of app, since 2026-03-01 12:00:00 UTC"
    )


@pytest.mark.parametrize(
    ("sqlstate", "kind", "retry"),
    [
        ("08006", errors.ConnectionLost, Retry.BACK_OFF),
        ("28P01", errors.AuthenticationRefused, Retry.NEVER),
        ("40001", errors.Conflict, Retry.AGAIN),
        ("40P01", errors.Conflict, Retry.AGAIN),
        ("42501", errors.NotPermitted, Retry.NEVER),
        ("53300", errors.SourceBusy, Retry.BACK_OFF),
        ("55006", errors.ObjectInUse, Retry.BACK_OFF),
        ("55P03", errors.TimedOut, Retry.BACK_OFF),
        ("57P01", errors.ConnectionLost, Retry.BACK_OFF),
        ("57P03", errors.SourceBusy, Retry.BACK_OFF),
        ("XX001", errors.UnexpectedSourceError, Retry.NEVER),
        ("22012", errors.UnexpectedSourceError, Retry.NEVER),
    ],
)
def test_the_sqlstate_decides(sqlstate: str, kind: type[SourceError], retry: Retry) -> None:
    error = error_for(sqlstate, "reading", "whatever the text says")
    assert (type(error), policy_of(error).retry, error.sqlstate) == (kind, retry, sqlstate)


def test_a_whole_code_wins_over_its_class() -> None:
    assert rule_for("57P03")[0] is errors.SourceBusy
    assert rule_for("57P99")[0] is errors.UnexpectedSourceError
    assert all(len(code) in (2, 5) for code in RULES)


def test_no_sqlstate_means_that_the_connection_is_gone() -> None:
    assert isinstance(error_for(None, "reading", "server closed the connection"), errors.ConnectionLost)


def test_every_exit_code_has_a_description_that_fits_on_a_line() -> None:
    descriptions = [code.description for code in ExitCode]
    assert len({*descriptions}) == len(ExitCode)
    assert max(map(len, descriptions)) <= 72
    assert not [text for text in descriptions if text.endswith(".")]


def test_an_error_that_is_not_ours_stops_everything() -> None:
    assert policy_of(ZeroDivisionError()) == errors.Policy(Retry.NEVER, ExitCode.UNEXPECTED)
