"""Paths: a table lies where nothing that its owner names can lead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import InvalidValue
from tidemark.lake.paths import local_path, require_plain
from tidemark.schema.history import table_path

pytestmark = pytest.mark.quick


@given(st.integers(1, 2**32 - 1))
def test_a_table_lies_where_every_engine_takes_the_path_as_it_is(oid: int) -> None:
    assert re.fullmatch(r"tables/[0-9]+", table_path(oid))
    assert table_path(oid) != table_path(oid % (2**32 - 1) + 1)


@pytest.mark.parametrize("name", ["a%2F", "[a]", "a*", "what?", "a{b}", "a\\b"])
def test_a_lake_lies_only_where_every_engine_takes_the_path_as_it_is(name: str) -> None:
    with pytest.raises(InvalidValue, match="invalid path for a lake"):
        require_plain(Path("/lakes") / name)


@pytest.mark.parametrize("uri", ["s3://bucket/lake", "abfss://box@account.dfs.core.windows.net/lake", "dbfs:/lake"])
def test_object_storage_is_refused_as_text_and_as_a_path(uri: str) -> None:
    for given_as in (uri, Path(uri)):
        with pytest.raises(InvalidValue, match=r"object storage is not supported: \w+://\w+") as refused:
            local_path(given_as)
        assert refused.value.hint == "Use a path on a local or shared file system."


def test_a_connection_string_in_place_of_a_path_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidValue, match="not a connection string") as refused:
        local_path("postgresql://app:secret@host/db")
    assert "secret" not in str(refused.value)


def test_a_file_uri_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidValue, match="not a URI: file:///data/lake") as refused:
        local_path("file:///data/lake")
    assert refused.value.hint == "Use /data/lake."


def test_a_path_at_or_below_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "lake", str(file / "lakes" / "lake")):
        with pytest.raises(InvalidValue, match=re.escape(f"{file} is a file, not a directory")):
            local_path(path)


def test_a_directory_need_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("lakes/lake") == tmp_path / "lakes" / "lake"
    assert local_path(tmp_path) == tmp_path
