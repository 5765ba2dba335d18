"""The command line as a shell sees it: codes and what is printed, in a process of its own or in this one."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from tidemark.cli.main import run

NO_SPARK = (
    "import sys; from tidemark.cli.main import run; code = run(); "
    "sys.exit(int(code) if 'pyspark' not in sys.modules else 99)"
)


def tidemark(
    *arguments: str, program: str = "from tidemark.cli.main import main; main()"
) -> subprocess.CompletedProcess[str]:
    """A process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, on its Spark session: a JVM takes seconds to start."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
