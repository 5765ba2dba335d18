"""Setup: the SQL that the owner of a source runs once, so that a role with few privileges can mirror it."""

from tidemark.setup.plan import Plan, plan, read_plan, run_fixes, script

__all__ = ["Plan", "plan", "read_plan", "run_fixes", "script"]
