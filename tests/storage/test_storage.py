"""Storage on a local disk: atomic writes, one winner of put-if-absent, and claims that end with their owner."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tidemark.errors import LakeAccessDenied, LakeDiskFailed, LakeDiskFull, TidemarkError
from tidemark.storage import Storage, open_storage
from tidemark.storage.disk import TEMPORARY, File, LocalDisk
from tidemark.storage.interface import read_owner
from tidemark.storage.local import LocalStorage

pytestmark = pytest.mark.quick

NOBODY = 65534
PREPARE = """
import os, signal, sys, time
from pathlib import Path
from tidemark.storage.disk import LocalDisk
from tidemark.storage.local import LocalStorage

class Killed(LocalDisk):
    def replace(self, path, target):
        os.kill(os.getpid(), signal.SIGKILL)
    link = replace

storage, killed = LocalStorage(Path(sys.argv[1])), LocalStorage(Path(sys.argv[1]), Killed())
"""

BESIDE = """
data = str(os.getpid()).encode() * 1000
print("ready", flush=True)
sys.stdin.readline()
"""


def started(root: Path, code: str) -> subprocess.Popen[str]:
    """A process that runs this code with `storage`, and with `killed`, which is killed before a file gets its name."""
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE + code, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def names_in(root: str | Path) -> list[str]:
    return [path.name for path in Path(root).iterdir()]


@contextmanager
def running(root: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has run this code and printed `ready`; killed at the end."""
    with started(root, f"{code}\nprint('ready', flush=True); time.sleep(600)") as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path)


def test_an_object_is_written_replaced_listed_and_deleted(storage: Storage) -> None:
    assert storage.read("_folder/a.json") is None
    assert storage.list_keys("_folder", ".json") == []
    for key, data in ("_folder/b.json", b"1"), ("_folder/a.json", b"2"), ("_folder/c.txt", b"3"), ("top.json", b"4"):
        storage.write(key, data)
    storage.write("_folder/b.json", b"")
    assert storage.list_keys("_folder", ".json") == ["_folder/a.json", "_folder/b.json"]
    assert [storage.read(key) for key in storage.list_keys("_folder", "")] == [b"2", b"", b"3"]
    storage.delete("_folder/a.json")
    storage.delete("_folder/a.json")
    assert storage.read("_folder/a.json") is None
    assert storage.list_keys("_folder", "") == ["_folder/b.json", "_folder/c.txt"]


def test_an_object_is_put_once(storage: Storage) -> None:
    assert storage.put_if_absent("key", b"first")
    assert not storage.put_if_absent("key", b"second")
    assert storage.read("key") == b"first"
    storage.delete("key")
    assert storage.put_if_absent("key", b"third")
    assert names_in(storage.root) == ["key"]


def together(root: Path, code: str) -> dict[bytes, str]:
    """What two processes print that run this code at the same time, by the data that each writes."""
    with ExitStack() as stack:
        processes = [stack.enter_context(started(root, BESIDE + code)) for _ in range(2)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        printed = {str(process.pid).encode() * 1000: process.communicate(timeout=120)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    return printed


def test_of_two_processes_that_put_an_object_one_succeeds_and_its_contents_are_whole(tmp_path: Path) -> None:
    printed = together(tmp_path, "print(sum(storage.put_if_absent(f'_keys/{number}', data) for number in range(100)))")
    found = [path.read_bytes() for path in (tmp_path / "_keys").iterdir()]
    assert len(found) == 100
    assert {data: found.count(data) for data in printed} == {data: int(count) for data, count in printed.items()}


def test_two_processes_that_replace_the_same_object_leave_the_whole_contents_of_one(tmp_path: Path) -> None:
    written = together(tmp_path, "for _ in range(100): storage.write('key', data)")
    assert (tmp_path / "key").read_bytes() in written
    assert names_in(tmp_path) == ["key"]


def test_a_process_that_is_killed_before_the_rename_leaves_the_old_contents(tmp_path: Path, storage: Storage) -> None:
    storage.write("_folder/old", b"old")
    for code in 'killed.write("_folder/old", b"new")', 'killed.put_if_absent("_folder/new", b"new")':
        with started(tmp_path, code) as process:
            assert process.wait(60) == -signal.SIGKILL
    assert [storage.read(key) for key in ("_folder/old", "_folder/new")] == [b"old", None]
    left = storage.list_keys("_folder", TEMPORARY)
    assert [key.split(".")[0] for key in left] == ["_folder/new", "_folder/old"], "complete, and without their names"
    storage.remove_unfinished("_folder/old")
    assert storage.list_keys("_folder", TEMPORARY) == left[:1]
    storage.write("_folder/old", b"newer")
    assert storage.put_if_absent("_folder/new", b"newer")
    assert [storage.read(key) for key in ("_folder/old", "_folder/new")] == [b"newer", b"newer"]


class FullDisk(LocalDisk):
    """Has no room for contents."""

    def append(self, file: File, *parts: bytes | memoryview) -> None:
        with self.failing("write to", file.path), Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"".join(parts))


def test_a_full_disk_leaves_the_old_contents_and_no_other_file(tmp_path: Path, storage: Storage) -> None:
    storage.write("key", b"old")
    full = LocalStorage(tmp_path, FullDisk())
    for write in full.write, full.put_if_absent:
        with pytest.raises(LakeDiskFull, match=f"cannot write to {tmp_path}: No space left on device on the file"):
            write("key", b"new")
    assert storage.read("key") == b"old"
    assert names_in(tmp_path) == ["key"]


def test_a_lock_has_one_owner_and_is_free_once_that_is_killed(tmp_path: Path, storage: Storage) -> None:
    assert not storage.is_locked("lock")
    assert read_owner(storage, "lock") is None
    with running(tmp_path, "lock = storage.lock('lock')") as process:
        assert storage.is_locked("lock")
        assert storage.lock("lock") is None
        owner = read_owner(storage, "lock")
        assert owner is not None
        assert (owner.pid, owner.host) == (process.pid, os.uname().nodename)
        process.send_signal(signal.SIGSTOP)  # a process that does not run still has its lock
        assert storage.lock("lock") is None
        process.kill()
        process.wait()
        assert not storage.is_locked("lock")
        lock = storage.lock("lock")
        assert lock is not None
        assert storage.lock("lock") is None, "another one of the same process"
        owner = read_owner(storage, "lock")
        assert owner is not None
        assert owner.pid == os.getpid()
        lock.close()
    storage.wait_for_lock("lock").close()


def test_a_lock_whose_owner_cannot_be_recorded_is_not_taken(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(LakeDiskFull):
            storage.lock("lock")
    assert not storage.is_locked("lock")


def test_a_lock_that_its_last_owner_deletes_is_not_taken_under_no_name(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, locked = fcntl.flock, list[int]()

    def deleted_before(file: int, how: int) -> None:
        if not locked:
            storage.delete("key.lock")
        locked.append(file)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", deleted_before)
    lock = storage.lock("key.lock")
    assert lock is not None
    assert storage.is_locked("key.lock")
    lock.close()


def test_a_process_that_waits_for_a_lock_gets_it_when_its_owner_is_killed(tmp_path: Path, storage: Storage) -> None:
    with running(tmp_path, "lock = storage.lock('lock')") as owner:
        with started(tmp_path, "storage.wait_for_lock('lock'); print(os.getpid(), flush=True)") as waiting:
            owner.kill()
            assert waiting.stdout is not None
            assert int(waiting.stdout.readline()) == waiting.pid


def test_a_lease_exists_while_its_owner_runs(tmp_path: Path, storage: Storage) -> None:
    code = "lease = storage.lease('_leases', '.json'); lease.write(b'longer than the second'); lease.write(b'data')"
    with running(tmp_path, code) as process:
        mine = storage.lease("_leases", ".json")
        assert sorted(lease.data for lease in storage.leases("_leases", ".json")) == [b"", b"data"]
        assert storage.leases("_leases", ".other") == []
        mine.close()
        mine.close()
        mine.write(b"closed")
        (lease,) = storage.leases("_leases", ".json")
        assert storage.read(lease.key) == lease.data == b"data"
        process.kill()
        process.wait()
        assert storage.list_keys("_leases", ".json") == [lease.key]
    assert storage.leases("_leases", ".json") == []
    assert storage.list_keys("_leases", "") == []


def test_every_user_can_read_a_lease_whatever_the_umask_of_its_owner_is(tmp_path: Path, storage: Storage) -> None:
    before = os.umask(0o077)
    try:
        lease = storage.lease("_leases", ".lease")
    finally:
        os.umask(before)
    assert (tmp_path / lease.key).stat().st_mode & 0o444 == 0o444
    lease.close()


def test_a_folder_of_leases_for_all_users_is_writable_by_them(tmp_path: Path, storage: Storage) -> None:
    storage.lease("_all", ".json", for_all_users=True)
    storage.lease("_ours", ".json")
    assert (tmp_path / "_all").stat().st_mode & 0o7777 == 0o1777
    assert not (tmp_path / "_ours").stat().st_mode & 0o002


WRITES: dict[str, Callable[[Storage], object]] = {
    "write": lambda storage: storage.write("key", b""),
    "write in a folder": lambda storage: storage.write("_folder/key", b""),
    "put": lambda storage: storage.put_if_absent("key", b""),
    "lock": lambda storage: storage.lock("lock"),
    "wait for a lock": lambda storage: storage.wait_for_lock("lock"),
    "lease": lambda storage: storage.lease("_leases", ".json"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_root_that_is_missing_or_a_file_is_named(tmp_path: Path, write: Callable[[Storage], object]) -> None:
    (tmp_path / "file").touch()
    for name, reason in ("missing", "No such file or directory"), ("file", "Not a directory"):
        storage = open_storage(tmp_path / name)
        with pytest.raises(LakeDiskFailed, match=rf"cannot .* {tmp_path / name}.*: {reason}") as raised:
            write(storage)
        assert "is a directory, then retry" in raised.value.hint
        with pytest.raises(TidemarkError, match=f"cannot list {tmp_path / name}: {reason}"):
            storage.require_root()
        assert storage.read("key") is None
        assert storage.list_keys("_leases", "") == []
        assert storage.leases("_leases", "") == []
        assert not storage.is_locked("lock")
        storage.delete("key")
    assert not (tmp_path / "missing").exists()


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Without the privileges of root, which may write everywhere."""
    before = os.geteuid()
    os.seteuid(before or NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_root_that_is_read_only_is_named_and_can_be_read(write: Callable[[Storage], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:  # one that another user can reach
        storage = open_storage(Path(folder))
        storage.write("object", b"data")
        Path(folder).chmod(0o555)
        with as_ordinary_user():
            assert storage.read("object") == b"data"
            with pytest.raises(LakeAccessDenied, match=rf"cannot .* {folder}.*: Permission denied") as raised:
                write(storage)
            assert f"access to {folder}" in raised.value.hint
            with pytest.raises(LakeAccessDenied, match="cannot remove"):
                storage.delete("object")
        Path(folder).chmod(0o755)


def test_a_root_is_created_with_its_parents(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "a" / "b")
    for _ in range(2):
        storage.create_root()
    storage.require_root()
    (tmp_path / "file").touch()
    with pytest.raises(LakeDiskFailed, match=r"cannot create .*/file: File exists"):
        open_storage(tmp_path / "file").create_root()
