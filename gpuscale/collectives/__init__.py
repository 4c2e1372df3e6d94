"""Time of collective operations on the levels of a cluster."""
