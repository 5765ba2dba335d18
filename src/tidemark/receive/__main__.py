"""The child process: `python -m tidemark.receive FD`, with its options on standard input."""

from __future__ import annotations

import sys

from tidemark.receive.process import serve

if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], sys.stdin.read()))
