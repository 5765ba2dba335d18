"""Catalogs and SQL differ between versions: the oldest at hand is in the quick tier too."""

from tests.conftest import installs_from

install = installs_from(0, oldest=True)
