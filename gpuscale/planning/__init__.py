"""The public functions behind the commands."""

from gpuscale.planning.jobs import JobOptions
from gpuscale.planning.planning import PlanOptions, estimate, estimate_file, estimate_from, plan, save_plan

__all__ = [
    "JobOptions",
    "PlanOptions",
    "estimate",
    "estimate_file",
    "estimate_from",
    "plan",
    "save_plan",
]
