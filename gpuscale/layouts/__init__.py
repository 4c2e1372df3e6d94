"""The search space as arrays: one row per way to split the work."""

from gpuscale.layouts.arrays import RECOMPUTE_MODULES, Candidates, concatenate, single, unique_rows

__all__ = ["RECOMPUTE_MODULES", "Candidates", "concatenate", "single", "unique_rows"]
