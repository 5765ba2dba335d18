"""The one list of requirements on a source, used by doctor, setup, mode selection and receive."""

from tidemark.postgres.requirements.objects import object_requirements
from tidemark.postgres.requirements.reading import read_state
from tidemark.postgres.requirements.requirement import (
    Choice,
    Fix,
    Mode,
    Requirement,
    decide,
    first_unmet,
    require,
)
from tidemark.postgres.requirements.server import capacity_requirements, server_requirements, version_requirement
from tidemark.postgres.requirements.state import SourceState
from tidemark.postgres.requirements.tables import table_requirements

__all__ = [
    "Choice",
    "Fix",
    "Mode",
    "Requirement",
    "SourceState",
    "capacity_requirements",
    "decide",
    "first_unmet",
    "object_requirements",
    "read_state",
    "require",
    "requirements_of",
    "server_requirements",
    "table_requirements",
    "version_requirement",
]


def requirements_of(state: SourceState) -> tuple[Requirement, ...]:
    """Return every requirement that SQL can check, in the order in which a user would fix them."""
    server = (*server_requirements(state), *capacity_requirements(state))
    return (*server, *table_requirements(state), *object_requirements(state))
