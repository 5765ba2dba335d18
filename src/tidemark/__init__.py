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

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.api import compare, doctor, expire, status
    from tidemark.clock import Boundary, Lsn
    from tidemark.query.mirror import open_mirror as open  # noqa: A004
    from tidemark.sync.run import sync

__version__ = "0.1.0"
__all__ = ["Boundary", "Lsn", "__version__", "compare", "doctor", "expire", "open", "status", "sync"]


class _Lazy:
    """A public name that is imported when it is first used.

    It takes precedence over a subpackage of the same name, which Python sets as an attribute when it is imported.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(import_module(self._module), self._name)

    def __set__(self, instance: object, value: object) -> None:
        return None


class _Package(ModuleType):
    Boundary = _Lazy("tidemark.clock", "Boundary")
    Lsn = _Lazy("tidemark.clock", "Lsn")
    compare = _Lazy("tidemark.api", "compare")
    doctor = _Lazy("tidemark.api", "doctor")
    expire = _Lazy("tidemark.api", "expire")
    open = _Lazy("tidemark.query.mirror", "open_mirror")
    status = _Lazy("tidemark.api", "status")
    sync = _Lazy("tidemark.sync.run", "sync")


sys.modules[__name__].__class__ = _Package
