"""The catalog for other engines, for tables whose directory has had several lives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schema.test_history import OLD, event, history
from tidemark.clock import Lsn
from tidemark.lake.catalog import _Tables
from tidemark.schema.history import TableEventKind

pytestmark = pytest.mark.quick


def test_a_table_that_was_dropped_in_the_last_catalog_and_is_copied_again_is_listed(tmp_path: Path) -> None:
    copied, dropped = event(TableEventKind.COPIED, 20, 20), event(TableEventKind.DROPPED, 30, 30)
    before = _Tables(tmp_path, Lsn(30), {OLD.oid: history(copied, dropped)}, {}, {}).plain()
    before["dropped"][0]["versions"] = {"path": "public/t/versions", "delta_version": 3}
    again = history(copied, dropped, event(TableEventKind.COPIED, 40, 40))
    found = _Tables(tmp_path, Lsn(40), {OLD.oid: again}, before, {}).plain()
    assert found["dropped"] == []
    assert [(table["oid"], table["state"]) for table in found["tables"]] == [(OLD.oid, "waiting")]
