"""The state machine of a session: however bytes are cut, the same is relayed and the same is a candidate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import MalformedMessage
from tidemark.serve import messages, session
from tidemark.serve.messages import FLUSH, SYNC, BindMessage
from tidemark.serve.session import HELD_LIMIT, ClientSession
from tidemark.serve.statements import Candidate, ClientStatement
from tidemark.serve.wire import ClientKind, SourceKind, frame

pytestmark = pytest.mark.quick

READY = messages.ready(ord("I"))
PARSE, BIND = messages.parse(b"s", b"select 1"), messages.bind(BindMessage(b"p", b"s", (), (), ()))
DESCRIBE_S, DESCRIBE_P = messages.describe(b"S", b"s"), messages.describe(b"P", b"p")
EXECUTE = messages.execute(b"p", 7)
QUERY = messages.query(b"select 2")
MESSAGES = (
    PARSE,
    BIND,
    DESCRIBE_S,
    DESCRIBE_P,
    EXECUTE,
    SYNC,
    FLUSH,
    QUERY,
    messages.close(b"S", b"s"),
    messages.query(b"begin; select 1"),
    frame(ClientKind.COPY_DATA, b"row"),
    frame(ClientKind.COPY_DONE),
    messages.parse(b"", b"show tidemark.last"),
)


def started(considers: bool = True, guards: bool = False) -> ClientSession:
    """A session whose source is ready."""
    made = ClientSession(lambda _, __: considers, guards=guards)
    assert made.from_source(READY) == READY
    assert made.is_quiet
    return made


def fed(machine: ClientSession, *pieces: bytes) -> tuple[bytes, list[Candidate]]:
    """What is relayed, and the candidates, each of them relayed as a router could."""
    relayed, candidates = b"", list[Candidate]()
    for piece in pieces:
        out, candidate = machine.from_client(piece)
        relayed += out
        while candidate is not None:
            candidates.append(candidate)
            if candidate.is_check:
                machine.admit()
            else:
                machine.expect(candidate)
            relayed += candidate.prefix + candidate.rest
            out, candidate = machine.from_client(b"")
            relayed += out
    return relayed, candidates


@pytest.mark.parametrize(
    ("sent", "prefix", "is_described"),
    [
        ([PARSE, BIND, DESCRIBE_P, EXECUTE, SYNC], PARSE, True),
        ([PARSE, DESCRIBE_S, BIND, EXECUTE, SYNC], PARSE + DESCRIBE_S, False),
        ([messages.close(b"S", b"old"), PARSE, BIND, EXECUTE, SYNC], messages.close(b"S", b"old") + PARSE, False),
    ],
)
def test_one_statement_up_to_its_sync_is_a_candidate(sent: list[bytes], prefix: bytes, is_described: bool) -> None:
    machine = started()
    out, candidate = machine.from_client(b"".join(sent))
    assert out == b""
    assert candidate is not None
    assert (candidate.text, candidate.prefix, candidate.is_described) == (b"select 1", prefix, is_described)
    assert candidate.row_limit == 7
    assert candidate.bind == BindMessage(b"p", b"s", (), (), ())
    assert candidate.prefix + candidate.rest == b"".join(sent)


def test_a_prepared_statement_is_a_candidate_each_time() -> None:
    machine = started()
    assert fed(machine, PARSE + DESCRIBE_S + SYNC) == (PARSE + DESCRIBE_S + SYNC, [])
    for _ in range(2):
        machine.from_source(messages.PARSE_COMPLETE + READY)
        relayed, (candidate,) = fed(machine, BIND + EXECUTE + SYNC)
        assert (relayed, candidate.prefix, candidate.is_open) == (BIND + EXECUTE + SYNC, b"", False)


def test_a_statement_that_was_flushed_before_is_a_candidate_of_an_open_exchange() -> None:
    machine = started()
    assert machine.from_client(PARSE + DESCRIBE_S + FLUSH) == (PARSE + DESCRIBE_S + FLUSH, None)
    machine.from_source(messages.PARSE_COMPLETE)
    _, candidate = machine.from_client(BIND + EXECUTE + SYNC)
    assert candidate is not None
    assert candidate.is_open


@pytest.mark.parametrize(
    "sent",
    [
        [PARSE, BIND, EXECUTE, EXECUTE, SYNC],
        [PARSE, BIND, EXECUTE, BIND, EXECUTE, SYNC],
        [PARSE, BIND, EXECUTE, FLUSH],
        [PARSE, BIND, FLUSH, EXECUTE, SYNC],
        [PARSE, BIND, messages.execute(b"other"), SYNC],
        [EXECUTE, SYNC],
        [BIND, EXECUTE, SYNC],
        [PARSE, QUERY],
        [PARSE, FLUSH, QUERY],
        [PARSE, SYNC, PARSE, BIND, EXECUTE, SYNC],
        [PARSE, BIND, messages.describe(b"P", b"other"), EXECUTE, SYNC],
        [frame(ClientKind.FUNCTION_CALL, b"x"), QUERY],
    ],
)
def test_other_sequences_are_relayed(sent: list[bytes]) -> None:
    assert fed(started(), b"".join(sent)) == (b"".join(sent), [])


def test_nothing_is_a_candidate_while_the_source_owes_a_response() -> None:
    machine = started()
    _, candidates = fed(machine, QUERY + QUERY)
    assert len(candidates) == 1
    machine.from_source(READY)
    assert fed(machine, QUERY)[1] == []
    machine.from_source(READY + READY)
    assert len(fed(machine, QUERY)[1]) == 1


def test_a_failed_block_has_no_candidates() -> None:
    machine = started(considers=False)
    fed(machine, QUERY)
    machine.from_source(messages.ready(ord("E")))
    machine._considers = lambda _, __: True
    assert fed(machine, QUERY)[1] == []


def test_a_response_that_was_not_expected_ends_all_candidates() -> None:
    machine = started()
    machine.from_source(READY)
    assert machine.is_lost
    assert fed(machine, QUERY) == (QUERY, [])


def test_an_unnamed_statement_is_unknown_after_an_error_and_after_a_query() -> None:
    unnamed = [messages.parse(b"", b"select 1"), SYNC]
    executed = [messages.bind(BindMessage(b"", b"", (), (), ())), messages.execute(b""), SYNC]
    for is_query in (True, False):
        machine = started(considers=False)
        fed(machine, *unnamed)
        machine.from_source(READY if is_query else messages.error("42601", "x") + READY)
        if is_query:
            fed(machine, messages.query(b"begin; select 1"))
            machine.from_source(READY)
        machine._considers = lambda _, __: True
        assert fed(machine, b"".join(executed))[1] == []


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_syncs_during_copy_in_have_no_response(is_pipelined: bool) -> None:
    machine = started()
    copy_in, rows = (
        frame(SourceKind.COPY_IN, b"\0\0\0"),
        frame(ClientKind.COPY_DATA, b"row") + frame(ClientKind.COPY_DONE),
    )
    machine.statements.clear()
    fed(machine, messages.parse(b"", b"copy t from stdin") + BIND + messages.execute(b"q") + SYNC)
    if is_pipelined:
        fed(machine, rows + SYNC)
        machine.from_source(copy_in)
    else:
        machine.from_source(copy_in)
        fed(machine, rows + SYNC)
    before = machine.is_quiet
    machine.from_source(messages.command_complete("COPY 1") + READY)
    assert (before, machine.is_quiet, machine.is_lost) == (False, True, False)


def test_copy_in_of_a_query_has_one_response() -> None:
    machine = started(considers=False)
    fed(machine, QUERY)
    machine.from_source(frame(SourceKind.COPY_IN, b"\0\0\0"))
    fed(machine, frame(ClientKind.COPY_DATA, b"row") + frame(ClientKind.COPY_DONE))
    machine.from_source(READY)
    assert machine.is_quiet


def test_a_mention_of_the_settings_is_noted_but_not_that_of_the_reports() -> None:
    for sent, is_touched in (
        (messages.query(b"show tidemark.last"), False),
        (messages.query(b"SET Tidemark.route = source"), True),
        (messages.bind(BindMessage(b"", b"", (), (b"TIDEMARK.at",), ())), True),
        (messages.query(b"discard  ALL"), True),
        (messages.query(b"select 'x' union all select 'y'"), False),
        (QUERY, False),
    ):
        machine = started()
        fed(machine, sent)
        assert machine.is_touched is is_touched


def test_statements_of_the_server_are_placeholders_for_the_source() -> None:
    machine = started()
    relayed, _ = fed(machine, messages.parse(b"s", b"explain (tidemark) select 1") + SYNC)
    assert b'AS "QUERY PLAN"' in relayed
    machine.from_source(messages.PARSE_COMPLETE + READY)
    for piece in (BIND[:10], BIND[10:] + EXECUTE):
        assert fed(machine, piece) == (b"", [])
    _, (candidate,) = fed(machine, SYNC)
    assert candidate.text == b"select 1"


def test_large_messages_pass_in_pieces_and_are_no_candidates() -> None:
    machine = started()
    large = messages.query(b"select '" + b"x" * HELD_LIMIT + b"'")
    relayed, candidates = fed(machine, large[:100], large[100:5000], large[5000:])
    assert (relayed, candidates) == (large, [])
    assert machine.is_touched  # it could have set anything
    assert machine.pending_bytes == 0


def test_too_much_that_is_held_is_relayed() -> None:
    machine = started()
    many = [messages.parse(b"%d" % number, b"x" * 1000) for number in range(HELD_LIMIT // 1000 + 10)]
    relayed, _ = fed(machine, *many)
    assert len(relayed) + machine.pending_bytes == sum(map(len, many))
    assert machine.pending_bytes < HELD_LIMIT
    assert len(started().statements) == 0


def test_statements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STATEMENTS_LIMIT", 5)
    machine = started()
    for number in range(session.STATEMENTS_LIMIT + 10):
        fed(machine, messages.parse(b"%d" % number, b"x"))
    assert len(machine.statements) <= session.STATEMENTS_LIMIT


@pytest.mark.parametrize(
    "wrong", [b"?\0\0\0\5x", b"Q\0\0\0\3", b"Q\xff\xff\xff\xff", b"S\0\1\0\0", b"p\0\0\0\5x" * 0 + b"Z\0\0\0\5I"]
)
def test_a_malformed_message_is_refused(wrong: bytes) -> None:
    with pytest.raises(MalformedMessage):
        started().from_client(wrong)


BEGIN = (messages.parse(b"b", b"BEGIN"), messages.bind(BindMessage(b"", b"b", (), (), ())), messages.execute(b""))


def test_a_begin_in_the_same_exchange_belongs_to_what_comes_before_the_statement() -> None:
    machine = started()
    machine.statements[b"s"] = ClientStatement(b"select 1")
    out, candidate = machine.from_client(b"".join([*BEGIN, BIND, DESCRIBE_P, EXECUTE, SYNC]))
    assert out == b""
    assert candidate is not None
    assert (candidate.begins_block, candidate.prefix) == (True, b"".join(BEGIN))
    unnamed = [messages.parse(b"", b"BEGIN"), messages.bind(BindMessage(b"", b"", (), (), ())), messages.execute(b"")]
    _, (candidate,) = fed(started(), b"".join([*unnamed, messages.parse(b"", b"select 3"), *unnamed[1:], SYNC]))
    assert (candidate.begins_block, candidate.text) == (True, b"select 3")
    assert fed(started(), b"".join([PARSE, BIND, EXECUTE, *BEGIN, SYNC]))[1] == []


LARGE = messages.query(b"select '" + b"x" * HELD_LIMIT + b"'")
UNFIT = [
    [PARSE, BIND, EXECUTE, EXECUTE, SYNC],
    [PARSE, BIND, EXECUTE, BIND, EXECUTE, SYNC],
    [PARSE, BIND, EXECUTE, FLUSH],
    [PARSE, BIND, FLUSH],
    [PARSE, DESCRIBE_S, FLUSH, QUERY],
    [frame(ClientKind.FUNCTION_CALL, b"x")],
    [LARGE[:5000]],
]


@pytest.mark.parametrize("sent", UNFIT)
def test_what_is_no_candidate_is_held_until_it_is_admitted_in_a_guarded_session(sent: list[bytes]) -> None:
    machine = started(guards=True)
    whole = b"".join(sent)
    out, candidate = machine.from_client(whole)
    assert candidate is not None
    assert candidate.is_check
    assert out + machine._pending == whole
    assert b"D" not in out[:1] + out[-4:]
    machine.admit()
    rest, candidate = machine.from_client(b"")
    assert (out + rest, candidate) == (whole, None)


def test_a_guarded_session_holds_further_messages_until_the_source_has_answered() -> None:
    machine = started(guards=True)
    relayed, (first,) = fed(machine, QUERY + PARSE + BIND)
    assert (relayed, first.text, machine.is_waiting) == (QUERY, b"select 2", True)
    assert fed(machine, EXECUTE + SYNC) == (b"", [])
    machine.from_source(READY)
    _, (second,) = fed(machine, b"")
    assert (second.text, second.prefix) == (b"select 1", PARSE)


@pytest.mark.parametrize(
    ("sent", "failing"),
    [
        (UNFIT[0], messages.parse(b"_tidemark_refused", b"_tidemark_refused") + b"".join(UNFIT[0])),
        ([frame(ClientKind.FUNCTION_CALL, b"x")], messages.query(b"_tidemark_refused")),
    ],
)
def test_rejected_messages_fail_at_the_source_and_the_client_gets_the_reason(sent: list[bytes], failing: bytes) -> None:
    machine = started(guards=True)
    machine.from_client(b"".join(sent))
    reason = messages.error("0A000", "the reason")
    machine.reject(reason)
    assert machine.from_client(b"") == (failing, None)
    failed = messages.error("42601", 'syntax error at or near "_tidemark_refused"')
    assert machine.from_source(failed + READY) == reason + READY
    assert machine.is_quiet
    assert machine.from_source(failed) == failed


def test_the_rest_of_a_large_rejected_query_is_dropped() -> None:
    machine = started(guards=True)
    machine.from_client(LARGE[:1000])
    machine.reject(messages.error("0A000", "the reason"))
    failing = messages.query(b"_tidemark_refused")
    assert [machine.from_client(piece)[0] for piece in (b"", LARGE[1000:5000], LARGE[5000:] + SYNC)] == [
        failing,
        b"",
        SYNC,
    ]


def test_a_setting_that_is_changed_in_a_pipeline_is_rejected() -> None:
    setting = messages.parse(b"x", b"set tidemark.at = '-1h'")
    pipeline = setting + messages.bind(BindMessage(b"", b"x", (), (), ())) + messages.execute(b"")
    for certain in (False, True):
        machine = started(guards=True)
        machine.is_answered_by_source = machine.has_default_settings = certain
        relayed, candidates = fed(machine, pipeline + PARSE + BIND + EXECUTE + SYNC)
        assert candidates == []
        assert b"_tidemark_refused" in relayed
        late = started(guards=True)
        late.is_answered_by_source = certain
        relayed, _ = fed(late, PARSE + BIND + EXECUTE + FLUSH, pipeline + SYNC)
        assert b"_tidemark_refused" in relayed
    named = messages.parse(b"x", b"select * from tidemark_events")
    assert b"_tidemark_refused" not in fed(started(guards=True), named + BIND + EXECUTE + EXECUTE + SYNC)[0]


@pytest.mark.parametrize("is_copying", [False, True])
def test_a_guarded_session_does_not_wait_for_a_source_that_waits_for_the_client(is_copying: bool) -> None:
    machine = started(guards=True)
    fed(machine, PARSE + BIND + EXECUTE + FLUSH)
    machine.from_source(frame(SourceKind.COPY_IN, b"\0\0\0") if is_copying else messages.error("22012", "x"))
    assert fed(machine, PARSE + SYNC)[0] == PARSE + SYNC


@given(st.lists(st.sampled_from(MESSAGES), max_size=12), st.data())
def test_pieces_make_no_difference(sent: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    considered, guards = data.draw(st.booleans()), data.draw(st.booleans())
    one, many = started(considered, guards), started(considered, guards)
    expected, found = fed(one, whole), fed(many, *pieces)
    assert found[0] + many._pending == expected[0] + one._pending
    assert [(each.text, each.rest) for each in found[1]] == [(each.text, each.rest) for each in expected[1]]


@given(
    st.lists(
        st.sampled_from(
            [
                READY,
                messages.data_row([b"x" * 50]),
                messages.error("42601", "x"),
                messages.data_row([b"x" * 40_000]),
                frame(SourceKind.KEY_DATA, b"12345678"),
            ]
        ),
        max_size=8,
    ),
    st.data(),
)
def test_the_source_is_relayed_as_it_is(sent: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    machine = started()
    relayed = b"".join(
        machine.from_source(whole[begin:end]) for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)
    )
    assert relayed == whole
