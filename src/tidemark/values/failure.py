"""Errors for malformed values and messages, with the offset and the first bytes of the input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

from tidemark.errors import DecodeError, MalformedMessage, MalformedValue, in_short
from tidemark.values.kernels import OK, Bytes, Longs

SHOWN = 24


class LocatedValues(Protocol):
    """Values and their offsets: `values.cells`, which imports Arrow; assembling transactions does not need that."""

    @property
    def offsets(self) -> Longs:
        """The offset of each value in the input."""

    def raw(self, at: int) -> bytes:
        """Return the bytes of one value."""


class BatchTooLarge(Exception):
    """Signals that a column of this batch would become too large, so that the caller decodes the batch in halves."""


def require_good(type_name: str, cells: LocatedValues, bad: int) -> None:
    """Raise an error for the cell whose index a kernel returned, unless it returned OK."""
    if bad != OK:
        bad_value(type_name, cells, bad)


def bad_value(type_name: str, cells: LocatedValues, at: int) -> NoReturn:
    """Raise the error for a value that is not valid for its type."""
    raw = cells.raw(at)
    shown = raw[:SHOWN].hex(" ") + (" …" if len(raw) > SHOWN else "")
    offset = int(cells.offsets[at])
    raise MalformedValue(
        f"invalid value of type {type_name} ({len(raw)} bytes at offset {offset}): {shown}", _HINT, offset
    )


@contextmanager
def decoding_column(name: str) -> Iterator[None]:
    """Add the column name to errors in its values; an exception other than DecodeError becomes MalformedValue."""
    try:
        yield
    except (BatchTooLarge, MemoryError):
        raise
    except DecodeError as error:
        raise type(error)(f"column {name}: {error.message}", error.hint, error.offset) from error
    except Exception as error:
        raise MalformedValue(f"column {name}: {in_short(error).message}", _HINT) from error


def bad_message(what: str, buffer: Bytes, offset: int) -> NoReturn:
    """Raise the error for a message or frame that violates the protocol."""
    shown = buffer[offset : offset + SHOWN].tobytes().hex(" ")
    raise MalformedMessage(f"{what} at offset {offset}: {shown or 'no bytes'}", _HINT, offset)


_HINT = "Retry the command. If the error persists, report it as a bug."
