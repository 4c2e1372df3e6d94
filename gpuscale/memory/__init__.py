"""Bytes per GPU at each pipeline stage."""
