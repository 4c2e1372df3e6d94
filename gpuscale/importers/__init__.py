"""Readers of what other tools say of a cluster, and what makes a cluster file of it.

`assemble` tells files apart by content; one module per source turns a file into `Facts` (`nccl_xml`, `smi`,
`slurm`, `infiniband`, with the PCI ids of `devices`); `facts` puts those of several files together; `assemble` fills in
what no file states and writes the TOML.
"""
