"""Changes of one table as Arrow columns: kind, transaction, ordinal and values.

A batch contains changes of one relation under one description. If a transaction changed several tables, or a table was
altered in between, `commit_lsns` and `ordinals` define the order of the changes across all batches.

`Scope` determines which description of a table applies to a change: a Relation message is in force from its position in
the stream. A Relation message inside a streamed transaction is in force only within that transaction until it commits,
and then for all transactions unless a later message replaced it. If the transaction aborts, the message is discarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.clock import Lsn
from tidemark.errors import MalformedValue, UnknownRelation, UnsupportedMessage
from tidemark.pgoutput.frames import ORIGIN, RELATION, TRUNCATE, TYPE
from tidemark.pgoutput.messages import Reader, read_origin, read_relation, read_truncate, read_type
from tidemark.pgoutput.rows import Rows
from tidemark.pgoutput.scan import Format, Messages, RowCells, find_values
from tidemark.schema.relation import Relation
from tidemark.values.cells import MOST_CELLS, UNCHANGED, Cells, DecodedColumn
from tidemark.values.failure import BatchTooLarge, decoding_column
from tidemark.values.kernels import Bytes, Flags, Ints, Longs
from tidemark.values.types import Decoding, Types, decoding_of

Place: TypeAlias = tuple[int, int]  # position of a message; later messages compare greater
BINARY = ord("b")
SPECIAL = np.array([ORIGIN, RELATION, TRUNCATE, TYPE], np.uint8)
FULL_ROW = ord("O")


class Scope:
    """Relations by oid: those in force for all transactions, overridden by those of each open streamed transaction."""

    def __init__(self) -> None:
        self._all: dict[int, tuple[Place, Relation]] = {}
        self._streamed: dict[int, dict[int, tuple[Place, Relation]]] = {}

    def describe(self, relation: Relation, place: Place, stream: int | None) -> None:
        """Register a Relation message from inside the streamed transaction `stream`, or from outside if None."""
        target = self._all if stream is None else self._streamed.setdefault(stream, {})
        target[relation.oid] = (place, relation)

    def find(self, oid: int, stream: int | None) -> Relation | None:
        """Return the description in force for a change, or None."""
        described = self._streamed.get(stream, {}).get(oid) if stream is not None else None
        described = described or self._all.get(oid)
        return described[1] if described else None

    def commit(self, stream: int) -> None:
        """Put the relations of the streamed transaction into force for all, except where a later description exists."""
        for oid, described in self._streamed.pop(stream, {}).items():
            self._all[oid] = max(described, self._all.get(oid, described), key=lambda known: known[0])


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum size of a batch. A single change that exceeds it becomes a batch of its own."""

    rows: int = 65_536
    bytes: int = 64 << 20


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Changes of one relation in order. `new` and `unchanged` have an entry for each change, `old` only for some.

    `kinds` contains the letters I, U, D and T. A DELETE and a TRUNCATE have no new row; `new` contains nulls for them.
    `unchanged` marks unchanged TOAST values, which the stream did not resend; it is None for a column without any.
    `old` has one row for each change that sent an old row: `old_of` contains the indexes of these changes, and where
    `old_full` is false the source sent only the key columns. `truncate_options` is 1 for CASCADE plus 2 for RESTART
    IDENTITY.
    """

    relation: Relation
    kinds: Bytes
    ordinals: Longs
    xids: Longs
    commit_lsns: npt.NDArray[np.uint64]
    commit_micros: Longs
    truncate_options: Bytes
    new: tuple[DecodedColumn, ...]
    unchanged: tuple[Flags | None, ...]
    old: tuple[DecodedColumn, ...]
    old_of: Longs
    old_full: Flags

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A change with a value that cannot be decoded. Later changes of the relation may be missing from the sequence."""

    relation: Relation
    commit_lsn: Lsn
    reason: str


@dataclass(frozen=True, slots=True)
class Transactions:
    """Committed transactions as parallel arrays."""

    xids: Longs
    commit_lsns: npt.NDArray[np.uint64]
    commit_micros: Longs

    @classmethod
    def of(cls, commits: Rows) -> Transactions:
        """Build from assembled commits."""
        return cls(commits["xid"].astype(np.int64), commits["lsn"].copy(), commits["micros"].copy())


@dataclass(frozen=True, slots=True)
class Sequence:
    """Messages of committed transactions in order, each with the index of its transaction and its ordinal in it.

    All messages are in one place. They belong either to plain transactions or to the one streamed transaction `stream`.
    """

    messages: Messages
    transactions: Transactions
    owner: Longs
    ordinals: Longs
    place: int
    stream: int | None


@dataclass(frozen=True, slots=True)
class LocatedChanges:
    """Changes of one relation in order, and the location of each of their values in the buffer; none is decoded.

    `truncate_options` is that of `ChangeBatch`.
    """

    relation: Relation
    messages: Messages
    rows: RowCells
    ordinals: Longs
    xids: Longs
    commit_lsns: npt.NDArray[np.uint64]
    commit_micros: Longs
    truncate_options: Bytes

    def __len__(self) -> int:
        return len(self.messages)


def locate_changes(sequence: Sequence, scope: Scope) -> Iterator[LocatedChanges]:
    """Locate the values of a sequence, one relation at a time. Its Relation messages update `scope` in order."""
    for group in _groups(sequence, scope):
        yield _located(sequence, group)


def decode_changes(sequence: Sequence, scope: Scope, types: Types) -> Iterator[ChangeBatch | Undecodable]:
    """Decode a sequence into batches, one relation at a time. Its Relation messages update `scope` in order.

    At a value that cannot be decoded the decoder yields Undecodable and skips the remaining changes of that relation in
    the same chunk of at most `MOST_CELLS` values; other relations are not affected.
    """
    for group in _groups(sequence, scope):
        columns = group.relation.columns
        yield from _batches(sequence, group, tuple(decoding_of(c.type_oid, c.typmod, types) for c in columns))


@dataclass(frozen=True, slots=True)
class _Group:
    """Messages of a sequence that change one relation, and the truncate options of all messages."""

    relation: Relation
    chosen: Longs
    options: Bytes


def _groups(sequence: Sequence, scope: Scope) -> Iterator[_Group]:
    """Group the changes of a sequence by relation, at most `MOST_CELLS` values at a time."""
    messages = sequence.messages
    version = np.full(len(messages), -1, np.int32)
    relations = _Relations()
    options = np.zeros(len(messages), np.uint8)
    truncated = _assign_relations(sequence, scope, version, relations, options)
    rows = np.flatnonzero(messages.changes)
    if truncated:
        extra = np.array([at for at, _ in truncated], np.int64)
        rows = np.concatenate([rows, extra])
        version = np.concatenate([version[rows[: -len(extra)]], np.array([v for _, v in truncated], np.int32)])
        order = np.argsort(rows, kind="stable")
        rows, version = rows[order], version[order]
    else:
        version = version[rows]
    for number, relation in enumerate(relations.known):
        chosen = rows[version == number]
        step = max(1, MOST_CELLS // max(1, len(relation.columns)))
        for at in range(0, len(chosen), step):
            yield _Group(relation, chosen[at : at + step], options)


class _Relations:
    """The relation descriptions that occur in one sequence, numbered."""

    def __init__(self) -> None:
        self._numbers: dict[Relation, int] = {}
        self.known: list[Relation] = []

    def number(self, relation: Relation) -> int:
        if relation not in self._numbers:
            self._numbers[relation] = len(self.known)
            self.known.append(relation)
        return self._numbers[relation]


def _assign_relations(
    sequence: Sequence, scope: Scope, version: Ints, relations: _Relations, options: Bytes
) -> list[tuple[int, int]]:
    """Assign to each change the relation in force at its position; return truncates as (message, relation) pairs."""
    messages, stream = sequence.messages, sequence.stream
    prefix = 0 if stream is None else 4
    truncated: list[tuple[int, int]] = []
    done = 0
    letters = messages.letters
    special = np.flatnonzero(np.isin(letters, SPECIAL))
    for at in (*special.tolist(), len(messages)):
        _resolve(messages, slice(done, at), scope, stream, version, relations)
        done = at
        if at == len(messages):
            break
        reader = Reader(messages.buffer, int(messages.starts[at]), int(messages.lengths[at]))
        if letters[at] == ORIGIN:
            read_origin(reader)
            continue
        reader.bytes(prefix)
        if letters[at] == RELATION:
            scope.describe(read_relation(reader), (sequence.place, int(messages.starts[at])), stream)
        elif letters[at] == TYPE:
            read_type(reader)
        else:
            truncate = read_truncate(reader)
            options[at] = truncate.cascade | truncate.restart_identity << 1
            found = (_find(messages, at, oid, scope, stream) for oid in truncate.relations)
            truncated.extend((at, relations.number(relation)) for relation in found)
    return truncated


def _resolve(
    messages: Messages, where: slice, scope: Scope, stream: int | None, version: Ints, relations: _Relations
) -> None:
    changed = messages.changes[where]
    oids, position = messages.relations[where], np.arange(where.start, where.stop)
    if not changed.any():
        return
    concerned_oids = oids[changed]
    first_oid = concerned_oids[0]
    for oid in [first_oid] if (concerned_oids == first_oid).all() else np.unique(concerned_oids):
        concerned = changed & (oids == oid)
        first = int(position[concerned][0])
        version[where][concerned] = relations.number(_find(messages, first, int(oid), scope, stream))


def _find(messages: Messages, at: int, oid: int, scope: Scope, stream: int | None) -> Relation:
    relation = scope.find(oid, stream)
    if relation is None:
        offset = int(messages.starts[at])
        raise UnknownRelation(
            f"change at offset {offset} of relation {oid}, for which there was no Relation message",
            "Run `tidemark log LOG` to check the log for damage.",
            offset,
        )
    return relation


def _batches(sequence: Sequence, group: _Group, decodings: tuple[Decoding, ...]) -> Iterator[ChangeBatch | Undecodable]:
    """Decode these changes; halve them if the batch is too large or to find the first undecodable change."""
    chosen = group.chosen
    try:
        yield _decoded(_located(sequence, group), decodings)
    except (BatchTooLarge, MalformedValue, UnsupportedMessage) as error:
        if len(chosen) == 1:
            lsn = Lsn(int(sequence.transactions.commit_lsns[sequence.owner[chosen[0]]]))
            yield Undecodable(group.relation, lsn, str(error.args[0]))
            return
        middle = len(chosen) // 2
        for half in (chosen[:middle], chosen[middle:]):
            for item in _batches(sequence, replace(group, chosen=half), decodings):
                yield item
                if isinstance(item, Undecodable):
                    return


def _located(sequence: Sequence, group: _Group) -> LocatedChanges:
    messages = sequence.messages.some(group.chosen)
    owner, by = sequence.owner[group.chosen], sequence.transactions
    return LocatedChanges(
        relation=group.relation,
        messages=messages,
        rows=_values(messages, len(group.relation.columns)),
        ordinals=sequence.ordinals[group.chosen],
        xids=by.xids[owner],
        commit_lsns=by.commit_lsns[owner],
        commit_micros=by.commit_micros[owner],
        truncate_options=group.options[group.chosen],
    )


def _decoded(located: LocatedChanges, decodings: tuple[Decoding, ...]) -> ChangeBatch:
    relation, buffer, rows = located.relation, located.messages.buffer, located.rows
    with_old = np.flatnonzero(rows.old_kinds)
    old_offsets = np.ascontiguousarray(rows.old_offsets[:, with_old])
    old_lengths = np.ascontiguousarray(rows.old_lengths[:, with_old])
    return ChangeBatch(
        relation=relation,
        kinds=located.messages.letters,
        ordinals=located.ordinals,
        xids=located.xids,
        commit_lsns=located.commit_lsns,
        commit_micros=located.commit_micros,
        truncate_options=located.truncate_options,
        new=_columns(buffer, rows.new_offsets, rows.new_lengths, rows.new_formats, relation, decodings),
        unchanged=tuple(_marks(lengths) for lengths in rows.new_lengths),
        old=_columns(buffer, old_offsets, old_lengths, rows.old_formats, relation, decodings) if len(with_old) else (),
        old_of=with_old,
        old_full=rows.old_kinds[with_old] == FULL_ROW,
    )


def _values(messages: Messages, columns: int) -> RowCells:
    """Locate the values of each message; a TRUNCATE has none."""
    tuples = messages.letters != TRUNCATE
    if tuples.all():
        return find_values(messages, columns)
    found = find_values(messages.some(tuples), columns)
    rows = RowCells.empty(columns, len(messages), len(messages))
    rows.new_offsets[:, tuples], rows.new_lengths[:, tuples] = found.new_offsets, found.new_lengths
    if found.old_kinds.any():
        rows.old_offsets[:, tuples], rows.old_lengths[:, tuples] = found.old_offsets, found.old_lengths
    rows.new_formats[:], rows.old_formats[:] = found.new_formats, found.old_formats
    rows.old_kinds[tuples] = found.old_kinds
    return rows


def _marks(lengths: Ints) -> Flags | None:
    unchanged = lengths == UNCHANGED
    return unchanged if unchanged.any() else None


def _columns(
    buffer: Bytes,
    offsets: Longs,
    lengths: Ints,
    formats: Bytes,
    relation: Relation,
    decodings: tuple[Decoding, ...],
) -> tuple[DecodedColumn, ...]:
    columns = []
    for k, (column, decoding) in enumerate(zip(relation.columns, decodings, strict=True)):
        with decoding_column(column.name):
            columns.append(_column(Cells(buffer, offsets[k], lengths[k]), Format(int(formats[k])), decoding))
    return tuple(columns)


def _column(cells: Cells, came: Format, decoding: Decoding) -> DecodedColumn:
    """Decode a column by the format of its values; both occur if the stream was restarted with other options."""
    if came != Format.TEXT | Format.BINARY:
        return decoding.decode(cells, came == Format.BINARY)
    binary = (cells.lengths >= 0) & (cells.buffer[np.maximum(cells.offsets - 5, 0)] == BINARY)
    halves = decoding.decode(cells.where(~binary), False), decoding.decode(cells.where(binary), True)
    position = pa.array(np.arange(len(cells)) + binary * len(cells))
    fallback = None
    if any(half.fallback is not None for half in halves):
        nothing = pa.nulls(len(cells), pa.string())
        fallback = pa.concat_arrays([half.fallback if half.fallback is not None else nothing for half in halves]).take(
            position
        )
    return DecodedColumn(pa.concat_arrays([half.array for half in halves]).take(position), fallback)
