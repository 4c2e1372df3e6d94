"""Layouts tried on the machine, one after the other, until none is likely to be faster."""
