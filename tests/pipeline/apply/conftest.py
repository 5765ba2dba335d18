"""Applying is tested on the oldest and the newest version that every run has; each of its tests takes seconds."""

from tests.conftest import installs_from

install = installs_from(16)
