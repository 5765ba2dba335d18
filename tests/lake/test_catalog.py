"""The catalog for other engines, for tables whose directory has had several lives, or whose log was cleaned up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake.test_fence import A, file, made, made_older
from tests.schema.test_history import OLD, event, history
from tidemark.clock import Lsn
from tidemark.lake.catalog import _Tables
from tidemark.lake.commits import clean_log, opened
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


def test_a_catalog_that_was_not_updated_before_the_log_was_cleaned_up_is_updated_later(tmp_path: Path) -> None:
    folder = tmp_path / "public/t/versions"
    table, begun = made(folder), history(event(TableEventKind.BEGUN, 1, 1))
    before = _Tables(tmp_path, Lsn(6), {OLD.oid: begun}, {}, {}).plain()
    for lsn in (7, 8, 9):
        table.replace([file(folder, lsn)], [], Lsn(lsn), Lsn(1))
    opened(folder).create_checkpoint()
    made_older(folder)
    clean_log(folder)
    after = _Tables(tmp_path, Lsn(9), {OLD.oid: begun}, before, {}).plain()
    listed = [each["tables"][0]["versions"] for each in (before, after)]
    assert [(each["delta_version"], each["lsn"]) for each in listed] == [(1, "0/6"), (4, "0/9")]
    assert after["tables"][0]["columns"][0]["stored"] == A.name
