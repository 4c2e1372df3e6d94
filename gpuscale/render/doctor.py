"""Drawing of what `gpuscale doctor` found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscale.doctor import Checkup, Found, Topology
from gpuscale.render.document import Document, Part, plain, table
from gpuscale.render.output import json_type, picked
from gpuscale.units import GIB, plural

SHOWN = 8
"""Rows of each kind; JSON has all."""

GPU_KEYS = ("index", "name", "memory_gib", "driver", "power_limit_w", "preset", "mig")


def checkup_json(found: Checkup) -> dict[str, Any]:
    """Return what was found, in the units of its keys."""
    return {**json_type(found), "gpus": [picked(gpu, GPU_KEYS) for gpu in found.gpus]}


def checkup_document(found: Checkup, steps: Sequence[tuple[str, str]] = ()) -> Document:
    """Lay out the verdict, what was found, what is wrong, and what to do next."""
    return plain(
        "What this machine offers for planning",
        found.verdict,
        _gpus(found),
        _clusters(found),
        _facts(found),
        "\n".join(f"note: {note}" for note in found.notes),
        "\n".join(["next:", *(f"  {command}\n      {why}" for why, command in steps)]) if steps else "",
    )


def _gpus(found: Checkup) -> Part:
    rows = [
        {
            "GPU": str(gpu.index),
            "name": gpu.name,
            "preset": gpu.preset or "none",
            "driver": gpu.driver or "-",
            "GiB": f"{gpu.memory_bytes / GIB:.1f}" if gpu.memory_bytes else "-",
            "limit W": f"{gpu.power_limit_w:g}" if gpu.power_limit_w else "-",
        }
        for gpu in found.gpus[: 2 * SHOWN]
    ]
    return table(rows, left=4)


def _clusters(found: Checkup) -> Part:
    rows = [
        {"cluster preset": one.name, "agrees": ", ".join(one.agrees), "differs": ", ".join(one.differs) or "-"}
        for one in found.clusters[:SHOWN]
    ]
    return table(rows, left=3)


def _facts(found: Checkup) -> list[tuple[str, str]]:
    own = [f"{', '.join(names[:SHOWN])} ({kind})" for kind, names in found.own_presets.items()]
    models = [f"{one} (cannot be planned: {found.unread_models[one]})" if one in found.unread_models else one
              for one in found.models[:SHOWN]]  # fmt: skip
    more = len(found.models) - SHOWN
    extras = [
        f"{name} ({', '.join(f'{one} {at}' if at else f'{one} is not installed' for one, at in needs.items())})"
        for name, needs in found.extras.items()
    ]
    return [
        *([("topology", _topology(found.topology))] if found.topology else []),
        ("presets", ", ".join(f"{count} {kind}" for kind, count in found.presets.items())),
        ("your own", "; ".join(own) or "none"),
        ("models", (", ".join(models) or "none") + (f" and {more} more" if more > 0 else "") + f" in {found.hub}"),
        ("files here", ", ".join(map(_file, found.files[: 2 * SHOWN])) or "none"),
        ("versions", ", ".join(f"{name} {at}" for name, at in found.versions.items() if at)),
        ("extras", ", ".join(extras)),
    ]


def _file(found: Found) -> str:
    return f"{found.file} ({found.kind}{f': {found.detail}' if found.kind == 'calibration' else ''})"


def _topology(found: Topology) -> str:
    joined = found.fabric or "unknown links"
    links = f", {plural(found.links, 'link')} per GPU" if found.links else ""
    nics = f", {plural(found.nics, 'network card')} for them" if found.nics else ""
    return f"{joined}{links}{nics}{' (efa)' if found.nic_fabric == 'efa' else ''}, by {found.source}"
