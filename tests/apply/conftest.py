"""Applying is tested on the newest version, and what a version may do otherwise on each; its tests take seconds."""

from tests.conftest import MAJORS, installs_from

install = installs_from(MAJORS[-1])
