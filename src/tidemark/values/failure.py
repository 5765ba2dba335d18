"""Turning a kernel's "this one is bad" into an error that says where, and shows some bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from tidemark.errors import DecodeError, MalformedMessage, MalformedValue, in_short
from tidemark.values.kernels import OK, Bytes

if TYPE_CHECKING:  # cells need Arrow, and who only assembles does without
    from tidemark.values.cells import Cells

SHOWN = 24


class BatchTooLarge(Exception):
    """Not an error: a column of this batch would become too large, and the batch is to be decoded in halves."""


def require_good(type_name: str, cells: Cells, bad: int) -> None:
    """Raise for the cell that a kernel named, if it named one."""
    if bad != OK:
        bad_value(type_name, cells, bad)


def bad_value(type_name: str, cells: Cells, at: int) -> NoReturn:
    """The error for a value that is not one of its type's."""
    raw = cells.raw(at)
    shown = raw[:SHOWN].hex(" ") + (" …" if len(raw) > SHOWN else "")
    offset = int(cells.offsets[at])
    raise MalformedValue(
        f"invalid value of type {type_name} ({len(raw)} bytes at offset {offset}): {shown}", _HINT, offset
    )


@contextmanager
def decoding_column(name: str) -> Iterator[None]:
    """Name the column in whatever goes wrong with its values; what is no DecodeError becomes MalformedValue."""
    try:
        yield
    except (BatchTooLarge, MemoryError):
        raise
    except DecodeError as error:
        raise type(error)(f"column {name}: {error.message}", error.hint, error.offset) from error
    except Exception as error:
        raise MalformedValue(f"column {name}: {in_short(error).message}", _HINT) from error


def text_or_bad(type_name: str, cells: Cells, at: int, raw: bytes, text_of: Callable[[bytes], str]) -> str:
    """PostgreSQL's text of `raw`, which is the value of a cell or lies in it; what has none is a bad value."""
    try:
        return text_of(raw)
    except (struct.error, ValueError, KeyError, MalformedValue):
        bad_value(type_name, cells, at)


def bad_message(what: str, buffer: Bytes, offset: int) -> NoReturn:
    """The error for a message or frame that is not as the protocol has it."""
    shown = buffer[offset : offset + SHOWN].tobytes().hex(" ")
    raise MalformedMessage(f"{what} at offset {offset}: {shown or 'no bytes'}", _HINT, offset)


_HINT = "Retry the command. If the error persists, report it as a bug."
