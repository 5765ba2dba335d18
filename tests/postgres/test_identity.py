"""Identity: the same source, another one, and one whose history parted from ours."""

import shutil

import pytest

from harness.database import MIRROR, OWNER, PASSWORD, Database, create_database
from harness.postgres import Server
from tests.conftest import Start
from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, NotTheSameSource, SourceForked
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import Identity, Located, Switch, check_same, locate, parse_history
from tidemark.postgres.session import Session

pytestmark = pytest.mark.quick

END = Lsn(2**64 - 1)


def identity(
    timeline: int = 1, *history: tuple[int, int], system: int = 7, oid: int = 5, database: str = "shop"
) -> Identity:
    return Identity(system, oid, database, timeline, tuple(Switch(t, Lsn(lsn)) for t, lsn in history))


def check(mirror: Identity, source: Identity, durable: Lsn) -> None:
    check_same(mirror, Located(source, END), durable)


def test_the_same_source_is_accepted_whatever_is_durable() -> None:
    check(identity(), identity(), END)
    check(identity(3, (1, 100), (2, 200)), identity(3, (1, 100), (2, 200)), END)
    check(identity(database="old_name"), identity(database="new_name"), END)


def test_another_cluster_or_database_is_refused() -> None:
    with pytest.raises(NotTheSameSource, match="system 8"):
        check(identity(), identity(system=8), Lsn.ZERO)
    with pytest.raises(NotTheSameSource, match="created again under that name"):
        check(identity(), identity(oid=6), Lsn.ZERO)


def test_a_promotion_above_what_we_hold_is_followed_and_one_below_is_refused() -> None:
    promoted = identity(2, (1, 500))
    check(identity(), promoted, Lsn(500))
    with pytest.raises(SourceForked, match="on timeline 2, left that history at 0/1F4"):
        check(identity(), promoted, Lsn(501))
    check(identity(), identity(4, (1, 500), (2, 600), (3, 700)), Lsn(500))


def test_a_sibling_promoted_elsewhere_is_refused_above_the_fork() -> None:
    ours, sibling = identity(2, (1, 500)), identity(2, (1, 400))
    with pytest.raises(SourceForked, match="left that history at 0/190"):
        check(ours, sibling, Lsn(450))
    check(ours, sibling, Lsn(400))


def test_the_old_primary_come_back_is_refused() -> None:
    with pytest.raises(SourceForked, match="on timeline 1, left"):
        check(identity(2, (1, 500)), identity(), Lsn(600))


def test_a_promotion_to_another_number_is_refused() -> None:
    with pytest.raises(SourceForked, match="on timeline 3, left that history at 0/1F4"):
        check(identity(2, (1, 500)), identity(3, (1, 500)), Lsn(600))


def test_a_history_that_cannot_be_read_is_not_guessed_at() -> None:
    unknown, known = Identity(7, 5, "shop", 2, None), identity(2, (1, 500))
    for mirror, source in ((identity(), unknown), (unknown, unknown), (unknown, known), (known, unknown)):
        with pytest.raises(SourceForked, match="cannot be read"):
            check(mirror, source, Lsn.ZERO)


def test_a_source_that_has_not_come_as_far_as_the_mirror_is_refused() -> None:
    check_same(identity(), Located(identity(), Lsn(500)), Lsn(500))
    with pytest.raises(SourceForked, match="the source is at 0/1F4: it was restored"):
        check_same(identity(), Located(identity(), Lsn(500)), Lsn(501))


def test_history_files_are_read_with_their_comments() -> None:
    text = "1\t0/5000060\tno recovery target specified\n\n# note\n2\t0/60000A0\tbefore 2020-01-01\n"
    assert parse_history(text) == (Switch(1, Lsn(0x5000060)), Switch(2, Lsn(0x60000A0)))
    with pytest.raises(InvalidValue, match="invalid line of a timeline history"):
        parse_history("one\t0/1\n")


def read(server: Server, database: Database, *, may_replicate: bool = True) -> Located:
    dsn = Dsn(server.dsn(MIRROR, database.name, password=PASSWORD))
    with Session.open(dsn, "test") as session:
        return locate(session, dsn, may_replicate=may_replicate)


def position(server: Server) -> Lsn:
    return Lsn.parse(server.sql("select pg_current_wal_flush_lsn()::text")[0][0])


def test_a_real_promotion_is_followed_by_who_is_behind_it_and_refused_by_who_is_ahead(start: Start) -> None:
    primary = start()
    database = create_database(primary)
    before = read(primary, database)
    standby = primary.standby()
    try:
        assert read(standby, database).identity == before.identity
        standby.promote()
        primary.sql("create table lost (a int)")
        ahead = position(primary)
        after = read(standby, database)
        assert after.identity.timeline == 2
        assert after.identity.history is not None
        check_same(before.identity, after, after.identity.history[0].lsn)
        with pytest.raises(SourceForked, match="on timeline 2, left"):
            check_same(before.identity, after, ahead)
        with pytest.raises(SourceForked, match="on timeline 1, left"):
            check_same(after.identity, read(primary, database), ahead)
        assert read(standby, database, may_replicate=False).identity.timeline == 2
    finally:
        standby.remove()


def test_a_server_restored_to_an_earlier_state_is_refused(start: Start) -> None:
    """A snapshot of its disk, put back: same identifier, same timeline, and LSNs that will be used again."""
    server = start()
    database = create_database(server)
    mirror = read(server, database).identity
    server.stop()
    kept = server.folder / "kept"
    shutil.copytree(server.data, kept, symlinks=True)
    server.start()
    database.run("create table t (a int)", "insert into t select generate_series(1, 1000)")
    durable = position(server)
    check_same(mirror, read(server, database), durable)
    server.stop()
    shutil.rmtree(server.data)
    kept.rename(server.data)
    server.start()
    for may_replicate in (True, False):
        with pytest.raises(SourceForked, match="restored to an earlier state"):
            check_same(mirror, read(server, database, may_replicate=may_replicate), durable)


def test_by_sql_and_by_replication_the_identity_is_the_same(db: Database) -> None:
    assert read(db.server, db).identity == read(db.server, db, may_replicate=False).identity


def test_a_database_created_anew_under_its_name_is_another_one(db: Database) -> None:
    before = read(db.server, db).identity
    db.drop()
    db.server.sql(f"create database {db.name} owner {OWNER}")
    with pytest.raises(NotTheSameSource, match="created again"):
        check_same(before, read(db.server, db), Lsn.ZERO)


def test_servers_with_their_own_initdb_differ(start: Start) -> None:
    one, two = start(), start(own_identity=True)
    first, second = (read(server, create_database(server)) for server in (one, two))
    with pytest.raises(NotTheSameSource):
        check_same(first.identity, second, Lsn.ZERO)
