"""Applying is tested on the oldest and the newest version that every run has; each of its tests takes seconds."""

from __future__ import annotations

import pytest

from harness.postgres import Install, installs


@pytest.fixture(
    scope="session",
    params=[each for each in installs().values() if each.major >= 16],
    ids=lambda each: f"pg{each.major}",
)
def install(request: pytest.FixtureRequest) -> Install:
    """16 and later."""
    assert isinstance(request.param, Install)
    return request.param
