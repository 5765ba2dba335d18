"""Warming compiles every kernel that a stream or a copy will use."""

import importlib
import pkgutil

import pytest
from numba.core.registry import CPUDispatcher

import tidemark.pgoutput
import tidemark.values
from harness.database import Database
from harness.recorded import decode
from harness.warming import warm
from tests.pgoutput.corpus import ARRAYS, SCALARS
from tests.values.test_values import by_copy, fill

pytestmark = pytest.mark.full


def compiled() -> dict[str, int]:
    """Every kernel, and for how many kinds of arguments it was compiled."""
    found = {}
    modules = [
        *pkgutil.walk_packages(tidemark.pgoutput.__path__, "tidemark.pgoutput."),
        *pkgutil.walk_packages(tidemark.values.__path__, "tidemark.values."),
    ]
    for module in modules:
        for name, thing in vars(importlib.import_module(module.name)).items():
            if isinstance(thing, CPUDispatcher):
                found[f"{module.name}.{name}"] = len(thing.signatures)
    return found


def test_after_warming_nothing_is_compiled_for_real_values(db: Database) -> None:
    warm()
    before = compiled()
    assert len(before) > 40
    filled = fill(db, SCALARS | ARRAYS)
    db.run("update v0 set i = i + 100", "delete from v0", "truncate v1")
    for binary in (False, True):
        for streaming in (False, True):
            assert decode(filled.recorder.recording(binary=binary, streaming=streaming), filled.types)
    for table in filled.tables:
        by_copy(filled, table, as_text=False)
    grown = {name for name, count in compiled().items() if count != before[name]}
    assert not grown
