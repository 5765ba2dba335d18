"""`make bench-receive`: `tidemark receive` against pg_recvlogical on the same backlog, and the lag of a commit.

Both read the same WAL through slots of their own that start at the same LSN, with the same plugin options, into files
on the same disk, each in its own process, start-up included. The backlog consists of pgbench and one large transaction.
They alternate, since the speed of the machine varies by half between runs; `receive_over_pg_recvlogical` is the wall
time of all runs of Tidemark divided by that of all runs of pg_recvlogical.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.backlog import SETTINGS, changes, children_cpu_s, fill, prepare, tables, theirs
from bench.figures import report
from harness.database import MIRROR, Database, add_roles, create_database
from harness.mirrored import take_over_slot
from harness.postgres import installs, start_server
from tidemark.clock import Lsn
from tidemark.postgres.names import MirrorNames
from tidemark.receive.client import ReceiveClient
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess

TRANSACTIONS, BIG = 20_000, 1_400_000
REPEATS, LAG_SAMPLES, LAG_RATE = 3, 1500, 500
MODES = [(streaming, binary) for streaming in (True, False) for binary in (True, False)]


def main() -> None:
    """Write a backlog and read it alternately; then measure the lag."""
    server = start_server(installs()[18], SETTINGS)
    add_roles(server)
    database = create_database(server)
    tables(server, database)
    runs = [(mode, turn) for turn in range(REPEATS) for mode in MODES]
    names = {run: (prepare(database, f"ours_{at}"), f"theirs_{at}") for at, run in enumerate(runs)}
    for _, slot in names.values():
        database.admin(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    end = fill(server, database, TRANSACTIONS, BIG)
    figures: dict[str, float] = {}
    walls: dict[tuple[bool, bool], list[tuple[float, float, float, float]]] = {mode: [] for mode in MODES}
    for (mode, turn), (ours, slot) in names.items():
        if turn % 2:
            theirs_s, theirs_cpu_s = theirs(database, slot, end, mode)
        ours_s, ours_cpu_s = _ours(database, ours, end, mode)
        if turn % 2 == 0:
            theirs_s, theirs_cpu_s = theirs(database, slot, end, mode)
        walls[mode].append((ours_s, ours_cpu_s, theirs_s, theirs_cpu_s))
        print(f"  streaming {mode[0]}, binary {mode[1]}: {ours_s:.2f} s, pg_recvlogical {theirs_s:.2f} s", flush=True)
    for (streaming, binary), turns in walls.items():
        name = f"{'streamed' if streaming else 'whole'}_{'binary' if binary else 'text'}"
        ours_s, ours_cpu_s, theirs_s, theirs_cpu_s = (statistics.median(turn[at] for turn in turns) for at in range(4))
        figures |= {
            f"{name}_over_pg_recvlogical": ours_s / theirs_s,
            f"{name}_wall_s": ours_s,
            f"{name}_cpu_s": ours_cpu_s,
            f"{name}_pg_recvlogical_wall_s": theirs_s,
            f"{name}_pg_recvlogical_cpu_s": theirs_cpu_s,
        }
    all_turns = [turn for turns in walls.values() for turn in turns]
    figures["receive_over_pg_recvlogical"] = sum(turn[0] for turn in all_turns) / sum(turn[2] for turn in all_turns)
    figures["changes"] = changes(TRANSACTIONS, BIG)
    report("receive", figures | _lags(database))
    server.remove()


def _options(database: Database, names: MirrorNames, folder: Path) -> ReceiveOptions:
    return ReceiveOptions(database.dsn(MIRROR), folder, names)


def _ours(database: Database, names: MirrorNames, end: Lsn, mode: tuple[bool, bool]) -> tuple[float, float]:
    streaming, binary = mode
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "stderr").open("w") as stderr:
        options = replace(
            _options(database, names, Path(folder) / "log"), endpos=end, streaming=streaming, binary=binary
        )
        take_over_slot(options)
        begin, before = time.monotonic(), children_cpu_s()
        with ReceiveProcess.start(options, stderr=stderr) as process:
            process.wait()
        return time.monotonic() - begin, children_cpu_s() - before


def _lags(database: Database) -> dict[str, float]:
    """The time from the return of COMMIT to the received LSN: at a steady rate, and on an idle server with a nudge."""
    names = prepare(database, "lag")
    folder = Path(tempfile.mkdtemp())
    with (folder / "stderr").open("w") as stderr:
        options = _options(database, names, folder / "log")
        take_over_slot(options)
        with ReceiveProcess.start(options, stderr=stderr) as process, _client(options) as client:
            busy = _busy_lags_ms(database, client)
            idle = [_nudged_ms(client) for _ in range(200)]
            process.stop()
            process.wait()
    shutil.rmtree(folder)
    return {
        "received_lag_ms_p50": statistics.median(busy),
        "received_lag_ms_p99": statistics.quantiles(busy, n=100)[98],
        "idle_lag_ms_p50": statistics.median(idle),
        "idle_lag_ms_p99": statistics.quantiles(idle, n=100)[98],
    }


@contextmanager
def _client(options: ReceiveOptions) -> Iterator[ReceiveClient]:
    deadline = time.monotonic() + 60
    while True:
        try:
            client = ReceiveClient(options.folder)
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    while client.position().state != "streaming":
        time.sleep(0.05)
    with client:
        yield client


def _busy_lags_ms(database: Database, client: ReceiveClient) -> list[float]:
    """Measure some transactions while others commit at a steady rate."""
    stop = threading.Event()

    def load() -> None:
        with database.connect() as connection:
            due = time.monotonic()
            while not stop.is_set():
                connection.execute("update pgbench_accounts set abalance = abalance + 1 where aid = 1")
                due += 1 / (LAG_RATE / 2)
                time.sleep(max(0.0, due - time.monotonic()))

    loads = [threading.Thread(target=load) for _ in range(2)]
    for thread in loads:
        thread.start()
    lags = []
    with database.connect() as connection:
        for n in range(LAG_SAMPLES):
            connection.execute("update pgbench_accounts set abalance = %s where aid = 2", [n])
            committed = time.monotonic()
            row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
            client.wait(Lsn.parse((row or ("",))[0]), 10)
            lags.append((time.monotonic() - committed) * 1000)
            time.sleep(0.002)
    stop.set()
    for thread in loads:
        thread.join()
    return lags


def _nudged_ms(client: ReceiveClient) -> float:
    """The time until everything is received on an idle server, with a commit by the receiver."""
    begin = time.monotonic()
    client.nudge()
    return (time.monotonic() - begin) * 1000


if __name__ == "__main__":
    main()
