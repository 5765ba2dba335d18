"""A commit index of given commits, cut into several files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tidemark.log.commits import CommitIndex
from tidemark.log.summaries import SUMMARIES, summary_of
from tidemark.pgoutput.rows import Rows


def cut_into_indexes(commits: Rows, cuts: Sequence[int] = ()) -> CommitIndex:
    """The index of these commits, whose files begin at these places."""
    parts = [commits[first:last] for first, last in pairwise([0, *cuts, len(commits)])]
    summaries = [summary_of(number, 0, 0, [part]) for number, part in enumerate(parts)]
    return CommitIndex(np.concatenate([np.empty(0, SUMMARIES), *summaries]), parts.__getitem__)
