"""A cluster's own measurements: logs of collective benchmarks read (`tables`, `logs`), and fitted (`calibrate`)."""
