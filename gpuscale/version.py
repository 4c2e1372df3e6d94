"""The version of gpuscale, which answers and files state."""

__version__ = "0.1.0"
