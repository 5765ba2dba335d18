"""The receiver process: its parent's interface, and its own main function.

The parent passes the options on the child's standard input, and reads from a pipe that only the child writes to:

    done 0/3A4B5C68      the receiver ended normally, and everything up to this LSN is durable
    failed JSON          the receiver ended with this error, with all its fields as JSON
    (end of file)        the receiver crashed or was killed

A child whose parent has ended stops: its pipe has no reader.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO, Any, Self

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
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.receiver import Receiver

RETRY = "Retry the command: everything received so far is in the log."
_PREFIX = "tidemark receive: "
_MESSAGES_S = 1.0


@dataclass(slots=True)
class ReceiveProcess:
    """A receiver that runs as a child process."""

    process: subprocess.Popen[bytes]
    pipe: int
    messages: threading.Thread | None = None

    @classmethod
    def start(
        cls,
        options: ReceiveOptions,
        *,
        module: str = "tidemark.receive",
        stderr: Any = None,
        tell: Callable[[str], None] | None = None,
    ) -> ReceiveProcess:
        """Start the receiver and return at once; its messages are passed to `tell`, if given, or to standard error.

        The child has its own process group, so that Ctrl-C on a terminal reaches only the parent, which stops it.
        """
        reading, writing = os.pipe()
        command = [sys.executable, "-m", module, str(writing)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE if tell is not None else stderr,
            pass_fds=[writing],
            process_group=0,
        )
        os.close(writing)
        messages = None
        if tell is not None:
            messages = threading.Thread(target=_pass_on, args=[process.stderr, tell], name="receive", daemon=True)
            messages.start()
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(options.as_json().encode())
        process.stdin.close()
        return cls(process, reading, messages)

    def wait(self) -> Lsn:
        """Wait for the end of the receiver; returns the LSN that it reported, or raises its error."""
        said = b""
        while piece := os.read(self.pipe, 4096):
            said += piece
        code = self.process.wait()
        word, *rest = said.decode().split(maxsplit=1) or ["died"]
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
        if self.messages is not None:
            self.messages.join(_MESSAGES_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()


def _pass_on(stderr: IO[bytes], tell: Callable[[str], None]) -> None:
    """Pass the messages of the child to `tell` until it ends."""
    with stderr:
        for line in stderr:
            tell(line.decode(errors="replace").rstrip("\n").removeprefix(_PREFIX))


def serve(arguments: list[str], options_text: str) -> ExitCode:
    """The main function of the child: run the receiver, and write the result to the pipe."""
    pipe = int(arguments[0])
    os.set_inheritable(pipe, False)
    receiver = Receiver(ReceiveOptions.from_json(options_text), _tell, pipe)

    def stop(_: int, __: FrameType | None) -> None:
        receiver.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        done = receiver.run()
    except TidemarkError as error:
        _say(pipe, f"failed {error_to_json(error)}\n")
        return policy_of(error).exit_code
    except Exception as error:  # noqa: BLE001 - the parent reports it; the traceback is for its log
        if os.environ.get("TIDEMARK_LOG_LEVEL") == "debug":
            traceback.print_exc()
        failed = ReceiveFailed(f"the receiver failed: {in_short(error)}", RETRY)
        _say(pipe, f"failed {error_to_json(failed)}\n")
        return ExitCode.UNEXPECTED
    _say(pipe, f"done {done}\n")
    return ExitCode.OK


def _say(pipe: int, text: str) -> None:
    with suppress(BrokenPipeError):
        os.write(pipe, text.encode())


def _tell(text: str) -> None:
    with suppress(BrokenPipeError):  # the parent has ended
        print(f"{_PREFIX}{text}", file=sys.stderr, flush=True)  # noqa: T201
