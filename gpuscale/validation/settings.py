"""Settings of a run that no column holds: its notes name them as the run's recipe does.

Only configuration is read, never a result. What the notes do not name stays as the framework's profile has it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpuscale.presets.frameworks import Framework
from gpuscale.specs.job import RuntimeSpec, StateBytes
from gpuscale.validation.cells import Row

_MODULES = re.compile(r"recompute modules[ =]([a-z_]+(?:\+[a-z_]+)*)")
_DISPATCHER = re.compile(r"dispatcher (alltoall|deepep|hybridep)\b|\b(deepep|hybridep)\b")
_EXCHANGE_OVERLAP = re.compile(r"(?<!no )(?:ep-)?a2a (?:1f1b )?overlap")
_WHOLE_GRAPH = re.compile(r"cuda graph full-iteration")
_BF16_MOMENTS = re.compile(r"precision-aware optimizer|bf16 adam moments|adam moments in bf16")
_BF16_STATES = re.compile(r"bf16 training dtype|compile (?:and )?bf16")
_COMPILED = re.compile(r"\bcompiled?\b")
_UNNAMED = re.compile(r"\bframework\b[^;]*not stated")
_EAGER = re.compile(r"\beager\b")

EAGER = ("norm", "rotary", "activation", "loss")
"""What runs as chains of eager operations without torch.compile or kernels of a framework."""

NAMED = {"automodel": "automodel", "primus": "primus", "megatron": "megatron-lm", "torchtitan": "torchtitan"}
"""How notes name the framework of a run that its column calls `other` -> the name of its profile."""

COMPILED_SINCE = "2024-09"
"""From this month on torchtitan's published runs are compiled unless they say otherwise; those of docs/performance.md
(2024-05 and 06) were not, `compile` being off by default."""


def recompute_modules(row: Row) -> str:
    """Modules of selective recomputation that the notes name, as `layernorm+moe_act`; empty where they name none."""
    found = _MODULES.search(row.text("notes"))
    return found[1] if found else ""


def framework_name(row: Row) -> str:
    """Return the framework of a row; where its column says `other`, the one that the notes name, or `other`."""
    name = row.text("framework")
    if name not in {"", "other"}:
        return name
    notes = row.text("notes")
    return next((profile for word, profile in NAMED.items() if word in notes), "other")


def with_settings(framework: Framework, row: Row) -> Framework:
    """Return a framework's profile as the row's notes set it."""
    notes = row.text("notes")
    runtime, states = framework.runtime, framework.states or StateBytes()
    runtime = _exchange(runtime, notes)
    if _WHOLE_GRAPH.search(notes):
        runtime = whole_graph(runtime)
    if _BF16_MOMENTS.search(notes):
        states = replace(states, moments=4.0)
    name = framework_name(row)
    if name == "other" and _UNNAMED.search(notes):  # a loop of its own: PyTorch as it comes
        runtime = replace(runtime, eager=EAGER, attention="flash2")
    if name == "torchtitan":
        if _EAGER.search(notes) or ("" < row.text("source_date") < COMPILED_SINCE and not _COMPILED.search(notes)):
            runtime = replace(runtime, eager=EAGER)
        if _BF16_STATES.search(notes):
            states = replace(states, gradient=2.0, master=2.0, moments=4.0)
    return replace(framework, runtime=runtime, states=states)


def _exchange(runtime: RuntimeSpec, notes: str) -> RuntimeSpec:
    """How experts exchange tokens: dispatcher, and whether another microbatch's computation hides it."""
    found = _DISPATCHER.search(notes)
    if found:
        name = found[1] or found[2]
        runtime = replace(runtime, expert_dispatch="alltoall" if name == "alltoall" else "deduplicated")
    return replace(runtime, overlap_ep=True) if _EXCHANGE_OVERLAP.search(notes) else runtime


def whole_graph(runtime: RuntimeSpec) -> RuntimeSpec:
    """A step replayed as one CUDA graph: the CPU issues no kernels and waits for no token counts."""
    return replace(
        runtime,
        host_layer_s=0.0,
        host_collective_s=0.0,
        host_pipelined_tp_s=0.0,
        host_checkpoint_s=0.0,
        host_moe_sync_s=0.0,
        host_microbatch_s=0.0,
    )
