"""What the receiver removes from its log is in the archive: both together are what the source sent."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from harness.database import Database
from harness.load import writing
from harness.mirrored import Mirrored, connected, ended, eventually, mirrored, receiving
from harness.shell import here
from tests.conftest import NEWEST

pytestmark = [pytest.mark.quick, NEWEST]


def whole(mirror: Mirrored, archive: Path, folder: Path) -> Mirrored:
    """The mirror with a log that has all segments again."""
    shutil.copytree(mirror.options.folder, folder, ignore=shutil.ignore_patterns("control*", "summaries"))
    for path in archive.iterdir():
        shutil.copy2(path, folder)
    return replace(mirror, options=replace(mirror.options, folder=folder))


def has_segments(folder: Path, count: int) -> bool:
    return len(list(folder.glob("*.segment"))) >= count


def is_trimmed(mirror: Mirrored) -> bool:
    """Whether only the last segments are left, once everything is applied."""
    with connected(mirror.options.folder) as client:
        client.applied(client.sync())
    return not has_segments(mirror.options.folder, 3)


@pytest.mark.full
def test_the_archive_and_the_log_have_everything(db: Database, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key, v text, n numeric)")
    mirror = mirrored(db, tmp_path, "t", "u", segment_bytes=1 << 15, archive=str(archive))
    for turn in range(2):  # the second process continues the archive
        with receiving(mirror) as process:
            stored = len(list(archive.glob("*.segment"))) if turn else 0
            with writing(db):
                eventually(partial(has_segments, archive, stored + 3))
            mirror.catch_up()
            eventually(lambda: is_trimmed(mirror))
            process.stop()
            ended(process)
    assert whole(mirror, archive, tmp_path / "whole").require_equal() > 10
    shown = here("log", str(archive))
    assert (shown.returncode, "all checksums valid" in shown.stdout) == (0, True)


def test_a_log_whose_archive_fails_keeps_its_segments(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key, v text, n numeric)")
    mirror = mirrored(db, tmp_path, "t", "u", segment_bytes=1 << 15, archive="echo full; false %p")
    with receiving(mirror) as process, connected(mirror.options.folder) as client:
        with writing(db):
            eventually(lambda: len(list(mirror.options.folder.glob("*.segment"))) > 3)
        mirror.catch_up()
        client.applied(client.sync())
        time.sleep(0.5)  # in which it could remove them
        assert (mirror.options.folder / "000000000001.segment").exists()
        process.stop()
        ended(process)
    mirror.require_equal()
