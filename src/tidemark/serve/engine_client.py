"""The server's side of the engine process: starts it, restarts it after a failure, and sends it statements.

A process that has ended fails the statements that were on their way; the source answers them. It is started again with
growing pauses, and stays off after five failures in ten minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
import time
from contextlib import suppress

from tidemark.errors import EngineRefused
from tidemark.restarts import MOST, Restarts
from tidemark.serve.conversation import (
    Ask,
    Cancel,
    Finished,
    Frames,
    Opened,
    Proven,
    Refused,
    RefusedBy,
    Running,
    Setup,
    Start,
    ToEngine,
    Told,
    packed,
)

_LOGGER = logging.getLogger(__name__)
_ENDING_S = 5.0
FromEngine = Ask | Proven | Running | Finished | Refused


class Conversation:
    """One statement: `next` returns the messages about it, of which Finished or Refused is the last."""

    def __init__(self, client: EngineClient, number: int) -> None:
        self._client, self.number = client, number
        self._received: asyncio.Queue[FromEngine] = asyncio.Queue()
        self.is_ended = False

    def take(self, message: FromEngine) -> None:
        """Take a message of the process."""
        self._received.put_nowait(message)

    async def next(self) -> FromEngine:
        """Wait for the next message."""
        message = await self._received.get()
        if isinstance(message, Finished | Refused):
            self.is_ended = True
        return message

    def tell(self, text: str | None) -> None:
        """Answer a query."""
        self._client.send(Told(self.number, text))

    def end(self) -> None:
        """End; if the last message was not received, the process is to stop computing."""
        self._client.forget(self)
        if not self.is_ended:
            self.is_ended = True
            self._client.send(Cancel(self.number))


class EngineClient(asyncio.Protocol):
    """Starts the process with `run`, which ends when it is cancelled."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._numbers = itertools.count(1)
        self._conversations: dict[int, Conversation] = {}
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._lost = asyncio.Event()
        self.is_open = False
        self.has_failed = False

    def begin(self, statement: str, wait_s: float) -> Conversation:
        """Begin with a statement; raise EngineRefused if the process is not ready, or busy."""
        if not self.is_open:
            raise EngineRefused("the engine has failed" if self.has_failed else "the engine is not started yet")
        if len(self._conversations) >= self._setup.statements:
            raise EngineRefused(f"the engine computes {self._setup.statements} statements already")
        conversation = Conversation(self, next(self._numbers))
        self._conversations[conversation.number] = conversation
        self.send(Start(conversation.number, statement, wait_s))
        return conversation

    def send(self, message: ToEngine) -> None:
        """Send a message; nothing happens if the process has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(packed(message))

    def forget(self, conversation: Conversation) -> None:
        """Drop later messages about a statement."""
        self._conversations.pop(conversation.number, None)

    async def run(self) -> None:
        """Keep the process running."""
        restarts = Restarts()
        while True:
            await self._run_once()
            pause_s = restarts.failed(time.monotonic())
            if pause_s is None:
                self.has_failed = True
                _LOGGER.error("the engine process ended %d times; the source answers all statements", MOST)
                return
            _LOGGER.warning("the engine process ended; it is started again in %.1f s", pause_s)
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            command = [sys.executable, "-m", "tidemark.serve.engine_process", str(theirs.fileno())]
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        self._lost, self._frames = asyncio.Event(), Frames()
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
            self.send(self._setup)
            await self._lost.wait()
        finally:
            self._close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _ENDING_S)
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()
        for conversation in list(self._conversations.values()):
            conversation.take(Refused(conversation.number, RefusedBy.ENGINE, "the engine process has ended"))
        self._conversations.clear()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process has its end."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass messages on to their conversations."""
        for message in self._frames.take(data):
            if isinstance(message, Opened):
                self.is_open = True
                _LOGGER.info("the engine is ready")
            elif isinstance(message, Ask | Proven | Running | Finished | Refused):
                conversation = self._conversations.get(message.number)
                if conversation is not None:
                    conversation.take(message)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """The process has ended."""
        self.is_open = False
        self._lost.set()
