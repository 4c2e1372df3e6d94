"""The memory of a pipeline stage as a tree: components, and what they are made of."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from gpuscale.arrays import FloatArray
from gpuscale.explain.nodes import Node, branch, settled
from gpuscale.explain.steps import layer_names
from gpuscale.launch.subject import Subject
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL
from gpuscale.layouts.stages import FIRST, LAST, MIDDLE, share_of_end
from gpuscale.memory.activations import (
    block_activation_bytes,
    hidden_bytes,
    layer_activation_bytes,
    microbatches_in_flight,
)
from gpuscale.memory.model import COMPONENTS, weight_stage
from gpuscale.memory.states import dense_held, expert_held, held_whole, teacher_bytes
from gpuscale.search.evaluation import placed
from gpuscale.specs.job import JobSpec

STATES = {"weights": 3, "gradients": 2, "master_weights": 1, "optimizer_state": 1}
"""Component -> ZeRO stage from which on it is sharded."""

TOWER = "towers for images and sounds"

SOURCES = {"nccl_buffers": "framework profile", "framework_reserve": "framework profile", "fragmentation": "fit"}
"""Where the bytes of a component come from, if not from counting tensors."""


def memory_trees(subject: Subject) -> tuple[Node, ...]:
    """Return the memory of the first, the heaviest middle and the last stage, one GPU each [bytes].

    Each root is the stage's memory by the search, exactly. A pipeline of one or two stages has as many trees.
    """
    by_stage = subject.evaluation.memory.by_stage[:, 0]
    middle = MIDDLE + int(by_stage[MIDDLE:].argmax())
    position = subject.evaluation.stages.position[subject.evaluation.stage_row[0]]
    places = {int(position[place]): place for place in (middle, LAST, FIRST)}  # of few stages the middle is a filler
    return tuple(_stage(subject, place, index, float(by_stage[place])) for index, place in sorted(places.items()))


def _stage(subject: Subject, place: int, index: int, total: float) -> Node:
    c, done = subject.rows, subject.evaluation
    memory = done.memory
    held = {name: float(np.broadcast_to(getattr(memory, name), memory.by_stage.shape)[place, 0]) for name in COMPONENTS}
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
        parts.append(node.each(partial(replace, component=name, source=SOURCES.get(name, "counted"))))
    return settled(branch(f"stage {index}", parts), total)


def _frozen_name(job: JobSpec) -> str:
    towers = [f"{TOWER}, frozen"] if job.frozen_tower else []
    beside = ["reference model"] * (job.reference_bytes > 0) + ["teacher"] * (job.teacher is not None)
    return " and ".join([*towers, *beside])


def _frozen(subject: Subject, place: int) -> float:
    """Return what frozen towers, a reference model and a teacher take of the weights at a stage."""
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
    for kind, name, held in zip(job.model.trained_kinds, layer_names(job.model), stages.held(row), strict=True):
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
    for kind, name, count in zip(job.model.trained_kinds, layer_names(job.model), counts, strict=True):
        sizes: dict[str, FloatArray] = block_activation_bytes(kind, c, job.of_layer(kind))
        if by_operator:
            sizes = {"chosen products": layer_activation_bytes(kind, c, job)}
        blocks = [Node(block, float(size[0]) * count * kept) for block, size in sizes.items()]
        nodes.append(branch(name, blocks, count=count * kept))
    inputs = float((hidden_bytes(c, job) / c.sequence_split)[0])
    return [*nodes, Node("inputs of recomputed layers", inputs * whole, count=whole)]
