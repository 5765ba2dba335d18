"""Leases: who reads a lake, as long as it lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.leases import FOLDER, Lease, leases_in_force, needed_from, read_leases, require_hold
from tidemark.pipeline.expire.expiry import ExpireOptions

pytestmark = pytest.mark.quick


def test_the_lease_of_a_dead_process_is_nobodys(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tidemark.clock import Lsn; "
        "from tidemark.lake.leases import Lease; lease = Lease(Path(sys.argv[1]), Lsn(7)); print('held', flush=True); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        (lease,) = read_leases(tmp_path)
        assert (lease.lsn, lease.owner.pid) == (Lsn(7), process.pid)
        process.kill()
        process.wait()
    assert read_leases(tmp_path) == ()
    assert not list((tmp_path / FOLDER).iterdir())


def test_what_a_lease_says_can_be_read_by_people(tmp_path: Path) -> None:
    lease = Lease(tmp_path, Lsn(9))
    lease.needs_tail(Lsn(12))
    lease.needs_tail(Lsn(11))
    (path,) = (tmp_path / FOLDER).iterdir()
    plain = json.loads(path.read_bytes())
    assert (plain["pid"], plain["lsn"], plain["log_lsn"], plain["expires_at"]) == (os.getpid(), "0/9", "0/B", None)
    (held,) = read_leases(tmp_path)
    assert (held.lsn, held.tail) == (Lsn(9), Lsn(11))
    assert needed_from(Lsn(20), [held]) == Lsn(11)
    assert needed_from(Lsn(10), [held]) == Lsn(10)
    assert f"pid {os.getpid()}" in str(held)
    lease.close()
    lease.close()
    assert read_leases(tmp_path) == ()


def test_a_readers_lease_ends_while_its_owner_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, readers = Lease(tmp_path, Lsn(3)), Lease(tmp_path, Lsn(9), hold_s=60)
    readers.require_in_force()
    assert {lease.lsn for lease in leases_in_force(tmp_path)} == {Lsn(3), Lsn(9)}
    later = time.time() + 61
    monkeypatch.setattr("tidemark.lake.leases.time.time", lambda: later)
    assert [lease.lsn for lease in leases_in_force(tmp_path)] == [Lsn(3)]
    assert any("lease expired " in str(lease) for lease in read_leases(tmp_path)), (
        "and it is shown as long as it is held"
    )
    with pytest.raises(NotAnswerable, match=r"the lease of this handle at 0/9 expired after 1 min"):
        readers.require_in_force()
    ours.require_in_force()
    for lease in (ours, readers):
        lease.close()


def test_bad_options_are_refused() -> None:
    with pytest.raises(InvalidValue, match="exactly one of keep_s and before"):
        ExpireOptions(keep_s=1.0, before=Lsn(1))
    with pytest.raises(InvalidValue, match="negative"):
        ExpireOptions(grace_s=-1.0)
    for hold_s in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidValue, match="invalid hold_s"):
            require_hold(hold_s)
