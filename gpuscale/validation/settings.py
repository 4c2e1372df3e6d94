"""Settings of a run that no column of `runs.csv` holds: its row names them in columns of their own or in its notes.

Notes are read as the run's recipe words them: `CUDA graph full-iteration`, `CUDA graphs off`, `EP-A2A overlap on`,
`precision-aware optimizer`, `eager`. Only configuration is read, never a result; a field is bounded
(`gpuscale.validation.files`) and the patterns have no nested repetition. What is not said stays as the framework's
profile has it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpuscale.specs.job import FrameworkSpec, RuntimeSpec
from gpuscale.validation.cells import Row

GRAPHS = ("none", "partial", "full")
SWITCH = ("off", "on")

_GRAPHS = re.compile(r"\bcuda graphs?\b(?:[:=]? (local full_iteration|full[-_ ]iteration|off|none|disabled|not used))?")
_NO_GRAPHS = re.compile(r"\b(?:no|without) cuda graphs?\b")
_OVERLAP = re.compile(r"\b(no |without )?(?:ep-a2a|a2a|ep)(?: 1f1b)? overlap\b(?:[:=]? (off|disabled))?")
_OVERLAPS_OFF = re.compile(r"\b((?:tp|dp|pp|p2p)(?:/(?:tp|dp|pp|p2p)){0,3}) overlap off\b")
_BF16_MOMENTS = re.compile(r"precision-aware optimizer|bf16 adam moments|adam moments in bf16")
_BF16_STATES = re.compile(r"bf16 training dtype|compile (?:and )?bf16")
_COMPILED = re.compile(r"\bcompiled?\b")
_UNNAMED = re.compile(r"\bframework\b[^;]{0,200}not stated")
_EAGER = re.compile(r"\beager\b")

EAGER = ("norm", "rotary", "activation", "loss")
"""What runs as chains of eager operations without torch.compile or kernels of a framework."""

NAMED = {"automodel": "automodel", "primus": "primus", "megatron": "megatron-lm", "torchtitan": "torchtitan"}
"""How notes name the framework of a run that its column calls `other` -> the name of its profile."""

COMPILED_SINCE = "2024-09"
"""From this month on torchtitan's published runs are compiled unless they say otherwise; those of docs/performance.md
(2024-05 and 06) were not, `compile` being off by default."""


def framework_name(row: Row) -> str:
    """Return the framework of a row; where its column says `other`, the one that the notes name, or `other`."""
    name = row.text("framework")
    if name not in {"", "other"}:
        return name
    notes = row.wording
    return next((profile for word, profile in NAMED.items() if word in notes), "other")


def with_stated_settings(framework: FrameworkSpec, row: Row) -> FrameworkSpec:
    """Return a framework's profile as its row sets it.

    Raises:
        InputError: a column has none of its values.
    """
    notes, name = row.wording, framework_name(row)
    runtime, states = _with_graphs(framework.runtime, row), framework.states
    runtime = _with_overlaps(runtime, notes)
    if _BF16_MOMENTS.search(notes):
        states = replace(states, moments=4.0)
    if name == "other" and _UNNAMED.search(notes):  # a loop of its own: PyTorch as it comes
        runtime = replace(runtime, eager=EAGER, attention="flash2")
    if name == "torchtitan":
        if _EAGER.search(notes) or ("" < row.text("source_date") < COMPILED_SINCE and not _COMPILED.search(notes)):
            runtime = replace(runtime, eager=EAGER)
        if _BF16_STATES.search(notes):
            states = replace(states, gradient=2.0, master=2.0, moments=4.0)
    return replace(framework, runtime=runtime, states=states)


def _with_overlaps(runtime: RuntimeSpec, notes: str) -> RuntimeSpec:
    """Overlap of TP and DP communication, where the row says that it is off."""
    found = _OVERLAPS_OFF.search(notes)
    off = found[1].split("/") if found else []
    if "tp" in off:
        runtime = replace(runtime, overlap_tp=False)
    if "dp" in off:
        runtime = replace(runtime, overlap_grad_reduce=False, overlap_param_gather=False)
    return runtime


def _with_graphs(runtime: RuntimeSpec, row: Row) -> RuntimeSpec:
    """CUDA graphs and overlap of the expert exchange of a Megatron-LM run."""
    graphs, overlap = _stated(row, "cuda_graphs", GRAPHS), _stated(row, "overlap_ep", SWITCH)
    if not runtime.name.startswith("megatron"):
        return runtime
    notes = row.wording
    graphs = graphs or graphs_in(notes) or runtime.cuda_graphs
    overlap = overlap or overlap_in(notes)
    return replace(runtime, cuda_graphs=graphs, overlap_ep=overlap == "on" if overlap else runtime.overlap_ep)


def _stated(row: Row, name: str, values: tuple[str, ...]) -> str:
    value = row.text(name)
    if value and value not in values:
        raise row.error(name, f"is none of {', '.join(values)}")
    return value


def graphs_in(notes: str) -> str:
    """`none`, `partial` or `full`; empty where the notes, in lower case, do not name CUDA graphs."""
    if _NO_GRAPHS.search(notes):
        return "none"
    found = _GRAPHS.search(notes)
    if not found:
        return ""
    if not found[1]:
        return "partial"
    return "full" if "full" in found[1] else "none"


def overlap_in(notes: str) -> str:
    """`on` or `off`; empty where the notes, in lower case, do not name the overlap of the expert exchange."""
    found = _OVERLAP.search(notes)
    if not found:
        return ""
    return "off" if found[1] or found[2] else "on"
