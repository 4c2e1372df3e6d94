"""Predictions against published measurements: reading of the rows, one prediction per row, the error table."""
