"""Decode a pgoutput stream into the changes of committed transactions, in commit order.

The decoder yields nothing of a transaction before its commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.pgoutput.assembly import Assembler, Where
from tidemark.pgoutput.changes import ChangeBatch, Limits, Scope, Undecodable
from tidemark.pgoutput.extents import ExtentInputs, decode_assembled
from tidemark.values.kernels import Bytes, read_only
from tidemark.values.types import Types


class StreamDecoder:
    """Decodes buffers of whole frames, which must be fed in the order of their arrival.

    The decoder references buffers without copying them until the transactions in them have ended. If the buffers are
    memory maps, memory is bounded by one batch plus the extents of open transactions.
    """

    def __init__(self, types: Types, limits: Limits | None = None) -> None:
        self._assembler = Assembler()
        self._buffers: dict[int, Bytes] = {}
        self._reading = ExtentInputs(self._buffers, Scope(), limits or Limits())
        self._types = types
        self._fed = 0

    def feed(self, buffer: Bytes) -> Iterator[ChangeBatch | Undecodable]:
        """Process the next frames; yield what they commit, in commit order. The caller must exhaust the iterator."""
        self._fed += 1
        self._buffers[self._fed] = read_only(buffer)
        assembled = self._assembler.feed(self._buffers[self._fed], Where(self._fed))
        yield from decode_assembled(assembled, self._reading, self._types)
        oldest = self._assembler.oldest_place
        while self._buffers and (oldest is None or next(iter(self._buffers)) < oldest):
            del self._buffers[next(iter(self._buffers))]

    def end(self) -> None:
        """Discard all open transactions: the connection was lost and the source will send them again."""
        self._assembler.forget()
        self._buffers.clear()
