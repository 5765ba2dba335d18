"""Reading one table at one boundary with Spark: its versions, later changes and the log's tail, as one DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tidemark.reads.changes import file_changes, no_changes
from tidemark.reads.contents import contents
from tidemark.reads.equalities import Equalities
from tidemark.reads.overlay import overlaid
from tidemark.reads.planning import FoundFiles, TablePlanner
from tidemark.reads.shape import ChangeFacts, both, facts_of
from tidemark.reads.tail import tail_of
from tidemark.reads.versions import base_of
from tidemark.reads.visible import seen
from tidemark.schema.history import Span, TableHistory


class TableReader:
    """Reads tables at the boundary of a planner."""

    def __init__(self, spark: SparkSession, planner: TablePlanner) -> None:
        self._spark, self._planner = spark, planner

    def table(self, history: TableHistory, span: Span, equalities: Equalities) -> DataFrame:
        """Return the table's rows, not `guarded`; rows that do not satisfy the equalities may be left out."""
        return self._planner.again(lambda: self._table(history, span, equalities))

    def changes(self, history: TableHistory, span: Span) -> DataFrame:
        """Return all changes after the base of the span, not `guarded`."""
        return self._planner.again(lambda: self._all_changes(self._planner.unfolded(history, span))[0])

    def _table(self, history: TableHistory, span: Span, equalities: Equalities) -> DataFrame:
        planned, boundary = self._planner.planned(history, span), self._planner.boundary
        found, few = planned.found, planned.few
        shape = found.shown.shape
        base = places = None
        if found.folded is not None:
            files = found.folded.files
            of_key = planned.of_key(few, equalities) if few is not None else None
            if of_key is not None:
                few, files = of_key
            else:
                places = planned.places(boundary)
            base = base_of(self._spark, found.shown, found.folded, boundary, files, placed=places is not None)
        if base is not None and few is not None:
            return overlaid(base.rows, few, shape, places).toDF(*shape.names)
        rows, facts = self._all_changes(found)
        return contents(rows, shape, facts, base)

    def _all_changes(self, found: FoundFiles) -> tuple[DataFrame, ChangeFacts]:
        """Return the changes after the folded versions, and their possible kinds."""
        spark, boundary = self._spark, self._planner.boundary
        chosen = found.between(boundary)
        rows = file_changes(spark, found.shown, chosen, found.files.stored)
        rows = None if rows is None else seen(rows, found.since, boundary, chosen)
        facts = facts_of(chosen)
        tail = tail_of(spark, *found.tail) if found.tail is not None else None
        if tail is not None:
            later = seen(tail.rows, found.since, boundary, None)
            rows = later if rows is None else rows.unionByName(later)
            facts = both(facts, tail.facts)
        return rows if rows is not None else no_changes(spark, found.shown), facts
