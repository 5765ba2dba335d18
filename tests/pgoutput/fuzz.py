"""`make fuzz`: real messages and copies, damaged at random; out comes a value or one of our errors, nothing else.

Kernels are compiled with bounds checks for this, and the damaged bytes lie at the very end of their buffer, so that
reading a single byte too far is an IndexError and not a guess.

    python -m tests.pgoutput.fuzz --frames 200000 --seed 7
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.database import Database, add_roles, create_database
from harness.decoding import StreamDecoder
from harness.postgres import installs, start_server
from harness.recorded import record, types_of
from tests.pgoutput.corpus import ARRAYS, SCALARS
from tidemark.errors import DecodeError, MalformedValue
from tidemark.pgoutput.changes import Undecodable
from tidemark.pgoutput.frames import framed
from tidemark.schema.table import PgType
from tidemark.values.copy import CopyDecoder
from tidemark.values.types import Decoding, Types, decoding_of

ROOT = Path(__file__).parents[2]
EXTREMES = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\1", b"\xff\xff", b"\x7f\xff")


@dataclass(frozen=True)
class Samples:
    """Real input: transactions of four messages (Begin, Relation, a change, Commit), streamed ones, and copies."""

    transactions: list[list[bytes]]
    copies: list[tuple[bytes, Decoding]]
    types: dict[int, PgType]


def collect() -> Samples:
    """Have a server write the whole corpus, and take down what it sends."""
    server = start_server(installs()[18])
    add_roles(server)
    database = create_database(server)
    corpus = SCALARS | ARRAYS
    database.run(*(f"create table v{n} (i int primary key, v {kind})" for n, kind in enumerate(corpus)))
    types, recorder = types_of(database), record(database)
    with database.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for n, values in enumerate(corpus.values()):
            rows = [(i, value) for i, value in enumerate([*values, None])]
            connection.cursor().executemany(f"insert into v{n} values (%s, %s)".encode(), rows)
            connection.execute(f"update v{n} set i = -i where i > 0".encode())
            connection.execute(f"delete from v{n} where i = 0".encode())
        connection.execute("begin; truncate v0, v1 cascade; select pg_logical_emit_message(true, 'p', 'c'); commit")
    transactions = []
    for binary in (False, True):
        transactions += _transactions(recorder.recording(binary=binary).messages)
    copies = [_copy(database, n, types) for n in range(len(corpus))]
    server.remove()
    return Samples(transactions, copies, types)


def _transactions(messages: list[bytes]) -> list[list[bytes]]:
    """Each change as a transaction of its own, with the description that was in force."""
    relations: dict[bytes, bytes] = {}
    found, begin = [], b"B" + bytes(20)
    for message in messages:
        letter = message[:1]
        if letter == b"R":
            relations[message[1:5]] = message
        elif letter in (b"I", b"U", b"D"):
            found.append([begin, relations[message[1:5]], message, b"C" + bytes(25)])
        elif letter in (b"T", b"M", b"Y", b"O"):
            found.append([begin, *relations.values(), message, b"C" + bytes(25)])
    return found


def _copy(database: Database, n: int, types: dict[int, PgType]) -> tuple[bytes, Decoding]:
    with database.session() as session:
        where = f"where attrelid = 'public.v{n}'::regclass and attname = 'v'"
        oid, typmod = session.row(f"select atttypid, atttypmod from pg_attribute {where}")
        with session.connection.cursor().copy(
            f"copy (select v from public.v{n}) to stdout (format binary)".encode()
        ) as copy:
            return b"".join(bytes(piece) for piece in copy), decoding_of(oid, typmod, Types(types))


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """One of the ways in which bytes go wrong."""
    data = bytearray(raw)
    match rng.randrange(6):
        case 0:
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            data += rng.randbytes(rng.randint(1, 8))
        case 3:
            extreme = rng.choice(EXTREMES)
            at = rng.randrange(len(data))
            data[at : at + len(extreme)] = extreme
        case 4:
            at = rng.randrange(len(data))
            del data[at : at + rng.randint(1, 4)]
        case _:
            at = rng.randrange(len(data))
            data[at:at] = data[at : at + rng.randint(1, 16)]
    return bytes(data)


def cuts(samples: Samples) -> Iterator[tuple[list[bytes], int, bytes]]:
    """Every change of moderate size, cut at every byte."""
    seen = set()
    for transaction in samples.transactions:
        shape = (transaction[-2][:1], len(transaction[-2]))
        if len(transaction[-2]) < 200 and shape not in seen:
            seen.add(shape)
            yield from ((transaction, len(transaction) - 2, transaction[-2][:n]) for n in range(len(transaction[-2])))


EXPECTED = re.compile("invalid value of type|received in binary format")


def feed(transaction: list[bytes], at: int, bad: bytes, types: dict[int, PgType]) -> bool:
    """Decode a transaction with one message replaced; True if it was accepted."""
    decoder = StreamDecoder(Types(types))
    try:
        for part in ([*transaction[:at], bad], transaction[at + 1 :]):  # the damaged one lies last in its buffer
            for item in decoder.feed(framed(part)):
                if isinstance(item, Undecodable):
                    assert EXPECTED.search(item.reason), item.reason
                    return False
    except DecodeError:
        return False
    return True


def feed_copy(raw: bytes, decoding: Decoding, rng: random.Random) -> bool:
    """Decode a copy in two pieces; True if it was accepted."""
    at = rng.randint(0, len(raw))
    decoder = CopyDecoder([decoding], batch_rows=8, chunk_bytes=0)
    try:
        for piece in (raw[:at], raw[at:]):
            for _ in decoder.feed(piece):
                pass
        list(decoder.finish())
    except MalformedValue as error:
        if not EXPECTED.search(error.message):
            raise
        return False
    except DecodeError:
        return False
    return True


def run(seed: int, frames: int | None, minutes: float | None) -> None:
    """Damage and decode until enough was done; print what it came to."""
    rng, samples, begin = random.Random(seed), collect(), time.monotonic()  # noqa: S311
    assert all(feed(t, len(t) - 2, t[-2], samples.types) for t in samples.transactions), "undamaged input is accepted"
    assert all(feed_copy(raw, decoding, rng) for raw, decoding in samples.copies)
    done = accepted = 0
    for transaction, at, bad in cuts(samples):
        done += 1
        accepted += feed(transaction, at, bad, samples.types)
    assert accepted == 0, "a change that was cut short was accepted"
    cut = done
    while (frames is not None and done < frames) or (minutes is not None and time.monotonic() - begin < minutes * 60):
        done += 1
        if rng.random() < 0.25:
            raw, decoding = rng.choice(samples.copies)
            accepted += feed_copy(damaged(raw, rng), decoding, rng)
        else:
            transaction = rng.choice(samples.transactions)
            at = rng.randrange(len(transaction))
            accepted += feed(transaction, at, damaged(transaction[at], rng), samples.types)
    checked = "with" if os.environ.get("NUMBA_BOUNDSCHECK") == "1" else "without"
    print(  # noqa: T201
        f"seed {seed}: {done} damaged frames ({cut} cuts at every byte), {accepted} of them still valid, the others "
        f"refused; {checked} bounds checks, {time.monotonic() - begin:.0f} s"
    )


def compiled() -> Path:
    """Where kernels with bounds checks are kept: Numba itself tells them neither from others nor from older ones."""
    packages = (ROOT / "src/tidemark" / name for name in ("pgoutput", "values"))
    sources = sorted(source for package in packages for source in package.rglob("*.py"))
    key = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    return ROOT / ".cache" / "checked" / key


def main() -> None:
    """Run in a process of its own with bounds checks on, which the compiler must know before its first kernel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--frames", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=None)
    asked = parser.parse_args()
    if os.environ.get("NUMBA_BOUNDSCHECK") != "1":
        environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(compiled())}
        command = [sys.executable, "-m", "tests.pgoutput.fuzz", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    seed = asked.seed if asked.seed is not None else int(np.random.default_rng().integers(2**32))
    print(f"seed {seed}", flush=True)  # noqa: T201
    run(seed, asked.frames, asked.minutes)


if __name__ == "__main__":
    main()
