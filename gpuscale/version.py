"""The version of gpuscale, which answers and files state."""

__version__ = "0.1.0"

RELEASED = "2026-11"
"""Year and month of this version; what an answer takes from elsewhere says so where it is over a year older."""
