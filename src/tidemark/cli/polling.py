"""How `tidemark sync` lets a mirror poll, and shows what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.cli.showing import Shown
from tidemark.source.capability import Mode
from tidemark.sync.publishing import Meant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class PollingOptions:
    """How a mirror polls. It follows the stream, received into `log`, when the source is able, or as was `asked`."""

    interval_s: float
    reconcile_every: int
    once: bool
    folds: bool
    log: Path
    asked: Mode | None


def poll(meant: Meant, lake: Path, how: PollingOptions, spark: SparkSession, stopped: list[int], show: Shown) -> bool:
    """Let a mirror poll until it is stopped, or once; whether it is to follow the stream now."""
    from tidemark.fold.beside import FoldingBeside
    from tidemark.poll.handover import Handover
    from tidemark.poll.holds import Holds
    from tidemark.poll.options import PollOptions
    from tidemark.poll.poller import Poller
    from tidemark.poll.polling import Polling
    from tidemark.spark import tasks_beside

    options = PollOptions(meant.source, lake, meant.names, meant.selection, tasks_beside(spark), how.reconcile_every)
    with ExitStack() as held:
        poller = held.enter_context(Poller(options, spark, show.say, lambda: bool(stopped)))
        if how.folds:
            held.enter_context(FoldingBeside(lake, spark, show.say))
        holds = held.enter_context(Holds(lake, meant.source))
        held.enter_context(_watched(lambda: show.progress(poller.progress), holds.let_go))
        polling = Polling(poller, spark, how.interval_s, lambda: bool(stopped), holds.shown, holds.wanted)
        insists = how.asked is Mode.LOGICAL
        handover = Handover(poller, meant, how.log, show.say, insists=insists)
        handover.tidy()
        last = handover.attempt if how.asked is not Mode.POLL else None
        handed_over = polling.run(show.say, show.polled, last, once=how.once and not insists)
        if not handed_over:
            show.say(f"done at {poller.cycle.safe}")
        return handed_over


@contextmanager
def _watched(*looks: Callable[[], None]) -> Iterator[None]:
    """Have something looked at again and again beside what is done."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(_LOOK_S):
            for look in looks:
                look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for look in looks:
            look()
