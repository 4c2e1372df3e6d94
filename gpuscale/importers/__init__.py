"""Readers of what other tools say of a cluster, into `Facts`; `assemble` makes a cluster file of them."""
