"""A pgoutput stream as it was received, to the changes of committed transactions in commit order.

Nothing is given of a transaction whose commit has not been seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.pgoutput.assembly import Assembler, Where
from tidemark.pgoutput.changes import ChangeBatch, Limits, Undecodable
from tidemark.pgoutput.extents import Reading, Said, decode_assembled
from tidemark.pgoutput.relations import Scope
from tidemark.values.kernels import Bytes, read_only
from tidemark.values.types import Types


class StreamDecoder:
    """Feed it buffers of whole frames in the order of their arrival.

    Buffers are referred to, not copied, until the transactions in them have ended: give it memory maps, and memory is
    bounded by a batch and by what it takes to say which stretches of buffers open transactions have.
    """

    def __init__(self, types: Types, limits: Limits | None = None) -> None:
        self._assembler = Assembler()
        self._buffers: dict[int, Bytes] = {}
        self._reading = Reading(self._buffers, Scope(), types, limits or Limits())
        self._fed = 0

    def feed(self, buffer: Bytes) -> Iterator[ChangeBatch | Undecodable | Said]:
        """Take the next frames; yield what was committed by them, in commit order. To be consumed to its end."""
        self._fed += 1
        self._buffers[self._fed] = read_only(buffer)
        assembled = self._assembler.feed(self._buffers[self._fed], Where(self._fed))
        yield from decode_assembled(assembled, self._reading)
        oldest = self._assembler.oldest_place
        while self._buffers and (oldest is None or next(iter(self._buffers)) < oldest):
            del self._buffers[next(iter(self._buffers))]

    def end(self) -> None:
        """Forget what has not been committed: the connection was lost and the source will send it again."""
        self._assembler.forget()
        self._buffers.clear()
