"""Bytes per GPU."""
