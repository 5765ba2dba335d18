"""Every control file is synced before it gets its name, and its directory after that; so is every new directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tidemark.clock import Lsn, Snapshot, Xid8
from tidemark.lake.catalog import update_catalog
from tidemark.lake.lake import Lake
from tidemark.lake.requests import Requests, Restart, request_restart, request_resync
from tidemark.lake.snapshot_requests import (
    ExportedSnapshot,
    SnapshotRequest,
    answer_request,
    read_requests,
    refuse_request,
)
from tidemark.lake.sync_records import Retention, record_retention, record_unmirrored
from tidemark.log.disk import Disk
from tidemark.log.forgotten import write_forgotten
from tidemark.log.mirror import LogMirror, write_mirror
from tidemark.pipeline.poll.handover import mark_attempt
from tidemark.postgres.identity import Identity
from tidemark.postgres.unmirrored import Unmirrored
from tidemark.schema.reasons import Reason
from tidemark.storage import open_storage

pytestmark = pytest.mark.quick


@dataclass
class SystemCalls:
    """What was done to names and synced, in order; `source` is the file that got a name."""

    calls: list[tuple[str, Path, Path | None]] = field(default_factory=list)

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Record from now on."""
        self._wrap(monkeypatch, "fsync", lambda file, *_: ("sync", _opened(file), None))
        self._wrap(monkeypatch, "fdatasync", lambda file, *_: ("sync", _opened(file), None))
        self._wrap(monkeypatch, "replace", lambda source, target, *_: ("name", Path(target), Path(source)))
        self._wrap(monkeypatch, "link", lambda source, target, *_: ("name", Path(target), Path(source)))
        self._wrap(monkeypatch, "mkdir", lambda path, *_: ("mkdir", Path(path), None))
        self._wrap(monkeypatch, "unlink", lambda path, *_: ("unlink", Path(path), None))

    def _wrap(
        self, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[..., tuple[str, Path, Path | None]]
    ) -> None:
        actual = getattr(os, name)

        def recording(*arguments: Any, **options: Any) -> Any:
            result = actual(*arguments, **options)
            self.calls.append(call(*arguments))
            return result

        monkeypatch.setattr(os, name, recording)

    def is_synced(self, path: Path, begin: int, end: int | None = None) -> bool:
        """Whether a file or directory was synced between two calls."""
        return ("sync", path, None) in self.calls[begin:end]

    def require_written(self, path: Path) -> None:
        """The file was complete on disk when it got its name, and the name and new directories are on disk now."""
        named = [number for number, call in enumerate(self.calls) if call[:2] == ("name", path)]
        assert named, f"{path} was not written atomically: {self.calls}"
        source = self.calls[named[-1]][2]
        assert source is not None
        assert self.is_synced(source, 0, named[-1])
        self.require_names_synced()

    def require_names_synced(self) -> None:
        """Every directory was synced after its last change."""
        for number, (kind, path, _) in enumerate(self.calls):
            if kind != "sync":
                assert self.is_synced(path.parent, number), f"{path.parent} is not synced after {kind} of {path.name}"


def _opened(file: int) -> Path:
    return Path(f"/proc/self/fd/{file}").readlink()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake", "mirror", 1, 2, "shop", 180000, tmp_path / "log")
    lake.create()
    (tmp_path / "log").mkdir()
    return lake


def rewritten(lake: Lake) -> None:
    Lake(lake.path, lake.mirror, 1, 2, "shop", 180000, lake.path / "other").create()


def requested(lake: Lake) -> None:
    request_resync(lake.path, [7])


def unfulfilled(lake: Lake) -> None:
    requests = Requests(lake.path)
    assert requests.new() == [7]
    requests.failed(7, Reason("no room", ""))


WRITERS: dict[str, tuple[Callable[[Lake], object], str]] = {
    "the lake, with another log": (rewritten, "lake/_tidemark.json"),
    "the catalog": (lambda lake: update_catalog(lake.path), "lake/catalog.json"),
    "what is not mirrored": (
        lambda lake: record_unmirrored(lake.path, [Unmirrored("public.v", "view", "a view")]),
        "lake/_unmirrored.json",
    ),
    "a request to restart": (lambda lake: request_restart(lake.path), "lake/_restart.json"),
    "a restart that was decided": (lambda lake: Restart("now", Lsn(7), "why").write(lake.path), "lake/_restart.json"),
    "an attempt to hand over": (lambda lake: mark_attempt(open_storage(lake.path), lake.log), "lake/_handover"),
    "the mirror of a log": (
        lambda lake: write_mirror(lake.log, Disk(), LogMirror(Identity(1, 2, "shop", 1, None), "mirror", None)),
        "log/mirror.json",
    ),
    "the retention": (lambda lake: record_retention(lake.path, Retention(7.0)), "lake/_retention.json"),
    "the commits that were removed": (lambda lake: write_forgotten(lake.log, Disk(), Xid8(7)), "log/forgotten.json"),
}


@pytest.mark.parametrize(("write", "path"), WRITERS.values(), ids=WRITERS)
def test_a_control_file_and_its_name_are_durable(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Lake], object], path: str
) -> None:
    calls = SystemCalls()
    calls.attach(monkeypatch)
    write(lake)
    calls.require_written(tmp_path / path)


def test_a_new_lake_and_its_directories_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = SystemCalls()
    calls.attach(monkeypatch)
    path = tmp_path / "some" / "where" / "lake"
    Lake(path, "mirror", 1, 2, "shop", 180000, tmp_path / "log").create()
    calls.require_written(path / "_tidemark.json")


def test_the_first_request_and_its_failure_are_durable(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for write in requested, unfulfilled:
        calls = SystemCalls()
        with monkeypatch.context() as patched:
            calls.attach(patched)
            write(lake)
        (request,) = (lake.path / "_requests").iterdir()
        calls.require_written(request)


def test_the_answer_to_a_request_for_a_snapshot_is_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with SnapshotRequest(lake.path):
        (request,) = read_requests(lake.path)
        calls = SystemCalls()
        calls.attach(monkeypatch)
        refuse_request(lake.path, request, "not now")
        answer_request(lake.path, request, ExportedSnapshot("id", Snapshot.parse("7:7:"), Lsn(7)))
        calls.require_written((lake.path / request).with_suffix(".snapshot"))


def test_a_request_that_is_removed_does_not_come_back(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    request_restart(lake.path)
    request_resync(lake.path, [7])
    requests = Requests(lake.path)
    requests.new()
    calls = SystemCalls()
    calls.attach(monkeypatch)
    Restart.remove(lake.path)
    requests.fulfilled(7)
    assert [call[0] for call in calls.calls] == ["unlink", "sync"] * 2
    calls.require_names_synced()
