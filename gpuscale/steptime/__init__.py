"""Seconds per optimizer step."""
