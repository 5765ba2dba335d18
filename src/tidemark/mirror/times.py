"""Conversion of a time into a position, and of a position into a time. Starts no JVM.

The position of a time is the last commit up to which no commit is later than that time. Commit times are not monotonic,
so their running maximum decides: the commits at or below the position are the longest prefix of the commit order in
which every commit time is at or before the given time.

The time of a position is that of its last commit; `latest` is the greatest time of all commits up to it. A read at
`latest` includes everything that a read at the position includes, and in addition only later commits with a time up to
`latest`; if the next commit is later, both return the same. A read at the commit's own time may include less.

A polled mirror has no commits, and polls take their place: the position of a time is the last poll up to which no poll
is later by the source's clock, and the time of a position is that of the poll that a read there returns. The same holds
for the past of a mirror that was polled and now streams. A change from the stream to polling removes the log, and the
times of its commits with it: times from then are refused, LSNs are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from tidemark.clock import Lsn
from tidemark.clock.epoch import EPOCH
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.lake.polls import Polls, read_polls
from tidemark.log.commits import CommitIndex
from tidemark.mirror.positions import NOW, parse_position, zoned
from tidemark.reads.snapshot import LakeView

_LATER = "Use a later time, or an LSN that `tidemark status LAKE` lists as readable."
_STREAMED = "is before the first poll that followed the stream; the times of earlier commits were removed with the log"
_BY_LSN = "Use a later time, or an LSN."
_NEWER = "Use `latest`, or run `tidemark sync` and retry the command."


@dataclass(frozen=True, slots=True)
class Committed:
    """The last commit at or below a position; `latest` is the greatest commit time up to it.

    For a polled mirror it is the last poll, which has no `xid`.
    """

    lsn: Lsn
    time: datetime
    xid: int | None
    latest: datetime


def lsn_at(
    time: datetime, commits: CommitIndex, answerable: Lsn, seen_at: datetime | None, above: Lsn = Lsn.ZERO
) -> Lsn:
    """Return the position of a time; `seen_at` is the source's clock when everything up to `answerable` was known.

    Commits at or below `above` do not count.
    """
    since = time - EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    last, more = commits.last_before(micros, above)
    if last is None:
        raise NotAnswerable(f"{_shown(time)} is before the first commit in the mirror", _LATER)
    if more:
        return last
    if seen_at is None or seen_at < time:
        upto = f"is complete up to {_shown(seen_at)}" if seen_at is not None else "has not received any commit"
        raise NotAnswerable(f"{_shown(time)} is too recent: the mirror {upto}", _NEWER)
    return answerable


def committed_at(lsn: Lsn, commits: CommitIndex, above: Lsn = Lsn.ZERO) -> Committed:
    """Return the last commit at or below a position; commits at or below `above` do not count."""
    found = commits.at(lsn, above)
    if found is None:
        raise NotAnswerable(f"{lsn} is before the first commit whose time is known", "Use a later LSN, or `latest`.")
    return Committed(found.lsn, _time(found.micros), found.xid, _time(found.latest))


def lsn_of_poll(time: datetime, polls: Polls) -> Lsn:
    """Return the position of the last poll up to which no poll is later than a time."""
    last, latest = polls.last, polls.latest
    before = int(np.searchsorted(latest, _plain(time), side="right"))
    if before == 0:
        raise NotAnswerable(f"{_shown(time)} is before the first poll", _LATER)
    if latest[-1] < _plain(time):
        raise NotAnswerable(f"{_shown(time)} is after the last poll, {last}", _NEWER)
    if polls[before - 1] is None:
        raise NotAnswerable(f"{_shown(time)} {_STREAMED}", _BY_LSN)
    return Lsn(int(polls.positions[before - 1]))


def polled_at(lsn: Lsn, polls: Polls) -> Committed:
    """Return the poll that a read at a position returns."""
    poll = polls.at(lsn)
    if poll is None and polls.first is not None and lsn >= polls.first:
        raise NotAnswerable(f"the time of {lsn} is not known: it {_STREAMED}", "Use a later LSN, or `latest`.")
    if poll is None:
        raise NotAnswerable(f"{lsn} is before the first poll", "Use a later LSN, or `latest`.")
    latest = polls.latest[np.searchsorted(polls.positions, lsn.value, side="right") - 1]
    return Committed(poll.lsn, poll.time, None, latest.astype(datetime).replace(tzinfo=UTC))


def position_of(when: str | int | Lsn | datetime, view: LakeView) -> Lsn:
    """Return the position of an LSN, a time or `latest`; `positions` lists the text forms."""
    found = parse_position(when, datetime.now(UTC)) if isinstance(when, str) else when
    if isinstance(found, datetime):
        return _position_at(zoned(found), view)
    if isinstance(found, int):
        return Lsn(found)
    if found == NOW:
        raise InvalidValue("`now` is a position of the source, not of the lake", "Use `latest`.")
    return view.answerable if isinstance(found, str) else found


def time_of(lsn: Lsn, view: LakeView) -> Committed:
    """Return the last commit at or below a position; positions above `answerable` are refused: commits may follow."""
    if lsn > view.answerable:
        raise NotAnswerable(
            f"{lsn} cannot be read yet: the mirror is complete up to {view.answerable}",
            f"Use `latest` or an LSN up to {view.answerable}, or retry the command later.",
        )
    polls = read_polls(view.lake.path)
    if polls.last is not None:
        return polled_at(lsn, polls)
    if polls.handed_over is None:
        return committed_at(lsn, _commits(view))
    handed, time = polls.handed_over
    if lsn < handed:
        return polled_at(lsn, polls)
    if not _has_all_since(handed, view):
        return committed_at(lsn, _commits(view))
    commits = _commits(view)
    first = commits.first(handed)  # the last poll includes the commits before
    if first is None or lsn < first.lsn:
        return Committed(handed, time, None, time)
    return committed_at(lsn, commits, handed)


def _position_at(time: datetime, view: LakeView) -> Lsn:
    polls = read_polls(view.lake.path)
    if polls.last is not None:
        return lsn_of_poll(time, polls)
    if polls.handed_over is None:
        return lsn_at(time, _commits(view), view.answerable, polls.seen_at)
    handed, since = polls.handed_over
    if time < since:
        return lsn_of_poll(time, polls)
    if not _has_all_since(handed, view):
        return lsn_at(time, _commits(view), view.answerable, polls.seen_at)
    commits = _commits(view)
    first = commits.first(handed)
    if first is None or time < _time(first.micros):
        return handed
    return lsn_at(time, commits, view.answerable, polls.seen_at, handed)


def _commits(view: LakeView) -> CommitIndex:
    if view.reader is None:
        raise NotAnswerable(
            f"commit times are not available: the log directory {view.lake.log} cannot be read",
            "Use an LSN or `latest`, or run the command on the host of the log.",
        )
    return view.reader.index


def _has_all_since(lsn: Lsn, view: LakeView) -> bool:
    """Whether the log has every commit since a position: no other log was begun above it."""
    return view.log_start is not None and view.log_start <= lsn


def _shown(time: datetime) -> str:
    """Format a time in UTC for messages."""
    return time.astimezone(UTC).isoformat(" ").removesuffix("+00:00") + " UTC"


def _plain(time: datetime) -> np.datetime64:
    """Return a time in UTC as a `datetime64`, which has no zone."""
    return np.datetime64(time.astimezone(UTC).replace(tzinfo=None), "us")


def _time(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)
