"""Every type's ordinary and extreme values, written by a real server and read back by every way: as it prints them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from harness.database import Database
from harness.printed import printed
from harness.recorded import Recorder, decode, record, types_of
from tests.pgoutput.corpus import ARRAYS, AS_TEXT, SCALARS
from tidemark.schema.table import PgType
from tidemark.values.copy import CopyDecoder
from tidemark.values.types import TYPES, Types, decoding_of

pytestmark = pytest.mark.quick

Corpus = dict[str, list[str]]


@dataclass(frozen=True)
class Filled:
    """A table `v0`, `v1`, … for each type of a corpus, with its values and a null, recorded while they were written."""

    db: Database
    corpus: Corpus
    recorder: Recorder
    types: dict[int, PgType]

    @property
    def version_num(self) -> int:
        return self.db.server.install.major * 10000

    @property
    def tables(self) -> dict[str, str]:
        return {f"v{number}": kind for number, kind in enumerate(self.corpus)}


def fill(db: Database, corpus: Corpus) -> Filled:
    db.run(*(f"create table v{number} (i int primary key, v {kind})" for number, kind in enumerate(corpus)))
    filled = Filled(db, corpus, record(db), types_of(db))
    with db.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for table, kind in filled.tables.items():
            for i, value in enumerate([*corpus[kind], None]):
                connection.execute(f"insert into {table} values (%s, %s)".encode(), [i, value])
    return filled


def expected(db: Database, table: str) -> list[str | None]:
    """What the server prints: format() calls the type's own output function."""
    query = f"select case when v is not null then format('%%s', v) end from public.{table} order by i"
    with db.session() as session:
        return [row[0] for row in session.rows(query, [])]


def by_copy(filled: Filled, table: str, *, as_text: bool) -> list[str | None]:
    value = "format('%s', v)" if as_text else "v"
    select = f"select case when v is not null then {value} end from public.{table} order by i"
    query = f"copy ({select}) to stdout (format binary)"
    with filled.db.session() as session:
        where = "where attrelid = %s::regclass and attname = 'v'"
        oid, typmod = session.row(f"select atttypid, atttypmod from pg_attribute {where}", [f"public.{table}"])
        with session.connection.cursor().copy(query.encode()) as copy:
            pieces = [bytes(piece) for piece in copy]
    decoding = decoding_of(oid, typmod, Types(filled.types, filled.version_num))
    decoder = CopyDecoder([replace(decoding, binary=decoding.binary and not as_text)], batch_rows=4)
    batches = [batch for piece in pieces for batch in decoder.feed(piece)]
    batches += decoder.finish()
    return [text for batch in batches for text in printed(batch.columns[0])]


def by_stream(filled: Filled, *, binary: bool) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {table: [] for table in filled.tables}
    for batch in decode(filled.recorder.recording(binary=binary), filled.types, None, filled.version_num):
        found[batch.relation.name] += printed(batch.new[1])
    return found


@pytest.mark.parametrize("corpus", [SCALARS, ARRAYS], ids=["scalars", "arrays"])
def test_every_value_comes_back_as_the_server_prints_it(
    db: Database, corpus: Corpus, subtests: pytest.Subtests
) -> None:
    filled = fill(db, corpus)
    text, binary = by_stream(filled, binary=False), by_stream(filled, binary=True)
    for table, kind in filled.tables.items():
        with subtests.test(kind):
            want = expected(db, table)
            assert len(want) == len(corpus[kind]) + 1
            assert text[table] == want
            assert binary[table] == want
            assert by_copy(filled, table, as_text=False) == want
            assert by_copy(filled, table, as_text=True) == want


def test_types_without_a_twin_travel_as_their_own_text_and_are_refused_in_binary(
    db: Database, subtests: pytest.Subtests
) -> None:
    filled = fill(db, AS_TEXT)
    text = by_stream(filled, binary=False)
    for table, kind in filled.tables.items():
        with subtests.test(kind):
            assert text[table] == by_copy(filled, table, as_text=True) == expected(db, table)
    with pytest.raises(AssertionError, match=r"column v: a value of type oid .* was received in binary format"):
        by_stream(filled, binary=True)


def test_users_own_types_are_known_by_the_catalogue(db: Database) -> None:
    db.run(
        "create type mood as enum ('sad', 'ok')",
        "create domain small as int2",
        "create domain price as numeric(6,2)",
        "create domain word as varchar(4)",
    )
    corpus = {
        "mood": ["sad", "ok"],
        "mood[]": ["{sad,NULL}", "{{ok}}"],
        "small": ["5"],
        "price": ["1.50", "NaN"],
        "price[]": ["{1.50,NULL}", "{NaN}"],
        "word": ["ab", ""],
    }
    filled = fill(db, corpus)
    text, binary = by_stream(filled, binary=False), by_stream(filled, binary=True)
    for table in filled.tables:
        assert text[table] == binary[table] == expected(db, table)


def test_the_largest_interval_is_finite_before_17_and_infinity_is_its_own_from_then_on(db: Database) -> None:
    largest = "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807"
    filled = fill(db, {"interval": ["infinity" if db.server.install.major >= 17 else largest]})
    for binary in (False, True):
        assert by_stream(filled, binary=binary)["v0"] == expected(db, "v0")
    assert by_copy(filled, "v0", as_text=False) == expected(db, "v0")


def test_floats_at_every_power_of_two_print_as_the_server_prints_them(db: Database) -> None:
    """In an array of two dimensions, which is kept as text: there our digits must be the server's."""
    db.run("create table v0 (i int primary key, v float8[], w float4[])")
    recorder = record(db)
    db.run(
        "insert into v0 select k, array[[2::float8 ^ k, 3 * 2::float8 ^ k]], array[[(2::float8 ^ (k % 127))::float4]] "
        "from generate_series(-1000, 1000) k",
        "insert into v0 values (5000, '{{1e23,9007199254740993}}', '{{50331648,16777216}}')",
    )
    (batch,) = decode(recorder.recording(binary=True), {})
    want = db.run("select v::text, w::text from v0 order by i")
    assert list(zip(printed(batch.new[1]), printed(batch.new[2]), strict=True)) == want


def test_oids_in_the_table_are_the_servers(db: Database) -> None:
    with db.session() as session:
        for row in TYPES:
            found = session.row("select oid, typarray from pg_type where typname = %s", [row.name])
            assert found == (row.oid, row.array_oid), row.name


def test_a_high_char_byte_prints_in_octal_from_16_on(db: Database) -> None:
    """Up to 15 charout prints the byte as it is, which is not UTF-8."""
    db.run('create table v0 (i int primary key, v "char")')
    filled = Filled(db, {'"char"': []}, record(db), {})
    db.run(r"insert into v0 values (0, '\200'), (1, '\377')")
    assert by_stream(filled, binary=True) == {"v0": ["\\200", "\\377"]}
    if db.server.install.major >= 16:
        assert by_stream(filled, binary=False)["v0"] == expected(db, "v0") == ["\\200", "\\377"]
