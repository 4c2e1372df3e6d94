"""Constants of the NCCL-like model, by GPU generation and link, each with its source; and how NCCL is run.

Sources named below:
- `tuning.cc`: NCCL 2.30, src/graph/tuning.cc (NVIDIA, Apache-2.0): the latency and bandwidth tables of its tuner.
- `search.cc`: NCCL 2.30, src/graph/search.cc and topo.h: which speeds its graph search finds.
- `fit`: fitted to published nccl-tests results (docs/collectives.md); one number per effect and generation, none per
  cluster.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from gpuscale.errors import InputError, did_you_mean

PROTOCOLS = ("LL", "LL128", "Simple")
LL, LL128, SIMPLE = range(3)

RING_BASE_S = (6.6e-6, 14.0e-6, 8.4e-6)
"""tuning.cc, ring base latency per protocol [s]."""

TREE_BASE_S = (6.8e-6, 14.0e-6, 8.4e-6)
"""tuning.cc, tree base latency per protocol [s]."""

RING_HOP_S = {"nvlink": (0.6e-6, 1.9e-6, 3.4e-6), "pcie": (1.0e-6, 2.5e-6, 5.7e-6), "net": (2.7e-6, 4.0e-6, 14.0e-6),
              "wan": (1.0, 1.0, 1.0)}  # fmt: skip
"""tuning.cc, hardware latency of one ring hop per link and protocol [s]."""

TREE_HOP_S = {"nvlink": (0.6e-6, 1.25e-6, 4.0e-6), "pcie": (1.0e-6, 1.9e-6, 4.0e-6), "net": (5.0e-6, 8.5e-6, 14.0e-6),
              "wan": (1.0, 1.0, 1.0)}  # fmt: skip
"""tuning.cc, the same for the tree."""

NVLS_NET_HOP_S = 18.0e-6
"""tuning.cc, step of NVLS into a network with switch reduction [s]."""

COLLNET_HOP_S, COLLNET_PER_GPU_S, COLLNET_NET_HOP_S = 3.7e-6, 0.8e-6, 31.0e-6
"""tuning.cc, CollNetDirect without NVLS: a hop inside the node, what each further GPU adds, the hop beyond."""

SHARP_SHARE = 0.70
"""fit: share of the cards' rate at which switches of InfiniBand add up: AllReduce of 8 to 32 GiB on 16 to 256 B200 with
CollNet reaches 0.66 to 0.80."""

NVLS_TREE_NET_HOP_S = 20.9e-6
"""tuning.cc, network hop of the tree of NVLink domains [s]."""

PAT_BASE_S, PAT_NET_DIVISOR, PAT_PER_RANK_S = 8.0e-6, 3.5, 2.8e-6
"""tuning.cc, PAT (one GPU per node AllGather/ReduceScatter): base, divisor of the network hop, cost per rank."""

PAT_BANDWIDTH = 0.75
"""tuning.cc, share of the bandwidth that PAT reaches."""

NET_OVERHEAD_S = (1.0e-6, 1.0e-6, 3.0e-6)
"""tuning.cc, least cost of any ring step once a network is in the ring: 1 us of CPU proxy, three times for Simple."""

RING_PLATEAU = 1.4
"""tuning.cc, ring/Simple/AllReduce across nodes: latency factor once every rank has work for all channels."""

LL_SHARE, LL128_SHARE, TREE_SHARE = 0.5, 0.92, 0.92
"""tuning.cc, share of the Simple bandwidth that LL (flag per 4 bytes), LL128 and trees reach."""

TREE_LL_SHARE, TREE_LL128_SHARE = 1 / 3.8, 0.85
"""tuning.cc, the same within trees: LL 1/3.8; LL128 7/9 on one node, 120/128 across (0.85 between them)."""

SELF_COPY_HBM_SHARE = 0.2
"""fit: share of the memory bandwidth at which the few SMs of a collective copy or add a rank's own block; shows on 2
and 4 GPUs behind NVLink."""

P2P_LL_BYTES = 16384
"""NCCL environment variable NCCL_P2P_LL_THRESHOLD, default: bytes per peer up to which point-to-point uses LL."""

HOP_NOMINAL_S = {"nvlink": 1.0e-6, "pcie": 2.0e-6, "net": 5.0e-6, "wan": 1.0}
"""Hop latency of a preset's level at which the hop tables above hold as they are; other values scale them. guesstimate:
NVSwitch about 1 us GPU to GPU, PCIe through a switch 2 us, InfiniBand with GPUDirect RDMA 5 us."""


class Generation(NamedTuple):
    """What differs between GPU generations; caps of bandwidth are shares of the wire rate of the innermost level."""

    base_factor: float  #: measured fixed cost of a call over tuning.cc's base latency.
    hop_factor: float  #: measured cost per hop over tuning.cc's.
    #: cap of the LL protocol in a node, on 2 nodes, on more [bytes/s] (tuning.cc, llMax).
    ll_max_bytes_per_s: tuple[float, float, float]
    #: cap of tree AllReduce in a node, on 2 nodes, on more (tuning.cc perChTree x channels / wire).
    tree_cap: tuple[float, float, float]
    channels: int = 12  #: rings that search.cc finds in a node of 8 behind NVLink; 0 where nothing is known.
    #: what one channel moves between GPUs of a node [bytes/s]; inf where nothing is known.
    channel_bytes_per_s: float = float("inf")
    launch_s: float = 0.0  #: what a graph saves of the fixed cost of a call [s]; 0 where it was not measured.
    splits_cards: bool = False  #: up to four network cards serve two channels each (search.cc, from SM90 on).
    nvls_share: float = 0.0  #: NVLS AllReduce bus bandwidth of 8 GPUs over wire rate.
    nvls_latency_s: float = 0.0  #: latency of NVLink switch reduction [s].
    nvls_tree_cap: tuple[float, float] = (0.0, 0.0)  #: the same for the tree of NVLink domains on 2 nodes, on more.
    #: speeds of a channel among which search.cc chooses for NVLS [bytes/s].
    nvls_speeds_bytes_per_s: tuple[float, ...] = ()
    #: latency of a network hop per protocol, where the library has a table of its own: of rings, and of trees.
    ring_net_hop_s: tuple[float, float, float] = RING_HOP_S["net"]
    tree_net_hop_s: tuple[float, float, float] = TREE_HOP_S["net"]
    #: bandwidth of the rings that search.cc finds in a node of 8 behind NVLink; 0 where it is not known [bytes/s].
    graph_bytes_per_s: float = 0.0
    #: cap of LL128 in them (tuning.cc, perChRingLL128 x channels) [bytes/s].
    ring_ll128_bytes_per_s: float = float("inf")
    #: measured cost of a hop with Simple over tuning.cc's, of single messages in a node and of rings over PCIe; 0: the
    #: same as of any hop.
    simple_hop_factor: float = 0.0
    hides_hops: bool = False  #: whether rings with Simple in a node send on while their hops are under way.
    ll128_across: bool = True  #: whether LL128 pays across nodes; RCCL plans it there no faster than LL.


_HOPPER_SPEEDS = tuple(speed * 1e9 for speed in (3, 6, 11, 12, 15, 20, 24, 30, 40, 50, 60))
_BLACKWELL_SPEEDS = tuple(speed * 1e9 for speed in (18, 19, 20, 24, 30, 40, 45, 50, 60, 70, 80, 90))

OLD_NVLS_SHARE = 5 / 6
"""tuning.cc up to 2.27: share of its graph that NVLS is planned with."""

GENERATIONS = {
    # base_factor, hop_factor: fit on 2, 4 and 8 GPUs of a node below 16 KiB, where they separate.
    # nvls_latency_s: tuning.cc 25 us; fit for Blackwell. llMax, perChTree: tuning.cc, channels from search.cc (12 in a
    # node and 8 across; 16 in a Blackwell node). nvls_share: peaks 476-483 of 450 GB/s, 835-847 of 900 GB/s.
    # channel_bytes_per_s: fit, SendRecv on 8 H100 at 32 - 128 MiB and AllToAll on 2 to 8 A100, H100, B200 and B300 at
    # 512 MiB.
    "volta": Generation(1.1, 1.8, (39e9, 39e9, 20.4e9), (0.92, 0.92, 0.80), channels=6),
    # graph_bytes_per_s: channels x 20, 30 and 45 GB/s, search.cc's speeds for 12, 18 and 18 links.
    # ring_ll128_bytes_per_s: 20, 36.7 and 34.5 GB/s a channel; Blackwell's is that of 2.29, as nothing was measured
    # with the 40 of 2.30. simple_hop_factor: AllToAll of 64 KiB - 1 MiB on 2 to 8 A100, H100, H200, B200, B300, GB200,
    # GB300, L40S and RTX PRO 6000; of the last two also AllGather and ReduceScatter of 1 - 4 MiB. hides_hops: these and
    # AllReduce of 4 MiB - 1 GiB on 2, 4 and 8 of the same.
    "ampere": Generation(1.1, 1.8, (87.7e9, 22.5e9, 19e9), (0.74, 0.63, 0.47), channel_bytes_per_s=10.5e9,
                         graph_bytes_per_s=240e9, ring_ll128_bytes_per_s=240e9, simple_hop_factor=0.7),
    "ada": Generation(0.65, 1.4, (87.7e9, 22.5e9, 19e9), (0.92, 0.92, 0.92), simple_hop_factor=0.7),
    "hopper": Generation(
        0.65, 1.4, (141e9, 45e9, 35e9), (0.74, 0.74, 0.64), channel_bytes_per_s=19e9, splits_cards=True,
        nvls_share=1.06, nvls_latency_s=26e-6, nvls_tree_cap=(1.02, 0.81), nvls_speeds_bytes_per_s=_HOPPER_SPEEDS,
        graph_bytes_per_s=360e9, ring_ll128_bytes_per_s=440e9, hides_hops=True,
    ),
    "blackwell": Generation(
        1.1, 2.1, (282e9, 90e9, 70e9), (0.74, 0.38, 0.213), 16, channel_bytes_per_s=22.5e9, splits_cards=True,
        nvls_share=0.93, nvls_latency_s=38e-6, nvls_tree_cap=(0.92, 0.465), nvls_speeds_bytes_per_s=_BLACKWELL_SPEEDS,
        graph_bytes_per_s=720e9, ring_ll128_bytes_per_s=552e9, simple_hop_factor=1.1, hides_hops=True,
    ),
    # PCIe cards: measured fixed cost and cost per hop are Ada's; no NVLink, so no NVLS, and PCIe is below every cap.
    "blackwell-rtx": Generation(0.65, 1.4, (282e9, 90e9, 70e9), (0.92, 0.92, 0.92), simple_hop_factor=0.7),
    # RCCL, a fork of NCCL: fit on one node of MI300X, 13 us at 1 - 128 KiB, 7 in a graph, and 184 GB/s with LL. Network
    # hops: RCCL, src/graph/tuning.cc, gfx942, but for trees with LL (there 10.5 us): AllReduce of 1 - 32 KiB on two
    # nodes of MI300X takes 54 - 61 us (RCCL 2.28, ROCm/rocm-systems pull request 3272).
    "cdna": Generation(0.75, 1.1, (175e9, 22.5e9, 19e9), (0.74, 0.63, 0.47), channels=0, launch_s=7e-6,
        ring_net_hop_s=(9.5e-6, 9.5e-6, 320e-6), tree_net_hop_s=(14.5e-6, 14.5e-6, 25e-6), ll128_across=False),
}  # fmt: skip

# NCCL's tables know Volta, Ampere (of any chip), Hopper and Blackwell: compute capability 7.5 takes the first's row.
GENERATIONS |= {"turing": GENERATIONS["volta"], "ampere-rtx": GENERATIONS["ampere"]._replace(graph_bytes_per_s=0.0)}

GENERATIONS["rubin"] = GENERATIONS["blackwell"]._replace(
    channel_bytes_per_s=45e9, graph_bytes_per_s=1440e9, ring_ll128_bytes_per_s=1104e9
)
"""guesstimate: as Blackwell, over links twice as fast; tables of its own came with NCCL 2.32."""

FALLBACK = GENERATIONS["ampere"]._replace(
    channels=0, channel_bytes_per_s=float("inf"), graph_bytes_per_s=0.0, simple_hop_factor=0.0
)
"""guesstimate: architectures without a row (TPU, say) take Ampere's."""

NET_CHANNEL_BYTES_PER_S = 14e9
"""paths.cc, NCCL_P2P_PER_CHANNEL_NET_BW: what NCCL expects one channel to send over a network card [bytes/s]."""

PCIE_GRAPH_BYTES_PER_S = 20e9
"""search.cc, topo.h: the fastest of its speeds that PCIe 4.0 carries, which it counts as 24 GB/s [bytes/s]."""

PCIE_CHANNELS = 2
"""guesstimate: rings of a graph over PCIe, whose speed one ring nearly carries."""

CHANNEL_BLEND = 4
"""fit: times of links and channels add in this power. AllToAll on 2, 4 and 8 GPUs of three generations, SendRecv on 8
H100."""

NVLS_GATHER_SHARE = 0.44
"""tuning.cc with search.cc's graphs: NVLS AllGather / ReduceScatter algbw over wire rate (Hopper 0.46, B200 0.40)."""

NODE_GPUS = 8
"""GPUs of the nodes whose graphs are known (search.cc)."""

NVLS_BEYOND_GPUS = 4
"""tuning.cc with search.cc's graphs: up to so many GPUs NVLS is never the lowest line of the tables in a node."""

LL_CHANNEL_BYTES = 512 * 8.0
"""enqueue.cc: bytes per GPU up to which a ring with LL has one channel: 512 threads, one line of 8 bytes each."""

LL_LINES_S = 0.4e-6
"""fit: what a ring takes more for each of its GPUs once all threads of its channels have a line: AllGather,
ReduceScatter and AllReduce of 64 - 256 KiB on 2, 4 and 8 A100, H100, H200, B200, B300, GB200 and GB300 take 0.9 to 6 us
more than of 4 KiB."""

P2P_LL_BYTES_PER_S = 6e9
"""fit: what one channel with LL moves for a message in a node: AllToAll of 16 KiB per peer on 2 and 4 A100, H100, H200,
B200, B300 and RTX PRO 6000 takes 2.2 to 4.1 us more than of 512 bytes [bytes/s]."""

PART_BYTES_PER_S = 20e9
"""fit: what a channel moves at least of a part that is in its slots at once: AllToAll of 64 KiB per peer on 2 to 8 GPUs
of three generations [bytes/s]."""

STEP_OVERHEAD_S = 6.0e-6
"""fit: what each pipeline step of a Simple-protocol collective costs beyond tuning.cc once chunks are full size [s]:
(time at 64 MiB - 1 GiB) - bytes / (bandwidth at 8 GiB) is 4.4 - 8.7 us per step from one A100 node to 1024 H100s and an
NVL72 rack."""

STEP_KNEE_BYTES = 2.5e6
"""fit: message bytes per step at which half of that overhead is there: chunks grow until then."""

EAGER_BYTES, RENDEZVOUS_BYTES = 2048.0, 65536.0
"""libfabric sends messages up to the first with their header, larger ones by rendezvous; beyond the second all wait
alike (FI_CXI_RDZV_EAGER_SIZE, 2 KiB, and NCCL's LL buffers of 64 KiB)."""

CHUNK_BYTES = 2.0**19
"""Largest message of a ring with Simple: one of the eight steps of NCCL_BUFFSIZE, 4 MiB."""

SLOTS = 8.0
"""Blocks that a GPU of a ring sends before it waits for one of them to be taken (NCCL_STEPS)."""

STREAMED_BYTES = 2.0**20
"""fit: messages up to this pass through the nodes of a tree without waiting."""

LAUNCH_S = 4.3e-6
"""fit: what one process takes to launch a collective on each of its GPUs (8 A100)."""

MESSAGE_LAUNCH_S = 0.8e-6
"""fit: what each message of a group of sends and receives adds to that (AllToAll on 8 A100)."""

LEAST_LATENCY_S = 1e-6
"""guesstimate: less than any collective takes."""

PEER_STEPS = 0.5
"""fit: pipeline steps that one peer of an AllToAll stands for, beside what links and channels cost each other."""


class Transport(NamedTuple):
    """What a kind of network adds to NCCL's tables, which are of InfiniBand."""

    #: what every doubling of a message between `EAGER_BYTES` and `RENDEZVOUS_BYTES` adds to a hop [s].
    rendezvous_s: float = 0.0
    #: longest that a node of a tree takes data in before it passes it on [s]; 0 where chunks are passed on as they
    #: come.
    stored_s: float = 0.0
    stored_half_bytes: float = 1e6  #: bytes beyond `STREAMED_BYTES` of which it takes half as long.
    #: what each grouped point-to-point message takes the CPU, whatever its bytes and the hop [s].
    message_s: float = 2.2e-6
    #: what it takes more on each card of a GPU where the CPU also posts and completes its parts, of large messages [s].
    posted_s: float = 0.0
    posted_half_bytes: float = 1.0e6  #: message of which that is half.
    #: messages up to so many bytes the CPU copies out of GPU memory into the command of the card.
    inlined_bytes: float = 0.0
    inlined_s: float = 0.0  #: how long that takes [s].
    p2p_share: float = 1.0  #: share of the bandwidth of collectives that grouped point-to-point messages reach.
    step_p2p_share: float = 1.0  #: the same in a training step.
    hop_factor: float = 1.25  #: measured cost of a network hop of a tree with LL over tuning.cc's.
    tree_of_two: bool = False  #: trees run on two nodes whatever the size: the tuner of the plugin takes them.
    step_s: float = 0.0  #: what every step of a ring takes while the CPU posts its messages, of large blocks [s].
    step_half_bytes: float = 0.0  #: block of which a step takes half of that.
    #: whether each message goes over all cards of a GPU, and is posted on each of them (aws-ofi-nccl, RDMA protocol);
    #: `step_s` is then of one card.
    striped: bool = False
    #: what every doubling of a ring's blocks between `EAGER_BYTES` and `CHUNK_BYTES` adds per node [s]; such rings also
    #: handshake for the whole tensor when they gather or scatter.
    block_s: float = 0.0
    #: whether NCCL takes LL128 across nodes, for which cards must write into GPU memory in order (tuning.cc).
    ll128: bool = True

    def message_share(self, *, alone: bool) -> float:
        """Share of the bandwidth of collectives that grouped messages reach, alone or in a training step."""
        return self.p2p_share if alone else self.step_p2p_share


VERBS = Transport(stored_s=24e-6)
"""Queue pairs of InfiniBand or RoCE driven by NCCL. fit: AllReduce of 1 - 128 MiB over 2 to 1024 nodes of H100;
AllToAll of 8 MiB on 64 H800 takes 0.30 - 0.34 ms (NCCL issue 1531), of which the wire is 0.15."""

TRANSPORTS = {
    # fit: nccl-tests on 4 to 512 nodes of Alps, AllToAll and AllGather on 2 to 540 nodes of Polaris. Inlined:
    # C_MAX_IDC_PAYLOAD_UNR of the card, cxip_send_eager_idc of libfabric.
    "slingshot": Transport(rendezvous_s=5.0e-6, stored_s=300e-6, stored_half_bytes=45e6, message_s=10e-6,
                           inlined_bytes=192, inlined_s=12e-6, p2p_share=0.6, step_p2p_share=0.6, block_s=8e-6),
    # fit: the same plugin; TP on 2 and 4 p5 nodes in the nanotron sweep, AllGather on two nodes of p6-b300, AllToAll
    # and AllReduce on 2 to 32 p5 nodes (github.com/crazyguitar/aws-gpu-communication-benchmark). In training steps
    # docs/model.md#constants-fitted-to-whole-training-runs.
    "efa": Transport(rendezvous_s=5.0e-6, hop_factor=1.8, tree_of_two=True, posted_s=4.5e-6, stored_s=60e-6,
                     stored_half_bytes=10e6, step_p2p_share=0.4, step_s=7.5e-6, step_half_bytes=256e3, striped=True),
    # fit: TCPXO, AllReduce of 32 MiB to 1 GiB on two nodes takes 29 us for each of 30 steps.
    # guesstimate: a message takes the CPU what it takes over Slingshot, here and over TCP, in training steps over EFA.
    "ethernet": Transport(stored_s=24e-6, hop_factor=1.5, message_s=10e-6, step_p2p_share=0.4, step_s=29e-6,
                          step_half_bytes=16e3, ll128=False),
}  # fmt: skip
"""Networks that NCCL reaches through plugins, by the fabric of the level (docs/collectives.md)."""

SOCKETS = Transport(stored_s=24e-6, hop_factor=1.5, message_s=10e-6, step_s=60e-6, step_half_bytes=16e3, ll128=False)
"""TCP through the kernel (TCPX too). fit: AllGather of 1 to 16 MiB on two nodes takes 60 us for each of 15 steps."""


def transport_of(fabric: str, path: str = "") -> Transport:
    """Return what the network of a level adds, by its fabric and the way of NCCL over it."""
    return SOCKETS if path == "sockets" or fabric == "eni" else TRANSPORTS.get(fabric, VERBS)


TREE_STEPS_PER_LEVEL = 8.0
"""fit: pipeline steps that one level of a tree of nodes stands for."""


def generation_of(architecture: str) -> Generation:
    """Return the row for a GPU architecture such as `Hopper` or `Blackwell Ultra`; Ampere's for unknown ones."""
    lowered = architecture.lower()
    if lowered in GENERATIONS:
        return GENERATIONS[lowered]
    return next((row for name, row in GENERATIONS.items() if name in lowered), FALLBACK)


NEWEST, OLDEST = (2, 30), (2, 12)
"""NCCL whose tables the model has, and the oldest that it stands for."""

NVLS_SINCE, NVLS_TREE_SINCE, PAT_SINCE = (2, 17), (2, 18), (2, 23)
"""NCCL user guide, environment variables, NCCL_ALGO: the version that brought each algorithm; guesstimate: AllGather
and ReduceScatter through NVLS came with NVLS itself."""

NVLS_MODEL_SINCE = (2, 28)
"""tuning.cc: from here on NVLS is planned as search.cc's graphs have it, before with 5/6 of them."""

NET_CHANNELS_SINCE = (2, 29)
"""paths.cc: from here on a peer across the network gets as many channels as its card needs, before two at most."""

MOST_CHANNELS = 64
"""NCCL's MAXCHANNELS."""

LAUNCHES = ("processes", "one-process", "graph")
"""One process per GPU; one process that launches on all GPUs of its node in turn; replayed from a graph."""


@dataclass(frozen=True)
class Tuning:
    """How NCCL runs a collective."""

    #: CTAs of every collective, as NCCL_MIN_NCHANNELS = NCCL_MAX_NCHANNELS set it; None for NCCL's own.
    channels: int | None = None
    nccl: tuple[int, int] = NEWEST  #: version.
    launch: str = "processes"  #: one of `LAUNCHES`.
    imbalance: float = 1.0  #: bytes of the busiest GPU of an AllToAll over the mean.

    def __post_init__(self) -> None:
        """Refuse what no NCCL does.

        Raises:
            InputError: a number of channels, a kind of launch or an imbalance that there is not.
        """
        if self.channels is not None and not 1 <= self.channels <= MOST_CHANNELS:
            message = f"{self.channels} channels is out of range"
            raise InputError(message, field="channels", hint=f"give 1 to {MOST_CHANNELS}")
        if self.launch not in LAUNCHES:
            hint = did_you_mean(self.launch, LAUNCHES, "there are")
            raise InputError(f"unknown launch {self.launch[:40]!r}", field="launch", hint=hint)
        if not 1.0 <= self.imbalance < math.inf:
            hint = "it is the busiest GPU's bytes over the mean: 1 where all are even"
            raise InputError(f"{self.imbalance:g} is out of range", field="imbalance", hint=hint)


AUTOMATIC = Tuning()
"""What the newest NCCL does of its own accord."""


def parse_version(text: str) -> tuple[int, int]:
    """Return the version that `2.20` or `2.20.5` names; one newer than `NEWEST` counts as that.

    Raises:
        InputError: no version, or one before `OLDEST`.
    """
    found = re.fullmatch(r"(\d)\.(\d{1,2})(\.\d{1,2}){0,2}", text.strip()[:20])
    if not found:
        raise InputError(f"{text[:40]!r} is not a version of NCCL", field="nccl", hint="write 2.20 or 2.20.5")
    version = int(found[1]), int(found[2])
    if version < OLDEST:
        hint = f"give {version_text(OLDEST)} to {version_text(NEWEST)}"
        raise InputError(f"NCCL {text[:20]} is older than what the model stands for", field="nccl", hint=hint)
    return min(version, NEWEST)


def version_text(version: tuple[int, int]) -> str:
    """Write a version: `2.20`."""
    return f"{version[0]}.{version[1]}"
