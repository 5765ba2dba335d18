"""Memory is bounded by a batch, not by a transaction."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.pgoutput.frames import framed

pytestmark = pytest.mark.quick

RELATION = b"R\0\0\0\1s\0t\0d\0\1" + b"\1id\0\0\0\0\x17\xff\xff\xff\xff"
STREAMED_RELATION = RELATION[:1] + b"\0\0\0\7" + RELATION[1:]
ROW = b"\0\0\0\1N\0\1b\0\0\0\4\0\0\0\7"

# What is decoded lies in a file that is mapped, and is dropped as it comes; private memory is looked at each time.
PROGRAM = """
import sys, numpy as np
from harness.decoding import StreamDecoder
from tidemark.values.types import Types
from harness.warming import warm

def private_kb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

warm()
decoder, rows, most = StreamDecoder(Types()), 0, 0
before = private_kb()
for batch in decoder.feed(np.memmap(sys.argv[1], np.uint8, "r")):
    rows, most = rows + len(batch), max(most, private_kb())
print(rows, most - before)
"""


def growth_kb(folder: Path, rows: int, streamed: bool) -> int:
    """By how much private memory grows at most while one transaction of so many rows is decoded."""
    if streamed:
        first, last = [b"S\0\0\0\7\1", STREAMED_RELATION], [b"E", b"c\0\0\0\7" + bytes(25)]
    else:
        first, last = [b"B" + bytes(20), RELATION], [b"C" + bytes(25)]
    insert = b"I" + (b"\0\0\0\7" if streamed else b"") + ROW
    path = folder / f"{rows}-{streamed}"
    path.write_bytes(framed(first).tobytes() + framed([insert]).tobytes() * rows + framed(last).tobytes())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    decoded, grown = map(int, done.stdout.split())
    assert decoded == rows
    return grown


@pytest.mark.full
@pytest.mark.parametrize("streamed", [False, True])
def test_a_transaction_ten_times_as_large_takes_no_more_memory(tmp_path: Path, streamed: bool) -> None:
    small, large = (growth_kb(tmp_path, rows, streamed) for rows in (300_000, 3_000_000))
    assert large < small + 4096, f"{small} kB for 300,000 rows, {large} kB for 3,000,000"
