"""Which ranks form a group along each parallel axis, and where on the levels of a cluster its members sit."""
