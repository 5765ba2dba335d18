"""Invented tables and values, for a set time: whatever the server stores comes back as it prints it."""

from __future__ import annotations

import os
import random
import time

import pytest

from harness.database import Database
from harness.printed import printed
from harness.recorded import decode, record, types_of
from tests.pgoutput.corpus import ARRAYS, SCALARS
from tidemark.pgoutput.changes import Limits
from tidemark.values.copy import CopyDecoder
from tidemark.values.types import Types, decoding_of

pytestmark = pytest.mark.quick

SECONDS = 8.0
LETTERS = "abc xyzü€😀\\\"'{},\n\t%NUL_"
Rows = list[tuple[str | None, ...]]


def literal(kind: str, rng: random.Random) -> str | None:
    """A value that nobody thought of, or now and then one of the corpus, or none."""
    if rng.random() < 0.1:
        return None
    base, _, modifier = kind.partition("(")
    invented = {
        "bool": lambda: rng.choice("tf"),
        "int2": lambda: str(rng.randint(-(2**15), 2**15 - 1)),
        "int4": lambda: str(rng.randint(-(2**31), 2**31 - 1)),
        "int8": lambda: str(rng.randint(-(2**63), 2**63 - 1)),
        "oid": lambda: str(rng.randint(0, 2**32 - 1)),
        "float4": lambda: repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-38, 37)),
        "float8": lambda: repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)),
        "text": lambda: "".join(rng.choices(LETTERS, k=rng.randint(0, 40))),
        "bytea": lambda: "\\x" + rng.randbytes(rng.randint(0, 40)).hex(),
        "date": lambda: f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        "timestamp": lambda: _timestamp(rng),
        "timestamptz": lambda: f"{_timestamp(rng)}{rng.choice(['+00', '-08', '+05:45'])}",
        "time": lambda: _time(rng),
        "timetz": lambda: f"{_time(rng)}{rng.choice(['+00', '-08', '+05:45'])}",
        "interval": lambda: (
            f"{rng.randint(-99, 99)} mons {rng.randint(-99, 99)} days {rng.randint(-(10**12), 10**12)} us"
        ),
        "uuid": lambda: rng.randbytes(16).hex(),
        "numeric": lambda: _numeric(modifier, rng),
    }
    if base in invented and not kind.endswith("[]") and rng.random() < 0.8:
        return invented[base]()
    return rng.choice((SCALARS | ARRAYS)[kind])


def _time(rng: random.Random) -> str:
    fraction = rng.choice(["", f".{rng.randint(0, 999999):06}", f".{rng.randint(0, 9)}"])
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}{fraction}"


def _timestamp(rng: random.Random) -> str:
    return f"{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02} {_time(rng)}"


def _numeric(modifier: str, rng: random.Random) -> str:
    precision, scale = (int(part) for part in modifier.rstrip(")").split(",")) if modifier else (60, 20)
    whole = str(rng.randint(0, 10 ** rng.randint(0, precision - scale) - 1)) if precision > scale else "0"
    fraction = "".join(rng.choices("0123456789", k=rng.randint(0, scale)))
    return rng.choice(["", "-"]) + whole + (f".{fraction}" if fraction else "")


def invent(db: Database, name: str, rng: random.Random) -> list[str]:
    kinds = rng.choices(list(SCALARS | ARRAYS), k=rng.randint(1, 12))
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds))
    db.run(f"create table {name} (id serial primary key, {columns})")
    return kinds


def fill(db: Database, name: str, kinds: list[str], rng: random.Random) -> None:
    places = ", ".join(["%s"] * len(kinds))
    rows = [[literal(kind, rng) for kind in kinds] for _ in range(rng.randint(1, 30))]
    with db.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        columns = ", ".join(f"c{n}" for n in range(len(kinds)))
        connection.cursor().executemany(f"insert into {name} ({columns}) values ({places})".encode(), rows)


def expected(db: Database, name: str, kinds: list[str]) -> Rows:
    columns = ", ".join(f"case when c{n} is not null then format('%%s', c{n}) end" for n in range(len(kinds)))
    with db.session() as session:
        return [tuple(row) for row in session.rows(f"select {columns} from public.{name} order by id", [])]


def by_copy(db: Database, name: str, kinds: list[str]) -> Rows:
    columns = ", ".join(f"c{n}" for n in range(len(kinds)))
    with db.session() as session:
        types = session.rows(
            "select atttypid, atttypmod from pg_attribute where attrelid = %s::regclass and attnum > 1 order by attnum",
            [f"public.{name}"],
        )
        query = f"copy (select {columns} from public.{name} order by id) to stdout (format binary)"
        with session.connection.cursor().copy(query.encode()) as copy:
            raw = b"".join(bytes(piece) for piece in copy)
    decoder = CopyDecoder([decoding_of(oid, typmod, Types()) for oid, typmod in types], batch_rows=7)
    rows: Rows = []
    for batch in (*decoder.feed(raw), *decoder.finish()):
        rows += zip(*(printed(column) for column in batch.columns), strict=True)
    return rows


def test_invented_tables_come_back_as_the_server_prints_them(db: Database) -> None:
    seed = int(os.environ.get("SEED", time.time_ns() % 2**32))
    print(f"seed {seed}: SEED={seed} repeats this")  # noqa: T201
    rng = random.Random(seed)  # noqa: S311
    names = {f"g{n}": list[str]() for n in range(8)}
    end, tables = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        names = {f"g{tables + n}": invent(db, f"g{tables + n}", rng) for n in range(8)}
        tables += len(names)
        recorder, types = record(db), types_of(db)
        for name, kinds in names.items():
            fill(db, name, kinds, rng)
        want = {name: expected(db, name, kinds) for name, kinds in names.items()}
        assert {name: by_copy(db, name, kinds) for name, kinds in names.items()} == want, f"SEED={seed}"
        for binary in (False, True):
            found: dict[str, Rows] = {name: [] for name in names}
            for batch in decode(recorder.recording(binary=binary), types, Limits(rows=11)):
                found[batch.relation.name] += zip(*(printed(column) for column in batch.new[1:]), strict=True)
            assert found == want, f"SEED={seed}"
        db.admin(f"select pg_drop_replication_slot('{recorder.slot}')", "drop publication recorded")
    assert tables >= 8
