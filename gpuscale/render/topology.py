"""Drawing of a cluster: levels, switches, GPUs of a host, cards and rails, as a tree of ASCII."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from gpuscale.files import printable
from gpuscale.render.document import WIDTH, Document, plain
from gpuscale.specs.cluster import INSIDE, ClusterSpec, LevelSpec
from gpuscale.units import GB, GBIT, TB, format_rate, plural

SHOWN = 4
"""Units of a level that are drawn; of more the first ones and the last."""

APART = 11
"""Columns from one unit to the next."""

MOST_GPUS = 16
"""GPUs of a host that are drawn one by one."""


class _Row(NamedTuple):
    """One line: the name of what is drawn, the picture, and what is said of it."""

    name: str
    picture: str
    text: str


def topology_document(cluster: ClusterSpec, *, note: str | None = None) -> Document:
    """Lay out a cluster, already sized, as a tree, its top level first; the `note` says how the preset was extended, if
    it was."""
    head = f"{cluster.name}: {cluster.title}"
    mixture = f"\n{cluster.mixture}" if cluster.mixture else ""
    said = f"{head}\nnote: {note}{mixture}" if note else head + mixture
    return plain(f"Topology of {cluster.name}", said, partial(_tree, cluster), _legend(cluster))


def _tree(cluster: ClusterSpec, width: int) -> str:
    rows = [*_levels(cluster), *_gpus(cluster)]
    label = max(len(row.name) for row in rows) + 2
    room = max(len(row.picture) for row in rows) + 2
    lines = []
    for row in rows:
        said = max(20, min(width, WIDTH) - label - room)
        texts = textwrap.wrap(printable(row.text), said, break_on_hyphens=False) or [""]
        for index, text in enumerate(texts):
            picture = row.picture if not index else _continued(row.picture)
            lines.append(f"{row.name if not index else '':{label}}{picture:{room}}{text}".rstrip())
    return "\n".join(lines)


def _continued(picture: str) -> str:
    """Draw what stands under a line whose text goes on: lines down from the first unit, or from every end of a tree."""
    if "[" in picture:
        return " " * picture.index("1") + "|"
    return "".join("|" if mark in "+|" else " " for mark in picture)


def _levels(cluster: ClusterSpec) -> Iterator[_Row]:
    """Yield two lines for each level: its units, and what joins those below."""
    count = 1
    for index in range(len(cluster.levels) - 1, -1, -1):
        level = cluster.levels[index]
        each = plural(level.gpus, "GPU") + (" each" if count > 1 else "")
        yield _Row(level.name, _units(count), "; ".join([each, *_switches(cluster, index)]))
        if level.torus_shape:
            yield from _torus(level, _links(cluster, index))
            return
        count = cluster.children(index)
        if index:
            yield _Row("", _joined(count, level), _links(cluster, index))
        else:
            yield from _inside(cluster)


def _units(count: int) -> str:
    """Draw units of a level side by side: `[ 1 ]      [ 2 ]`."""
    numbers = list(range(1, count + 1)) if count <= SHOWN else [*range(1, SHOWN), count]
    line = "".join(f"{f'[ {number} ]':{APART}}" for number in numbers).rstrip()
    at = (SHOWN - 1) * APART
    return line if count <= SHOWN else f"{line[: at - 5]}...  {line[at:]}"


def _joined(count: int, level: LevelSpec) -> str:
    """Draw what joins the units below: a tree, or each with each (dragonfly)."""
    bar = "=" if level.global_bytes_per_s else "-"
    shown = min(count, SHOWN)
    line = "  +" + (bar * (APART - 1) + "+") * (shown - 1)
    middle = 3 + (SHOWN - 2) * APART + 3
    return line if count <= SHOWN else f"{line[:middle]}...{line[middle + 3 :]}"


def _switches(cluster: ClusterSpec, index: int) -> Iterator[str]:
    level = cluster.levels[index]
    if level.switches:
        speed = f" of {level.switch_bytes_per_s / TB:.4g} TB/s" if level.switch_bytes_per_s else ""
        yield f"{level.switches:,} switch{'es' if level.switches > 1 else ''}{speed}"
    if level.in_network_reduction:
        yield "NVLS reduces" if level.fabric in INSIDE else "SHARP can reduce"


def _links(cluster: ClusterSpec, index: int) -> str:
    level = cluster.levels[index]
    said = [f"{level.fabric}, {format_rate(level.egress_bytes_per_s)} GB/s per GPU, {_total(level)} in total"]
    below = cluster.levels[index - 1] if index else None
    plain = below is not None and below.fabric not in INSIDE and not level.global_bytes_per_s
    if plain and below and below.egress_bytes_per_s > level.egress_bytes_per_s:
        said.append(f"{below.egress_bytes_per_s / level.egress_bytes_per_s:.3g}:1 oversubscribed")
    if level.global_bytes_per_s:
        said.append(f"dragonfly: each of the {cluster.children(index)} joined to each (=)")
    if level.torus_shape:
        said.append(f"torus of {' x '.join(map(str, level.torus_shape))}, ends joined (~)")
    return "; ".join(said)


def _total(level: LevelSpec) -> str:
    total = level.total_bytes_per_s
    return f"{total / TB:.4g} TB/s" if total >= TB else f"{total / GB:.4g} GB/s"


def _torus(level: LevelSpec, links: str) -> Iterator[_Row]:
    """Draw the corner of a torus: units joined to their neighbours, and the last to the first."""
    columns = min(level.torus_shape[0], SHOWN)
    dots = "- ... -" if level.torus_shape[0] > SHOWN else "---"
    row = "~o" + "---o" * (columns - 2) + f"{dots}o~"
    down = "".join("|" if mark == "o" else " " for mark in row)
    yield _Row("", row, links)
    for _ in level.torus_shape[1:2]:
        yield _Row("", down.rstrip(), "")
        yield _Row("", row, "")
        yield _Row("", down.replace("|", ":").rstrip(), "")


def _inside(cluster: ClusterSpec) -> Iterator[_Row]:
    """Yield the links of the innermost level, and its hosts where it has several."""
    level, links = cluster.levels[0], _links(cluster, 0)
    hosts = level.gpus // cluster.host_gpus
    if level.topology == "mesh":
        links += "; a link from each GPU to every other"
    if hosts > 1:
        yield _Row("", _joined(hosts, level), links)
        yield _Row("host", _units(hosts), f"{plural(cluster.host_gpus, 'GPU')} each")
        links = ""
    count = min(cluster.host_gpus, level.gpus)
    if count <= MOST_GPUS:
        yield _Row("", "  +" + ("-" * (_step(count) - 1) + "+") * (count - 1), links)


def _step(count: int) -> int:
    """Columns from one GPU to the next."""
    return 5 if count <= SHOWN * 2 else 3


def _numbers(count: int, every: int = 1) -> str:
    """Draw numbers under the ends of a tee, one for each `every` of them."""
    step = _step(count)
    line = "".join(f"{number // every if number % every == 0 else '':<{step}}" for number in range(count))
    return "  " + line.rstrip()


def _gpus(cluster: ClusterSpec) -> Iterator[_Row]:
    """Yield the GPUs of the first host, and the cards that they send by."""
    level = cluster.levels[0]
    count = min(cluster.host_gpus, level.gpus)
    if level.torus_shape:
        return
    if count > MOST_GPUS:
        yield _Row("GPU", f"  0 to {count - 1}", cluster.gpu.title)
        return
    yield _Row("GPU", _numbers(count), cluster.gpu.title)
    network = next((one for one in cluster.levels if one.fabric not in INSIDE), None)
    if network is None:
        return
    sharing = max(1, round(1 / network.nics_per_gpu))
    yield _Row("", _cards(count, sharing), "")
    railed = network.rails != "none"
    yield _Row("rail" if railed else "card", _numbers(count, sharing), _card_text(network, sharing))


def _cards(count: int, sharing: int) -> str:
    """Draw the lines from GPUs to their cards; those that share one are joined."""
    step = _step(count)
    marks = ("+" if sharing > 1 else "|" for _ in range(count))
    joined = ("-" if sharing > 1 and (number + 1) % sharing else " " for number in range(count))
    return "  " + "".join(mark + bar * (step - 1) for mark, bar in zip(marks, joined, strict=True)).rstrip(" ")


def _card_text(network: LevelSpec, sharing: int) -> str:
    card = network.nic_bytes_per_s or network.link_bytes_per_s / network.nics_per_gpu
    several = f"{network.nics_per_gpu:g} cards each, " if network.nics_per_gpu > 1 else ""
    shared = f"one for {sharing} GPUs, " if sharing > 1 else ""
    said = f"{several}{shared}{card / GBIT:.4g} Gbit/s {network.fabric}"
    if network.rails == "optimised":
        return f"{said}; card i of every node on switch i of its {network.name}, other rails over the level above"
    if network.rails == "only":
        return f"{said}; card i of every node on switch i of its {network.name}, which nothing joins"
    return said


def _legend(cluster: ClusterSpec) -> str:
    opened = "; the first unit of each level is opened" if len(cluster.levels) > 1 else ""
    return f"Per direction and at wire rate{opened}."
