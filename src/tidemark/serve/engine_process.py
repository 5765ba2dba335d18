"""The process that computes: it opens the mirror, and runs the steps of several statements in threads.

It has neither the clients' connections nor their parameters. Errors of an engine are reported by their kind alone, and
statements are not logged. It ends when the server's end of the socket is closed.
"""

from __future__ import annotations

import logging
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from tidemark.engines import Engine
from tidemark.engines.arrays import array_parameters
from tidemark.engines.duckdb import LocalDatabase
from tidemark.errors import EngineRefused, InvalidValue, NotAnswerable, TidemarkError, Unproven
from tidemark.mirror.dialect import MakeEngine, local_engine, spark_engine
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.postgres.dsn import Dsn
from tidemark.schema.display import quoted
from tidemark.serve.conversation import (
    Arrays,
    Ask,
    Cancel,
    EngineKind,
    Finished,
    Frames,
    Opened,
    Proven,
    Refused,
    RefusedBy,
    Running,
    Setup,
    Start,
    Told,
    ToServer,
    packed,
)
from tidemark.spark import SparkOptions, spark_session
from tidemark.split import Finish, PlanPart, Query, Run, SessionFacts, parse, steps
from tidemark.split.facts import FIRST_USER_OID
from tidemark.units import parse_duration

_LOGGER = logging.getLogger(__name__)
_RECEIVED_BYTES = 1 << 16
WAIT_S = 10.0  # for the log, if the source must not answer


class _Cancelled(Exception):
    pass


class _Statement:
    """One statement on its way; `told` and `cancel` are called by the thread that receives."""

    def __init__(self, process: EngineProcess, start: Start) -> None:
        self._process, self._start = process, start
        self._answers: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._arrays: dict[int, list[bytes]] = {}  # by the number of a part's first parameter
        self._moment: Moment | None = None
        self._engine: Engine | None = None
        self._is_cancelled = False
        self._engine_s, self._rows = 0.0, 0
        self._held = ExitStack()

    def told(self, told: Told) -> None:
        """Take the answer of a query."""
        self._answers.put(told)

    def cancel(self) -> None:
        """End as soon as possible."""
        self._is_cancelled = True
        self._answers.put(None)
        if self._engine is not None:
            with suppress(Exception):
                self._engine.cancel()

    def run(self) -> None:
        """Send all messages about the statement, up to the last one."""
        try:
            with self._held:
                self._process.send(self._finished())
        except _Cancelled:
            pass
        except Unproven as error:
            self._refuse(RefusedBy.SPLIT, error)
        except EngineRefused as error:
            self._refuse(RefusedBy.ENGINE, error)
        except NotAnswerable as error:
            self._refuse(RefusedBy.POSITION, error)
        except InvalidValue as error:
            self._refuse(RefusedBy.SETTING, error)
        except TidemarkError as error:
            self._refuse(RefusedBy.ENGINE, error)
        except Exception as error:  # noqa: BLE001 - the source answers
            _LOGGER.error("the engine failed: %s", type(error).__name__)  # noqa: TRY400 - its text may contain values
            self._refuse(RefusedBy.ENGINE, EngineRefused(f"the engine failed: {type(error).__name__}"))

    def _refuse(self, by: RefusedBy, error: TidemarkError) -> None:
        if not self._is_cancelled:
            self._process.send(Refused(self._start.number, by, error.message))

    def _finished(self) -> Finished:
        answering = steps(parse(self._start.statement))
        step = next(answering)
        while not isinstance(step, Finish):
            if isinstance(step, Query):
                step = answering.send(self._asked(step))
            else:
                self._compute(step)
                step = answering.send(None)
        arrays = self._arrays_of(step.plan.parts)
        return Finished(self._start.number, step.plan.top, arrays, self._engine_s, self._rows)

    def _asked(self, query: Query) -> str | None:
        self._process.send(Ask(self._start.number, query.sql, query.parameters, self._arrays_of(query.parts)))
        told = self._answers.get()
        if told is None:
            raise _Cancelled
        return told.text

    def _compute(self, run: Run) -> None:
        if self._moment is None:
            self._process.send(Proven(self._start.number))
            begin = time.monotonic()
            self._moment = self._held.enter_context(self._process.moment(run.facts, self._start.wait_s))
            waited_s = time.monotonic() - begin
            self._process.send(Running(self._start.number, str(self._moment.boundary), waited_s))
        for part in run.parts:
            if self._is_cancelled:
                raise _Cancelled
            self._engine = self._process.engine(self._moment, run.facts)
            begin = time.monotonic()
            rows = self._engine.run(part.bottom, self._process.setup.most_rows)
            self._engine_s += time.monotonic() - begin
            self._rows += rows.num_rows
            self._arrays[part.first] = array_parameters(part, rows)

    def _arrays_of(self, parts: Sequence[PlanPart]) -> Arrays:
        types = tuple(output.array_oid for part in parts for output in part.outputs)
        return Arrays(types, tuple(array for part in parts for array in self._arrays[part.first]))


class EngineProcess:
    """The mirror, and the statements that are on their way."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._statements: dict[int, _Statement] = {}
        self._mirror: Mirror | None = None
        self._make_engine: MakeEngine = spark_engine
        self.setup = Setup("", EngineKind.SPARK)

    def run(self) -> None:
        """Serve until the server closes its end."""
        frames, pool = Frames(), None
        while data := self._connection.recv(_RECEIVED_BYTES):
            for message in frames.take(data):
                if isinstance(message, Setup):
                    pool = self._opened(message)
                elif isinstance(message, Start):
                    assert pool is not None  # noqa: S101 - Setup comes first
                    statement = self._statements[message.number] = _Statement(self, message)
                    pool.submit(self._run, message.number, statement)
                elif isinstance(message, Told | Cancel) and message.number in self._statements:
                    statement = self._statements[message.number]
                    statement.told(message) if isinstance(message, Told) else statement.cancel()

    def _opened(self, setup: Setup) -> ThreadPoolExecutor:
        self.setup = setup
        quiet = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.eventLog.enabled": "false",  # it would contain the statements of all clients
        }
        options = SparkOptions(setup.master, setup.remote, {**quiet, **dict(setup.conf)})
        lake, source = Path(setup.lake), Dsn(setup.source) if setup.source else None
        if setup.engine is EngineKind.DUCKDB:
            self._make_engine = local_engine(LocalDatabase(lake))
            self._mirror = Mirror(lake, partial(spark_session, options), source)
        else:
            self._mirror = Mirror(lake, spark_session(options), source)
        self.send(Opened())
        return ThreadPoolExecutor(setup.statements, "statement")

    def _run(self, number: int, statement: _Statement) -> None:
        try:
            statement.run()
        finally:
            del self._statements[number]

    def send(self, message: ToServer) -> None:
        """Send a message; a server that has gone is noticed by `run`."""
        with self._sending, suppress(OSError):
            self._connection.sendall(packed(message))

    def moment(self, facts: SessionFacts, short_wait_s: float) -> Moment:
        """Return the mirror at the position that the session has set, or at its own snapshot."""
        assert self._mirror is not None  # noqa: S101
        self._mirror.require_database(facts.system_identifier, facts.database_oid)
        tables = [f"{quoted(each.schema)}.{quoted(each.name)}" for each in facts.relations.values() if each is not None]
        position, must = facts.settings["tidemark.at"], facts.settings["tidemark.route"] == "mirror"
        wait_s = parse_duration(facts.settings["tidemark.wait"] or (WAIT_S if position or must else short_wait_s))
        if position:
            return self._mirror.at(position, tables=tables, wait=wait_s)
        self._mirror.require_timeline(facts.timeline)
        columns = [column for each in facts.relations.values() if each is not None for column in each.columns]
        types_are_fixed = all(column.type < FIRST_USER_OID for column in columns)
        if facts.in_recovery:
            if facts.replayed is None or facts.settings["transaction_isolation"] != "read committed":
                raise NotAnswerable("on a standby, the snapshot of an earlier statement has no known position")
            if not types_are_fixed:
                raise NotAnswerable("on a standby, a type that the application created may have been altered")
            return self._mirror.seen_on_standby(facts.snapshot, facts.replayed, facts.lsn, tables, wait_s)
        if types_are_fixed:
            return self._mirror.seen_by(facts.snapshot, facts.lsn, tables, wait_s)
        return self._mirror.at(snapshot=facts.snapshot, lsn=facts.lsn, tables=tables, wait=wait_s)

    def engine(self, moment: Moment, facts: SessionFacts) -> Engine:
        """Return an engine for the tables of a moment."""
        return self._make_engine(moment, facts)


def main() -> None:
    """Serve on the socket whose file descriptor is the argument."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        EngineProcess(connection).run()


if __name__ == "__main__":
    main()
