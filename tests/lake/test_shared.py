"""A folder counts as shared only where its token is seen, and nothing is committed that the driver does not see."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.lake.test_delta import ID, file_of, rows_of
from tidemark.clock import Lsn
from tidemark.errors import FolderNotShared
from tidemark.lake.commits import ChangeTable
from tidemark.lake.shared import FOLDER, SharedFolder, forget_replies, shared_folder

pytestmark = pytest.mark.quick


def test_a_process_that_sees_another_folder_is_refused_with_the_path_and_its_host(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path / "lake")
    assert shared_folder(tmp_path / "lake") == folder
    assert folder.verified() == tmp_path / "lake"
    assert folder.token is not None
    elsewhere = replace(folder, path=tmp_path / "other")
    with pytest.raises(
        FolderNotShared, match=rf"{os.uname().nodename} cannot read the driver's directory .*other: No such file"
    ):
        elsewhere.verified()
    (tmp_path / "other" / FOLDER).mkdir(parents=True)
    (tmp_path / "other" / FOLDER / folder.token).write_text("stale")
    with pytest.raises(FolderNotShared, match="it does not contain the driver's token"):
        elsewhere.verified()


def test_what_is_written_where_the_driver_does_not_see_it_is_refused(tmp_path: Path) -> None:
    folder = shared_folder(tmp_path)
    folder.take_reply(folder.reply(), "somewhere")
    name = folder.reply()
    (tmp_path / FOLDER / name).unlink()
    with pytest.raises(FolderNotShared, match=f"the executor on somewhere writes to {tmp_path} are not visible"):
        folder.take_reply(name, "somewhere")
    folder.reply()
    forget_replies(folder)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [folder.token]


def test_tokens_of_processes_that_have_ended_are_removed(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from tidemark.lake.shared import shared_folder; "
        "print(shared_folder(Path(sys.argv[1])).token, flush=True); os._exit(0)"
    )
    left = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    assert (tmp_path / FOLDER / left).exists()
    folder: SharedFolder = shared_folder(tmp_path)
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [folder.token]


def test_a_lake_that_was_removed_and_made_again_gets_a_token_again(tmp_path: Path) -> None:
    first = shared_folder(tmp_path / "lake")
    assert first.token is not None
    (tmp_path / "lake" / FOLDER / first.token).unlink()
    assert shared_folder(tmp_path / "lake").verified() == tmp_path / "lake"


@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_file_that_is_not_there_as_it_was_reported_is_not_committed(tmp_path: Path, how: str) -> None:
    table = ChangeTable.create(tmp_path / "changes", [ID])
    file = file_of(tmp_path / "changes", rows_of({ID: [1]}, 5))
    path = tmp_path / "changes" / file.path
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:-1])
    with pytest.raises(FolderNotShared, match=f"{path}, which a Spark task wrote with {file.size_bytes:,} bytes"):
        table.append([file], Lsn(5))
    assert ChangeTable(tmp_path / "changes").applied == Lsn.ZERO
    path.write_bytes(whole)
    table.append([file], Lsn(5))
    assert pa.table(ChangeTable(tmp_path / "changes")._table.get_add_actions())["path"].to_pylist() == [file.path]
