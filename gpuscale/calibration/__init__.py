"""A cluster's own measurements: logs of collective benchmarks read, fitted and written into its file."""
