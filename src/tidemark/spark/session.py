"""The Spark session: the active one unchanged, or a new one with pinned options.

A session created by other code is never modified, because other queries use it. If one of its options could change a
query result, it is rejected with the statements that correct it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tidemark.errors import InvalidValue, SparkSettingsDiffer
from tidemark.logs import is_debug
from tidemark.spark.java import jvm_environment

# Every option that can change the result of a statement on the same rows. Most values are Spark's defaults.
PINNED: Mapping[str, str] = MappingProxyType(
    {
        # values and types
        "spark.sql.ansi.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.decimalOperations.allowPrecisionLoss": "false",  # otherwise a product may silently lose digits
        "spark.sql.function.concatBinaryAsString": "false",
        "spark.sql.legacy.allowNegativeScaleOfDecimal": "false",
        "spark.sql.legacy.castComplexTypesToString.enabled": "false",
        "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "false",
        "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
        "spark.sql.legacy.interval.enabled": "false",
        "spark.sql.legacy.literal.pickMinimumPrecision": "true",
        "spark.sql.legacy.percentileDiscCalculation": "false",
        "spark.sql.legacy.statisticalAggregate": "false",
        "spark.sql.legacy.timeParserPolicy": "CORRECTED",
        "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
        # semantics of statements
        "spark.sql.caseSensitive": "false",
        "spark.sql.ansi.doubleQuotedIdentifiers": "false",
        "spark.sql.ansi.relationPrecedence": "false",
        "spark.sql.groupByOrdinal": "true",
        "spark.sql.orderByOrdinal": "true",
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
        "spark.sql.variable.substitute": "false",  # otherwise `${…}` is replaced, even inside a string
        "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
        "spark.sql.legacy.cteDuplicateAttributeNames": "false",
        "spark.sql.legacy.ctePrecedencePolicy": "CORRECTED",
        "spark.sql.legacy.duplicateBetweenInput": "false",
        "spark.sql.legacy.followThreeValuedLogicInArrayExists": "true",
        "spark.sql.legacy.groupingIdWithAppendedUserGroupBy": "false",
        "spark.sql.legacy.inSubqueryNullability": "false",
        "spark.sql.legacy.nullInEmptyListBehavior": "false",
        "spark.sql.legacy.parser.havingWithoutGroupByAsWhere": "false",
        "spark.sql.legacy.scalarSubqueryAllowGroupByNonEqualityCorrelatedPredicate": "false",
        "spark.sql.legacy.scalarSubqueryCountBugBehavior": "false",
        "spark.sql.legacy.setopsPrecedence.enabled": "false",
        "spark.sql.analyzer.failAmbiguousSelfJoin": "true",
        "spark.sql.orderingAwareLimitOffset": "true",
        "spark.sql.retainGroupColumns": "true",
        "spark.sql.selfJoinAutoResolveAmbiguity": "true",
        # which rows of a file are read
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.sql.files.ignoreMissingFiles": "false",
        "spark.sql.files.ignoredPathSegmentRegex": "^[._]",
        "spark.sql.parquet.aggregatePushdown": "false",  # the statistics do not include NaN
        "spark.sql.parquet.binaryAsString": "false",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.fieldId.read.enabled": "false",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.recordLevelFilter.enabled": "false",  # parquet-mr distinguishes 0.0 from -0.0
    }
)


# Options that only make reads faster: a read lists its files, and Spark lists more than 32 paths with a separate job.
FASTER: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        "spark.sql.execution.arrow.localRelationThreshold": "1MB",  # larger data is sent as Arrow batches
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # otherwise records every column's call site
        "spark.broadcast.UDFCompressionThreshold": "1g",  # PySpark never deletes the files of commands above it
        "spark.scheduler.mode": "FAIR",  # the apply job does not wait for a fold
    }
)
QUIET: Mapping[str, str] = MappingProxyType({"spark.ui.showConsoleProgress": "false"})
RAISED = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")  # PySpark's loggers of errors that it also raises
_CORES = os.cpu_count() or 1
FASTER_HERE: Mapping[str, str] = MappingProxyType({"spark.sql.shuffle.partitions": str(_CORES)})
HERE = f"local[{_CORES + 1}]"  # one task more than cores, so that apply does not wait for copies


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Spark's own options, passed through: `master` or `remote`, and any `conf`."""

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.master is not None and self.remote is not None:
            raise InvalidValue(
                f"both a master ({self.master}) and a remote ({self.remote}) of Spark are given", "Remove one of them."
            )
        for key, value in self.conf.items():
            if PINNED.get(key, value).lower() != value.lower():
                raise InvalidValue(f"{key}={value} can change query results", f"Remove it, or set {key}={PINNED[key]}.")


def spark_session(options: SparkOptions | None = None) -> SparkSession:
    """Return the active session if there is one, else a new one with these options."""
    active = SparkSession.getActiveSession()
    if active is not None:
        if options not in (None, SparkOptions()):
            raise SparkSettingsDiffer(
                "a Spark session is already active, and options for a new one have no effect",
                "Remove the options, or stop the active session first.",
            )
        require_pinned(active)
        return active
    return _new_session(options or SparkOptions())


def _new_session(options: SparkOptions) -> SparkSession:
    builder = SparkSession.builder.appName("tidemark")
    where = options.remote or options.master or options.conf.get("spark.master") or HERE
    here = where.startswith("local")
    if here:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = builder.remote(where) if options.remote is not None else builder.master(where)
    defaults = {**QUIET, **FASTER, **(FASTER_HERE if here else {})}
    for key, value in {**defaults, **options.conf, **PINNED}.items():
        builder = builder.config(key, value)
    if not is_debug():
        for name in RAISED:
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    with jvm_environment() if here or options.remote is None else nullcontext():
        session: SparkSession = builder.getOrCreate()
    require_pinned(session)
    return session


def discard_session(session: SparkSession) -> None:
    """Forget a session whose JVM has ended, so that this process can start another one."""
    context = session.sparkContext
    for server in (getattr(context, "_accumulatorServer", None), SparkContext._gateway):
        if server is not None:
            with suppress(Exception):  # it may have noticed the end of the JVM itself
                server.shutdown()
    with SparkContext._lock:
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def tasks_beside(session: SparkSession) -> int:
    """Return how many tasks can run at a time while one slot remains free for apply."""
    context = getattr(session, "_sc", None)  # Spark Connect has no context and does not report its cores
    return max(1, context.defaultParallelism - 1) if context is not None else 2


def require_pinned(session: SparkSession) -> None:
    """Reject a session whose options could change a query result. Cheap if its options have not changed."""
    settings = _settings(session)
    if settings is not None and _FIT.get(session) == settings:
        return
    found = {key: _setting(session, key) for key in PINNED}
    wrong = [key for key, wanted in PINNED.items() if str(found[key] or wanted).lower() != wanted.lower()]
    if wrong:
        raise SparkSettingsDiffer(
            "the Spark session has options that can change query results: "
            + ", ".join(f"{key}={found[key]}" for key in wrong),
            "Run " + " and ".join(f'`spark.conf.set("{key}", "{PINNED[key]}")`' for key in wrong) + ".",
        )
    if settings is not None:
        _FIT[session] = settings


_FIT: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()  # the settings with which a session passed the check


def _settings(session: SparkSession) -> str | None:
    """Return all settings of a session in one call to the JVM; None for Spark Connect, which has no such call."""
    java = getattr(session, "_jsparkSession", None)
    return None if java is None else str(java.conf().getAllAsJava().toString())


def _setting(session: SparkSession, key: str) -> str | None:
    """Return an option's value; None if this version of Spark does not have the option or a default for it."""
    try:
        return session.conf.get(key)
    except PySparkException:
        return None
