"""Run settings that a row states: CUDA graphs and overlap of the expert exchange.

In columns of their own, or in its notes, as `runs.csv` has them: `CUDA graph full-iteration`, `CUDA graphs off`,
`EP-A2A overlap on`. A field is bounded (`gpuscale.validation.files`) and the patterns have no nested repetition. What
is not said is the framework's.
"""

from __future__ import annotations

import re
from dataclasses import replace

from gpuscale.specs.job import RuntimeSpec
from gpuscale.validation.cells import Row

GRAPHS = ("none", "partial", "full")
SWITCH = ("off", "on")

_GRAPHS = re.compile(r"\bcuda graphs?\b(?: (local full_iteration|full[-_ ]iteration|off|none|disabled))?")
_NO_GRAPHS = re.compile(r"\b(?:no|without) cuda graphs?\b")
_OVERLAP = re.compile(r"\b(no )?(?:ep-a2a|a2a|ep)(?: 1f1b)? overlap\b(?: (off))?")


def with_stated_settings(runtime: RuntimeSpec, row: Row) -> RuntimeSpec:
    """Return the runtime of a Megatron-LM run with the CUDA graphs and the exchange overlap that its row states.

    Raises:
        InputError: a column has none of its values.
    """
    if not runtime.name.startswith("megatron"):
        return runtime
    notes = row.text("notes")
    graphs = _stated(row, "cuda_graphs", GRAPHS) or graphs_in(notes) or runtime.cuda_graphs
    overlap = _stated(row, "overlap_ep", SWITCH) or overlap_in(notes)
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
