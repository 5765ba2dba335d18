"""The command line as a shell runs it: exit codes and output, in a separate process or in this one."""

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
    """Run the command line in a separate process."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, with its Spark session: a JVM takes seconds to start."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = run(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
