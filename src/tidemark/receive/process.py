"""The receiver process: its parent's interface, and its own main function.

The parent passes the options on the child's standard input, and reads from a pipe that only the child writes to:

    done 0/3A4B5C68      the receiver ended normally, and everything up to this LSN is durable
    failed JSON          the receiver ended with this error, with all its fields as JSON
    (end of file)        the receiver crashed or was killed

The child writes its log records as JSON lines to standard error, and the parent logs them with their loggers, levels,
times and fields. A child whose parent has ended stops: its pipe has no reader.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO, Any, Self

from tidemark import logs
from tidemark.clock import Lsn
from tidemark.errors import (
    ExitCode,
    ReceiveFailed,
    TidemarkError,
    error_from_json,
    error_to_json,
    in_short,
    policy_of,
)
from tidemark.logs import configure, record_from_json
from tidemark.receive.options import PROCESS, ReceiveOptions
from tidemark.receive.receiver import Receiver

RETRY = "Retry the command: everything received so far is in the log."
_RECORDS_S = 1.0
_LOGGER = logging.getLogger("tidemark.receive")


@dataclass(slots=True)
class ReceiveProcess:
    """A receiver that runs as a child process."""

    process: subprocess.Popen[bytes]
    pipe: int
    records: threading.Thread | None = None
    _result: bytes = b""  # what it wrote to the pipe

    @classmethod
    def start(
        cls,
        options: ReceiveOptions,
        *,
        module: str = "tidemark.receive",
        stderr: IO[Any] | None = None,
        level: int | None = None,
    ) -> ReceiveProcess:
        """Start the receiver and return at once; its log records are logged here, or written to `stderr` if given.

        It logs records from `level` up, by default as the logger of this package does. The child has its own process
        group, so that Ctrl-C on a terminal reaches only the parent, which stops it.
        """
        reading, writing = os.pipe()
        level = level if level is not None else _LOGGER.getEffectiveLevel()
        command = [sys.executable, "-m", module, str(writing), str(level)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE if stderr is None else stderr,
            pass_fds=[writing],
            process_group=0,
        )
        os.close(writing)
        records = None
        if process.stderr is not None:
            log = logs.inherited(_log_records)
            records = threading.Thread(target=log, args=[process.stderr], name="receive", daemon=True)
            records.start()
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(options.as_json().encode())
        process.stdin.close()
        return cls(process, reading, records)

    def wait(self) -> Lsn:
        """Wait for the end of the receiver; returns the LSN that it reported, or raises its error, every time."""
        while piece := os.read(self.pipe, 4096):
            self._result += piece
        code = self.process.wait()
        word, *rest = self._result.decode().split(maxsplit=1) or ["died"]
        if word == "done":
            return Lsn.parse(rest[0].strip())
        if word == "failed":
            raise error_from_json(rest[0])
        raise ReceiveFailed(f"the receiver died with exit code {code}", RETRY)

    def stop(self) -> None:
        """Send SIGTERM, on which the receiver ends normally; returns at once."""
        self.process.terminate()

    def kill(self) -> None:
        """Kill the receiver, which ends the process as abruptly as a power failure."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill the receiver if it is still running, and close the pipe."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.pipe)
        if self.records is not None:
            self.records.join(_RECORDS_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def _log_records(stderr: IO[bytes]) -> None:
    """Log the records of the child until it ends. Any other line is a warning, such as a message of the interpreter."""
    with stderr:
        for line in stderr:
            text = line.decode(errors="replace").rstrip("\n")
            record = record_from_json(text)
            if record is None:
                _LOGGER.warning("%s", text)
                continue
            record.processName = PROCESS
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)


def serve(arguments: list[str], options_text: str) -> ExitCode:
    """The main function of the child: run the receiver, and write the result to the pipe."""
    pipe, level = map(int, arguments)
    os.set_inheritable(pipe, False)
    configure(level, "json")
    receiver = Receiver(ReceiveOptions.from_json(options_text), pipe)

    def stop(_: int, __: FrameType | None) -> None:
        receiver.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        done = receiver.run()
    except TidemarkError as error:
        _write(pipe, f"failed {error_to_json(error)}\n")
        return policy_of(error).exit_code
    except Exception as error:  # the parent reports it; the traceback is for its log
        _LOGGER.debug("the receiver failed", exc_info=True)
        failed = ReceiveFailed(f"the receiver failed: {in_short(error)}", RETRY)
        _write(pipe, f"failed {error_to_json(failed)}\n")
        return ExitCode.UNEXPECTED
    _write(pipe, f"done {done}\n")
    return ExitCode.OK


def _write(pipe: int, text: str) -> None:
    with suppress(BrokenPipeError):  # the parent has ended
        os.write(pipe, text.encode())
