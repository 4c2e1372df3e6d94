"""Trees of what adds up: the time of a step by phases, passes, layers, blocks, operators and collectives; the memory of
a stage; or the difference between two of them.

Every node is the sum of its children, exactly: `math.fsum` of their values gives its value to the last bit.

Operators are counted by the functions that time them. On a GPU that takes one second per FLOP and no time for anything
else, an operator takes as many seconds as it has FLOPs; on one that takes a second per byte of memory traffic, as many
as it moves bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuscale.arrays import FloatArray, only
from gpuscale.collectives.groups import place
from gpuscale.explain.traffic import FILLING, inventory, level_side, stage_plan, wire_bytes
from gpuscale.launch.subject import Subject
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, Candidates
from gpuscale.layouts.ranks import strides
from gpuscale.layouts.stages import FIRST, LAST, MIDDLE, at_place, share_of_end
from gpuscale.memory.activations import (
    block_activation_bytes,
    hidden_bytes,
    layer_activation_bytes,
    microbatches_in_flight,
)
from gpuscale.memory.model import COMPONENTS as MEMORY
from gpuscale.memory.model import weight_stage
from gpuscale.memory.states import dense_held, expert_held, held_whole, teacher_bytes
from gpuscale.search.evaluation import placed
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import LayerSpec, ModelSpec
from gpuscale.steptime.blocks import ARITHMETIC_FRACTION
from gpuscale.steptime.components import COMMUNICATION, COMPONENTS, Breakdown, Segment, scaled, sent_s
from gpuscale.steptime.data_parallel import optimizer_issue_s, optimizer_time_s, state_transfers
from gpuscale.steptime.layer import (
    NOT_RECOMPUTE,
    LayerTime,
    embedding,
    layer_segments,
    lm_head,
    stops_before,
    teacher_forward,
)
from gpuscale.steptime.step import exposed_hops_s, hop_times, recomputed_share
from gpuscale.steptime.tensor_parallel import tensor_parallel_time

ROUNDING = 1e-9
"""By how much sums of the same numbers in another order may differ, relative to the sum."""


@dataclass(frozen=True)
class Node:
    """One part of a total."""

    name: str  #: what it is
    value: float  #: seconds or bytes, as its tree says; the sum of its children's
    share: float = 0.0  #: of the root's value; 0 where that is 0
    children: tuple[Node, ...] = ()  #: its parts; none of a leaf
    #: how often it happens in a step; of memory how many layers, or microbatches in flight, take it; absent where that
    #: says nothing
    count: float | None = None
    flops: float | None = None  #: arithmetic in a step and on one GPU [FLOPs]
    bytes: float | None = None  #: memory traffic in a step; of a collective what one GPU sends [bytes]
    rate: float | None = None  #: what it achieves [FLOP/s or bytes/s, by `bound`]
    limit: float | None = None  #: what the hardware would allow, by its datasheet [in the same unit]
    #: what of the hardware binds it: `compute`, `memory`, `network`, `host`, `launch` or `waiting`; of a branch what
    #: binds most of its time
    bound: str | None = None
    component: str | None = None  #: component of the step time or of memory that it counts as
    level: str | None = None  #: level of the cluster that its transfers cross
    hidden_s: float | None = None  #: what of it runs beside something else and is not in `value` [s]
    #: where its number comes from: `datasheet`, `kernel fit`, `collective model`, `guesstimate`, ...
    source: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, without those that say nothing."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        said["children"] = [child.to_dict() for child in self.children]
        return {name: value for name, value in said.items() if value is not None}

    def each(self, change: Callable[[Node], Node]) -> Node:
        """Return the tree with every node changed, parents last."""
        return change(replace(self, children=tuple(child.each(change) for child in self.children)))

    def times(self, factor: float, names: Sequence[str] = ("value", "hidden_s")) -> Node:
        """Return the tree with some numbers of every node multiplied."""

        def multiplied(one: Node) -> Node:
            known = {name: getattr(one, name) for name in names if getattr(one, name) is not None}
            return replace(one, **{name: value * factor for name, value in known.items()})

        return self.each(multiplied)

    def leaves(self) -> Iterator[Node]:
        """Yield the nodes at the ends of this tree."""
        return (node for node in self.walk() if not node.children)

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def branch(name: str, children: Sequence[Node], **said: Any) -> Node:
    """Return a node of the parts that take something."""
    kept = tuple(child for child in children if child.value)
    return Node(name, math.fsum(child.value for child in kept), children=kept, **said)


def settled(root: Node, total: float | None = None) -> Node:
    """Return a tree of parts that are not negative, with shares, whose values add up exactly to `total`, by default the
    root's.

    Sums of floats that are formed in another order differ in their last digits: the largest children take that up.

    Raises:
        ValueError: the parts add up to something else.
    """
    value = root.value if total is None else total
    if abs(value - root.value) > ROUNDING * value:
        raise ValueError(f"the parts of {root.name} add up to {root.value}, not {value}")
    return _settled(root, value, value)


def _settled(node: Node, value: float, whole: float) -> Node:
    values = [child.value for child in node.children]
    if values:
        largest, *others = sorted(range(len(values)), key=lambda index: -values[index])
        values[largest] += value - math.fsum(values)
        finer = others[0] if others and values[others[0]] else largest  # steps of the largest may be too wide to hit it
        while (off := value - math.fsum(values)) != 0:
            values[finer] = math.nextafter(values[finer], math.copysign(math.inf, off))
    pairs = zip(node.children, values, strict=True)
    children = tuple(_settled(child, own, whole) for child, own in pairs)
    return replace(node, value=value, share=value / whole if whole else 0.0, children=children)


def difference(a: Node, b: Node) -> Node:
    """Return the tree of `b` less `a`, with shares of `a`; parts are paired by name, and what only one divides is a
    leaf."""
    return _difference(a, b, a.value)


def _difference(a: Node, b: Node, whole: float) -> Node:
    mine, others = ({child.name: child for child in one.children} for one in (a, b))
    parts: list[Node] = []
    if all(one.children or not one.value for one in (a, b)):
        for name in dict.fromkeys((*mine, *others)):
            one, other = (found.get(name, Node(name, 0.0)) for found in (mine, others))
            parts.append(_difference(one, other, whole))
    value = math.fsum(part.value for part in parts) if parts else b.value - a.value
    return Node(b.name, value, value / whole if whole else 0.0, tuple(parts))


PHASE_OF_PASS = {"forward": "forward", "backward": "backward", "recomputation": "backward"}
"""Pass of the tree -> phase of the inventory, for what is sent in every layer."""

Key = tuple[str, str]
"""Component, and phase where it is part of a pass."""


def _with_transfers(root: Node, subject: Subject) -> Node:
    """Return a step's tree with what one GPU sends: bytes that cross the side of the cluster (NVLink or network) of the
    outermost level, known by component and pass and spread over its collectives by time."""
    outermost = {key: leaf.level for key, leaf in _sending(root) if leaf.level}
    levels = {level.name: level for level in subject.spec.cluster.levels}
    sent = _sent_bytes(subject, {name: level_side(level.fabric) for name, level in levels.items()}, outermost)
    seconds: dict[Key, list[float]] = {}
    for key, leaf in _sending(root):
        seconds.setdefault(key, []).append(_whole_s(leaf))

    def filled(node: Node, way: str) -> Node:
        way = PHASE_OF_PASS.get(node.name, way)
        if node.children:
            return replace(node, children=tuple(filled(child, way) for child in node.children))
        key, whole_s = _key(node, way), _whole_s(node)
        if node.level is None or not sent.get(key) or not whole_s:
            return node
        share = whole_s / math.fsum(seconds[key])
        return replace(node, bytes=sent[key] * share, limit=levels[node.level].egress_bytes_per_s)

    return filled(root, "")


def _sending(node: Node, way: str = "") -> Iterator[tuple[Key, Node]]:
    way = PHASE_OF_PASS.get(node.name, way)
    if not node.children and node.component in COMMUNICATION:
        yield _key(node, way), node
    for child in node.children:
        yield from _sending(child, way)


def _key(node: Node, way: str) -> Key:
    return node.name if node.component == "dp_comm" else node.component or "", way


def _whole_s(node: Node) -> float:
    return node.value + (node.hidden_s or 0.0)


def _sent_bytes(subject: Subject, sides: dict[str, str], outermost: dict[Key, str]) -> dict[Key, float]:
    plan, found = stage_plan(subject.rows, subject.spec, subject.evaluation), dict[Key, float]()
    for call in inventory(plan):
        of_states = "tied embedding" if call.axis == "embedding" else "gradients and parameters"
        name = of_states if call.component == "dp_comm" else call.component
        key = (name, "" if call.component in {"dp_comm", "pp_comm"} else call.phase)
        if key not in outermost or call.purpose == FILLING:
            continue
        each = wire_bytes(subject.spec.cluster, call, plan.vpp if call.component == "pp_comm" else 1)
        wanted = sides[outermost[key]]
        crossing = (size for size, side in zip(each, sides.values(), strict=True) if side == wanted)
        found[key] = found.get(key, 0.0) + call.calls * math.fsum(crossing)
    return found


FINE_TILE = 2.0**-10
"""Edge of an output tile that any product fills, also of a mean number of tokens."""


def _counting_flops(job: JobSpec) -> JobSpec:
    """Return the job on a GPU that takes a second per FLOP, whatever the precision and whose kernels run."""
    gpu = _lossless(job.cluster.gpu)
    gpu = replace(
        gpu,
        vendor="",
        architecture="",
        peak_flops_per_s=dict.fromkeys(("fp32", "bf16"), 1.0),
        memory_bandwidth_bytes_per_s=math.inf,
        kernels=replace(gpu.kernels, tile_m=FINE_TILE, tile_n=FINE_TILE),  # type: ignore[arg-type]
    )
    runtime = replace(job.runtime, attention="unfused" if job.attention == "unfused" else "native")
    return replace(job, cluster=replace(job.cluster, gpu=gpu), precision="bf16", runtime=runtime)


def _counting_bytes(job: JobSpec) -> JobSpec:
    """Return the job on a GPU that takes one second per byte of memory traffic."""
    peaks = dict.fromkeys(job.cluster.gpu.peak_flops_per_s, math.inf)
    gpu = replace(_lossless(job.cluster.gpu), peak_flops_per_s=peaks, memory_bandwidth_bytes_per_s=1.0)
    return replace(job, cluster=replace(job.cluster, gpu=gpu))


def _lossless(gpu: GpuSpec) -> GpuSpec:
    """Return the GPU with kernels that reach its peaks and take no time beside."""
    kernels = replace(
        gpu.kernels,
        gemm_fraction=dict.fromkeys((*gpu.peak_flops_per_s, "bf16"), 1.0),
        sustained_clock_fraction=1.0,
        sustained_16bit_fraction=None,
        tile_overhead_s=0.0,
        wave_loss_fraction=0.0,
        kernel_overhead_s=0.0,
        hbm_fraction=1.0,
        stream_fraction=None,
        attention_forward_fraction=1.0,
        attention_backward_fraction=1.0,
        attention_ramp_keys=0.0,
        attention_tail_tiles=0.0,
        exp_per_cycle_per_sm=math.inf,
    )
    return replace(gpu, kernels=kernels)


class Microbatch(NamedTuple):
    """One microbatch of one candidate: a layer of each kind, and both ends of the model."""

    layers: tuple[list[Segment], ...]  #: by kind, the segments of one layer.
    #: place -> forward and backward pass of the embedding and of the LM head.
    ends: dict[int, tuple[Breakdown, Breakdown]]
    teacher: Breakdown


def microbatch(c: Candidates, job: JobSpec) -> Microbatch:
    """Time the parts of a microbatch: in seconds, FLOPs or bytes, by the job's GPU."""
    tp = tensor_parallel_time(c, job)
    layers = layer_segments(c, job, c, np.arange(len(c)), tp)
    return Microbatch(layers, {FIRST: embedding(c, job, tp), LAST: lm_head(c, job, tp)}, teacher_forward(c, job))


BESIDE = {
    "norms": "norms and residuals",
    "attention projections": "rotary embedding",
    "attention core": "softmax and copies",
    "indexer": "choice of keys",
    "recurrence": "convolution and recurrence",
    "feed-forward": "activation",
    "shared experts": "activation",
    "experts": "permutation",
    "expert activation": "activation",
}
"""Block of a layer -> what its element-wise work is, beside casts and biases."""

ENDS = {FIRST: "embedding", LAST: "LM head and loss"}

TEACHER = -1
"""Stands for a teacher where an end of the model may stand."""

GRADIENTS = {"dgrad": "input gradient", "wgrad": "weight gradient"}

HARDWARE = {"hbm": "memory", "communication": "network", "recompute": "compute"}
"""Kind of work that a component counts as (`COMPONENTS`) -> what binds it, where that has another name."""

BOUNDS = ("compute", "memory", "network", "host", "launch", "waiting", "bubble")
"""Values of `Node.bound` in a step."""

OVERHEAD = 4
"""A kernel that takes this many times its arithmetic or traffic is bound by its start."""

SOURCES = {"launch": "framework fit", "bubble": "schedule formula", "offload": "host model", "waiting": "guesstimate"}


class Clocked(NamedTuple):
    """One thing evaluated on three clocks: its seconds, FLOPs and bytes of memory traffic."""

    seconds: Any
    flops: Any
    bytes: Any


class Scope(NamedTuple):
    """The job, and what its operators are held against."""

    job: JobSpec
    levels: Mapping[str, str]  #: component -> level of the cluster that its groups reach over.

    def leaf(
        self, name: str, component: str, value: Any, flops: Any = 0, moved: Any = 0, *, wide: bool = False
    ) -> Node:
        """Return one operator: what binds it and what its datasheet allows; a `wide` one runs in 16 bits."""
        seconds, work, traffic = only(value), only(flops), only(moved)
        gpu, limit = self.job.cluster.gpu, None
        kind = COMPONENTS[component].limit
        bound = HARDWARE.get(kind, kind)
        if work or traffic:
            peak = gpu.peak(self.job.attention_precision if wide else self.job.precision)
            compute_s, memory_s = work / peak, traffic / gpu.memory_bandwidth_bytes_per_s
            bound, limit = ("memory", gpu.memory_bandwidth_bytes_per_s) if memory_s > compute_s else ("compute", peak)
            bound = "launch" if OVERHEAD * max(compute_s, memory_s) < seconds else bound
        return Node(
            name,
            seconds,
            count=1.0,
            flops=work or None,
            bytes=traffic or None,
            limit=limit,
            bound=bound,
            component=component,
            level=self.levels.get(component),
            source=self.source(component),
        )

    def source(self, component: str) -> str:
        """Return where the time of a component comes from."""
        cluster = self.job.cluster
        if component in COMMUNICATION:
            return "collective model, measured" if cluster.calibration else "collective model"
        if component in SOURCES:
            return SOURCES[component]
        constants = {"gemm": "gemm_fraction", "attention": "attention_forward_fraction"}
        text = cluster.gpu.sources.get(f"kernels.{constants.get(component, 'hbm_fraction')}", "")
        return "guesstimate" if text.startswith("guesstimate") else "kernel fit" if "fit" in text else "published"


def step_tree(subject: Subject) -> Node:
    """Return the time of a step on the slowest stage [s]: exactly the search's, by component too."""
    step = subject.evaluation.step
    scope = Scope(subject.spec, _axis_levels(subject))
    factor = 1.0 if step.factor is None else only(step.factor)
    phases = [_microbatches(subject, scope), *_beside(subject, scope)]
    root = branch("step", [phase.times(factor) for phase in phases], count=1.0)
    return rated(_with_transfers(settled(root, only(step.step_time_s)), subject), scope.job)


def rated(node: Node, job: JobSpec) -> Node:
    """Return a tree with what its nodes achieve and what binds most of each branch, held against the peaks of its
    FLOPs' precisions."""
    children = tuple(rated(child, job) for child in node.children)
    if not children:
        work = node.flops if node.bound == "compute" else node.bytes
        whole_s = node.value + (node.hidden_s or 0.0)
        rate = work / whole_s if node.limit and work and whole_s and node.bound != "launch" else None
        return replace(node, rate=rate, limit=node.limit if rate else None)
    peak, seconds = job.cluster.gpu.peak(job.precision), dict.fromkeys(BOUNDS, 0.0)
    for leaf in node.leaves():
        seconds[leaf.bound or "waiting"] += leaf.value
    flops, hidden_s = _sum(children, "flops"), _sum(children, "hidden_s")
    moved = _sum([one for one in children if one.level is None], "bytes")
    rate = limit = None
    if flops:
        peaks = [one.limit if one.limit and (one.children or one.bound == "compute") else peak for one in children]
        least_s = math.fsum((one.flops or 0.0) / own for one, own in zip(children, peaks, strict=True))
        rate, limit = flops / node.value, flops / least_s
    bound, more = max(seconds, key=lambda name: seconds[name]), {"flops": flops, "bytes": moved, "hidden_s": hidden_s}
    return replace(node, children=children, rate=rate, limit=limit, bound=bound, **more)  # type: ignore[arg-type]


def _sum(nodes: Sequence[Node], name: str) -> float | None:
    return math.fsum(getattr(node, name) or 0.0 for node in nodes) or None


def _axis_levels(subject: Subject) -> dict[str, str]:
    """Return the outermost level that a group of each communication component crosses."""
    c, apart = subject.rows, strides(subject.rows, subject.spec)
    groups = {
        "tp": (c.tp, apart.tp),
        "cp": (c.cp, apart.cp),
        "ep": (np.maximum(c.ep, c.etp), np.where(c.ep > 1, apart.ep, apart.etp)),
        "pp": (np.minimum(c.pp, 2), apart.pp),
        "dp": (c.dp * c.cp, apart.dp_cp),
    }
    levels, found = subject.spec.cluster.levels, {}
    for axis, (size, stride) in groups.items():
        crossed = np.flatnonzero(place(subject.spec.cluster, size, stride).crossed[:, 0])
        if crossed.size:
            found[f"{axis}_comm"] = levels[int(crossed[-1])].name
    return found


REPEATED = ("value", "count", "flops", "bytes", "hidden_s")
"""Numbers of a node that grow with how often it happens."""


# -- the microbatches --


def _microbatches(subject: Subject, scope: Scope) -> Node:
    step, c, job = subject.evaluation.step, subject.rows, subject.spec
    counts = [only(at_place(count, step.bottleneck)) for count in step.counts]
    share = only(recomputed_share(c, [np.array([count]) for count in counts]))
    clocks = [microbatch(c, one) for one in (job, _counting_flops(job), _counting_bytes(job))]
    passes: dict[str, list[Node]] = {"forward": [], "backward": [], "recomputation": []}
    names = _layer_names(job.model)
    for kind, (name, count, time) in enumerate(zip(names, counts, step.passes.layers, strict=True)):
        segments = [Clocked(*parts) for parts in zip(*(clock.layers[kind] for clock in clocks), strict=True)]
        once = time._replace(forward=scaled(time.forward, 1 / (1 + job.method.forwards)))
        layer = _Layer(scope, segments, once, int(c.recompute_modules[0]), share)
        for way, nodes in layer.passes().items():
            passes[way].append(branch(name, nodes, count=1.0).times(count, REPEATED))
    for end, name in ENDS.items():
        mine = only(share_of_end(c, end, step.bottleneck))
        for index, way in enumerate(("forward", "backward")):
            parts = Clocked(*(clock.ends[end][index] for clock in clocks))
            passes[way].append(branch(name, _end(scope, end, parts, way), count=1.0).times(mine, REPEATED))
    if job.teacher is not None:
        parts = Clocked(*(clock.teacher for clock in clocks))
        passes["forward"].append(branch("teacher", _end(scope, TEACHER, parts, "forward"), count=1.0))
    ways = [branch(way, nodes, count=1.0) for way, nodes in passes.items()]
    ways[0] = ways[0].times(float(1 + job.method.forwards), REPEATED)
    return branch("microbatches", ways, count=1.0).times(float(c.num_microbatches[0]), REPEATED)


def _layer_names(model: ModelSpec) -> list[str]:
    kinds = model.trained_kinds
    if len(kinds) == 1:
        return ["layers"]
    words = [_described(kind) for kind in kinds]
    telling = [index for index in range(len(words[0])) if len({one[index] for one in words}) > 1]
    names = [" ".join(filter(None, (one[index] for index in telling))) or "other" for one in words]
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(f"{name} layers" if seen[name] == 1 else f"{name} layers, kind {seen[name]}")
    return out


def _described(kind: LayerSpec) -> tuple[str, str, str]:
    mixer = kind.state_space.kind if kind.state_space else ""
    if kind.attention is not None:
        reach, keys = kind.attention.reach, kind.attention.compression
        seen = f"window {reach:,}" if reach else "sparse" if kind.attention.indexer else "full attention"
        seen += f", keys of {keys}" if keys else ""
        mixer = f"{seen} and {mixer}" if mixer else seen
    block = "MoE" if kind.moe else "dense" if kind.mlp else ""
    return mixer, block, "prediction" if kind.joins_embedding else ""


class _Layer(NamedTuple):
    scope: Scope
    segments: list[Clocked]  #: its blocks on three clocks.
    time: LayerTime  #: of the whole layer, with what hides and what the CPU adds.
    modules: int  #: bits of the modules that are recomputed.
    share: float  #: of these layers that is recomputed in full.

    def passes(self) -> dict[str, list[Node]]:
        chosen = [one for one in self.segments if one.seconds.modules & self.modules]
        forward = [self._block(one, "forward", self._exposed("forward")) for one in self.segments]
        backward = [self._block(one, "backward", self._exposed("backward")) for one in self.segments]
        modules = [self._again(one, self._exposed("backward")) for one in chosen]
        launched = _named("launch", self.segments, "forward")
        back_launched = _named("launch", self.segments, "backward") + _named("launch", chosen, "forward")
        out = {
            "forward": [*forward, self._launches(self.time.forward, launched)],
            "backward": [*backward, self._launches(self.time.backward, back_launched)],
            "recomputation": [branch("modules", modules, count=1.0)],
        }
        if self.share:
            last = stops_before([one.seconds for one in self.segments], self.scope.job)
            again = [self._again(one, stops=one.seconds is last) for one in self.segments]
            again.append(self._launches(self.time.recompute, launched))
            out["recomputation"].append(branch("whole layers", again, count=1.0).times(self.share, REPEATED))
        return out

    def _exposed(self, way: str) -> float:
        """Return the share of the expert exchange that another microbatch does not hide."""
        chosen = [one for one in self.segments if one.seconds.modules & self.modules] if way == "backward" else []
        sent_s = _named("ep_comm", self.segments, way) + _named("ep_comm", chosen, "forward")
        return only(getattr(self.time, way)["ep_comm"]) / sent_s if sent_s else 1.0

    def _launches(self, time: Breakdown, known_s: float) -> Node:
        return self.scope.leaf("launches", "launch", max(only(time.get("launch", 0.0)) - known_s, 0.0))

    def _block(self, one: Clocked, way: str, exposed: float) -> Node:
        return branch(one.seconds.name, list(_operators(self.scope, one, way, exposed)), count=1.0)

    def _again(self, one: Clocked, exposed: float = 1.0, *, stops: bool = False) -> Node:
        """Return the forward pass of a block that is done again: its arithmetic counts as recomputation."""
        if stops:
            one = Clocked(*(_without_tail(segment) for segment in one))

        def counted(node: Node) -> Node:
            kept = node.component is None or node.component in NOT_RECOMPUTE
            return node if kept else replace(node, component="recompute")

        return self._block(one, "forward", exposed).each(counted)


def _without_tail(segment: Segment) -> Segment:
    """Return a segment without what no gradient needs: the last product and what follows it."""
    tail = segment.tail or {}
    left = {name: value - tail.get(name, 0.0) for name, value in segment.forward.items()}
    return segment._replace(forward=left, products=segment.products[:-1])


def _named(component: str, segments: Sequence[Clocked], way: str) -> float:
    return math.fsum(only(getattr(one.seconds, way).get(component, 0.0)) for one in segments)


def _operators(scope: Scope, one: Clocked, way: str, exposed: float) -> Iterator[Node]:
    name, parts = one.seconds.name, Clocked(*(getattr(segment, way) for segment in one))
    casts = 0.0, 0.0
    for products in zip(*(segment.products for segment in one), strict=True):
        times = [time for _, time in products]
        casts = tuple(  # type: ignore[assignment]
            so_far + only(getattr(times[clock], f"stream_{way}")) for so_far, clock in zip(casts, (0, 2), strict=True)
        )
        yield _linear(scope, products[0][0], times, way, wide=products[0][0] == "router")
    low = scope.job.precision in {"fp8", "fp4"}
    yield scope.leaf("casts" if low else "biases", "elementwise", casts[0], 0.0, casts[1])
    if "attention" in parts.seconds:
        work = (part["attention"] for part in parts)
        yield scope.leaf("attention", "attention", *work, wide=True)
    if "elementwise" in parts.seconds:
        flops = only(parts.flops["elementwise"]) * (ARITHMETIC_FRACTION if name == "recurrence" else 1.0)
        rest = (_rest(only(part["elementwise"]), cast) for part, cast in zip(parts[::2], casts, strict=True))
        seconds, moved = rest
        yield scope.leaf(BESIDE.get(name, "element-wise"), "elementwise", seconds, flops, moved)
    yield from _collectives(scope, one.seconds, way, exposed)
    if "launch" in parts.seconds:
        yield scope.leaf("waiting for token counts", "launch", parts.seconds["launch"])


def _rest(whole: float, part: float) -> float:
    """Return what a part leaves, 0 where that is rounding."""
    return whole - part if whole - part > 1e-12 * whole else 0.0


def _linear(scope: Scope, name: str, times: Sequence[Any], way: str, *, wide: bool) -> Node:
    """Return the product of a linear operator; in the backward pass both of them."""

    def product(title: str, field: str) -> Node:
        seconds, flops, moved = (getattr(one, field) for one in times)
        return scope.leaf(title, "gemm", seconds, flops / times[1].slow, moved / times[2].slow, wide=wide)

    if way == "forward":
        return product(name, "forward")
    return branch(name, [product(title, field) for field, title in GRADIENTS.items()], count=1.0)


def _collectives(scope: Scope, segment: Segment, way: str, exposed: float) -> Iterator[Node]:
    breakdown: Breakdown = getattr(segment, way)
    for component in COMMUNICATION:
        if component not in breakdown:
            continue
        shown_s, whole_s = only(breakdown[component]), only(sent_s(segment.sent, way))
        if component == "ep_comm":
            whole_s, shown_s = shown_s, shown_s * exposed
        hidden = whole_s - shown_s
        node = scope.leaf(COMPONENTS[component].text, component, shown_s)
        yield replace(node, hidden_s=hidden if hidden > 1e-12 * whole_s else None)


def _end(scope: Scope, end: int, parts: Clocked, way: str) -> list[Node]:
    gemm, elementwise = "logits" if way == "forward" else "gradients", "look-up" if end == FIRST else "loss"
    names = {"gemm": gemm, "elementwise": elementwise}
    if end == TEACHER:
        names = {name: COMPONENTS[name].text for name in ("gemm", "attention", "elementwise", "launch")}
    nodes = []
    for component, seconds in parts.seconds.items():
        work = (part[component] if component in names else 0.0 for part in parts[1:])
        name = names.get(component) or ("microbatch start" if component == "launch" else COMPONENTS[component].text)
        nodes.append(scope.leaf(name, component, seconds, *work, wide=True))
    return nodes


# -- what comes to the microbatches --


def _beside(subject: Subject, scope: Scope) -> list[Node]:
    step, c, job = subject.evaluation.step, subject.rows, subject.spec
    beside = {name: only(value) for name, value in step.beside.items()}
    *_, parameters = placed(c, job)
    transfers = state_transfers(c, job, parameters)
    tied_s, norm_s = only(transfers.tied_s), only(transfers.norm_s)
    shown_s = _rest(beside["dp_comm"], tied_s)
    hidden_s = _rest(only(step.dp_total_s) - tied_s, shown_s)
    states = replace(scope.leaf("gradients and parameters", "dp_comm", shown_s), hidden_s=max(hidden_s, 0.0) or None)
    tied = replace(scope.leaf("tied embedding", "dp_comm", tied_s), level=scope.levels.get("pp_comm"))
    updates, issue_s = [], only(optimizer_issue_s(c, job))
    if beside["optimizer"]:
        moved = optimizer_time_s(c, _counting_bytes(job), parameters)
        norm = scope.leaf("gradient norm", "optimizer", norm_s)
        norm = replace(norm, bound="network", source=scope.source("dp_comm"))
        updates = [norm, scope.leaf("update", "optimizer", _rest(beside["optimizer"], norm_s), 0.0, moved)]
    hop_s, _ = hop_times(c, job)  # where chunks interleave, most transfers run beside their computation
    alone_s = only(exposed_hops_s(c, hop_s, hop_s, hop_s)) if int(c.pp[0]) > 1 else 0.0
    hops = scope.leaf("transfers between stages", "pp_comm", beside["pp_comm"])
    return [
        scope.leaf("filling and draining the pipeline", "bubble", beside["bubble"]),
        replace(hops, hidden_s=_rest(alone_s, beside["pp_comm"]) or None),
        branch("gradient synchronisation", [states, tied], count=1.0),
        scope.leaf("summing gradients", "elementwise", beside["elementwise"]),
        branch("optimizer step", updates, count=1.0),
        scope.leaf("offload", "offload", beside["offload"]),
        scope.leaf("loops over parameter tensors", "launch", issue_s),
        scope.leaf("allocator retries", "launch", _rest(beside["launch"], issue_s)),
        scope.leaf("waiting for the slowest GPU", "waiting", beside["waiting"]),
    ]


STATES = {"weights": 3, "gradients": 2, "master_weights": 1, "optimizer_state": 1}
"""Component -> ZeRO stage from which on it is sharded."""

TOWER = "towers for images and sounds"

SOURCES_OF_BYTES = {
    "nccl_buffers": "framework profile",
    "framework_reserve": "framework profile",
    "fragmentation": "fit",
}
"""Where the bytes of a component come from, if not from counting tensors."""


def memory_trees(subject: Subject) -> tuple[Node, ...]:
    """Return the memory of the first, the heaviest middle and the last stage, one GPU each [bytes]: exactly the
    search's."""
    by_stage = subject.evaluation.memory.by_stage[:, 0]
    middle = MIDDLE + int(by_stage[MIDDLE:].argmax())
    position = subject.evaluation.stages.position[subject.evaluation.stage_row[0]]
    places = {int(position[place]): place for place in (middle, LAST, FIRST)}  # of few stages the middle is a filler
    return tuple(_stage(subject, place, index, float(by_stage[place])) for index, place in sorted(places.items()))


def _stage(subject: Subject, place: int, index: int, total: float) -> Node:
    c, done = subject.rows, subject.evaluation
    memory = done.memory
    held = {name: float(np.broadcast_to(getattr(memory, name), memory.by_stage.shape)[place, 0]) for name in MEMORY}
    parts = []
    for name, size in held.items():
        made_of, in_flight = list[Node](), None
        if name in STATES:
            kept_whole = name == "gradients" and bool(np.any(held_whole(c, subject.spec)))
            made_of = _parameters(subject, place, sharded=int(c.zero[0]) >= STATES[name] and not kept_whole)
        elif name == "activations":
            made_of = _activations(subject, place)
            in_flight = float(microbatches_in_flight(c, done.stages.positions(done.stage_row))[place, 0])
        whole = branch(name, made_of)
        frozen = _frozen(subject, place) if name == "weights" else 0.0
        rest = size - frozen
        node = whole.times(rest / whole.value, ("value",)) if rest and whole.value else Node(name, size)
        if frozen:
            node = replace(node, children=(*node.children, Node(_frozen_name(subject.spec), frozen)))
        node = replace(node, name=name.replace("_", " "), value=size, count=in_flight)
        parts.append(node.each(partial(replace, component=name, source=SOURCES_OF_BYTES.get(name, "counted"))))
    return settled(branch(f"stage {index}", parts), total)


def _frozen_name(job: JobSpec) -> str:
    towers = [f"{TOWER}, frozen"] if job.frozen_tower else []
    beside = ["reference model"] * (job.reference_bytes > 0) + ["teacher"] * (job.teacher is not None)
    return " and ".join([*towers, *beside])


def _frozen(subject: Subject, place: int) -> float:
    """Return what frozen towers, a reference and a teacher take of a stage's weights."""
    c, job = subject.rows, subject.spec
    parameters = placed(c, job)[2]
    held, taught = parameters.frozen, float((teacher_bytes(c, job) / np.where(c.zero >= 3, parameters.shard, 1.0))[0])
    if held is None or job.tuning is not None or (job.offload.parameters and int(c.zero[0]) == 3):
        return taught
    return taught + float(held.per_gpu(c.zero >= weight_stage(job))[place, 0])


def _parameters(subject: Subject, place: int, *, sharded: bool) -> list[Node]:
    """Return the parameters whose states one GPU of a stage holds, in proportion."""
    c, job = subject.rows, subject.spec
    stages, row, parameters = placed(c, job)
    dense = float(parameters.dense[place, 0])
    shards = (float(parameters.shard[0]), float(parameters.expert_shard[0])) if sharded else (1.0, 1.0)
    layers = []
    for kind, name, held in zip(job.model.trained_kinds, _layer_names(job.model), stages.held(row), strict=True):
        number = float(held[place, 0])
        own = number * float(dense_held(kind, job, c.tp).trained[0])
        routed = number * float(expert_held(kind, job, c.ep, c.etp).trained[0])
        dense -= own
        own, routed = own / shards[0], routed / shards[1]
        blocks = (Node("routed experts", routed), Node("other", own)) if routed else ()
        layers.append(Node(name, own + routed, children=blocks, count=number))
    tower = job.trained_tower * float(share_of_end(c, FIRST, place)[0] > 0)
    dense -= tower
    ends = Node("embedding and LM head", dense / shards[0] if dense > 0.5 else 0.0)
    return [*layers, ends, *([Node(TOWER, tower / shards[0])] if tower else ())]


def _activations(subject: Subject, place: int) -> list[Node]:
    """Return what one microbatch saves at a stage, in proportion to what all in flight save."""
    c, job, evaluation = subject.rows, subject.spec, subject.evaluation
    counts = [float(one[place, 0]) for one in evaluation.stages.layers(evaluation.stage_row)]
    number = sum(counts)
    by_operator = bool(c.recompute_modules[0] & EVERY_OTHER_MATMUL)
    whole = 0.0 if by_operator else min(float(c.recompute_layers[0]), number)
    kept = 1 - whole / max(number, 1)
    nodes = []
    for kind, name, count in zip(job.model.trained_kinds, _layer_names(job.model), counts, strict=True):
        sizes: dict[str, FloatArray] = block_activation_bytes(kind, c, job.of_layer(kind))
        if by_operator:
            sizes = {"chosen products": layer_activation_bytes(kind, c, job)}
        blocks = [Node(block, float(size[0]) * count * kept) for block, size in sizes.items()]
        nodes.append(branch(name, blocks, count=count * kept))
    inputs = float((hidden_bytes(c, job) / c.sequence_split)[0])
    return [*nodes, Node("inputs of recomputed layers", inputs * whole, count=whole)]
