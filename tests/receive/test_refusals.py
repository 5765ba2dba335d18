"""Where going on would miss changes without a word we stop: each case told apart and named, nothing made anew."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import MIRROR, OWNER, Database, create_database
from harness.mirrored import Mirrored, connected, ended, eventually, mirrored, receive_all, receiving, streaming
from harness.pgbouncer import find_pgbouncer, pooled
from harness.postgres import installs
from tests.conftest import NEWEST, Start
from tidemark.clock import Lsn
from tidemark.errors import (
    AuthenticationRefused,
    NotPermitted,
    NotTheSameSource,
    ObjectInUse,
    PublicationDiffers,
    SlotAhead,
    SlotInvalidated,
    SlotMissing,
    SlotRecreated,
    SourceError,
    SourceForked,
    UnsupportedServer,
)
from tidemark.log.disk import Disk
from tidemark.log.mirror import LogMirror, read_mirror
from tidemark.log.reader import LogReader
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.receive.options import ReceiveOptions
from tidemark.receive.process import ReceiveProcess
from tidemark.receive.supervision import Receiving

pytestmark = pytest.mark.quick

TABLE = "create table t (id int generated always as identity primary key, v text)"
INSERT = "insert into t (v) values ('a')"


def begun(database: Database, folder: Path) -> Mirrored:
    """A mirror that has received something, and is away now."""
    database.run(TABLE)
    mirror = mirrored(database, folder, "t", watch_interval_s=0.2)
    database.run(INSERT)
    receive_all(mirror)
    return mirror


@pytest.fixture
def mirror(db: Database, tmp_path: Path) -> Mirrored:
    return begun(db, tmp_path)


def slots(database: Database) -> list[tuple[str, str]]:
    """What each slot's reader has confirmed; restart_lsn is moved by whoever decodes, who need not confirm anything."""
    position = "coalesce(confirmed_flush_lsn, restart_lsn)::text"
    return database.admin(f"select slot_name, {position} from pg_replication_slots order by 1")


def log_of(mirror: Mirrored) -> tuple[Lsn, int]:
    reader = LogReader(mirror.options.folder)
    return reader.received, len(reader.commits())


def inserts_of(mirror: Mirrored) -> list[Lsn]:
    return [each.lsn for each in mirror.in_log() if any(message[:1] == b"I" for message in each.messages)]


def require_refusal(process: ReceiveProcess, kind: type[SourceError], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        ended(process)
    assert type(caught.value) is kind
    assert "\nHint: " in str(caught.value)


def refused(mirror: Mirrored, kind: type[SourceError], match: str, options: ReceiveOptions | None = None) -> None:
    """A new process stops with this error; the log and the slots are as before."""
    before = log_of(mirror), slots(mirror.database)
    with receiving(mirror, options) as process:
        require_refusal(process, kind, match)
    assert (log_of(mirror), slots(mirror.database)) == before


def goes_on(mirror: Mirrored) -> None:
    mirror.database.run(INSERT)
    receive_all(mirror)
    assert mirror.require_equal() > 1


def drop_slot(mirror: Mirrored) -> str:
    name = mirror.options.names.slot
    mirror.database.admin(f"select pg_drop_replication_slot('{name}')")
    return name


def test_a_slot_that_is_gone_is_not_created_again(mirror: Mirrored) -> None:
    refused(mirror, SlotMissing, f"slot {drop_slot(mirror)} does not exist")


def test_a_slot_dropped_and_created_anew_has_missed_something(mirror: Mirrored) -> None:
    name = drop_slot(mirror)
    mirror.database.run(INSERT)
    mirror.database.admin(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    refused(mirror, SlotRecreated, f"slot {name} starts at .* dropped and created again")


@pytest.mark.full
@NEWEST
def test_a_slot_of_another_kind_is_not_ours(mirror: Mirrored) -> None:
    name, other = drop_slot(mirror), create_database(mirror.database.server)
    kinds = {
        "is a physical slot": (mirror.database, f"select pg_create_physical_replication_slot('{name}', true)"),
        "decodes prepared transactions": (
            mirror.database,
            f"select pg_create_logical_replication_slot('{name}', 'pgoutput', false, true)",
        ),
        f"belongs to database '{other.name}'": (
            other,
            f"select pg_create_logical_replication_slot('{name}', 'pgoutput')",
        ),
    }
    for match, (database, create) in kinds.items():
        database.admin(create)
        refused(mirror, SlotRecreated, f"slot {name} was not created by Tidemark: it {match}")
        database.admin(f"select pg_drop_replication_slot('{name}')")
    other.drop()


def test_a_slot_whose_wal_is_gone_is_not_read_from(start: Start, tmp_path: Path) -> None:
    mirror = begun(create_database(start(max_slot_wal_keep_size="1MB")), tmp_path)
    for _ in range(4):
        mirror.database.admin("select pg_logical_emit_message(true, 'x', 'y')", "select pg_switch_wal()")
    mirror.database.admin("checkpoint")
    refused(mirror, SlotInvalidated, f"slot {mirror.options.names.slot} was invalidated")


@contextmanager
def using_slot(mirror: Mirrored) -> Iterator[int]:
    """Another connection on the mirror's slot, which confirms nothing; its pid."""
    name = mirror.options.names.slot
    with Session.open(mirror.database.dsn(), "use", replication=True) as user:
        command = f"START_REPLICATION SLOT {name} LOGICAL 0/0 (proto_version '1', publication_names '{name}')"
        user.connection.pgconn.send_query(command.encode())
        yield streaming(mirror)
    while slot_pid(mirror) is not None:
        time.sleep(0.02)


def slot_pid(mirror: Mirrored) -> int | None:
    query = f"select active_pid from pg_replication_slots where slot_name = '{mirror.options.names.slot}'"
    pid: int | None = mirror.database.admin(query)[0][0]
    return pid


@pytest.mark.full
def test_a_slot_in_use_is_waited_for_and_then_its_user_is_named(mirror: Mirrored) -> None:
    impatient = replace(mirror.options, in_use_patience_s=0.5)
    with using_slot(mirror) as pid:
        refused(mirror, ObjectInUse, f"in use by the server process {pid}", impatient)
        with receiving(mirror) as process:
            with connected(mirror.options.folder) as client:
                while not client.position().state.startswith("waiting"):
                    time.sleep(0.02)
            assert process.process.poll() is None
    goes_on(mirror)


@pytest.mark.full
@NEWEST
def test_a_receiver_that_ended_because_its_slot_was_in_use_is_restarted(mirror: Mirrored) -> None:
    with ExitStack() as using:
        using.enter_context(using_slot(mirror))
        with Receiving(replace(mirror.options, in_use_patience_s=0.1)) as receiving:
            first = receiving.pid
            while receiving.pid == first:
                receiving.check()
                time.sleep(0.02)
            using.close()
            mirror.database.run(INSERT)

            def has_it() -> bool:
                receiving.check()
                return len(inserts_of(mirror)) == 2

            eventually(has_it)


@pytest.mark.full
@NEWEST
def test_a_slot_that_someone_moved_ahead_has_passed_over_something(db: Database, tmp_path: Path) -> None:
    db.run(TABLE, "create table other (a int)")
    mirror = mirrored(db, tmp_path, "t")
    with db.connect() as holding, holding.transaction():
        holding.execute("insert into other values (1)")  # keeps restart_lsn where it is
        receive_all(mirror)
        db.run(INSERT)
        name = mirror.options.names.slot
        db.admin(f"select pg_replication_slot_advance('{name}', pg_current_wal_lsn())")
        refused(mirror, SlotAhead, f"slot {name} was moved to .* by another client")


@pytest.mark.full
def test_a_slot_dropped_while_it_is_streamed_from(mirror: Mirrored) -> None:
    with receiving(mirror) as process:
        pid, name = streaming(mirror), mirror.options.names.slot
        process.process.send_signal(signal.SIGSTOP)  # so that it does not come back in between
        mirror.database.admin(f"select pg_terminate_backend({pid}, 5000)", f"select pg_drop_replication_slot('{name}')")
        process.process.send_signal(signal.SIGCONT)
        require_refusal(process, SlotMissing, f"slot {name} does not exist")
    assert name not in dict(slots(mirror.database))


@pytest.mark.full
@NEWEST
def test_another_cluster_and_another_database_are_other_sources(mirror: Mirrored, start: Start) -> None:
    sibling, stranger = create_database(mirror.database.server), create_database(start(own_identity=True))
    for database, match in ((sibling, f"{sibling.name}.* is another one"), (stranger, "the mirror belongs to system")):
        refused(mirror, NotTheSameSource, match, replace(mirror.options, source=database.dsn()))
    sibling.drop()
    goes_on(mirror)


@pytest.mark.full
@NEWEST
def test_a_standby_promoted_below_what_we_hold_has_another_history(start: Start, tmp_path: Path) -> None:
    primary = start()
    mirror = begun(create_database(primary), tmp_path)
    standby = primary.standby()
    try:
        standby.promote()
        mirror.database.run(INSERT)
        receive_all(mirror)
        promoted = Database(standby, mirror.database.name)
        refused(mirror, SourceForked, "timeline 2, left that history", replace(mirror.options, source=promoted.dsn()))
    finally:
        standby.remove()
    goes_on(mirror)


def leaving_out(mirror: Mirrored) -> Iterator[tuple[str, str, str]]:
    """Ways to spoil the publication: what we say then, the spoiling, the mending."""
    name = mirror.options.names.publication
    generated = ", publish_generated_columns = stored" if mirror.database.server.install.major >= 18 else ""
    whole = f"publish = 'insert, update, delete, truncate'{generated}"
    alter = f"alter publication {name}"
    yield "does not exist", f"drop publication {name}", f"create publication {name} for table t with ({whole})"
    yield "does not publish delete", f"{alter} set (publish = 'insert, update, truncate')", f"{alter} set ({whole})"
    yield "row filters", f"{alter} set table t where (id > 0)", f"{alter} set table t"
    yield "column lists", f"{alter} set table t (id)", f"{alter} set table t"
    on, off = (f"{alter} set (publish_via_partition_root = {value})" for value in ("true", "false"))
    yield "publish_via_partition_root", on, off


@pytest.mark.full
@NEWEST
def test_a_publication_that_leaves_something_out_is_refused_also_when_it_was_mended(mirror: Mirrored) -> None:
    for match, spoil, mend in leaving_out(mirror):
        mirror.database.admin(spoil)
        refused(mirror, PublicationDiffers, f"{mirror.options.names.publication} .*{match}")
        mirror.database.admin(mend)
        refused(mirror, PublicationDiffers, "was altered, or dropped and created again, since")
        mirror.options = replace(mirror.options, accept_altered_publication=True)
        goes_on(mirror)
        mirror.options = replace(mirror.options, accept_altered_publication=False)


@pytest.mark.full
def test_a_publication_that_was_spoilt_and_mended_while_nobody_looked_is_refused(mirror: Mirrored) -> None:
    """pgoutput goes by the publication as it was at each change: the deletion is in no stream any more."""
    for _, spoil, mend in list(leaving_out(mirror))[:2]:
        mirror.database.admin(spoil)
        mirror.database.run("delete from t")
        mirror.database.admin(mend)
        refused(mirror, PublicationDiffers, "was altered, or dropped and created again, since")


@pytest.mark.full
@NEWEST
def test_another_owner_of_the_publication_is_no_reason_to_stop_and_hides_no_alteration(mirror: Mirrored) -> None:
    alter = f"alter publication {mirror.options.names.publication}"
    mirror.database.admin(f"{alter} owner to {OWNER}")
    goes_on(mirror)
    mirror.options = replace(mirror.options, watch_interval_s=0.1)
    with receiving(mirror) as process:
        streaming(mirror)
        mirror.database.admin(f"{alter} owner to postgres")
        marks = mirror_of(mirror).marks
        eventually(lambda: mirror_of(mirror).marks != marks)
        mirror.database.admin(f"{alter} set (publish_via_partition_root = true)")
        mirror.database.admin(f"{alter} set (publish_via_partition_root = false)")
        require_refusal(process, PublicationDiffers, "was altered|publish_via_partition_root")
    refused(mirror, PublicationDiffers, "was altered, or dropped and created again, since")


def mirror_of(mirror: Mirrored) -> LogMirror:
    found = read_mirror(mirror.options.folder, Disk())
    assert found is not None
    return found


@pytest.mark.full
@NEWEST
def test_a_table_more_in_the_publication_is_no_reason_to_stop(mirror: Mirrored) -> None:
    mirror.database.run("create table more (id int primary key)")
    mirror.database.admin(f"alter publication {mirror.options.names.publication} add table more")
    mirror.database.run("insert into more values (1)")
    goes_on(mirror)


@pytest.mark.full
@NEWEST
def test_a_publication_that_is_spoilt_while_we_stream_stops_us(mirror: Mirrored) -> None:
    for match, spoil, mend in leaving_out(mirror):
        with receiving(mirror) as process:
            streaming(mirror)
            mirror.database.admin(spoil)
            require_refusal(process, PublicationDiffers, f"{mirror.options.names.publication} .*{match}")
        mirror.database.admin(mend)
        mirror.database.run(INSERT)
        mirror.options = replace(mirror.options, accept_altered_publication=True)
    goes_on(mirror)


@pytest.mark.full
@pytest.mark.parametrize("install", [each for each in installs().values() if each.major < 18][-1:], indirect=True)
def test_an_error_that_comes_together_with_the_streams_start_is_not_left_unread(mirror: Mirrored) -> None:
    """Before 18 a change without its publication is an error of the server, for ever: libpq has it before we wait."""
    (_, spoil, mend), *_ = leaving_out(mirror)
    (upto,) = mirror.database.admin("select pg_current_wal_insert_lsn()::text")[0]
    mirror.database.admin(spoil)
    mirror.database.run(INSERT)
    mirror.database.admin(mend)
    mirror.options = replace(mirror.options, accept_altered_publication=True)
    match = f'publication "{mirror.options.names.publication}" does not exist'
    before = inserts_of(mirror)
    for _ in range(2):
        with receiving(mirror) as process:  # it may receive a nudge yet, made while the one before it ended
            require_refusal(process, PublicationDiffers, match)
        assert inserts_of(mirror) == before
        assert Lsn.parse(dict(slots(mirror.database))[mirror.options.names.slot]) <= Lsn.parse(upto)


@pytest.mark.full
@NEWEST
def test_a_right_that_is_revoked_stops_us_at_the_next_connection(mirror: Mirrored) -> None:
    role = f"role_{mirror.database.name}"
    mirror.database.admin(f"create role {role} login replication password 'x'")
    source = Dsn(mirror.database.server.dsn(role, mirror.database.name, password="x"))
    with receiving(mirror, replace(mirror.options, source=source)) as process:
        pid = streaming(mirror)
        mirror.database.admin(f"alter role {role} noreplication", f"select pg_terminate_backend({pid}, 5000)")
        require_refusal(process, NotPermitted, f"role {role} may not open replication connections")
    mirror.database.admin(f"alter role {role} replication")
    receive_all(mirror, replace(mirror.options, source=source))
    goes_on(mirror)


@pytest.mark.full
@NEWEST
@pytest.mark.skipif(find_pgbouncer() is None, reason="no PgBouncer here and none to be unpacked")
def test_a_pooler_in_between_is_refused(mirror: Mirrored) -> None:
    with pooled(mirror.database) as dsn:
        refused(mirror, UnsupportedServer, "pooler", replace(mirror.options, source=Dsn(dsn)))
    goes_on(mirror)


@pytest.mark.full
@NEWEST
def test_a_wrong_password_and_another_mirrors_name_are_refused(mirror: Mirrored) -> None:
    wrong = Dsn(mirror.database.server.dsn(MIRROR, mirror.database.name, password="wrong"))
    refused(mirror, AuthenticationRefused, "cannot connect", replace(mirror.options, source=wrong))
    other = replace(mirror.options, names=MirrorNames("another"))
    refused(mirror, NotTheSameSource, f"belongs to mirror '{mirror.database.name}', not to 'another'", other)
    goes_on(mirror)


@NEWEST
def test_a_server_that_does_not_decode_is_refused_before_anything_is_made(start: Start, tmp_path: Path) -> None:
    database = create_database(start(wal_level="replica"))
    options = ReceiveOptions(database.dsn(), tmp_path / "log", database.names)
    with ReceiveProcess.start(options) as process:
        require_refusal(process, UnsupportedServer, "wal_level is replica")
    assert slots(database) == []
    assert not (tmp_path / "log" / "mirror.json").exists()
