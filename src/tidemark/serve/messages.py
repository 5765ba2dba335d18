"""The messages that the server builds and reads; everything else is relayed without being read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from struct import Struct

from tidemark.quoting import array_element
from tidemark.serve.wire import Body, ClientKind, SourceKind, frame

_INT16, _INT32 = Struct("!H"), Struct("!I")
_NULL = b"\xff\xff\xff\xff"
_FIELD = Struct("!IhIhih")

SYNC = frame(ClientKind.SYNC)
FLUSH = frame(ClientKind.FLUSH)
TERMINATE = frame(ClientKind.TERMINATE)
PARSE_COMPLETE = frame(SourceKind.PARSE_COMPLETE)
BIND_COMPLETE = frame(SourceKind.BIND_COMPLETE)
CLOSE_COMPLETE = frame(SourceKind.CLOSE_COMPLETE)
NO_DATA = frame(SourceKind.NO_DATA)
STATEMENT, PORTAL = b"S", b"P"
TEXT, BINARY = 0, 1

_FIELD_CODES = {"severity": "S", "sqlstate": "C", "message": "M", "detail": "D", "hint": "H"}


@dataclass(frozen=True, slots=True)
class BindMessage:
    """A Bind: parameters with their formats, and the formats of the result's columns."""

    portal: bytes
    statement: bytes
    formats: tuple[int, ...]
    parameters: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]

    def format_of(self, column: int) -> int:
        """The format of a column of the result."""
        return _format(self.result_formats, column)

    def parameter_format(self, number: int) -> int:
        """The format of a parameter."""
        return _format(self.formats, number)


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """A column of a RowDescription."""

    name: bytes
    table: int
    attnum: int
    type: int
    size: int
    typmod: int
    format: int = TEXT

    def in_format(self, number: int) -> FieldDescription:
        """The same column in a format."""
        return replace(self, format=number)


def _format(formats: tuple[int, ...], position: int) -> int:
    """The protocol's rule: no format is text, one is for all, otherwise there is one for each."""
    if not formats:
        return TEXT
    return formats[0] if len(formats) == 1 else formats[position]


def query(text: bytes) -> bytes:
    """Build a Query."""
    return frame(ClientKind.QUERY, text + b"\0")


def parse(name: bytes, text: bytes, types: Sequence[int] = ()) -> bytes:
    """Build a Parse."""
    body = name + b"\0" + text + b"\0" + _INT16.pack(len(types)) + b"".join(_INT32.pack(oid) for oid in types)
    return frame(ClientKind.PARSE, body)


def bind(message: BindMessage) -> bytes:
    """Build a Bind."""
    body = [message.portal, b"\0", message.statement, b"\0", _numbers(message.formats)]
    body += [_INT16.pack(len(message.parameters)), *map(_value, message.parameters), _numbers(message.result_formats)]
    return frame(ClientKind.BIND, b"".join(body))


def describe(of: bytes, name: bytes) -> bytes:
    """Build a Describe of a STATEMENT or a PORTAL."""
    return frame(ClientKind.DESCRIBE, of + name + b"\0")


def close(of: bytes, name: bytes) -> bytes:
    """Build a Close of a STATEMENT or a PORTAL."""
    return frame(ClientKind.CLOSE, of + name + b"\0")


def execute(portal: bytes, limit: int = 0) -> bytes:
    """Build an Execute."""
    return frame(ClientKind.EXECUTE, portal + b"\0" + _INT32.pack(limit))


def error(sqlstate: str, message: str, *, hint: str = "", detail: str = "", severity: str = "ERROR") -> bytes:
    """Build an ErrorResponse."""
    fields = {"severity": severity, "sqlstate": sqlstate, "message": message, "detail": detail, "hint": hint}
    return frame(SourceKind.ERROR, _report(fields))


def notice(message: str, *, sqlstate: str = "00000", severity: str = "NOTICE") -> bytes:
    """Build a NoticeResponse."""
    return frame(SourceKind.NOTICE, _report({"severity": severity, "sqlstate": sqlstate, "message": message}))


def ready(status: int) -> bytes:
    """Build a ReadyForQuery with a transaction status."""
    return frame(SourceKind.READY, bytes([status]))


def command_complete(tag: str) -> bytes:
    """Build a CommandComplete."""
    return frame(SourceKind.COMPLETE, tag.encode() + b"\0")


def row_description(fields: Sequence[FieldDescription]) -> bytes:
    """Build a RowDescription."""
    cells = (
        each.name + b"\0" + _FIELD.pack(each.table, each.attnum, each.type, each.size, each.typmod, each.format)
        for each in fields
    )
    return frame(SourceKind.ROW_DESCRIPTION, _INT16.pack(len(fields)) + b"".join(cells))


def data_row(values: Sequence[bytes | None]) -> bytes:
    """Build a DataRow."""
    return frame(SourceKind.DATA_ROW, _INT16.pack(len(values)) + b"".join(map(_value, values)))


def read_parse(body: bytes) -> tuple[bytes, bytes, tuple[int, ...]]:
    """Return the name, the text and the parameter types of a Parse."""
    read = Body(body)
    found = read.text(), read.text(), tuple(read.int32() for _ in range(read.int16()))
    read.end()
    return found


def read_bind(body: bytes) -> BindMessage:
    """Read a Bind."""
    read = Body(body)
    portal, statement = read.text(), read.text()
    formats = tuple(read.int16() for _ in range(read.int16()))
    parameters = tuple(read.value() for _ in range(read.int16()))
    result_formats = tuple(read.int16() for _ in range(read.int16()))
    read.end()
    return BindMessage(portal, statement, formats, parameters, result_formats)


def read_execute(body: bytes) -> tuple[bytes, int]:
    """Return the portal and the row limit of an Execute."""
    read = Body(body)
    found = read.text(), read.int32()
    read.end()
    return found


def read_row_description(body: bytes) -> tuple[FieldDescription, ...]:
    """Read a RowDescription."""
    read = Body(body)
    fields = tuple(FieldDescription(read.text(), *_FIELD.unpack(read.take(_FIELD.size))) for _ in range(read.int16()))
    read.end()
    return fields


def read_parameter_description(body: bytes) -> tuple[int, ...]:
    """Return the types of a ParameterDescription."""
    read = Body(body)
    types = tuple(read.int32() for _ in range(read.int16()))
    read.end()
    return types


def read_data_row(body: bytes) -> tuple[bytes | None, ...]:
    """Return the values of a DataRow."""
    read = Body(body)
    values = tuple(read.value() for _ in range(read.int16()))
    read.end()
    return values


def read_report(body: bytes) -> Mapping[str, str]:
    """Return the fields of an ErrorResponse or NoticeResponse by their codes, such as `C` for the SQLSTATE."""
    read, fields = Body(body), dict[str, str]()
    while code := read.byte():
        fields[chr(code)] = read.text().decode("utf-8", "replace")
    return fields


def read_parameter_status(body: bytes) -> tuple[str, str]:
    """Return the name and the value of a ParameterStatus."""
    read = Body(body)
    name, value = read.text(), read.text()
    return name.decode("utf-8", "replace"), value.decode("utf-8", "replace")


def text_array(values: Iterable[str | None]) -> bytes:
    """Return the text form of a one-dimensional array of texts."""
    return b"{" + ",".join("NULL" if each is None else array_element(each) for each in values).encode() + b"}"


def _numbers(values: Sequence[int]) -> bytes:
    return _INT16.pack(len(values)) + b"".join(_INT16.pack(value) for value in values)


def _value(value: bytes | None) -> bytes:
    return _NULL if value is None else _INT32.pack(len(value)) + value


def _report(fields: Mapping[str, str]) -> bytes:
    cells = [f"V{fields['severity']}\0", *(f"{_FIELD_CODES[key]}{text}\0" for key, text in fields.items() if text)]
    return "".join(cells).encode() + b"\0"
