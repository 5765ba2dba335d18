"""Values of every type are the same text at the source and at the target, in binary format and as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from harness.database import add_roles
from harness.postgres import Install, Server, installs, start_server
from tests.pgoutput.corpus import ARRAYS, AS_TEXT, SCALARS
from tests.target.copies import Pair, Results, pair_of
from tidemark.errors import RowRejected, UnsupportedServer, UntranslatableText
from tidemark.target.copying import FilledTable, TableFailed

pytestmark = pytest.mark.quick

BUILT_IN = {**SCALARS, **ARRAYS, **AS_TEXT}
BUILT_IN |= {
    "xid8": ["0", "18446744073709551615"],
    "tid": ["(4294967294,65535)"],
    "pg_snapshot": ["10:20:10,14"],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "tsquery": ["'a' & !('b' | 'c':*)"],
    "circle": ["<(1,2),3>", "<(-0,NaN),Infinity>"],
    "path": ["[(1,2),(3,4)]", "((1,2))"],
    "cidr[]": ["{10.0.0.0/8}"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "datemultirange": ["{[2020-01-01,infinity)}"],
    "numrange": ["[-Infinity,NaN]", "(0.10,0.100]"],
    "tsrange[]": ['{"[-infinity,infinity]",empty}'],
}
AS_TEXT_ALWAYS = {
    "int2vector": ["1 2 3", ""],
    "oidvector": ["1 2", ""],
    "regclass": ["pg_catalog.pg_class", "public.other", "4294967295", "-"],
    "regtype": ["pg_catalog.int4", "public.mood", "public.mood[]"],
    "regproc": ["pg_catalog.array_in", "-"],
    "regprocedure": ["pg_catalog.lower(text)"],
    "regoperator": ["pg_catalog.+(integer,integer)"],
    "regnamespace": ["public"],
    "regrole": ["app"],
    "regcollation": ['pg_catalog."C"'],
    "regconfig": ["pg_catalog.simple"],
    "regdictionary": ["pg_catalog.simple"],
    "regclass[]": ["{public.other,NULL}"],
    "aclitem": ["app=r/app"],
    "tablename": ["public.other"],
    "place": ["(public.other,1)"],
    "place[]": ['{"(public.other,1)",NULL}'],
}
TYPES = (
    "create table other ()",
    "create type mood as enum ('sad', 'o k', 'ü')",
    "create domain price as numeric(6,2)",
    "create domain prices as price[] check (array_length(value, 1) < 9)",
    "create domain moods as mood[]",
    "create type pair as (a int, m mood, l mood[], p prices, t text[], d date)",
    "create type deep as (x pair, y pair[])",
    "create type span as range (subtype = price, subtype_opclass = numeric_ops)",
    "create type moodrange as range (subtype = mood)",
    "create domain spans as span[]",
    "create domain tablename as regclass",
    "create type place as (r tablename, n int)",
)
OWN = {
    "mood": ["sad", "o k", "ü"],
    "mood[]": ['{sad,"o k",NULL}', "{{sad},{ü}}", "{}", "[3:4]={sad,ü}"],
    "price": ["1.50", "NaN", "-0.01"],
    "price[]": ["{1.50,NULL}", "{NaN}"],
    "prices": ["{1,2.5,NULL}", "{}"],
    "moods": ["{sad}"],
    "pair": ['(1,sad,"{sad,ü}","{1}","{a,NULL,""NULL""}",infinity)', "(,,,,,)"],
    "pair[]": ['{"(1,sad,\\"{sad}\\",,,)",NULL}'],
    "deep": ['("(1,sad,,,,)","{""(2,,,,,)"",NULL}")', "(,)"],
    "span": ["[1,2)", "empty", "(,)"],
    "span[]": ['{"[1,2)",NULL}'],
    "span_multirange": ["{}", "{[1,2),[3,4)}"],
    "moodrange": ["[sad,ü]", "empty"],
    "moodmultirange": ["{[sad,sad],[ü,)}"],
    "spans": ['{"(1,2]"}'],
}

VERSIONS = list(installs().values())
PAIRS = [
    pytest.param((a, b), id=f"{a.major}-{b.major}", marks=() if a == b == VERSIONS[-1] else pytest.mark.full)
    for a, b in product(VERSIONS, VERSIONS)
]
NEWEST_PAIR = pytest.mark.parametrize("versions", [(VERSIONS[-1], VERSIONS[-1])], indirect=True, ids=["newest"])


@pytest.fixture(scope="module", params=PAIRS)
def versions(request: pytest.FixtureRequest) -> tuple[Install, Install]:
    found: tuple[Install, Install] = request.param
    return found


@pytest.fixture(scope="module")
def servers(versions: tuple[Install, Install], running: dict[Install, Server]) -> tuple[Server, Server]:
    for each in versions:
        if each not in running:
            running[each] = start_server(each)
            add_roles(running[each])
    return running[versions[0]], running[versions[1]]


@pytest.fixture
def pair(servers: tuple[Server, Server]) -> Iterator[Pair]:
    with pair_of(*servers) as found:
        yield found


def create(pair: Pair, table: str, corpus: dict[str, list[str]]) -> None:
    """A table with a column of each type, and rows that have all values."""
    columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(corpus))
    pair.both(f"create table {table} ({columns})")
    places = ", ".join(f"%s::{kind}" for kind in corpus)
    with pair.source.connect() as session:
        for row in range(max(map(len, corpus.values()))):
            values = [literals[row % len(literals)] for literals in corpus.values()]
            session.execute(f"insert into {table} values ({places})".encode(), values)
        session.execute(f"insert into {table} default values".encode())


def formats(results: Results) -> dict[str, str]:
    return {
        name: "binary" if each.binary else "text" for name, each in results.items() if isinstance(each, FilledTable)
    }


def test_every_type_is_the_same_at_the_target(pair: Pair, versions: tuple[Install, Install]) -> None:
    pair.both(*TYPES)
    elsewhere = {*AS_TEXT_ALWAYS, "interval", "interval[]"}
    binary = {kind: values for kind, values in BUILT_IN.items() if kind not in elsewhere}
    intervals = {kind: BUILT_IN[kind] for kind in ("interval", "interval[]")}
    create(pair, "built_in", binary)
    create(pair, "own", OWN)
    create(pair, "intervals", intervals)
    create(pair, "as_text", AS_TEXT_ALWAYS)
    create(pair, "all_as_text", {**binary, **intervals, **OWN, "regtype": AS_TEXT_ALWAYS["regtype"]})
    results = pair.copy_all()
    same = versions[1].major >= 17 or versions[0].major < 17
    assert formats(results) == {
        "other": "binary",
        "built_in": "binary",
        "own": "binary",
        "intervals": "binary" if same else "text",
        "as_text": "text",
        "all_as_text": "text",
    }
    assert pair.require_equal() > 50


@pytest.mark.full
def test_an_infinite_interval_is_rejected_by_a_server_that_has_none(
    pair: Pair, versions: tuple[Install, Install]
) -> None:
    if versions[0].major < 17:
        pytest.skip("no infinite intervals")
    pair.both("create table t (v interval)", "create domain d as interval", "create table u (v d[])")
    pair.source.run("insert into t values ('infinity')", "insert into u values ('{-infinity}')")
    results = pair.copy()
    if versions[1].major >= 17:
        assert pair.require_equal() == 2
        return
    for name, result in results.items():
        assert isinstance(result, TableFailed)
        assert isinstance(result.error, RowRejected)
        assert f"copy of public.{name}, at the target" in result.error.message


@pytest.mark.full
def test_kinds_of_tables_between_all_versions(pair: Pair) -> None:
    fill_kinds(pair)
    pair.copy_all()
    pair.require_equal()


def fill_kinds(pair: Pair) -> None:
    """Tables of all kinds, and values of all sizes."""
    wide = ", ".join(f"c{n} int" for n in range(1600))
    pair.fill(
        "create table keyed (id int primary key, v text)",
        "insert into keyed select i, repeat('v', i % 50) from generate_series(1, 3000) i",
        "create table empty (id int primary key)",
        "create table nothing ()",
        "insert into nothing select from generate_series(1, 4)",
        'create schema "S ch"',
        'create table "S ch"."Odd.näme ""x" ("a b" int primary key, "C,d" text, "select" int, "é\u00e9%s{}" text)',
        'insert into "S ch"."Odd.näme ""x" values (1, \'x\', 2, \'{}\')',
        "create table made (a int, twice int generated always as (a * 2) stored, b text)",
        "insert into made (a, b) select i, i from generate_series(1, 50) i",
        "create table only_made (twice int generated always as (7) stored)",
        "insert into only_made default values",
        "create table counted (id int generated always as identity, n int generated by default as identity, s serial)",
        "insert into counted (n) select 100 - i from generate_series(1, 10) i",
        "create table large (id int, v text, b bytea)",
        "alter table large alter v set storage external",
        "insert into large select i, repeat(md5(i::text), 100000 * i), "
        "(select string_agg(sha256(int4send(n)), '') from generate_series(1, 40000 * i) n) "
        "from generate_series(1, 3) i",
        "create table changed (a int, b text, c int)",
        "insert into changed values (1, 'x', 2)",
        "alter table changed drop column b",
        "alter table changed add column d text default 'older'",
        "insert into changed values (3, 4)",
        f"create table wide ({wide})",
        "insert into wide (c0, c799, c1599) select i, i, i from generate_series(1, 20) i",
        "create table root (id int, v text) partition by range (id)",
        "create table low partition of root for values from (0) to (100)",
        "create table high partition of root for values from (100) to (1000) partition by list (v)",
        "create table leaf partition of high default",
        "insert into root select i, 'leaf' from generate_series(50, 150) i",
        "create table parent (id int)",
        "create table child (extra text) inherits (parent)",
        "insert into parent values (1)",
        "insert into child values (2, 'in the child')",
        "create unlogged table fleeting (id int)",
        "insert into fleeting select generate_series(1, 100)",
    )


@NEWEST_PAIR
def test_texts_are_converted_to_the_encoding_of_the_target(servers: tuple[Server, Server]) -> None:
    for encodings in ((None, "LATIN1"), ("LATIN1", None)):
        with pair_of(*servers, encodings) as pair:
            pair.fill(
                "create type mood as enum ('gür', 'ok')",
                'create table "tä" ("ü" text, v varchar(3), m mood[], n name, "c" "char")',
                "create table as_text (v text, r regtype)",
                "insert into \"tä\" values ('äöü', 'äöü', '{gür}', 'é', 'x')",
                "insert into as_text values ('äöü', 'public.mood')",
            )
            assert formats(pair.copy_all()) == {"tä": "binary", "as_text": "text"}
            assert pair.require_equal() == 2
            assert pair.target.admin('select "ü" = \'äöü\', length("ü") from "tä"') == [(True, 3)]


@NEWEST_PAIR
def test_a_name_that_becomes_longer_is_never_cut_off(servers: tuple[Server, Server]) -> None:
    with pair_of(*servers, ("LATIN1", None)) as pair:
        pair.fill(
            "create table t (n name)",
            "create table as_text (n name, r regtype)",
            "insert into t values (repeat('é', 60))",
            "insert into as_text values (repeat('é', 60), 'int4')",
        )
        for name, result in pair.copy().items():
            assert isinstance(result, TableFailed)
            assert f"public.{name}" in result.error.message


@NEWEST_PAIR
def test_bytes_without_an_encoding_are_copied_if_they_are_valid_at_the_target(servers: tuple[Server, Server]) -> None:
    for other, valid in (("UTF8", False), ("SQL_ASCII", True)):
        with pair_of(*servers, ("SQL_ASCII", other)) as pair:
            pair.fill(
                "create table good (v text, c char(9))",
                "create table bad (v text)",
                "create table bad_as_text (v text, r regtype)",
                "insert into good values (convert_from('\\xc3a4', 'SQL_ASCII'), 'x')",
                "insert into bad values (convert_from('\\xff', 'SQL_ASCII'))",
                "insert into bad_as_text values (convert_from('\\xe4', 'SQL_ASCII'), 'int4')",
            )
            results = pair.copy()
            assert isinstance(results["good"], FilledTable)
            for name in ("bad", "bad_as_text"):
                result = results[name]
                assert isinstance(result, FilledTable) == valid
                if isinstance(result, TableFailed):
                    assert isinstance(result.error, UntranslatableText)
                    assert f"copy of public.{name}, at the target" in result.error.message
            if valid:
                assert pair.require_equal() == 3
                stored = "select convert_to(v, 'SQL_ASCII') from bad"
                assert pair.target.admin(stored) == pair.source.admin(stored) == [(b"\xff",)]


@NEWEST_PAIR
@pytest.mark.parametrize("encodings", [("UTF8", "SQL_ASCII"), ("SQL_ASCII", "LATIN1")])
def test_encodings_that_could_change_a_value_are_refused(
    servers: tuple[Server, Server], encodings: tuple[str, str]
) -> None:
    with pair_of(*servers, encodings) as pair, pytest.raises(UnsupportedServer, match=encodings[1]):
        pair.copy()
