"""The receiver process: `python -m tidemark.receive FD LEVEL`, which reads its options from standard input."""

from __future__ import annotations

import gc
import sys

gc.disable()  # during the imports: garbage collection would take a quarter of the startup time

from tidemark.receive.process import serve  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], sys.stdin.read()))
