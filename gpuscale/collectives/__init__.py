"""How long moving data between GPUs takes: an ideal bytes-over-bandwidth model and an NCCL-like one with latency."""
