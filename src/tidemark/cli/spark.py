"""Spark's own options, for every command that needs Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidemark.errors import InvalidValue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])


def spark_options(command: Command) -> Command:
    """--master, --remote and --conf, as Spark's own programs have them."""
    master = click.option("--master", metavar="URL", help="Spark's master; by default what Spark itself would take.")
    remote = click.option("--remote", metavar="URL", help="A Spark Connect server, such as sc://host:15002.")
    conf = click.option("--conf", metavar="KEY=VALUE", multiple=True, help="An option of Spark's. Repeatable.")
    return master(remote(conf(command)))


def started(master: str | None, remote: str | None, conf: tuple[str, ...]) -> SparkSession:
    """A session with these options, which keeps its own counsel on the terminal; without any, the active one if any."""
    pairs = [each.partition("=") for each in conf]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise InvalidValue(f"--conf {key}", "KEY=VALUE")
    from pyspark.sql import SparkSession  # not before: it brings Spark

    from tidemark.spark import SparkOptions, spark_session

    if SparkSession.getActiveSession() is not None and not (master or remote or conf):
        return spark_session()
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    return spark_session(SparkOptions(master, remote, {**quiet, **{key: value for key, _, value in pairs}}))
