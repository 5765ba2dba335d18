"""Options of Spark, for every command that needs it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemark.errors import InvalidValue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])


def spark_options(command: Command) -> Command:
    """Add --master, --remote and --conf, which mean the same as in Spark's own programs."""
    master = click.option("--master", metavar="URL", help="Use this Spark master.  [default: this machine]")
    remote = click.option("--remote", metavar="URL", help="Use a Spark Connect server, such as sc://host:15002.")
    conf = click.option("--conf", metavar="KEY=VALUE", multiple=True, help="Set an option of Spark. Repeatable.")
    return master(remote(conf(command)))


def started(master: str | None, remote: str | None, conf: tuple[str, ...]) -> SparkSession:
    """Return a session with these options; without any, the active session if there is one.

    Ctrl-C on the terminal reaches only this process: the JVM has another process group, and PySpark's handler of SIGINT
    is replaced by the previous one.
    """
    pairs = [pair.partition("=") for pair in conf]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise InvalidValue(f"invalid option of Spark: --conf {key}", "Use `--conf KEY=VALUE`.")
    from pyspark.sql import SparkSession  # deferred: it imports Spark

    from tidemark.spark import SparkOptions, spark_session
    from tidemark.spark.java import launch_jvm

    if SparkSession.getActiveSession() is not None and not (master or remote or conf):
        return spark_session()
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    options = SparkOptions(master, remote, {**quiet, **{key: value for key, _, value in pairs}})
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        if remote is None:
            launch_jvm(options.conf)
        return spark_session(options)
    finally:
        if in_main:
            signal.signal(signal.SIGINT, handler)
