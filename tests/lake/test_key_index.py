"""Key indexes: the position of every row by its key, or no index at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.lake import key_index
from tidemark.lake.columns import StoredColumn
from tidemark.lake.files import FileWriter
from tidemark.lake.key_index import (
    LEAST_ROWS,
    KeyIndexWriter,
    cells_of,
    index_bytes,
    index_path,
    indexed_key,
    open_index,
)
from tidemark.lake.unlisted import delete

pytestmark = pytest.mark.quick

NAME, DAY, ID = (
    StoredColumn("name", 1, pa.string()),
    StoredColumn("day", 2, pa.date32()),
    StoredColumn("id", 3, pa.int32()),
)
PAIR = (NAME, DAY)
ROWS = LEAST_ROWS + 500


def rows_of(names: list[str], days: list[int]) -> pa.Table:
    return pa.table({"name": names, "day": pa.array(days, pa.int32()).cast(pa.date32())})


MANY = rows_of([f"name {n}" for n in range(ROWS)], [n % 7 for n in range(ROWS)])


def written(folder: Path, rows: pa.Table, key: tuple[StoredColumn, ...] = PAIR) -> str:
    writer = FileWriter(folder, "live-00000-of-00001", index=KeyIndexWriter(key))
    for start in range(0, len(rows), 4000):
        writer.write(rows.slice(start, 4000))
    return writer.close().path


def found(folder: Path, name: str, keys: pa.Table, rows: int, key: tuple[StoredColumn, ...] = PAIR) -> list[int] | None:
    index = open_index(folder, name, key, rows)
    return None if index is None else sorted(index.positions(cells_of(keys, key)).tolist())


def test_an_index_has_the_position_of_every_row(tmp_path: Path) -> None:
    name = written(tmp_path, MANY)
    assert index_path(tmp_path, name).is_file()
    assert found(tmp_path, name, MANY, ROWS) == list(range(ROWS))
    some = [0, 3999, 4000, ROWS - 1]
    assert found(tmp_path, name, MANY.take(some), ROWS) == some
    others = rows_of(["name 0", "name", "", "name 7"], [1, 0, 0, 6])
    assert found(tmp_path, name, others, ROWS) == [], "the whole key counts"


def test_a_small_file_has_no_index_and_its_keys_are_read(tmp_path: Path) -> None:
    few = MANY.slice(0, 1000)
    name = written(tmp_path, few)
    assert not index_path(tmp_path, name).exists()
    assert found(tmp_path, name, MANY.slice(990, 30), 1000) == list(range(990, 1000))
    other = (NAME, StoredColumn("day", 2, pa.int32()))
    assert found(tmp_path, name, MANY.slice(0, 1), 1000, other) is None


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 3)), unique=True, min_size=1), st.data())
def test_any_keys_are_found_where_they_are(keys: list[tuple[str, int]], data: st.DataObject) -> None:
    rows = rows_of(*map(list, zip(*keys, strict=True)))
    writer = KeyIndexWriter(PAIR)
    cut = data.draw(st.integers(0, len(keys)))
    for part in (rows.slice(0, cut), rows.slice(cut)):
        writer.add(part)
    asked = data.draw(st.lists(st.tuples(st.text(max_size=3), st.integers(0, 3)), unique=True))
    asked = [*asked, *keys[::2]]
    looked = writer.index().positions(cells_of(rows_of(*map(list, zip(*asked, strict=True))), PAIR))
    assert sorted(set(looked.tolist())) == [at for at, key in enumerate(keys) if key in asked]


def test_an_index_is_only_for_the_key_and_the_rows_that_it_was_made_for(tmp_path: Path) -> None:
    name = written(tmp_path, MANY)
    altered = StoredColumn("name", 4, pa.string()), StoredColumn("day", 2, pa.date32())
    assert open_index(tmp_path, name, altered, ROWS) is None
    assert open_index(tmp_path, name, (NAME,), ROWS) is None
    assert open_index(tmp_path, name, PAIR, ROWS + 1) is None
    path = index_path(tmp_path, name)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", b"another!" + whole[8:]):
        path.write_bytes(damaged)
        assert open_index(tmp_path, name, PAIR, ROWS) is None
    path.write_bytes(whole)
    assert open_index(tmp_path, name, PAIR, ROWS) is not None
    path.unlink()
    assert open_index(tmp_path, name, PAIR, ROWS) is None


def test_an_index_goes_with_its_file(tmp_path: Path) -> None:
    name = written(tmp_path, MANY)
    assert index_bytes(tmp_path) == index_path(tmp_path, name).stat().st_size > 16 * ROWS
    delete(tmp_path, [name])
    assert index_bytes(tmp_path) == index_bytes(tmp_path / "none") == 0
    assert list(tmp_path.iterdir()) == []
    writer = FileWriter(tmp_path, "live-00000-of-00001", index=KeyIndexWriter(PAIR))
    writer.write(MANY)
    writer.close()
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_keys_of_another_type_are_refused() -> None:
    writer = KeyIndexWriter(PAIR)
    writer.add(MANY.slice(0, 10))
    with pytest.raises(TypeError, match="keys of other types"):
        writer.index().positions([(MANY["name"].combine_chunks(), None), (pa.nulls(ROWS, pa.string()), None)])


def test_which_keys_get_an_index() -> None:
    nested = StoredColumn("tags", 5, pa.list_(pa.string()))
    columns = [NAME, NAME.fallback_column(), DAY, ID, nested]
    assert indexed_key(columns, (2, 1)) == (DAY, NAME)
    assert indexed_key(columns, (3, 1)) == (ID, NAME)
    assert indexed_key(columns, (3,)) == (), "a bitmap of integers needs none"
    assert indexed_key(columns, (1, 5)) == ()
    assert indexed_key(columns, ()) == ()


def test_entries_with_the_same_first_bits_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_MOST_BITS", 1)
    writer = KeyIndexWriter(PAIR)
    writer.add(MANY.slice(0, 300))
    assert sorted(writer.index().positions(cells_of(MANY.slice(200, 200), PAIR)).tolist()) == list(range(200, 300))
