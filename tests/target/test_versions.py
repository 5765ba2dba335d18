"""Servers of different major versions print values alike, or the difference is handled."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest

from harness.database import add_roles, create_database
from harness.postgres import Server, installs, start_server
from tests.mirror.compare.edges import VALUES, split
from tests.target.pairs import Pair, differing
from tidemark.mirror.compare.narrowing import Difference, Verdict

pytestmark = pytest.mark.full

MORE = {
    '"char"': "'x', '', (-61)::\"char\", (-128)::\"char\"",
    "flag": "'y', (-1)::\"char\"",
    "tsvector": "'a:1 b:2A ''c d'':3'",
    "tsquery": "'a & (b | !c)'",
    "int4multirange": "'{[1,3),[5,7)}'",
    "xid8": "'18446744073709551615'",
    "pg_lsn": "'16/B374D848'",
    "pg_snapshot": "'10:20:10,14,15'",
    "tid": "'(42,7)'",
    "macaddr8": "'08:00:2b:01:02:03:04:05'",
    "cidr": "'2001:4f8:3:ba::/64'",
    "varbit": "b'10101'",
    "line": "'{1,-0,0.1}'",
    "box": "'(1,1),(0,0)'",
    "path": "'[(0,0),(1.5,1)]'",
    "polygon": "'((0,0),(1,1),(1,0))'",
    "circle": "'<(0,0),1e-7>'",
    "regtype": "'integer', '\"char\"'",
    "regproc": "'pg_catalog.now'",
    "regprocedure": "'pg_catalog.abs(integer)'",
    "regoperator": "'+(integer,integer)'",
    "regrole": "'app'",
    "regnamespace": "'pg_catalog'",
    "regcollation": "'\"C\"'",
    "regconfig": "'english'",
    "tstzrange": "'[2024-02-29 12:00+00,infinity)'",
    "jsonpath": "'$.a[*] ? (@.b > 1)'",
    "mood": "'so so', 'sad'",
    "pair": "row(1.0,'-0')::pair",
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[int, Server]]:
    started: dict[int, Server] = {}
    for install in installs().values():
        started[install.major] = start_server(install)
        add_roles(started[install.major])
    yield started
    for server in started.values():
        server.remove()


MAJORS = [(one, other) for one, other in combinations(installs(), 2)]


@pytest.fixture(params=[*MAJORS, *(each[::-1] for each in MAJORS)], ids=lambda each: f"{each[0]}-{each[1]}")
def pair(request: pytest.FixtureRequest, servers: dict[int, Server]) -> Iterator[Pair]:
    source, target = (create_database(servers[major]) for major in request.param)
    yield Pair(source, target)
    source.drop()
    target.drop()


def test_every_value_of_every_type_is_printed_alike(pair: Pair) -> None:
    pair.both(
        "create type mood as enum ('sad', 'so so')",
        "create type pair as (a numeric, b float8)",
        'create domain flag as "char"',
    )
    values = {**VALUES, **MORE}
    pair.both(f"create table every (id int primary key, {', '.join(f'c{n} {kind}' for n, kind in enumerate(values))})")
    texts = [(n, kind, text) for n, (kind, listed) in enumerate(values.items()) for text in split(listed)]
    for database in (pair.source, pair.target):
        with database.connect() as connection:
            for number, (n, kind, text) in enumerate(texts):
                connection.execute(f"insert into every (id, c{n}) values ({number}, cast({text} as {kind}))".encode())
    done = pair.compared()["public.every"]
    assert done.verdict is Verdict.EQUAL, done.found


def test_differences_between_versions_are_found(pair: Pair) -> None:
    pair.both(
        'create table t (id bigint primary key, v "char", f float8)',
        "insert into t select n, (n % 128)::int::\"char\", n / 3.0::float8 from generate_series(1, 30000) n",
    )  # fmt: skip
    pair.source.run('update t set v = (-5)::"char" where id in (5, 6)', "delete from t where id = 29999")
    pair.target.run('update t set v = (-5)::"char" where id = 5', "update t set f = f + 1e-12 where id = 1")
    pair.target.run('update t set v = (-6)::"char" where id = 6')
    done = pair.compared("t")["public.t"]
    assert sorted(differing(done), key=str) == sorted(
        [
            (Difference.OTHER, "(1)", ("f",)),
            (Difference.OTHER, "(6)", ("v",)),
            (Difference.EXTRA, "(29999)", ()),
        ],
        key=str,
    )
