"""The two tiers of tests, as a pytest plugin: every test is marked `quick` or `full`.

`quick` tests run in `make test`, all tests in `make test-all`. A mark on a module holds for its tests; a mark on a test
or on one of its parameters, a PostgreSQL version among them, takes precedence, and `full` wins where both are given.
A test without a tier fails collection.

With `--quick` only the quick tier runs, and in its short form: properties are checked with fewer, fixed examples,
stories are shorter (fixture `short`), what tables held is compared at three of the noted positions rather than at all
of them, and Spark runs plans as they are, neither compiled whole nor adapted.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from harness import lake

TIERS = ("quick", "full")

# No deadline: a busy machine can stall any example for seconds.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick`."""
    parser.addoption("--quick", action="store_true", help="run only the quick tier, in its short form")


def pytest_configure(config: pytest.Config) -> None:
    """Set how long the forms of stories and properties are."""
    quick = bool(config.getoption("quick"))
    settings.load_profile("quick" if quick else "full")
    lake.READ_AT_MOST = 3 if quick else None


@pytest.fixture(scope="session")
def short(request: pytest.FixtureRequest) -> bool:
    """Whether a story, such as a random history or a run under load, is to be told in its short form."""
    return bool(request.config.getoption("quick"))


def tier_of(item: pytest.Item) -> str | None:
    """The tier of a test: the one of its nearest node that has any."""
    for node in reversed(item.listchain()):
        marks = {mark.name for mark in node.own_markers}
        if marks & set(TIERS):
            return "full" if "full" in marks else "quick"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse tests without a tier; with `--quick` deselect those of the other one."""
    tiers = {item: tier_of(item) for item in items}
    untiered = [item.nodeid for item, tier in tiers.items() if tier is None]
    if untiered:
        raise pytest.UsageError(
            f"{len(untiered)} tests are in no tier, such as {untiered[0]}: mark them, or their module, quick or full"
        )
    if config.getoption("quick"):
        config.hook.pytest_deselected(items=[item for item in items if tiers[item] == "full"])
        items[:] = [item for item in items if tiers[item] == "quick"]
