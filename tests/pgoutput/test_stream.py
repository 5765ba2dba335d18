"""Recorded streams of interleaved, streamed, aborted, savepointed and prepared transactions, judged by SQL."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from harness.database import Database
from harness.decoding import StreamDecoder
from harness.printed import printed
from harness.recorded import Recording, decode, record
from tidemark.clock import Lsn
from tidemark.errors import MalformedMessage, UnknownRelation, UnsupportedMessage
from tidemark.pgoutput.changes import ChangeBatch, Limits
from tidemark.pgoutput.frames import framed
from tidemark.schema.relation import Relation
from tidemark.values.types import Types

pytestmark = pytest.mark.quick

Row = tuple[str | None, ...]


def in_order(batches: Iterable[ChangeBatch]) -> list[tuple[int, int, str, str, Row, Row | None]]:
    """Every change as (commit LSN, ordinal, letter, table, new row, old row), in the order that the clock gives."""
    changes = []
    for batch in batches:
        new = list(zip(*(printed(column) for column in batch.new), strict=True))
        old = list(zip(*(printed(column) for column in batch.old), strict=True))
        olds = {int(of): row for of, row in zip(batch.old_of, old, strict=True)}
        for i in range(len(batch)):
            key = (int(batch.commit_lsns[i]), int(batch.ordinals[i]), chr(batch.kinds[i]), batch.relation.name)
            changes.append((*key, new[i], olds.get(i)))
    return sorted(changes, key=lambda change: change[:4])


def without_gaps(batches: Iterable[ChangeBatch]) -> list[tuple[int, int, str, str, Row, Row | None]]:
    """The same with ordinals counted anew: what an aborted subtransaction was given is a gap where it was streamed."""
    changes = in_order(batches)
    numbers: dict[int, dict[int, int]] = {}
    for change in changes:
        numbers.setdefault(change[0], {}).setdefault(change[1], len(numbers[change[0]]))
    return [(change[0], numbers[change[0]][change[1]], *change[2:]) for change in changes]


def contents(batches: Iterable[ChangeBatch], key: int = 0) -> dict[str, dict[str | None, Row]]:
    """The tables that come out when the changes are applied; values that did not change keep what was there."""
    unchanged = {}
    for batch in batches:
        for i in range(len(batch)):
            marks = tuple(bool(mark is not None and mark[i]) for mark in batch.unchanged)
            unchanged[int(batch.commit_lsns[i]), int(batch.ordinals[i]), batch.relation.name] = marks
    tables: dict[str, dict[str | None, Row]] = {}
    for lsn, ordinal, letter, table, new, old in in_order(batches):
        rows = tables.setdefault(table, {})
        if letter == "T":
            rows.clear()
            continue
        before = rows.pop((old or new)[key], None)
        if letter != "D":
            marks = unchanged[lsn, ordinal, table]
            assert before is not None or not any(marks)
            kept = before or new
            rows[new[key]] = tuple(was if mark else now for was, now, mark in zip(kept, new, marks, strict=True))
    return tables


def selected(db: Database, table: str) -> dict[str | None, Row]:
    rows = db.run(f"select id::text, v, n::text from {table}")
    return {row[0]: tuple(row) for row in rows}


TABLES = (
    "create table t (id int primary key, v text, n numeric(10,2))",
    "create table u (id int primary key, v text, n numeric(10,2))",
)


def write_history(db: Database) -> None:
    """Two sessions, interleaved; large enough to be streamed where the work memory is small."""
    with db.connect() as one, db.connect() as two:
        one.execute("begin")
        two.execute("begin")
        for n in range(40):
            one.execute(
                "insert into t select i, repeat('a', 50), i from generate_series(%s::int, %s::int) i",
                [n * 100, n * 100 + 99],
            )
            two.execute(
                "insert into u select i, repeat('b', 50), i from generate_series(%s::int, %s::int) i",
                [n * 100, n * 100 + 99],
            )
            if n % 5 == 0:
                one.execute("savepoint s")
                one.execute("update t set v = 'lost' where id < 50")
                one.execute("insert into t values (%s, 'lost', 0)", [1_000_000 + n])
                one.execute("rollback to savepoint s")
            if n % 7 == 0:
                two.execute("savepoint s")
                two.execute("update u set n = n + 1 where id % 10 = 0")
                two.execute("release savepoint s")
        two.execute("commit")
        one.execute("delete from t where id % 3 = 0")
        one.execute("update t set id = -id where id % 100 = 1")
        one.execute("commit")
        two.execute(
            "begin; insert into u select i, repeat('c', 50), 0 from generate_series(100000, 104000) i; rollback"
        )
        two.execute("begin; insert into u values (200000, 'prepared', 1); prepare transaction 'p'")
        one.execute("insert into t values (200000, 'after', 2)")
        two.execute("commit prepared 'p'")
        two.execute(
            "begin; insert into t values (300000, 'gone', 1); truncate t, u; insert into u values (1, 'new', 1); commit"
        )
        one.execute("insert into t values (1, 'again', 1), (2, 'more', null)")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("binary", [False, True])
def test_what_comes_out_is_what_sql_says(db: Database, streaming: bool, binary: bool) -> None:
    db.run(*TABLES)
    recorder = record(db)
    write_history(db)
    recording = recorder.recording(binary=binary, streaming=streaming)
    assert streaming == (b"S" in {message[:1] for message in recording.messages})
    batches = decode(recording, {}, Limits(rows=700))
    found = contents(batches)
    assert found == {"t": selected(db, "t"), "u": selected(db, "u")}
    lsns = [change[0] for change in in_order(batches)]
    assert lsns == sorted(lsns)
    assert max(len(batch) for batch in batches) <= 700


def test_streamed_or_not_text_or_binary_the_changes_are_the_same(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    write_history(db)
    plain = in_order(decode(recorder.recording(), {}))
    assert len(plain) > 8000
    for binary in (False, True):
        assert without_gaps(decode(recorder.recording(binary=binary, streaming=True), {})) == plain


def test_every_version_of_the_protocol_says_the_same(db: Database) -> None:
    """1 knows no streaming, 3 came with 15, and 4, with 16, says more about an abort when it streams in parallel."""
    db.run(*TABLES)
    recorder = record(db)
    write_history(db)
    plain = in_order(decode(recorder.recording(protocol=1), {}))
    major = db.server.install.major
    versions = [
        (2, "on"),
        *([(3, "on")] if major >= 15 else []),
        *([(4, "on"), (4, "parallel")] if major >= 16 else []),
    ]
    for protocol, streaming in versions:
        recording = recorder.recording(protocol=protocol, streaming=streaming)
        aborts = {len(message) for message in recording.messages if message[:1] == b"A"}
        assert aborts == ({25} if streaming == "parallel" else {9})
        assert without_gaps(decode(recording, {})) == plain


def test_transactions_that_came_from_elsewhere_say_so_and_are_decoded(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    with db.server.connect(db.name) as replica:
        replica.execute("select pg_replication_origin_create('elsewhere')")
        replica.execute("select pg_replication_origin_session_setup('elsewhere')")
        replica.execute("insert into t values (1)")
        replica.execute("insert into t select i, repeat('x', 50) from generate_series(2, 5000) i")
        replica.execute("select pg_replication_origin_session_reset()")
        replica.execute("select pg_replication_origin_drop('elsewhere')")
    for streaming in (False, True):
        recording = recorder.recording(streaming=streaming)
        assert b"O" in {message[:1] for message in recording.messages}
        assert sum(len(batch) for batch in decode(recording, {})) == 5000


def test_however_it_is_cut_into_buffers_the_changes_are_the_same(db: Database, short: bool) -> None:
    db.run(*TABLES)
    recorder = record(db)
    write_history(db)
    for streaming in (False, True):
        recording = recorder.recording(streaming=streaming)
        whole = in_order(decode(recording, {}))
        for size in (7, 1000) if short else (1, 7, 1000):
            if size == 1 and len(recording.messages) > 20_000:
                size = 3
            decoder, batches = StreamDecoder(Types()), []
            for at in range(0, len(recording.messages), size):
                part = slice(at, at + size)
                fed = decoder.feed(framed(recording.messages[part]))
                batches += [item for item in fed if isinstance(item, ChangeBatch)]
            assert in_order(batches) == whole


def test_commit_lsns_xids_and_times_are_the_servers(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    xids = []
    with db.connect() as connection:
        for n in range(20):
            with connection.transaction():
                connection.execute("insert into t values (%s, 'x', 1)", [n])
                xids.append(int((connection.execute("select pg_current_xact_id()::xid::text").fetchone() or ("",))[0]))
    (batch,) = decode(recorder.recording(), {})
    assert batch.xids.tolist() == xids
    options = "null, null, 'proto_version', '1', 'publication_names', 'recorded'"
    peeked = f"pg_logical_slot_peek_binary_changes('{recorder.slot}', {options})"
    query = f"select lsn::text from {peeked} where get_byte(data, 0) = {ord('C')}"
    assert [Lsn(int(lsn)) for lsn in batch.commit_lsns] == [Lsn.parse(row[0]) for row in db.admin(query)]
    assert batch.ordinals.tolist() == [0] * 20
    assert (np.diff(batch.commit_micros) >= 0).all()


OLD_ROWS = {
    "default": (),
    "index": (
        "create unique index i on t (n)",
        "alter table t alter n set not null",
        "alter table t replica identity using index i",
    ),
    "full": ("alter table t replica identity full",),
}


@pytest.mark.parametrize("identity", OLD_ROWS)
def test_old_keys_and_old_rows_come_as_the_identity_says(db: Database, identity: str) -> None:
    db.run(*TABLES, *OLD_ROWS[identity], "insert into t values (1, 'a', 1), (2, 'b', 2)")
    recorder = record(db)
    db.run("update t set v = 'x' where id = 1", "update t set id = 5 where id = 2", "delete from t where id = 5")
    first, second, third = in_order(decode(recorder.recording(), {}))
    full = identity == "full"
    assert first[2:] == ("U", "t", ("1", "x", "1.00"), ("1", "a", "1.00") if full else None)
    assert second[4] == ("5", "b", "2.00")
    by_index = (None, None, "2.00")
    assert second[5] == {"default": ("2", None, None), "index": None, "full": ("2", "b", "2.00")}[identity]
    assert third[2:4] == ("D", "t")
    assert third[4] == (None, None, None)
    assert third[5] == {"default": ("5", None, None), "index": by_index, "full": ("5", "b", "2.00")}[identity]


def test_large_values_that_did_not_change_are_marked(db: Database) -> None:
    db.run("create table big (id int primary key, v text, w text)", "alter table big alter v set storage external")
    db.run("insert into big values (1, repeat('x', 10000), 'w')")
    recorder = record(db)
    db.run("update big set w = 'changed'")
    (batch,) = decode(recorder.recording(), {})
    marks = [None if mark is None else mark.tolist() for mark in batch.unchanged]
    assert marks == [None, [True], None]
    assert [column.array.to_pylist() for column in batch.new] == [[1], [None], ["changed"]]


def test_a_table_altered_in_mid_stream_is_two_relations(db: Database) -> None:
    db.run("create table t (id int primary key, a int)")
    recorder = record(db)
    with db.connect() as connection:
        connection.execute(
            "begin; insert into t values (1, 1); alter table t add b text; insert into t values (2, 2, 'b')"
        )
        connection.execute("alter table t drop a; insert into t values (3, 'c'); commit")
    batches = decode(recorder.recording(), {})
    assert [[column.name for column in batch.relation.columns] for batch in batches] == [
        ["id", "a"],
        ["id", "a", "b"],
        ["id", "b"],
    ]
    assert [batch.ordinals.tolist() for batch in batches] == [[0], [1], [2]]
    assert len({int(batch.commit_lsns[0]) for batch in batches}) == 1


def test_truncate_of_several_tables_with_its_flags_keeps_its_place(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    with db.connect() as connection:
        connection.execute(
            "begin; insert into t values (1); truncate t, u restart identity cascade; insert into u values (2); commit"
        )
    batches = decode(recorder.recording(), {})
    assert {int(flags) for batch in batches for flags in batch.truncate_options[batch.kinds == ord("T")]} == {3}
    changes = [(change[1], change[2], change[3]) for change in in_order(batches)]
    assert sorted(changes) == [(0, "I", "t"), (1, "T", "t"), (1, "T", "u"), (2, "I", "u")]


def test_logical_messages_are_ignored_and_do_not_count_as_changes(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    emitted = "select pg_logical_emit_message({}, 'prefix', 'content')"
    with db.connect() as connection:
        connection.execute(emitted.format("false").encode())
        connection.execute(
            f"begin; insert into t values (1); {emitted.format('true')}; {emitted.format('false')}; savepoint a;"
            f"{emitted.format('true')}; rollback to a; insert into t values (2); commit".encode()
        )
        connection.execute(emitted.format("false").encode())
        connection.execute("create table flushes_it (a int)")
    recording = recorder.recording()
    assert sum(message[:1] == b"M" for message in recording.messages) == 4
    assert [(change[1], change[2], change[3]) for change in in_order(decode(recording, {}))] == [
        (0, "I", "t"), (1, "I", "t")
    ]  # fmt: skip


def test_a_rolled_back_transaction_with_a_savepoint_leaves_nothing(db: Database) -> None:
    """18 knows while decoding that it was aborted, and reports that of a transaction it never streamed."""
    db.run(*TABLES)
    recorder = record(db)
    with db.connect() as connection:
        connection.execute("begin; insert into t values (1); savepoint a")
        connection.execute("insert into t select i, repeat('x', 50) from generate_series(2, 4000) i; rollback")
        connection.execute("begin; insert into t values (-1); savepoint a; savepoint b")
        connection.execute("insert into t select i, repeat('y', 50) from generate_series(5000, 9000) i; rollback to a")
        connection.execute("insert into t select i, repeat('z', 50) from generate_series(5000, 9000) i; commit")
    for protocol, streaming in ((2, "on"), *([(4, "parallel")] if db.server.install.major >= 16 else [])):
        recording = recorder.recording(protocol=protocol, streaming=streaming)
        assert b"A" in {message[:1] for message in recording.messages}
        assert contents(decode(recording, {})) == {"t": selected(db, "t")}


def test_descriptions_before_a_stream_block_count(db: Database) -> None:
    """A log segment begins with the relations in force, wherever it was cut."""
    db.run(*TABLES)
    recorder = record(db)
    db.run("insert into t select i, repeat('x', 50) from generate_series(1, 3000) i")
    described = next(m for m in recorder.recording().messages if m[:1] == b"R")
    streamed = recorder.recording(streaming=True).messages
    without = [m for m in streamed if m[:1] != b"R"]
    whole = in_order(decode(Recording.of(streamed), {}))
    assert in_order(decode(Recording.of([described, *without]), {})) == whole


def test_an_aborted_streamed_transaction_leaves_nothing_and_its_relations_are_unknown(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    with db.connect() as connection:
        connection.execute("begin; insert into t select i, repeat('x', 50) from generate_series(1, 5000) i")
        db.run("insert into u values (1)")
        connection.execute("rollback")
    recording = recorder.recording(streaming=True)
    assert [change[3] for change in in_order(decode(recording, {}))] == ["u"]
    begin, inserted, commit = (next(m for m in recording.messages if m[:1] == letter) for letter in (b"B", b"I", b"C"))
    outside = b"I" + inserted[5:]  # the same change without the xid that it had inside the stream
    with pytest.raises(UnknownRelation, match="for which there was no Relation message"):
        decode(Recording.of([*recording.messages, begin, outside, commit]), {})


def test_a_relation_sent_only_inside_a_streamed_transaction_counts_for_all_once_it_committed(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    db.run("insert into t select i, repeat('x', 50) from generate_series(1, 5000) i", "insert into t values (9999)")
    recording = recorder.recording(streaming=True)
    letters = [m[:1] for m in recording.messages]
    assert b"R" not in letters[letters.index(b"c") :], "the server did not describe it again"
    assert len(in_order(decode(recording, {}))) == 5001


def test_a_description_that_came_later_stays_in_force_when_a_streamed_transaction_commits(db: Database) -> None:
    """A rollback to a savepoint gives up its locks: a table can be altered while who wrote it goes on."""
    db.run(*TABLES)
    recorder = record(db)
    with db.connect() as connection:
        connection.execute(
            "begin; insert into u select i, repeat('x', 50) from generate_series(1, 3000) i; savepoint s"
        )
        connection.execute("insert into t select i, repeat('y', 50) from generate_series(1, 3000) i; rollback to s")
        db.run("alter table t add more text", "insert into t values (-1, 'altered', 1, 'more')")
        connection.execute("insert into u select i, repeat('x', 50) from generate_series(3001, 6000) i; commit")
    db.run("insert into t values (-2, 'after', 2, 'even more')")
    recording = recorder.recording(streaming=True)
    changes = [change for change in in_order(decode(recording, {})) if change[3] == "t"]
    assert [change[4][3] for change in changes] == ["more", "even more"]


def test_numbers_that_grow_a_thousandfold_as_text_come_in_smaller_batches(db: Database) -> None:
    db.run("create table huge (id int primary key, n numeric)")
    recorder = record(db)
    db.run("insert into huge select i, 1e131071::numeric from generate_series(1, 5000) i")
    batches = decode(recorder.recording(binary=True), {})
    assert len(batches) > 1
    assert sum(len(batch) for batch in batches) == 5000
    assert batches[0].new[1].array[0].as_py() == "1" + "0" * 131071


def test_messages_of_two_phase_decoding_are_refused(db: Database) -> None:
    for letter in b"bPKrp":
        with pytest.raises(UnsupportedMessage, match="two-phase"):
            decode(Recording.of([bytes([letter]) + b"\0" * 40]), {})


def test_what_was_not_committed_is_forgotten_when_the_connection_is_lost(db: Database) -> None:
    db.run(*TABLES)
    recorder = record(db)
    write_history(db)
    recording = recorder.recording(streaming=True)
    decoder = StreamDecoder(Types())
    batches: list[ChangeBatch] = []
    half = len(recording.messages) // 2
    for part in (slice(0, half), None, slice(0, len(recording.messages))):
        if part is None:
            decoder.end()
            batches.clear()
            continue
        fed = decoder.feed(framed(recording.messages[part]))
        batches += [item for item in fed if isinstance(item, ChangeBatch)]
    assert in_order(batches) == in_order(decode(recording, {}))


@pytest.mark.parametrize(
    "messages",
    [
        [b"E"],
        [b"S\0\0\0\1\0"],
        [b"S\0\0\0\1\1", b"S\0\0\0\2\1"],
        [b"c\0\0\0\1" + b"\0" * 25],
        [b"C" + b"\0" * 25],
        [b"B" + b"\0" * 20, b"B" + b"\0" * 20, b"C" + b"\0" * 25],
        [b"B" + b"\0" * 19, b"C" + b"\0" * 25],
        [b"B" + b"\0" * 20, b"S\0\0\0\1\1"],
        [b"S\0\0\0\1\1", b"B" + b"\0" * 20],
        [b"Z"],
        [b"I"],
        [b"B" + b"\0" * 20, b"C\1" + b"\0" * 24],
    ],
)
def test_messages_out_of_order_are_refused(messages: list[bytes]) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode(Recording.of(messages), {})
    assert "at offset" in str(caught.value)


BEGUN, ENDED = b"B" + bytes(20), b"C" + bytes(25)
DESCRIBED, INSERTED = b"R\0\0\0\1s\0t\0d\0\0", b"I\0\0\0\1N\0\0"


@pytest.mark.parametrize(
    "messages",
    [
        [DESCRIBED, INSERTED, BEGUN, ENDED],
        [BEGUN, DESCRIBED, INSERTED, BEGUN, INSERTED, ENDED],
        [DESCRIBED, INSERTED, INSERTED, BEGUN, INSERTED, ENDED],
        [BEGUN, DESCRIBED, INSERTED, b"C" + bytes(8) + b"\1" + bytes(16)],
    ],
)
def test_wherever_the_buffers_are_cut_the_order_is_checked(messages: list[bytes]) -> None:
    for cut in range(len(messages) + 1):
        decoder = StreamDecoder(Types())
        with pytest.raises(MalformedMessage):
            for part in (messages[:cut], messages[cut:]):
                recording = Recording.of(part)
                list(decoder.feed(recording.buffer))


def test_a_relation_is_a_value() -> None:
    assert Relation(1, "a", "b", "d", ()) == Relation(1, "a", "b", "d", ())
