"""A clone that is polled, without its loop: one poll at a time, and what it must have left."""

from __future__ import annotations

from pathlib import Path

from harness.database import MIRROR, OWNER, Database
from tidemark.postgres.capability import Mode
from tidemark.postgres.names import MirrorNames
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions
from tidemark.target.poll import TargetPoller, TargetPollOptions
from tidemark.target.state import ClonePhase


def options_of(source: Database, target: Database, folder: Path) -> CloneOptions:
    """Options of a clone that polls, by a role that may only read the source."""
    source.admin(f"grant select on all sequences in schema public to {MIRROR}")
    pg_bin = source.server.install.home / "bin"
    return CloneOptions(
        source.dsn(), target.dsn(OWNER), MirrorNames(source.name), folder, pg_bin=pg_bin, mode=Mode.POLL
    )


def copied(options: CloneOptions, target: Database) -> None:
    """Clone up to the point where polls begin."""

    def stopping() -> bool:
        created = target.admin("select to_regclass('tidemark.clones') is not null") == [(True,)]
        return created and target.admin("select phase from tidemark.clones") == [(ClonePhase.FOLLOW.value,)]

    Clone(options, lambda: None).run(stopping)


def poller_of(options: CloneOptions) -> TargetPoller:
    """What polls a clone."""
    return TargetPoller(
        TargetPollOptions(options.source, options.target, options.names.mirror, options.selection, options.jobs)
    )
