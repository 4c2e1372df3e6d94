"""Logs in the form of nccl-tests, written for the tests: own numbers, no one's measurements."""

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "gather": lambda n: (n - 1) / n,
    "sendrecv": lambda n: 1.0,
}
REDOP = {"all_gather": "none", "alltoall": "none", "broadcast": "none", "gather": "none"}
SIZES = [2**power for power in range(3, 34)]


def smooth_us(size):
    """A time that rises as times of collectives do."""
    return 60 + size / 2e5 + 40 * size / (size + 2e6)


def header(gpus=1):
    return [
        f"# nThread 1 nGpus {gpus} minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]


def ranks(count, per_host, gpu="NVIDIA H100 80GB HBM3"):
    return [
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank} on host{rank // per_host} device {rank % per_host} [0x07] {gpu}"
        for rank in range(count)
    ]


def columns(wrong="#wrong", root=True):
    names = "size count type redop root" if root else "size count type redop"
    return [f"# {names} time algbw busbw {wrong} time algbw busbw {wrong}", "# (B) (elements) (us) (GB/s) (GB/s)"]


def row(name, size, time_us, count, wrong="0", in_place=None, root=True):
    algbw = size / time_us / 1e3
    busbw = algbw * FACTORS[name](count)
    unchecked = "N/A" if name in {"alltoall", "sendrecv"} else wrong
    middle = f"{0 if name in {'broadcast', 'reduce', 'gather'} else -1}" if root else ""
    one = f"{time_us:.6g} {algbw:.2f} {busbw:.2f}"
    other = one if in_place is None else f"{in_place:.6g} {size / in_place / 1e3:.2f} {busbw:.2f}"
    return f"{size:12d} {size // 4:12d} float {REDOP.get(name, 'sum')} {middle} {one} {wrong} {other} {unchecked}"


def log(name="all_reduce", count=16, per_host=8, sizes=SIZES, time_us=smooth_us, gpu="NVIDIA H100 80GB HBM3"):
    """A whole log as a list of lines."""
    return [
        f"# Collective test starting: {name}_perf",
        *header(),
        *ranks(count, per_host, gpu),
        "#",
        *columns(),
        *(row(name, size, time_us(size), count) for size in sizes),
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 100.0",
        "#",
    ]


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path
