"""Doctor: every requirement of a mirror, checked on a source, and the mode that `tidemark sync` will use."""

from tidemark.doctor.report import Check, Report, Status, examine

__all__ = ["Check", "Report", "Status", "examine"]
