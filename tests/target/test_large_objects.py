"""Large objects arrive with their OIDs, contents, comments and privileges."""

from __future__ import annotations

import pytest

from harness.copied import record_copied
from harness.database import Database
from tests.target.schema_pairs import PAIRS, Pair, pair_fixture
from tidemark.errors import NotPermitted, TargetNotReady
from tidemark.postgres.identity import Identity
from tidemark.target.large_objects import (
    PART_BYTES,
    LargeObjectsCopied,
    copy_large_objects,
    read_large_objects,
    remove_large_objects,
)

pytestmark = pytest.mark.full

pair = pair_fixture(*PAIRS)
CLONE = "c"
CONTENTS = """select m.oid, length(lo_get(m.oid)), md5(lo_get(m.oid)), obj_description(m.oid, 'pg_largeobject'), lomacl
                from pg_largeobject_metadata m order by 1"""
SIZES = (0, 1, 65535, 65536, 65537, PART_BYTES, PART_BYTES + 65536, 2 * PART_BYTES + 65536 + 1)


def copy(pair: Pair) -> LargeObjectsCopied:
    if pair.target.admin("select to_regclass('tidemark.clones')") == [(None,)]:
        record_copied(pair.target, CLONE, Identity(1, 1, "source", 1, None), [])
    with pair.source.session("app") as source, pair.target.session("app") as target, source.transaction():
        return copy_large_objects(source, target, CLONE)


def fill(pair: Pair) -> None:
    body = "decode(substr(repeat(md5(random()::text), {0} / 16 + 1), 1, {0} * 2), 'hex')"
    for number, size in enumerate(SIZES):
        pair.source.run(f"select lo_from_bytea({50000 + number}, {body.format(size)})")
    pair.source.run(
        "select lo_create(60000)",
        "select lo_put(60000, 3000000, 'after a hole')",
        "comment on large object 50001 is 'it''s one'",
        "grant select on large object 50001 to public",
        'grant select, update on large object 50002 to "odd ""role"" na.me" with grant option',
    )


def contents(database: Database) -> list[tuple[object, ...]]:
    return database.run(CONTENTS)


def test_they_arrive_whole_and_are_compared_when_copied_again(pair: Pair) -> None:
    fill(pair)
    assert copy(pair) == LargeObjectsCopied(len(SIZES) + 1, 0, 0, ())
    assert contents(pair.target) == contents(pair.source)
    assert copy(pair) == LargeObjectsCopied(0, 0, len(SIZES) + 1, ())
    pair.source.run(
        "select lo_put(50007, 1500000, 'changed')",
        "select lo_unlink(50000)",
        "select lo_create(70000)",
        "comment on large object 50001 is null",
        "revoke select on large object 50001 from public",
        "do $$ begin perform lo_truncate64(lo_open(60000, 131072), 5); end $$",
    )
    assert copy(pair) == LargeObjectsCopied(1, 3, len(SIZES) - 3, (50000,))
    with pair.target.session("app") as session:
        remove_large_objects(session, CLONE, (50000,))
    assert contents(pair.target) == contents(pair.source)


def test_those_of_other_applications_are_neither_rewritten_nor_removed(pair: Pair) -> None:
    pair.target.run("select lo_from_bytea(50000, 'theirs')", "select lo_from_bytea(50009, 'theirs')")
    pair.source.run("select lo_from_bytea(50000, 'ours')", "select lo_from_bytea(50001, 'ours')")
    with pytest.raises(TargetNotReady, match="did not create, with OIDs that the source uses: 50000\n") as caught:
        copy(pair)
    assert [oid for oid, *_ in contents(pair.target)] == [50000, 50009]
    pair.target.run(caught.value.hint.partition("run there: ")[2])
    assert copy(pair) == LargeObjectsCopied(2, 0, 0, ())
    pair.source.run("select lo_unlink(50001)")
    assert copy(pair) == LargeObjectsCopied(0, 0, 1, (50001,))
    assert pair.target.run("select lo_get(50009)") == [(b"theirs",)]


def test_those_of_the_snapshot_are_copied(pair: Pair) -> None:
    pair.source.run("select lo_from_bytea(50000, 'before')")
    with pair.source.session("app") as source, pair.target.session("app") as target, source.transaction():
        assert len(read_large_objects(source)) == 1
        pair.source.run("select lo_put(50000, 0, 'later!')", "select lo_from_bytea(50001, 'later')")
        record_copied(pair.target, CLONE, Identity(1, 1, "source", 1, None), [])
        copy_large_objects(source, target, CLONE)
    assert pair.target.run("select oid, lo_get(oid) from pg_largeobject_metadata") == [(50000, b"before")]


def test_one_that_cannot_be_read_is_named_before_anything_is_copied(pair: Pair) -> None:
    pair.source.run("select lo_from_bytea(50000, 'mine')")
    pair.source.admin("select lo_from_bytea(50001, 'not mine')", "select lo_from_bytea(50002, 'granted')")
    pair.source.admin("grant select on large object 50002 to app")
    with pytest.raises(NotPermitted, match="may not read the large objects 50001\n") as caught:
        copy(pair)
    assert contents(pair.target) == []
    pair.source.admin(caught.value.hint.removeprefix("Have their owner run: "))
    assert copy(pair).created == 3


def test_thousands_of_small_ones_are_copied(pair: Pair) -> None:
    pair.source.run("select lo_from_bytea(g::oid, g::text::bytea) from generate_series(50000, 51000) g")
    assert copy(pair).created == 1001
    assert contents(pair.target) == contents(pair.source)
