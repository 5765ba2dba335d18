"""Leases: who reads a lake, as long as it lives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue
from tidemark.lake.leases import FOLDER, Lease, needed_from, read_leases
from tidemark.vacuum.vacuum import VacuumOptions

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
    assert json.loads(path.read_bytes())[-2:] == ["0/9", "0/B"]
    (held,) = read_leases(tmp_path)
    assert (held.lsn, held.tail) == (Lsn(9), Lsn(11))
    assert needed_from(Lsn(20), [held]) == Lsn(11)
    assert needed_from(Lsn(10), [held]) == Lsn(10)
    assert f"pid {os.getpid()}" in str(held)
    lease.close()
    lease.close()
    assert read_leases(tmp_path) == ()


def test_bad_options_are_refused() -> None:
    with pytest.raises(InvalidValue, match="both a time and a position"):
        VacuumOptions(keep_s=1.0, before=Lsn(1))
    with pytest.raises(InvalidValue, match="negative"):
        VacuumOptions(grace_s=-1.0)
