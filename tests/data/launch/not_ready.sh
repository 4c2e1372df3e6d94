#!/bin/bash
echo "not ready: fill in the hosts first"
exit 1
colossalai run --nproc_per_node 8 --hostfile hosts.txt benchmark.py -p 3d -b 8
