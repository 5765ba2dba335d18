"""Setup: what the owner of a source does once so that a role with few rights can mirror it."""

from tidemark.setup.plan import Plan, Step, plan
from tidemark.setup.run import carry_out, read_plan, script

__all__ = ["Plan", "Step", "carry_out", "plan", "read_plan", "script"]
