"""Doctor: each thing a mirror needs of its source, with the SQL that mends it and what happens if it is left."""

from tidemark.doctor.check import Check, Status
from tidemark.doctor.examination import Report, examine

__all__ = ["Check", "Report", "Status", "examine"]
