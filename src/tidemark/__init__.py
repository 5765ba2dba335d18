"""Tidemark: an exact, columnar mirror of a live PostgreSQL database, in a Delta lake, on Spark.

    import tidemark

    tidemark.doctor("postgresql://app@db/shop")                  # can it be mirrored?
    tidemark.sync("postgresql://app@db/shop", "/data/lake")      # copy and follow it
    tidemark.status("/data/lake")                                # how far is it?

    with tidemark.open("/data/lake") as mirror:                  # read it, with Spark
        mirror.sql("select count(*) from orders").show()
        mirror.at("yesterday 09:00").table("orders").show()
        mirror.diff("orders", "-1h").show()

    tidemark.compare("/data/lake", source="postgresql://app@db/shop")
    tidemark.expire("/data/lake", keep="30d")

Importing the package starts no JVM and imports no Spark: everything is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.api import compare, doctor, expire, status
    from tidemark.clock import Boundary, Lsn
    from tidemark.mirror.mirror import open_mirror as open  # noqa: A004
    from tidemark.pipeline.pipeline import sync

__version__ = "0.1.0"
__all__ = ["Boundary", "Lsn", "__version__", "compare", "doctor", "expire", "open", "status", "sync"]


_MODULES = {
    "Boundary": "tidemark.clock",
    "Lsn": "tidemark.clock",
    "compare": "tidemark.api",
    "doctor": "tidemark.api",
    "expire": "tidemark.api",
    "open": "tidemark.mirror.mirror",
    "status": "tidemark.api",
    "sync": "tidemark.pipeline.pipeline",
}
_NAMES = {"open": "open_mirror"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULES[name]), _NAMES.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
