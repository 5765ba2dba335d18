"""Run the commands in README.md and the quickstart on a private PostgreSQL with real Spark.

    python -m tests.documentation.transcripts [DOCUMENT…]

runs every ```console block and writes the output into the documents (`make transcripts`). Lines that begin with `$ `
are commands; the lines that follow are their output. The commands of a document share one shell and one directory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.postgres import Server, installs, start_server
from tidemark.errors import TidemarkError
from tidemark.receive.client import ReceiveClient

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "docs/quickstart.md")
SOURCE, LAKE = "postgresql://postgres@localhost/shop", "lake"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DONE = "tidemark-documentation-done"
_LIMIT_S = 300.0
_VARIABLE = (
    (re.compile(r"[0-9A-F]+/[0-9A-F]+"), "LSN"),
    (re.compile(r"[0-9a-f]{16}"), "DIGEST"),
    (re.compile(r"[0-9][0-9.,:]*"), "N"),
    (re.compile(r"N (?:ms|s|min|h|bytes|B|kB|MB|GB)\b"), "N"),
    (re.compile(r"[-─━]{2,}|\+|\|"), ""),
    (re.compile(r"\s+"), " "),
)


class CommandFailed(AssertionError):
    """A documented command ended with an error."""


@dataclass
class Command:
    """A command of a document, with the output that the document shows."""

    text: str
    shown: list[str] = field(default_factory=list)

    @property
    def in_background(self) -> bool:
        """Whether the command keeps running."""
        return self.text.endswith("&")

    @property
    def is_repeatable(self) -> bool:
        """Whether the output is the same in each run, but for numbers; progress is not."""
        return not re.match(r"tidemark (sync|status)\b", self.text)


def commands(block: str) -> list[Command]:
    """The commands of a block."""
    found: list[Command] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif found:
            found[-1].shown.append(line)
    return found


def document_commands(text: str) -> list[Command]:
    """The commands of all blocks of a document."""
    return [command for block in BLOCK.findall(text) for command in commands(block)]


class Shell:
    """A bash in a directory of its own, with the commands of Tidemark and PostgreSQL on its path."""

    def __init__(self, directory: Path, server: Server) -> None:
        self._directory = directory
        self._real = f"postgresql://postgres@127.0.0.1:{server.port}/shop"
        programs = directory / "bin"
        programs.mkdir()
        wrapper = programs / "tidemark"
        wrapper.write_text(
            f'#!{sys.executable}\nimport sys; sys.argv[0] = "tidemark"\nfrom tidemark.cli.main import main\nmain()\n'
        )
        wrapper.chmod(0o755)
        path = f"{programs}:{Path(server.install.program('psql')).parent}:{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env={**os.environ, "PATH": path, "COLUMNS": "120", "PSQLRC": "/dev/null"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: Command) -> list[str]:
        """The lines that a command prints; one that keeps running is waited for until it receives."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        text = command.text.replace(SOURCE, self._real)
        self._process.stdin.write(f"{text}\nprintf '\\n%s %s\\n' {_DONE} $?\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.startswith(_DONE):
                code = int(line.split()[1])
                break
            lines.append(line.rstrip().replace(self._real, SOURCE).replace(f"{self._directory}/", ""))
        else:
            raise CommandFailed(f"the shell ended during: {command.text}")
        while lines and not lines[-1].strip():
            lines.pop()
        if code != 0:
            raise CommandFailed(f"exit code {code} of: {command.text}\n" + "\n".join(lines))
        if command.in_background:
            self._wait_until_streaming()
        return lines

    def _wait_until_streaming(self) -> None:
        deadline = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline:
            try:
                with ReceiveClient(self._directory / LAKE / "_log") as client:
                    if client.position().state.startswith("streaming"):
                        return
            except TidemarkError:
                time.sleep(0.2)
        raise CommandFailed("sync does not receive")

    def close(self) -> None:
        """Stop what runs in the background, and the shell."""
        assert self._process.stdin is not None
        self._process.stdin.write("kill $(jobs -p) 2>/dev/null; wait\nexit\n")
        self._process.stdin.close()
        assert self._process.stdout is not None
        with self._process.stdout as rest:
            rest.read()
        self._process.wait()


@contextmanager
def shell() -> Iterator[Shell]:
    """A shell with an empty database `shop` on a private server."""
    server = start_server(list(installs().values())[-1])
    server.sql("create database shop")
    with tempfile.TemporaryDirectory() as directory:
        running = Shell(Path(directory), server)
        try:
            yield running
        finally:
            running.close()
            server.remove()


def alike(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether two outputs are the same but for positions, times and numbers."""
    return _plain(shown) == _plain(printed)


def _plain(lines: Sequence[str]) -> str:
    text = " ".join(lines)
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text.strip()


def rewritten(text: str, running: Shell) -> str:
    """A document with the output that its commands print now."""

    def run_block(match: re.Match[str]) -> str:
        lines = []
        for command in commands(match[1]):
            lines += [f"$ {command.text}", *running.run(command)]
        return "```console\n" + "\n".join(lines) + "\n```"

    return BLOCK.sub(run_block, text)


def main(names: Sequence[str] = DOCUMENTS) -> int:
    """Run each document and write the output into it."""
    for name in names:
        path = ROOT / name
        with shell() as running:
            path.write_text(rewritten(path.read_text(), running))
        sys.stdout.write(f"{name} written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or DOCUMENTS))
