"""Sequences are read from the sequences themselves, set in their direction, and compared."""

from __future__ import annotations

import pytest

from harness.database import Database
from tests.conftest import installs_from
from tidemark.errors import NotPermitted, ObjectMissing, TargetDiffers
from tidemark.target.sequences import SequenceValue, read_sequences, set_sequences

pytestmark = pytest.mark.quick

install = installs_from(0)
DEFINITIONS = (
    'create schema "S"',
    "create sequence up",
    "create sequence never",
    "create sequence down increment -3 minvalue -1000 maxvalue 50 start 50 cache 7 cycle",
    'create sequence "S"."100% ""odd"".seq\n" start 9223372036854775800',
    "create table t (id bigint generated always as identity, other smallserial)",
)


def test_all_sequences_arrive_exactly(db: Database) -> None:
    db.run(*DEFINITIONS, "select nextval('up') from generate_series(1, 5)", "select nextval('down')")
    db.run("insert into t select from generate_series(1, 3)", """select setval('"S"."100% ""odd"".seq\n"', 77)""")
    with db.session("app") as session:
        read = read_sequences(session)
        assert [(str(each), each.last_value, each.is_called) for each in read] == [
            ('S.100% "odd".seq\n', 77, True),
            ("public.down", 32, True),  # seven values are cached
            ("public.never", 1, False),
            ("public.t_id_seq", 3, True),
            ("public.t_other_seq", 3, True),
            ("public.up", 5, True),
        ]
        (oid,) = session.row("select 'public.up'::regclass::oid")
        assert [str(each) for each in read_sequences(session, {oid})] == ["public.up"]
        db.run("alter sequence up restart", "alter sequence down restart", "alter table t alter id restart with 99")
        assert read_sequences(session) != read
        set_sequences(session, read)
        assert read_sequences(session) == read
    assert db.run("select nextval('up'), nextval('never'), nextval('down')") == [(6, 1, 29)]


def test_a_margin_follows_the_direction_and_ends_at_the_limit(db: Database) -> None:
    db.run(*DEFINITIONS, "select nextval('up')", "select nextval('down')")
    with db.session("app") as session:
        read = read_sequences(session)
        set_sequences(session, read, margin=10)
        after = {str(each): each.last_value for each in read_sequences(session)}
    assert (after["public.up"], after["public.down"], after["public.never"]) == (11, 2, 11)
    assert after['S.100% "odd".seq\n'] == 9223372036854775807
    value = SequenceValue("s", "n", 40, True, -3, -1000, 50)
    assert value.advanced(10_000).last_value == -1000


def test_a_sequence_that_cannot_be_read_is_never_taken_for_unused(db: Database) -> None:
    db.run("create sequence open_seq", "create sequence closed_seq", "select nextval('closed_seq')")
    db.run("create schema hidden", "create sequence hidden.s", "grant select on sequence open_seq to mirror")
    db.admin("revoke usage on schema hidden from mirror")
    assert db.run("select last_value from pg_sequences where sequencename = 'closed_seq'", user="mirror") == [(None,)]
    with db.session() as session:
        with pytest.raises(NotPermitted, match=r"may not read the sequences hidden\.s, public\.closed_seq\n") as caught:
            read_sequences(session)
        grants = caught.value.hint.removeprefix("Have their owner run: ")
        db.run(grants)
        assert len(read_sequences(session)) == 3


def test_a_sequence_that_the_target_lacks_or_uses_is_named(db: Database) -> None:
    db.run("create sequence s")
    lacking = SequenceValue("public", "lacking", 1, True, 1, 1, 10)
    with db.session("app") as session:
        with pytest.raises(ObjectMissing, match=r"public\.lacking"):
            set_sequences(session, [lacking])
        there = SequenceValue("public", "s", 5, True, 1, 1, 10)
        twice = SequenceValue("public", "s", 7, True, 1, 1, 10)
        with pytest.raises(TargetDiffers, match=r"public\.s \(7, expected 5\)"):
            set_sequences(session, [there, twice])


def test_thousands_of_sequences_are_read_with_few_statements(db: Database) -> None:
    db.admin("do $$ begin for i in 1..450 loop execute format('create sequence s%s start %s', i, i); end loop; end $$")
    with db.session("postgres") as session:
        read = read_sequences(session)
    assert {each.name: each.last_value for each in read} == {f"s{number}": number for number in range(1, 451)}
