"""The child process: `python -m tidemark.receive FD`, with its options on standard input."""

from __future__ import annotations

import gc
import sys

gc.disable()  # while modules are imported: collections take a quarter of the time to start

from tidemark.receive.process import serve  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], sys.stdin.read()))
