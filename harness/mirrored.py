"""A receiving mirror for tests: its database, publications and log, and a second slot as reference for the log.

The reference is PostgreSQL: the same WAL decoded through another slot and read with SQL. The log must contain the same
transactions with the same messages, each exactly once.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.database import MIRROR, Database
from harness.proxy import Proxy
from tidemark.clock import Lsn
from tidemark.errors import ReceiveFailed
from tidemark.lake.pipeline_state import PipelineState, read_pipeline_state
from tidemark.log.disk import Disk
from tidemark.log.mirror import LogMirror, write_mirror
from tidemark.log.reader import LogReader
from tidemark.logs import record_from_json
from tidemark.pgoutput.frames import windows
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.receive.checks import check_source
from tidemark.receive.client import ReceiveClient
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess


@dataclass(frozen=True)
class Transaction:
    """A committed transaction: its 32-bit xid, its commit LSN, and its messages in the form without streaming."""

    xid: int
    lsn: Lsn
    messages: tuple[bytes, ...]


@dataclass
class Mirrored:
    """A database with the publications and slots of a mirror, and the options of its receiver."""

    database: Database
    options: ReceiveOptions
    judge: str
    publications: tuple[str, ...]

    def through(self, proxy: Proxy) -> ReceiveOptions:
        """The same options for a connection through a proxy."""
        source = self.options.source.reveal().replace(f"port={self.database.server.port}", f"port={proxy.port}")
        return replace(self.options, source=Dsn(source))

    def by_sql(self) -> list[Transaction]:
        """The transactions committed since the mirror was created, from the reference slot."""
        names, binary = ", ".join(self.publications), str(self.options.binary).lower()
        plugin = f"'proto_version', '1', 'messages', 'true', 'publication_names', '{names}', 'binary', '{binary}'"
        flush = "select pg_logical_emit_message(true, 'judge', 'everything before this is flushed')"
        peek = f"select data from pg_logical_slot_peek_binary_changes('{self.judge}', null, null, {plugin})"
        return _without_judges(list(_transactions(row[0] for row in self.database.admin(flush, peek))))

    def in_log(self) -> list[Transaction]:
        """The transactions in the log."""
        return _without_judges(read_log(self.options.folder))

    def require_equal(self) -> int:
        """Require that the log equals the slot; after the received LSN only logical messages (nudges) may follow."""
        received = LogReader(self.options.folder).received
        later = [each.lsn for each in self.by_sql() if each.lsn > received and not _only_said(each)]
        assert not later, f"{len(later)} committed after {received} and not received, the first {later[0]}"
        return self.require_equal_so_far()

    def require_equal_so_far(self) -> int:
        """Require that the log equals the slot up to the received LSN, in order; return the number of transactions."""
        received = LogReader(self.options.folder).received
        found = [each for each in self.in_log() if each.lsn <= received]
        expected = [each for each in self.by_sql() if each.lsn <= received]
        missing = sorted({each.lsn for each in expected} - {each.lsn for each in found})
        extra = sorted({each.lsn for each in found} - {each.lsn for each in expected})
        assert not missing, f"{len(missing)} of {len(expected)} missing, the first {missing[0]}"
        assert not extra, f"{len(extra)} too many, the first {extra[0]}"
        assert [each.lsn for each in found] == [each.lsn for each in expected], "order or number differ"
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.messages == theirs.messages, f"{theirs.lsn} differs"
            assert ours.xid == theirs.xid
        return len(found)

    def catch_up(self, limit_s: float = 180) -> None:
        """Wait until the log has everything committed so far."""
        (lsn,) = self.database.admin("select pg_current_wal_insert_lsn()::text")[0]
        with connected(self.options.folder, limit_s) as client:
            client.wait(Lsn.parse(lsn), limit_s)


def mirrored(database: Database, folder: Path, *tables: str, **options: Any) -> Mirrored:
    """Publish tables and create the slots of the mirror and of the reference; nothing is received yet."""
    names = MirrorNames(database.name)
    generated = ", publish_generated_columns = stored" if database.server.install.major >= 18 else ""
    database.admin(
        f"create publication {names.publication} for table {', '.join(tables)} "
        f"with (publish = 'insert, update, delete, truncate'{generated})",
        f"select pg_create_logical_replication_slot('{names.slot}', 'pgoutput')",
    )
    judge = f"judge_{database.name}"
    database.admin(f"select pg_copy_logical_replication_slot('{names.slot}', '{judge}')")
    receive = ReceiveOptions(database.dsn(MIRROR), folder / "log", names, **options)
    take_over_slot(receive)
    return Mirrored(database, receive, judge, (names.publication,))


def take_over_slot(options: ReceiveOptions) -> None:
    """Start the log at an existing slot, as after a first start that was killed in the middle."""
    with Session.open(options.source, "test") as session:
        source = check_source(session, options.source, options.names, None, Lsn.ZERO)
    Disk().make_folder(options.folder)
    write_mirror(options.folder, Disk(), LogMirror(source.identity, options.names.mirror, None, source.marks))


@contextmanager
def receiving(
    mirror: Mirrored, options: ReceiveOptions | None = None, *, module: str = "tidemark.receive"
) -> Iterator[ReceiveProcess]:
    """Run a receiver until the context ends; its stderr is stored in the parent directory of the log."""
    with (
        (mirror.options.folder.parent / "said").open("ab") as said,
        ReceiveProcess.start(options or mirror.options, module=module, stderr=said, level=logging.INFO) as process,
    ):
        yield process


@contextmanager
def connected(folder: Path, limit_s: float = 120) -> Iterator[ReceiveClient]:
    """A client of the process that receives into this directory, as soon as there is one."""
    with eventually(lambda: ReceiveClient(folder), limit_s) as client:
        yield client


def pipeline_state(lake: Path) -> PipelineState:
    """What the pipeline of a lake recorded last."""
    found = read_pipeline_state(lake)
    assert found is not None
    return found


def eventually(attempt: Callable[[], Any], limit_s: float = 120) -> Any:
    """Return the first true result of `attempt`; after `limit_s` seconds, raise its last error or fail."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            found = attempt()
        except (ReceiveFailed, FileNotFoundError):
            if time.monotonic() > deadline:
                raise
        else:
            if found:
                return found
            assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def ended(process: ReceiveProcess, limit_s: float = 300) -> Lsn:
    """Wait for the end of a process, as its parent does; kill it after `limit_s` seconds, so that the test ends."""
    watchdog = threading.Timer(limit_s, process.process.kill)
    watchdog.start()
    try:
        return process.wait()
    finally:
        watchdog.cancel()


def receive_all(mirror: Mirrored, options: ReceiveOptions | None = None) -> Lsn:
    """Receive everything committed so far with one process, and stop it; return the LSN at which it ended.

    Its walsender may run a moment longer and move the slot, so its end is waited for as well.
    """
    with receiving(mirror, options) as process:
        mirror.catch_up()
        process.stop()
        lsn = ended(process)
    eventually(lambda: not _walsenders(mirror))
    return lsn


def streaming(mirror: Mirrored, limit_s: float = 120) -> int:
    """The PID of the walsender that serves the mirror, as soon as there is one."""
    found = eventually(lambda: _walsenders(mirror), limit_s)
    assert isinstance(found[0], int)
    return found[0]


def _walsenders(mirror: Mirrored) -> list[int]:
    query = f"select active_pid from pg_replication_slots where slot_name = '{mirror.options.names.slot}'"
    return [pid for (pid,) in mirror.database.admin(query) if pid]


def said(mirror: Mirrored) -> str:
    """The messages of the receivers, a line each."""
    lines = (mirror.options.folder.parent / "said").read_text().splitlines()
    return "".join(f"{record.getMessage() if (record := record_from_json(line)) else line}\n" for line in lines)


def read_log(folder: Path) -> list[Transaction]:
    """Every transaction of a log, with its messages in the form without streaming: no stream xids, no aborts."""
    reader = LogReader(folder)
    found = []
    for part in reader.transactions(Lsn.ZERO, reader.received):
        buffers = reader.buffers(part)
        for at, commit in enumerate(part.commits):
            rows = part.some(at, at + 1)
            messages = []
            for place, _, start, end, _ in rows.extents.tolist():
                buffer = buffers[place]
                for window in windows(buffer, np.array([start]), np.array([end]), 65536, 64 << 20):
                    for s, n in zip(window.starts.tolist(), window.lengths.tolist(), strict=True):
                        messages.append(buffer[s : s + n].tobytes())
            if commit["streamed"]:
                messages = [m for m in map(_unstreamed(set(rows.aborted.tolist())), messages) if m]
            found.append(Transaction(int(commit["xid"]) & 0xFFFFFFFF, Lsn(int(commit["lsn"])), _content(messages)))
    return found


def _without_judges(transactions: list[Transaction]) -> list[Transaction]:
    """Remove the reference's own messages, and transactions that changed nothing published.

    The stream has such transactions, and the slot read with SQL does not.
    """
    judges = (any(message[10:16] == b"judge\0" for message in each.messages) for each in transactions)
    return [each for each, judge in zip(transactions, judges, strict=True) if each.messages and not judge]


def _only_said(transaction: Transaction) -> bool:
    return all(message[:1] == b"M" for message in transaction.messages)


def _unstreamed(aborted: set[int]) -> Callable[[bytes], bytes]:
    def plain(message: bytes) -> bytes:
        (xid,) = struct.unpack_from("!I", message, 1)
        return b"" if xid in aborted else message[:1] + message[5:]

    return plain


def _content(messages: list[bytes]) -> tuple[bytes, ...]:
    """Changes and logical messages; Relation and Type differ in number, and begin and end are separate fields."""
    return tuple(m for m in messages if m[:1] in (b"I", b"U", b"D", b"T", b"M"))


def _transactions(messages: Iterator[bytes]) -> Iterator[Transaction]:
    xid, inside = 0, list[bytes]()
    for message in messages:
        if message[:1] == b"B":
            (xid,) = struct.unpack_from("!I", message, 17)
            inside = []
        elif message[:1] == b"C":
            (end,) = struct.unpack_from("!Q", message, 10)
            yield Transaction(xid, Lsn(end), _content(inside))
        else:
            inside.append(message)
