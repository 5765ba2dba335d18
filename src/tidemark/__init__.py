"""Tidemark: an exact, columnar mirror of a live PostgreSQL database, in a Delta lake, on Spark.

`tidemark.open(lake)` reads one.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.query.mirror import open_mirror as open  # noqa: A004

__version__ = "0.1.0"
__all__ = ["__version__", "open"]


def __getattr__(name: str) -> Any:
    """Whatever needs Spark is imported when it is asked for: commands that need none start no JVM."""
    if name == "open":
        from tidemark.query.mirror import open_mirror

        return open_mirror
    raise AttributeError(f"module 'tidemark' has no attribute {name!r}")
