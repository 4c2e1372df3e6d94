"""The public functions behind the commands."""

from gpuscale.api.jobs import JobOptions
from gpuscale.api.planning import PlanOptions, estimate, estimate_file, estimate_from, plan, save_plan

__all__ = [
    "JobOptions",
    "PlanOptions",
    "estimate",
    "estimate_file",
    "estimate_from",
    "plan",
    "save_plan",
]
