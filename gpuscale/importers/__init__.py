"""Readers of what other tools say of a cluster, and what makes a cluster file of it.

One module per format turns a file into `Facts` (`nccl_xml`, `topo_matrix`, `nvlink_status`, `slurm_conf`, `slurm_yaml`,
`ibstat`, `ibnetdiscover`); `detect` says by its content which one a file needs; `merge` puts the facts of several files
together, `assemble` fills in what no file states, and `document` writes the TOML.
"""
