"""Kernels of one GPU: measured, recorded, and fitted to."""
