"""`make bench-decode`: decoding of changes and copied rows to typed Arrow, against a Python loop, ADBC and CSV.

Every figure is for one core: decoders run in one thread, and their CPU time counts. ADBC cannot decode without
receiving, so it is compared with Tidemark including psycopg; without receiving, Tidemark is compared with CSV.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import tempfile
import time

import adbc_driver_postgresql.dbapi
import pyarrow as pa
import pyarrow.csv

from bench.figures import best_cpu_s, report
from harness.database import Database, add_roles, create_database
from harness.decoding import StreamDecoder
from harness.postgres import installs, start_server
from harness.recorded import Recording, record
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.values.copy import CopyDecoder
from tidemark.values.types import Decoding, Types, decoding_of

CHANGES, ROWS, REPEATS = 200_000, 400_000, 5

TEN_COLUMNS = """
    id int8 primary key, customer int4, state text, amount numeric(12,2), tax numeric(8,2), created timestamptz,
    due date, active bool, weight float8, note varchar(40)
"""
TEN_VALUES = """
    i, i % 10000, (array['new','paid','sent','done'])[1 + i % 4], (i % 1000000) / 100.0, (i % 10000) / 100.0,
    timestamptz '2024-01-01 00:00:00+00' + i * interval '1 second', date '2024-01-01' + i % 1000, i % 3 = 0, i / 7.0,
    'note number ' || i
"""
THREE_MORE = ("quantity int2", "code char(8)", "updated timestamp")
THREE_VALUES = "i % 100, 'c' || i % 1000, timestamp '2024-01-01' + i * interval '1 minute'"


def main() -> None:
    """Write and record changes, and decode them."""
    server = start_server(installs()[18])
    add_roles(server)
    database = create_database(server)
    database.run(f"create table ten ({TEN_COLUMNS})", f"create table thirteen ({TEN_COLUMNS}, {', '.join(THREE_MORE)})")
    recorder = record(database)
    database.run(f"insert into ten select {TEN_VALUES} from generate_series(1, {CHANGES}) i")
    binary, text = recorder.recording(binary=True), recorder.recording()
    database.admin(f"select pg_drop_replication_slot('{recorder.slot}')")
    database.run(f"insert into thirteen select {TEN_VALUES}, {THREE_VALUES} from generate_series(1, {ROWS}) i")
    with tempfile.TemporaryDirectory() as cache:
        figures = {key: _first_call_s(cache) for key in ("first_call_compiled_s", "first_call_cached_s")}
    figures |= {
        "binary_changes_per_core_s": CHANGES / best_cpu_s(lambda: _decode(binary), REPEATS),
        "text_changes_per_core_s": CHANGES / best_cpu_s(lambda: _decode(text), REPEATS),
        "python_loop_changes_per_core_s": CHANGES / best_cpu_s(lambda: _python_loop(text), 1),
    }
    figures |= _copies(database)
    report("decode", figures)


def _decode(recording: Recording) -> int:
    fed = StreamDecoder(Types()).feed(recording.buffer)
    return sum(len(item) for item in fed if isinstance(item, ChangeBatch))


def _python_loop(recording: Recording) -> list[list[str | None]]:
    """A plain Python loop: each message in turn, each value a slice, no types."""
    rows = []
    for message in recording.messages:
        if message[:1] != b"I":
            continue
        (columns,) = struct.unpack_from("!H", message, 6)
        at, row = 8, list[str | None]()
        for _ in range(columns):
            kind = message[at]
            at += 1
            if kind == 110:
                row.append(None)
                continue
            (size,) = struct.unpack_from("!I", message, at)
            row.append(message[at + 4 : at + 4 + size].decode())
            at += 4 + size
        rows.append(row)
    return rows


def _copies(database: Database) -> dict[str, float]:
    with database.session() as session:
        columns = session.rows(
            "select atttypid, atttypmod from pg_attribute where attrelid = 'public.thirteen'::regclass and attnum > 0 "
            "order by attnum"
        )
        decodings = [decoding_of(oid, typmod, Types()) for oid, typmod in columns]

        def drain(form: str) -> list[bytes]:
            with session.connection.cursor().copy(f"copy public.thirteen to stdout (format {form})".encode()) as copy:
                return _joined([bytes(piece) for piece in copy], 4 << 20)

        pieces, csv = drain("binary"), b"".join(drain("csv"))
        drained = best_cpu_s(lambda: _copy(drain("binary"), decodings), 2)
    dsn = database.server.dsn("postgres", database.name)
    return {
        "copy_rows_per_core_s": ROWS / best_cpu_s(lambda: _copy(pieces, decodings), REPEATS),
        "copy_received_rows_per_core_s": ROWS / drained,
        "adbc_received_rows_per_core_s": ROWS / best_cpu_s(lambda: _adbc(dsn), 2),
        "csv_rows_per_core_s": ROWS / best_cpu_s(lambda: _csv(csv), REPEATS),
    }


def _copy(pieces: list[bytes], decodings: list[Decoding]) -> None:
    decoder = CopyDecoder(decodings)
    for piece in pieces:
        for _ in decoder.feed(piece):
            pass
    for _ in decoder.finish():
        pass


def _adbc(dsn: str) -> pa.Table:
    with adbc_driver_postgresql.dbapi.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("select * from public.thirteen")
        return cursor.fetch_arrow_table()


def _csv(csv: bytes) -> pa.Table:
    options = pyarrow.csv.ReadOptions(use_threads=False, autogenerate_column_names=True)
    return pyarrow.csv.read_csv(io.BytesIO(csv), read_options=options)


def _joined(pieces: list[bytes], size: int) -> list[bytes]:
    whole = b"".join(pieces)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _first_call_s(cache: str) -> float:
    """Wall time of a new process until every kernel is ready, with this cache directory."""
    program = "from harness.warming import warm; warm()"
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "NUMBA_CACHE_DIR": cache})
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
