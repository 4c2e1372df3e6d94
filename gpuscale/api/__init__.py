"""The public functions behind the commands."""

from gpuscale.api.jobs import JobOptions
from gpuscale.api.planfile import read_plan_file, write_plan_file
from gpuscale.api.planning import PlanOptions, estimate, estimate_file, plan

__all__ = [
    "JobOptions",
    "PlanOptions",
    "estimate",
    "estimate_file",
    "plan",
    "read_plan_file",
    "write_plan_file",
]
