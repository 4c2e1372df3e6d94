"""Readers of what other tools say of a cluster: each turns a file into `Facts`; `assemble` makes a cluster file of them."""
