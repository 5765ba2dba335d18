"""Every value is encoded as the server encodes it, in each format, and the server reads what is encoded here."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal
from zoneinfo import TZPATH

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.database import Database
from harness.recorded import types_of
from tests.pgoutput.corpus import ARRAYS, AS_TEXT, SCALARS
from tidemark.errors import InvalidValue
from tidemark.values.cells import Cells, DecodedColumn
from tidemark.values.copy import CopyDecoder
from tidemark.values.encoding import (
    COPY_HEADER,
    COPY_TRAILER,
    WireFormat,
    copy_lines,
    copy_rows,
    data_rows,
    encode_column,
)
from tidemark.values.types import Decoding, Types, decoding_of
from tidemark.values.zones import UTC, Zone, fixed_zone, zone_of

pytestmark = pytest.mark.quick

Corpus = dict[str, list[str]]
OWN = (
    "create type mood as enum ('sad', 'o k')",
    "create domain price as numeric(6,2)",
    "create domain whole as int4",
    "create type pair as (a int, b text)",
)
OWN_CORPUS: Corpus = {
    "mood": ["sad", "o k"],
    "mood[]": ['{sad,"o k",NULL}', "{{sad}}", "{}"],
    "price": ["1.50", "NaN", "-0.01"],
    "price[]": ["{1.50,NULL}", "{NaN}", "[3:4]={1,2}"],
    "whole[]": ["{1,2}", "{{1,NULL}}"],
}
MORE: Corpus = {
    '"char"': [r"\200", r"\377", "ü"[:0], "\\"],
    "bool[]": ["{}"],
    "text[]": ['{"\\t","\n","a\\\\b",null,"null","nUll"}', '{{"]={","="},{NULL,"}"}}', '[-1:0]={"=,{",b}'],
    "numeric": ["0." + "0" * n + "1234" for n in range(9)] + ["1" + "0" * n + ".50" for n in range(9)],
    "text": ["\x01\b\f\v\r\n\t\\", "\\N", "\\."],
    "name": ["x" * 63],
    "char(5)": ["ü"],
    "json": ["[1,\n2]"],
    "timestamptz[]": ["{infinity,NULL}", '{{"2020-06-01 12:00:00+00"}}'],
}
SENT = {**SCALARS, **{kind: [*SCALARS.get(kind, ARRAYS.get(kind, [])), *more] for kind, more in MORE.items()}}
SENT |= {kind: [*ARRAYS[kind], *MORE.get(kind, [])] for kind in ARRAYS}


class Servant:
    """A table of one column of each type, and what the server sends of it."""

    def __init__(self, db: Database, corpus: Corpus) -> None:
        self.db, self.kinds = db, list(corpus)
        columns = ", ".join(f"v{n} {kind}" for n, kind in enumerate(corpus))
        db.run(f"create table sent (i int primary key, {columns})", f"create table back ({columns})")
        rows = max(len(values) for values in corpus.values()) + 1
        with db.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            marks = ", ".join(["%s"] * (len(corpus) + 1))
            for i in range(rows):
                row = [values[i] if i < len(values) else None for values in corpus.values()]
                connection.execute(f"insert into sent values ({marks})".encode(), [i, *row])
        types = Types(types_of(db), db.server.install.major * 10000)
        with db.session() as session:
            query = "select atttypid, atttypmod from pg_attribute where attrelid = 'public.sent'::regclass"
            found = session.rows(f"{query} and attnum > 1 order by attnum", [])
        self.decodings = [decoding_of(oid, typmod, types) for oid, typmod in found]

    def sent(self, options: str, zone: str = "UTC", columns: str = "") -> bytes:
        """What COPY sends of all columns, in the order of rows."""
        columns = columns or ", ".join(f"v{n}" for n in range(len(self.kinds)))
        query = f"copy (select {columns} from public.sent order by i) to stdout {options}"
        with self.db.session() as session, session.transaction():
            session.connection.execute(f"set local timezone = '{zone}'".encode())
            with session.connection.cursor().copy(query.encode()) as copy:
                return b"".join(bytes(piece) for piece in copy)

    def received(self, content: bytes, options: str) -> list[tuple[int, ...]]:
        """The number of rows that differ in each column from what COPY stores of this content."""
        names = [f"v{n}" for n in range(len(self.kinds))]
        self.db.run("truncate back")
        with self.db.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            with connection.cursor().copy(f"copy back ({', '.join(names)}) from stdin {options}".encode()) as copy:
                copy.write(content)
            numbered = "select row_number() over () - 1 as i, * from back"
            differing = ", ".join(
                f"count(*) filter (where format('%s', s.{n}) is distinct from format('%s', b.{n})"
                f" or (s.{n} is null) <> (b.{n} is null))"
                for n in names
            )
            return connection.execute(f"select {differing} from sent s full join ({numbered}) b using (i)").fetchall()


def decoded(raw: bytes, decodings: Sequence[Decoding]) -> list[DecodedColumn]:
    """The rows of binary COPY as one batch."""
    decoder = CopyDecoder(decodings)
    (batch,) = (*decoder.feed(raw), *decoder.finish())
    return list(batch.columns)


def encoded(columns: list[DecodedColumn], decodings: list[Decoding], form: WireFormat, zone: Zone = UTC) -> list[Cells]:
    return [encode_column(*each, form, zone) for each in zip(columns, decodings, strict=True)]


def binary_copy(cells: list[Cells]) -> bytes:
    return COPY_HEADER + copy_rows(cells, len(cells[0])).tobytes() + COPY_TRAILER


def values(raw: bytes | Cells) -> list[bytes | None]:
    """The fields of one column, from binary COPY or from cells."""
    if isinstance(raw, Cells):
        return [raw.raw(at) if raw.lengths[at] >= 0 else None for at in range(len(raw))]
    found: list[bytes | None] = []
    at = len(COPY_HEADER)
    while raw[at : at + 2] != COPY_TRAILER:
        (size,) = struct.unpack_from("!i", raw, at + 2)
        found.append(None if size < 0 else raw[at + 6 : at + 6 + size])
        at += 6 + max(size, 0)
    return found


@pytest.mark.parametrize(
    "corpus", [pytest.param(SENT, id="built-in"), pytest.param(OWN_CORPUS, id="own", marks=pytest.mark.full)]
)
def test_every_value_is_encoded_as_the_server_encodes_it(
    db: Database, corpus: Corpus, subtests: pytest.Subtests
) -> None:
    """In both formats, alone and in rows; and COPY stores equal values from either."""
    db.run(*OWN)
    servant = Servant(db, corpus)
    binary = servant.sent("(format binary)")
    columns = decoded(binary, servant.decodings)
    mine = encoded(columns, servant.decodings, WireFormat.BINARY)
    texts = encoded(columns, servant.decodings, WireFormat.TEXT)
    for n, kind in enumerate(corpus):
        with subtests.test(kind):
            assert values(mine[n]) == values(servant.sent("(format binary)", columns=f"v{n}"))
            text = servant.sent("(format binary)", columns=f"case when v{n} is not null then format('%s', v{n}) end")
            assert values(texts[n]) == values(text)
    lines = copy_lines(texts, len(texts[0])).tobytes()
    assert binary_copy(mine) == binary
    assert lines == servant.sent("")
    assert servant.received(binary_copy(mine), "(format binary)") == [(0,) * len(corpus)]
    assert servant.received(lines, "") == [(0,) * len(corpus)]


def test_types_that_are_stored_as_text_are_encoded_as_text_and_refused_in_binary(db: Database) -> None:
    db.run(*OWN)
    servant = Servant(db, {**AS_TEXT, "pair": ['(1,"a b")', "(,)"], "pair[]": ['{"(1,\\"a b\\")",NULL}']})
    names = [f"case when v{n} is distinct from null then format('%s', v{n}) end" for n in range(len(servant.kinds))]
    as_text = [decoding_of(25, -1, Types())] * len(names)
    columns = decoded(servant.sent("(format binary)", columns=", ".join(names)), as_text)
    texts = encoded(columns, servant.decodings, WireFormat.TEXT)
    assert copy_lines(texts, len(texts[0])).tobytes() == servant.sent("")
    for kind, column, decoding in zip(servant.kinds, columns, servant.decodings, strict=True):
        with pytest.raises(InvalidValue, match=r"type \S+ .*cannot be encoded in binary format") as caught:
            encode_column(column, decoding, WireFormat.BINARY)
        assert kind.removesuffix("[]").partition("(")[0] in caught.value.message


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Asia/Kathmandu", "Europe/Dublin", "Australia/Lord_Howe", "Africa/Monrovia"]
)
def test_timestamptz_is_printed_in_any_time_zone(db: Database, zone: str) -> None:
    """With the local mean times before the first transition, and rules that go on beyond the last one."""
    compiled = next(path for path in (Path(each, zone) for each in TZPATH) if path.exists()).read_bytes()
    instants = [
        f"{year}-{month:02}-15 11:59:59.5+00" for year in (*range(1840, 2060, 7), 2400, 9999) for month in (1, 7)
    ]
    far = ["infinity", "-infinity", "4713-01-01 00:00+00 BC", "0001-01-01 0:00+00", "30000-07-01 00:00+00"]
    lists = ["{infinity,2020-07-01 12:00+00}", "{2020-07-01 12:00+00,NULL}"]
    servant = Servant(db, {"timestamptz": [*instants, *far], "timestamptz[]": lists})
    columns = decoded(servant.sent("(format binary)"), servant.decodings)
    texts = encoded(columns, servant.decodings, WireFormat.TEXT, zone_of(compiled))
    assert copy_lines(texts, len(texts[0])).tobytes() == servant.sent("", zone)


def test_a_fixed_time_zone_is_a_distance_from_utc(db: Database) -> None:
    servant = Servant(db, {"timestamptz": ["2020-07-01 12:00+00", "2020-01-01 23:30+00", None]})  # type: ignore[list-item]
    columns = decoded(servant.sent("(format binary)"), servant.decodings)
    texts = encoded(columns, servant.decodings, WireFormat.TEXT, fixed_zone(-(3600 * 3 + 1800)))
    assert copy_lines(texts, len(texts[0])).tobytes() == servant.sent("", "<x>+03:30")


def test_a_message_is_a_row_with_its_length() -> None:
    columns = [DecodedColumn(pa.array([1, None], pa.int32())), DecodedColumn(pa.array(["ab", ""]))]
    decodings = [decoding_of(oid, -1, Types()) for oid in (23, 25)]
    cells = encoded(columns, decodings, WireFormat.BINARY)
    first = b"D" + struct.pack("!ihii", 4 + 2 + 8 + 6, 2, 4, 1) + struct.pack("!i", 2) + b"ab"
    assert data_rows(cells, 2).tobytes() == first + b"D" + struct.pack("!ihii", 4 + 2 + 4 + 4, 2, -1, 0)
    assert data_rows([], 2).tobytes() == 2 * (b"D" + struct.pack("!ih", 6, 0))
    assert copy_lines([], 2).tobytes() == b"\n\n"
    none = encoded([DecodedColumn(each.array[:0]) for each in columns], decodings, WireFormat.BINARY)
    assert copy_rows(none, 0).size == copy_lines(none, 0).size == 0


def test_slices_and_other_arrow_types_of_the_same_values_are_encoded_alike() -> None:
    """As Spark and other writers deliver them: large strings, lists with another name of their element, slices."""
    for array, oid in (
        (pa.array(["a", None, "ü", ""], pa.large_string()), 25),
        (pa.array([True, None, False, True]), 16),
        (pa.array([Decimal("1.50"), None, Decimal("-0.01"), Decimal("0.00")], pa.decimal128(6, 2)), 1700),
        (pa.array([[1], None, [], [None, 2]], pa.list_(pa.int32())), 1007),
        (pa.array([[["x"], ["y"]]]).flatten().flatten(), 25),
        (pa.array([1.5, None, 2.5, -0.0]), 701),
    ):
        decoding = decoding_of(oid, (6 << 16 | 2) + 4 if oid == 1700 else -1, Types())
        for form in WireFormat:
            whole = values(encode_column(DecodedColumn(array), decoding, form))
            chunks = pa.chunked_array([array[:1], array[1:1], array[1:]])
            assert values(encode_column(DecodedColumn(chunks), decoding, form)) == whole
            for at in range(len(array) + 1):
                assert values(encode_column(DecodedColumn(array[at:]), decoding, form)) == whole[at:]


def floats(width: Literal[32, 64]) -> st.SearchStrategy[object]:
    """Floats with one NaN: the text of a NaN does not have its bits."""
    return st.floats(width=width).map(lambda value: math.nan if math.isnan(value) else value)


MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59))
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
GENERATED: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "int2": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int4": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int8": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "oid": (pa.int64(), st.integers(0, 2**32 - 1)),
    "float4": (pa.float32(), floats(32)),
    "float8": (pa.float64(), floats(64)),
    "numeric(38,11)": (pa.decimal128(38, 11), st.decimals(-(10**27) + 1, 10**27 - 1, places=11)),
    "numeric(9,2)": (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "numeric": (
        pa.string(),
        st.decimals(allow_nan=False, allow_infinity=False, min_value=Decimal("-1e90"), max_value=Decimal("1e90")).map(
            lambda value: f"{value:f}".removeprefix("-") if not value else f"{value:f}"
        ),
    ),
    "text": (pa.string(), TEXT),
    "bytea": (pa.binary(), st.binary(max_size=12)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates(date(1, 1, 1))),
    "timestamp": (pa.timestamp("us"), MOMENTS),
    "timestamptz": (pa.timestamp("us", "UTC"), MOMENTS),
    "uuid": (pa.string(), st.uuids().map(str)),
    "text[]": (pa.list_(pa.field("element", pa.string())), st.lists(st.none() | TEXT, max_size=4)),
    "float8[]": (pa.list_(pa.field("element", pa.float64())), st.lists(st.none() | floats(64), max_size=4)),
    "timestamp[]": (pa.list_(pa.field("element", pa.timestamp("us"))), st.lists(st.none() | MOMENTS, max_size=4)),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_invented_values_are_encoded_as_the_server_encodes_them(db: Database, data: st.DataObject) -> None:
    """Arrow arrays, sent to the server in binary: it prints and sends them as they are encoded here."""
    rows = data.draw(st.integers(1, 6))
    if not db.run("select to_regclass('public.sent') is not null")[0][0]:
        columns = ", ".join(f"v{n} {kind}" for n, kind in enumerate(GENERATED))
        db.run(f"create table sent (i serial, {columns})")
    with db.session() as session:
        query = "select atttypid, atttypmod from pg_attribute where attrelid = 'public.sent'::regclass"
        found = session.rows(f"{query} and attnum > 1 order by attnum", [])
    decodings = [decoding_of(oid, typmod, Types()) for oid, typmod in found]
    lists = [data.draw(st.lists(st.none() | each, min_size=rows, max_size=rows)) for _, each in GENERATED.values()]
    columns_ = [DecodedColumn(pa.array(each, kind)) for each, (kind, _) in zip(lists, GENERATED.values(), strict=True)]
    binary = binary_copy(encoded(columns_, decodings, WireFormat.BINARY))
    lines = copy_lines(encoded(columns_, decodings, WireFormat.TEXT), rows).tobytes()
    names = ", ".join(f"v{n}" for n in range(len(GENERATED)))
    with db.connect() as connection:
        for setting in ("timezone = 'UTC'", "extra_float_digits = 1"):
            connection.execute(f"set {setting}".encode())
        for content, options in ((binary, "(format binary)"), (lines, "")):
            connection.execute("truncate sent")
            with connection.cursor().copy(f"copy sent ({names}) from stdin {options}".encode()) as copy:
                copy.write(content)
            for wanted, form in ((binary, "(format binary)"), (lines, "")):
                query = f"copy (select {names} from sent order by i) to stdout {form}"
                with connection.cursor().copy(query.encode()) as copy:
                    assert b"".join(bytes(piece) for piece in copy) == wanted, (options, form)
