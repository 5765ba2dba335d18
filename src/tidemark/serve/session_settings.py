"""The settings of a client's session that belong to the server: PostgreSQL keeps them, as it does all with a prefix.

They are read in the session, since SET LOCAL, a rollback and ALTER ROLE … SET change them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tidemark.errors import InvalidValue

NAMES = ("tidemark.route", "tidemark.at", "tidemark.cost", "tidemark.wait", "tidemark.notice", "tidemark.prefer")
DEFAULT_COST = 200_000.0


class Route(Enum):
    """Values of tidemark.route."""

    AUTO = "auto"
    SOURCE = "source"
    MIRROR = "mirror"


class Prefer(Enum):
    """Values of tidemark.prefer."""

    SPEED = "speed"
    OFFLOAD = "offload"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """What the session has set, or the defaults of the server."""

    route: Route = Route.AUTO
    at: str = ""
    cost: float = DEFAULT_COST
    notices: bool = False
    prefer: Prefer = Prefer.SPEED

    @classmethod
    def read(cls, found: Mapping[str, str | None], default: ServeSettings) -> ServeSettings:
        """Read the values that `current_setting` returned; raise InvalidValue for one that is not valid."""

        def of(name: str) -> str:
            return (found.get(f"tidemark.{name}") or "").strip()

        route, prefer, notice = of("route"), of("prefer"), of("notice").lower()
        return cls(
            Route(_chosen("route", route, [each.value for each in Route])) if route else default.route,
            of("at"),
            _cost(of("cost")) if of("cost") else default.cost,
            _chosen("notice", notice, ["on", "off"]) == "on" if notice else default.notices,
            Prefer(_chosen("prefer", prefer, [each.value for each in Prefer])) if prefer else default.prefer,
        )

    @property
    def must_answer(self) -> bool:
        """Whether the source must not answer instead."""
        return bool(self.at) or self.route is Route.MIRROR

    @property
    def why_must(self) -> str:
        """The setting because of which the source must not answer."""
        return "tidemark.at is set" if self.at else "tidemark.route is mirror"


def _chosen(name: str, value: str, allowed: list[str]) -> str:
    if value not in allowed:
        listed = ", ".join(f"'{each}'" for each in allowed)
        raise InvalidValue(f"invalid value for tidemark.{name}: '{value}'", f"Set it to one of {listed}.")
    return value


def _cost(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(f"invalid value for tidemark.cost: '{text}'", "Set it to a number.") from None
