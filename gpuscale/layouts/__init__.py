"""The search space as arrays: one row per way to split the work."""
