"""The schema of a clone: dumped from the snapshot of its copy, and created at the target stage by stage.

The dump is kept in a local directory until the clone is complete. A run that was killed while it created the schema is
continued with the same dump, and only if the source still has this schema. What is created last is dumped again before
the clone is completed, and a completion that was interrupted continues with that dump.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tidemark.errors import SourceAltered, Stopped, TargetNotReady, TidemarkError, UnsupportedArchive
from tidemark.logs import fields
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import Endpoint
from tidemark.storage.disk import LocalDisk
from tidemark.target.archive import DumpArchive, dump_schema, open_archive, without_new, written
from tidemark.target.copying import FilledTable
from tidemark.target.definitions import restore_stage, sql_of
from tidemark.target.needs import may_set_owners, missing_at_target, replaced_owners
from tidemark.target.programs import Programs, find_programs, stores_column_versions
from tidemark.target.source_tables import CLONE_AGAIN
from tidemark.target.stages import CloneStage

LARGE_BYTES = 64 << 20  # the start of pg_restore takes longer than to index a table that is much smaller
DUMPS = _DUMP, _NEXT, _LAST = "schema", "schema.next", "schema.last"
_PREAMBLE = ("--", "SET ", "SELECT pg_catalog.set_config")
_LOOK_S = 0.2
_LOGGER = logging.getLogger("tidemark.target")


@contextmanager
def indexed_at_once(
    schema: CloneSchema, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Callable[[FilledTable], None]]:
    """Provide a function that is called with each table that was copied, and creates the indexes of large ones.

    They are created one table after the other while other tables are copied. What fails is created, or reported, with
    the indexes of the other tables at the end.
    """
    pool, begun, ended = ThreadPoolExecutor(1, "indexes"), list[Future[None]](), threading.Event()

    def create(oid: int) -> None:
        try:
            for stage in (CloneStage.KEYS, CloneStage.INDEXES):
                schema.create(stage, [oid], ended.is_set)
        except Stopped:
            pass
        except TidemarkError as error:
            _LOGGER.warning("%s; this is tried again when all tables are copied", error.message)

    def add(copied: FilledTable) -> None:
        if schema.is_cloned and copied.size_bytes >= LARGE_BYTES:
            begun.append(pool.submit(create, copied.fingerprint.oid))

    try:
        yield add
        _await(begun, stopping)
    except BaseException:
        ended.set()
        pool.shutdown(cancel_futures=True)
        raise
    pool.shutdown()
    for each in begun:
        each.result()


def _await(begun: Collection[Future[None]], stopping: Callable[[], bool]) -> None:
    while wait(begun, timeout=_LOOK_S).not_done:
        if stopping():
            raise Stopped("stopped while indexes were created; run the command again to continue")


@dataclass(frozen=True, slots=True)
class CloneSchema:
    """The schema of a clone, dumped into `folder`. Without `is_cloned`, the target has its tables already."""

    source: Dsn
    target: Dsn
    folder: Path
    jobs: int
    pg_bin: Path | None
    is_cloned: bool

    def dump(self, snapshot_id: str | None, chosen: Collection[int] | None, *, begun: bool) -> None:
        """Dump the schema, and check what the target lacks for it. `chosen` are the OIDs of tables, or None for all.

        If the clone has `begun`, a part of the schema may exist at the target.
        """
        if not self.is_cloned:
            return
        programs = self.programs()
        archive = dump_schema(programs, self.source, snapshot_id, self.folder / _NEXT, chosen)
        with self._target() as session:
            needs, owners = missing_at_target(session, archive), replaced_owners(session, archive)
        if begun and needs.existing:
            self._require_unaltered(programs, archive)
            needs = replace(needs, existing=())
            shutil.rmtree(archive.folder)
        else:
            shutil.rmtree(self.folder / _DUMP, ignore_errors=True)
            disk = LocalDisk()
            disk.replace(archive.folder, self.folder / _DUMP)
            disk.sync_folder(self.folder)  # a continued clone needs the dump of which it has created a part
        needs.require()
        for entry in needs.superuser:
            _LOGGER.warning("not cloned, because only a superuser can create it: %s", entry)
        if owners:
            _LOGGER.warning("%s", owners)

    def dump_last(self, chosen: Collection[int] | None) -> None:
        """Dump again what is created last, because the source may have changed it since the copy.

        Objects that the target does not have, because they were created after the copy, are named and left out.
        """
        if not self.is_cloned:
            return
        later = dump_schema(self.programs(), self.source, None, self.folder / _LAST, chosen)
        archive = written(without_new(later, self._archive()))
        LocalDisk().sync_folder(self.folder)  # a completion that continues would use the dump of the copy instead
        with self._target() as session:
            replace(missing_at_target(session, archive), existing=()).require()
        for entry in archive.left_out[len(later.left_out) :]:
            _LOGGER.warning("not cloned, because it was created at the source after the copy: %s", entry)

    def create(
        self, stage: CloneStage, only: Collection[int] | None = None, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """Create what does not exist yet of a stage, or, one after the other, what concerns the tables `only`."""
        if not self.is_cloned:
            return
        begin, archive = time.monotonic(), self._last() if stage is CloneStage.LAST else self._archive()
        with self._target() as session:
            keep_owners = may_set_owners(session, archive)
            without = {entry.dump_id for entry in missing_at_target(session, archive).superuser}
        restore_stage(
            self.programs(), self.target, archive, stage, self.jobs if only is None else 1, only,
            keep_owners=keep_owners, without=without, stopping=stopping,
        )  # fmt: skip
        what = f"{stage.value} of {', '.join(archive.identities(only))}" if only is not None else stage.value
        _LOGGER.info("%s created in %.1f s", what, time.monotonic() - begin, extra=fields(stage=stage.value))

    def last_sql(self) -> str:
        """Return the SQL that would complete the clone as of the copy, without comments and settings."""
        if not self.is_cloned:
            return ""
        lines = sql_of(self.programs(), self._archive(), CloneStage.LAST).splitlines()
        return "\n".join(line for line in lines if not line.startswith(_PREAMBLE))

    def sequences(self) -> frozenset[int] | None:
        """Return the OIDs of the sequences; None for all that the target has."""
        return self._last().sequences if self.is_cloned else None

    def programs(self) -> Programs:
        """Find pg_dump and pg_restore for both servers."""
        with Session.open(self.source, "clone") as source, self._target() as target:
            return find_programs(
                source.version_num, target.version_num, self.pg_bin, column_versions=stores_column_versions(source)
            )

    def _require_unaltered(self, programs: Programs, archive: DumpArchive) -> None:
        """Refuse an archive that is not equal to the one of which an earlier run has created a part."""
        try:
            earlier = self._archive()
        except UnsupportedArchive as error:
            raise TargetNotReady(
                f"an earlier run created a part of the schema at the target, and its dump is not in {self.folder}",
                f"If the directory was moved, pass it with `--state`. If it is lost: {CLONE_AGAIN}",
            ) from error
        objects = [{(entry.catalog, entry.oid) for entry in each.entries} for each in (archive, earlier)]
        if objects[0] != objects[1] or sql_of(programs, archive) != sql_of(programs, earlier):
            raise SourceAltered(
                "the schema was altered at the source while it was created at the target, or other tables are selected",
                f"If other tables are selected, use the options of the first run. Otherwise: {CLONE_AGAIN}",
            )

    def _archive(self) -> DumpArchive:
        return open_archive(self.folder / _DUMP)

    def _last(self) -> DumpArchive:
        """The archive of what is created last."""
        return open_archive(self.folder / _LAST) if (self.folder / _LAST).exists() else self._archive()

    def _target(self) -> Session:
        return Session.open(self.target, "clone", server=Endpoint.TARGET)
