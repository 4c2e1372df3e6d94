"""Drawing of `gpuscale placement`, and of a cluster: levels, switches, GPUs of a host, cards and rails, as a tree."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuscale.files import printable
from gpuscale.placement import AxisSpan, Held, coordinates, network_level
from gpuscale.planning.placement import BestOrder, Placement, order_text, rails_text, straddling_text, units_text
from gpuscale.render.document import WIDTH, Document, Table, plain, table
from gpuscale.render.output import picked
from gpuscale.specs.cluster import INSIDE, ClusterSpec, LevelSpec
from gpuscale.units import GB, GBIT, TB, format_rate, format_seconds, plural

SHOWN_NODES = 4
EXAMPLE_WIDTH = 12
EXAMPLE_RANKS = 16
SHOWN_ORDERS = 6
SHOWN_LEAVES = 8
SHOWN_AXES = 4
SHOWN_RANGES = 2
MEGATRON_FLAG = (("tp", "cp", "ep", "pp", "dp"), "--use-tp-pp-dp-mapping")
REFUSED = "refuses {}: without pp last it wants as many expert-DP as DP ranks (a dense model's CP counts as the former)"
RATE = "GB/s of the worst placed group at wire rate: bus bandwidth of a ring; for EP of an alltoall, for PP of a send"
LEGEND = (
    ("unit/link", "groups that cross the busiest level from one unit below it, and from one network card or GPU link"),
    ("rate", RATE),
)


def placement_document(result: Placement) -> Document:
    """Lay out groups, ranks and the comparison of orders."""
    best, head = result.best, result.verdict
    groups = [
        {
            "axis": _column(one.groups.axis),
            "size": f"{one.groups.size:,}",
            "stride": "-" if one.groups.stride is None else f"{one.groups.stride:,}",
            "groups": f"{one.groups.count:,}",
            "spans": _spans(one),
            "busiest": one.worst.name,
            "unit/link": f"{one.worst.groups_per_unit:,}/{one.worst.groups_per_link:,}",
            "GPU GB/s": format_rate(one.worst.egress_bytes_per_s),
            "rate": format_rate(one.worst.rate_bytes_per_s),
            "ranks": _example(one.groups.offsets().tolist()),
        }
        for one in result.placed.spans.values()
    ]
    if best is not None:
        order = best.best.order if best.better else best.given.order
        head += f"\n{'better order:' if best.better else 'no better order than'} {order_text(order)}: {best.reason}"
    return plain(
        f"Placement on {plural(result.degrees.ranks, 'GPU')} of {result.cluster.name}",
        head,
        table(groups, optional=("ranks", "stride", "GPU GB/s", "unit/link")),
        _fabric_table(result),
        lambda width: "\n".join(drawing(result, width)),
        _order_table(best) if best is not None and len(best.orders) > 1 else "",
        _facts(result),
    )


def _column(axis: str) -> str:
    return {"dp_cp": "DPxCP", "edp": "xDP"}.get(axis, axis.upper())


def _spans(one: AxisSpan) -> str:
    """Instances of the two innermost levels, or of one that holds every group."""
    first, *_ = one.levels
    if first.units_max == 1 or len(one.levels) == 1:
        return units_text(first)
    return f"{units_text(first)}, {units_text(one.levels[1])}".replace(" domains", "")


def _example(ranks: list[int]) -> str:
    text = str(ranks[0])
    for index, rank in enumerate(ranks[1:], start=1):
        rest = "" if index == len(ranks) - 1 else ",.."
        if len(text) + len(str(rank)) + 1 + len(rest) > EXAMPLE_WIDTH:
            return f"{text},.."
        text += f",{rank}"
    return text


def drawing(result: Placement, width: int) -> Iterator[str]:
    """Draw the first machines and the last, each GPU with its coordinates."""
    degrees, per_node = result.degrees, result.gpus_per_host
    sizes = degrees.sizes()
    used = [name for name in ("tp", "cp", "dp", "pp") if sizes[name] > 1] or ["dp"]
    used += ["ep"] * (degrees.ep > 1)
    where = coordinates(degrees, result.placed.order)
    count = len(result.hosts)
    shown = list(range(min(count, SHOWN_NODES))) + ([count - 1] if count > SHOWN_NODES else [])
    cell = max(6, sum(len(str(sizes[name] - 1)) for name in used) + len(used) - 1)
    label = max(4, *(len(result.hosts[node]) for node in shown))
    columns = max(1, min(per_node, (width - label) // (cell + 2)))
    yield f"{'.'.join(name.upper() for name in used)} of each GPU, ranks {order_text(result.placed.order)}"
    head = "".join(f"  {f'GPU {gpu}':>{cell}}" for gpu in range(columns))
    yield f"{'node':{label}}{head}" if columns == per_node else "node, GPUs in turn"
    for node in shown:
        if node == count - 1 and count > SHOWN_NODES + 1:
            yield "..."
        ranks = np.arange(node * per_node, min((node + 1) * per_node, degrees.ranks))
        for start in range(0, ranks.size, columns):
            some = ranks[start : start + columns].tolist()
            cells = [".".join(str(where[name][rank]) for name in used) for rank in some]
            text = "".join(f"  {one:>{cell}}" for one in cells)
            yield f"{'' if start else result.hosts[node]:{label}}{text}"


def _fabric_table(result: Placement) -> Table:
    found, index = result.holdings, network_level(result.cluster)
    if index is None or len(found) < 2 or not result.placed.spans:
        return table([])
    shown = found if len(found) <= SHOWN_LEAVES else [*found[: SHOWN_LEAVES - 1], found[-1]]
    axes = [axis for axis in result.placed.spans if axis != "dp_cp"][:SHOWN_AXES]
    level = result.cluster.levels[index].name
    rows = [
        {
            level: str(one.number + 1),
            "nodes": f"{one.first_host + 1:,}-{one.last_host + 1:,}",
            **{f"{_column(axis)} groups": _held(one.axes[axis]) for axis in axes},
        }
        for one in shown
    ]
    if len(found) > SHOWN_LEAVES:
        rows.insert(-1, {**dict.fromkeys(rows[0], ""), level: "..."})
    return table(rows)


def _held(held: Held) -> str:
    """Write `0-31`, or `0-15: 12 of 20` where these have members elsewhere too."""
    parts = [f"{low}" if low == high else f"{low}-{high}" for low, high in held.ranges[:SHOWN_RANGES]]
    text = ",".join(parts) + (",.." if len(held.ranges) > SHOWN_RANGES else "")
    if held.members_min == held.size:
        return text
    least, most = held.members_min, held.members_max
    return f"{text}: {least if least == most else f'{least}-{most}'} of {held.size}"


def _order_table(best: BestOrder) -> Table:
    shown = list(best.orders[:SHOWN_ORDERS])
    if best.given not in shown:
        shown.append(best.given)
    rows = []
    for one in shown:
        if one.step_time_s is not None:
            used = [name for name in one.comm_s if any(other.comm_s[name] for other in best.orders)]
            cells = {f"{name.removesuffix('_comm').upper()} comm": format_seconds(one.comm_s[name]) for name in used}
            cells = {"s/step": format_seconds(one.step_time_s), **cells}
        else:
            cells = {f"{_column(axis)}\nGB/s": format_rate(rate) for axis, rate in one.rates.items()}
        order = order_text(one.order) + " (given)" * (one is best.given)
        rows.append({"order": order, **cells, "straddling": str(one.straddling)})
    return table(rows)


def _facts(result: Placement) -> list[tuple[str, str]]:
    cluster, best, spans = result.cluster, result.best, result.placed.spans.values()
    rows = [
        (level.name, straddling_text(one, index))
        for index, level in enumerate(cluster.levels)
        for one in spans
        if index and one.levels[index].straddling
    ]
    if railed := [one for one in spans if one.rails and one.groups.axis != "dp_cp"]:
        rows.append(("rails", "; ".join(rails_text(cluster, one) for one in railed)))
    per_gpu = ", ".join(f"{level.name} {level.egress_bytes_per_s / 1e9:.3g} GB/s" for level in cluster.levels)
    rows.append(("cluster", f"{cluster.name}; per GPU {per_gpu}"))
    rows.append(("nodes", f"{len(result.hosts):,} of {plural(result.gpus_per_host, 'GPU')}; rank r runs on GPU r"))
    rows += LEGEND if spans else ()
    if best is not None:
        rows.append(("orders by", best.rule))
        if best.better and best.best.order == MEGATRON_FLAG[0]:
            rows.append(("Megatron-LM", f"{MEGATRON_FLAG[1]} gives the better order"))
    advised = [result.placed, *([best.best] if best is not None and best.better else [])]
    rows += [("Megatron-LM", REFUSED.format(order_text(one.order))) for one in advised if not one.megatron]
    return [*rows, *(("note", note) for note in result.notes)]


LEVEL_KEYS = (
    *("name", "units_min", "units_max", "members_min", "members_max", "crossing", "straddling", "parts"),
    *("groups_per_unit", "groups_per_link", "egress_gb_per_s", "rate_gb_per_s"),
)


def placement_json(result: Placement) -> dict[str, Any]:
    """Return where ranks run, how the groups of each axis lie, and what each leaf holds."""
    index, sizes, best = network_level(result.cluster), result.degrees.sizes(), result.best
    body: dict[str, Any] = {
        "cluster": result.cluster.name,
        "gpus": result.degrees.ranks,
        "nodes": len(result.hosts),
        "gpus_per_node": result.gpus_per_host,
        "order": order_text(result.placed.order),
        "degrees": {name: sizes[name] for name in ("tp", "cp", "ep", "etp", "dp", "pp")},
        "verdict": result.verdict,
        "axes": [
            {
                **picked(one.groups, "axis size stride factors"),
                "groups": one.groups.count,
                "example": one.groups.offsets()[:EXAMPLE_RANKS].tolist(),
                "busiest": one.worst.name,
                **picked(one.worst, LEVEL_KEYS[-4:]),
                **picked(one, "one_rail rails strays beyond"),
                "levels": [picked(level, LEVEL_KEYS) for level in one.levels],
            }
            for one in result.placed.spans.values()
        ],
        "fabric": [
            {
                "level": "" if index is None else result.cluster.levels[index].name,
                "number": one.number,
                "first_node": result.hosts[one.first_host],
                "last_node": result.hosts[one.last_host],
                "axes": {
                    axis: {"groups": held.ranges[:EXAMPLE_RANKS], **picked(held, "members_min members_max")}
                    for axis, held in one.axes.items()
                },
            }
            for one in result.holdings
        ],
        "notes": result.notes,
    }
    if best is not None:
        body["best"] = {
            **picked(best, "rule better reason"),
            "given": order_text(best.given.order),
            "order": order_text(best.best.order),
            "orders": [
                {
                    "order": order_text(one.order),
                    **picked(one, "step_time_s comm_s straddling megatron"),
                    "gb_per_s": {axis: rate / 1e9 for axis, rate in one.rates.items()},
                }
                for one in best.orders
            ],
        }
    return body


SHOWN = 4
"""Units of a level that are drawn; of more the first ones and the last."""

APART = 11
"""Columns from one unit to the next."""

MOST_GPUS = 16


class _Row(NamedTuple):
    name: str
    picture: str
    text: str


def topology_document(cluster: ClusterSpec, *, note: str | None = None) -> Document:
    """Lay out a cluster, already sized, as a tree; the `note` says how it was extended."""
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
    """Draw what stands under a line whose text goes on."""
    if "[" in picture:
        return " " * picture.index("1") + "|"
    return "".join("|" if mark in "+|" else " " for mark in picture)


def _levels(cluster: ClusterSpec) -> Iterator[_Row]:
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
    return 5 if count <= SHOWN * 2 else 3


def _numbers(count: int, every: int = 1) -> str:
    """Draw numbers under the ends of a tee, one for each `every` of them."""
    step = _step(count)
    line = "".join(f"{number // every if number % every == 0 else '':<{step}}" for number in range(count))
    return "  " + line.rstrip()


def _gpus(cluster: ClusterSpec) -> Iterator[_Row]:
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
