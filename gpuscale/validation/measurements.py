"""Measurement files: what their columns hold, and the bounded reading of a CSV file; the presets and the machine (a
cluster by GPU, node and fabric) that a row names.

Reading, checks and the tables of docs/validation.md follow from `RUNS`, `RECIPES`, `KERNELS` and `COLLECTIVES`.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from gpuscale.architecture.flops import CONVENTIONS
from gpuscale.choices import ATTENTIONS, DISPATCHERS
from gpuscale.collectives.nccl_constants import TRANSPORTS
from gpuscale.collectives.times import collective_time_s
from gpuscale.errors import InputError, nearest
from gpuscale.files import reading, reads
from gpuscale.planning.jobs import Presets
from gpuscale.presets.files import known_table, preset_aliases, preset_names
from gpuscale.presets.hardware import FABRIC_DEFAULTS, WAYS, load_gpu
from gpuscale.presets.settings import GPU_POWER, RANK_OVERHEAD, with_settings
from gpuscale.specs.cluster import INSIDE, ClusterSpec, LevelSpec
from gpuscale.specs.gpu import GpuSpec
from gpuscale.specs.model import MAX_MTP
from gpuscale.units import MIB

K = TypeVar("K")
T = TypeVar("T")

MAX_FILE_BYTES = 128 * MIB
MAX_ROWS = 200_000
MAX_COLUMNS = 200
MAX_FIELD_CHARACTERS = 8192
MAX_LINE_BYTES = 2 * MIB
MAX_SHARED = 50_000
"""Different texts of cells that are remembered, to keep equal ones once."""


class Column(NamedTuple):
    """What a column holds; docs/columns.toml has what it means."""

    #: `text`, `whole` (0 or more), `number` (above 0), or the words that it takes.
    kind: str | tuple[str, ...] = "text"
    most: int = 10**15  #: the largest number: of whole ones ten times what was ever trained, or more.
    required: bool = False  #: a header without it is not one of this kind of file.


SWITCH = ("on", "off")
ZERO_STAGES = {"0": 0, "1": 1, "2": 2, "3": 3, "none": 0, "distopt": 1, "fsdp": 3, "hsdp": 3}
DTYPES = ("fp32", "bf16", "fp16", "fp8")
DEGREE = 1 << 20

RUNS = {
    "id": Column(required=True), "framework": Column(), "source": Column(), "source_date": Column(),
    "gpu": Column(required=True), "gpu_as_published": Column(), "cluster": Column(), "fabric": Column(),
    "net_allreduce_busbw_gb_per_s": Column("number"), "net_allgather_busbw_gb_per_s": Column("number"),
    "gpus": Column("whole", DEGREE, required=True), "gpus_per_node": Column("whole", DEGREE),
    "gpu_power_w": Column("number"), "model": Column(required=True), "params_b": Column("number"),
    "layers": Column("whole", 1 << 12), "dense_layers": Column("whole", 1 << 12), "hidden": Column("whole", DEGREE),
    "heads": Column("whole", 1 << 12), "kv_heads": Column("whole", 1 << 12), "ffn": Column("whole", 1 << 22),
    "gated": Column(SWITCH), "vocab": Column("whole", 1 << 24), "experts": Column("whole", 1 << 14),
    "topk": Column("whole", 1 << 10), "moe_ffn": Column("whole", 1 << 22), "mtp": Column("whole", MAX_MTP),
    "precision": Column(), "tp": Column("whole", DEGREE), "pp": Column("whole", DEGREE),
    "vp": Column("whole", 1 << 12), "cp": Column("whole", DEGREE), "ep": Column("whole", DEGREE),
    "etp": Column("whole", DEGREE), "dp": Column("whole", DEGREE), "sp": Column(SWITCH),
    "zero": Column(tuple(ZERO_STAGES)), "shard": Column("whole", DEGREE), "mbs": Column("whole", 1 << 16),
    "gbs": Column("whole", 1 << 24, required=True), "seq": Column("whole", 1 << 24, required=True),
    "recompute": Column(), "schedule": Column(), "offload": Column(),
    "cuda_graphs": Column(("none", "partial", "full")), "overlap_tp": Column(SWITCH), "overlap_dp": Column(SWITCH),
    "overlap_ep": Column(SWITCH), "dispatcher": Column(DISPATCHERS),
    "transport": Column(("nccl", "uccl", "nvshmem")), "routing": Column(("balanced", "dropping")),
    "compile": Column(SWITCH), "attention": Column(ATTENTIONS), "lora_rank": Column("whole", 1 << 12),
    "lora_targets": Column(), "base_quantization": Column(), "moment_dtype": Column(DTYPES),
    "state_dtype": Column(DTYPES[:3]), "step_s": Column("number"), "tokens_s_gpu": Column("number"),
    "tflops_gpu": Column("number"), "mfu": Column("number", 1), "flop_convention": Column(CONVENTIONS),
    "hfu": Column("number", 1), "mem_gib": Column("number"), "mem_basis": Column(),
    "spec": Column(("full", "recompute-unstated", "partial")), "flags": Column(),
}  # fmt: skip
"""Columns of a file of runs."""

KERNELS = {
    "id": Column(required=True), "gpu": Column(required=True), "kind": Column(required=True),
    "dtype": Column(required=True), "m": Column("number", required=True), "n": Column("number", required=True),
    "k": Column("number", required=True), "extra": Column(),
    "benchmark": Column(("short", "sustained", "best-shape")), "tflops": Column("number", required=True),
    "time_us": Column("number"),
}  # fmt: skip
"""Columns of a file of kernels."""

COLLECTIVES = {
    "id": Column(required=True), "collective": Column(required=True), "gpu": Column(required=True),
    "gpus": Column("whole", DEGREE, required=True), "gpus_per_node": Column("whole", DEGREE), "cluster": Column(),
    "fabric": Column(), "bytes": Column("number", required=True), "time_us": Column("number", required=True),
    "sharp_or_nvls": Column(), "nccl": Column(), "channels": Column("whole", 1 << 10),
    "launch": Column(("processes", "one-process", "graph")),
}  # fmt: skip
"""Columns of a file of collectives."""

OF_RECIPES = (
    "source", "framework", "model", "gpus", "cluster", "gpu", "gpus_per_node", "fabric", "seq", "gbs", "precision",
    "tp", "pp", "cp", "ep", "etp", "sp", "zero", "shard", "mbs", "recompute", "schedule", "offload", "cuda_graphs",
    "dispatcher", "overlap_tp", "overlap_dp", "overlap_ep", "moment_dtype", "step_s", "tokens_s_gpu",
)  # fmt: skip
"""Columns of a run that say what experts run, and what they measured if they say it."""

RECIPES = {
    "recipe": Column(required=True),
    **{name: RUNS[name] for name in OF_RECIPES},
    "gpu": RUNS["gpu"]._replace(required=False),
    "vpp": RUNS["vp"],
    "fsdp": Column(SWITCH),
    "offloaded_layers": Column("whole", 1 << 12),
}
"""Columns of a file of recipes: what is measured is optional."""

Kinds = Mapping[str, Mapping[str, Column]]

FILES: Kinds = {"recipes": RECIPES, "collectives": COLLECTIVES, "kernels": KERNELS, "runs": RUNS}
"""Kind of file -> its columns, the most special header first."""

NAMED_BY = {"recipes": "recipe"}
"""Kind of file -> the column that names its rows, where that is not `id`."""

OUTCOMES = ("step_s", "tokens_s_gpu", "tflops_gpu", "mfu", "hfu", "mem_gib")
"""Columns of a run that are measured. A file of runs in which none of them is filled lists runs that failed."""


class Cells(Mapping[str, str]):
    """The cells of a row by column; the rows of a file share the columns (name -> index)."""

    __slots__ = ("_columns", "_fields")

    def __init__(self, columns: Mapping[str, int], fields: tuple[str, ...]) -> None:
        self._columns, self._fields = columns, fields

    def __getitem__(self, name: str) -> str:
        return self._fields[self._columns[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a measurement file."""

    cells: Mapping[str, str]  #: column -> text, stripped; missing columns read as empty.
    place: str  #: file and line, for messages.

    def raw(self, name: str) -> str:
        """The cell as it stands, empty when absent."""
        return self.cells.get(name, "")

    def text(self, name: str) -> str:
        """The cell in lower case, empty when absent."""
        return self.raw(name).lower()

    def switch(self, name: str) -> bool | None:
        """Whether the cell says `on`, or None when it is empty."""
        return {"on": True, "off": False}.get(self.text(name))

    def number(self, name: str, least: float = 1e-15) -> float | None:
        """The cell as a finite number above 0, or None when it is empty."""
        text = self.raw(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(name, "is not a number") from None
        if not math.isfinite(value) or abs(value) > 1e18:
            raise self.error(name, "is out of range")
        if value < least:
            raise self.error(name, "is not above 0")
        return value

    def whole(self, name: str, most: int = 10**15) -> int | None:
        """The cell as a whole number from 0 to `most`, or None when it is empty."""
        value = self.number(name, -math.inf)
        if value is None:
            return None
        if value < 0 or value != int(value):
            raise self.error(name, "is not a whole number")
        if value > most:
            raise self.error(name, f"is above {most:,}")
        return int(value)

    def check(self, columns: Mapping[str, Column]) -> None:
        """Hold every cell against the declaration of its column.

        Raises:
            InputError: the first cell that is not what its column holds.
        """
        for name in columns.keys() & self.cells.keys():
            kind = columns[name].kind
            if kind == "whole":
                self.whole(name, columns[name].most)
            elif kind == "number":
                if (self.number(name) or 0.0) > columns[name].most:
                    raise self.error(name, f"is above {columns[name].most:,}")
            elif isinstance(kind, tuple) and self.text(name) not in {"", *kind}:
                raise self.error(name, f"is none of {', '.join(kind)}")

    def error(self, name: str, problem: str) -> InputError:
        """Build the error for a cell."""
        return InputError(f"{name} {self.raw(name)[:40]!r} {problem}", place=self.place)


def reason_text(error: InputError) -> str:
    """An error as the reason why a row is unsupported: field or place, and message, in one line."""
    where = error.place or error.field
    return " ".join(f"{where}: {error.message}".split() if where else error.message.split())


def batched(
    rows: Sequence[Row], read: Callable[[Row], tuple[K, T]]
) -> tuple[dict[K, list[tuple[int, T]]], dict[int, str]]:
    """Put rows together by the key that `read` finds, each with its index; of those that it refuses, say why."""
    batches: dict[K, list[tuple[int, T]]] = defaultdict(list)
    refused: dict[int, str] = {}
    for index, row in enumerate(rows):
        try:
            key, found = read(row)
            batches[key].append((index, found))
        except InputError as error:
            refused[index] = reason_text(error)
    return batches, refused


@reads("measured")
def read_measurements(path: Path) -> tuple[str, tuple[Row, ...]]:
    """Read a CSV file with a header: its kind, `oom` for runs of which nothing was measured, and its rows.

    Raises:
        InputError: as `measurements`.
    """
    kinds, rows = zip(*measurements(path), strict=True)
    return "oom" if kinds[0] == "runs" and not any(map(is_measured, rows)) else kinds[0], rows


def is_measured(row: Row) -> bool:
    """Whether a row says how a run went; one that does not is of a run that failed."""
    return any(row.raw(name) for name in OUTCOMES)


def measurements(path: Path, kinds: Kinds = FILES) -> Iterator[tuple[str, Row]]:
    """Yield the kind of a CSV file with a header, and each of its rows: the columns of that kind, equal texts once.

    A file is read to its end before its first row is yielded, a stream as it comes.

    Args:
        kinds: kinds of files that it may be, with their columns.

    Raises:
        InputError: not readable, not UTF-8, too large, no known kind of header, no rows, a row of the wrong length, an
            id missing or given twice; the place says file and line.
    """
    with reading(path) as stream:
        if not stream.seekable():
            yield from _with_own_ids(_measurements(path, stream, kinds))
            return
        for _ in _with_own_ids(_measurements(path, stream, kinds)):
            pass
        stream.seek(0)
        yield from _measurements(path, stream, kinds)


def _with_own_ids(found: Iterator[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    lines: dict[str, str] = {}
    for kind, row in found:
        column = NAMED_BY.get(kind, "id")
        name = row.raw(column)
        if not name:
            raise InputError(f"the row has no {column}", place=row.place, hint="give every row a name of its own")
        if name in lines:
            raise InputError(f"{column} {name[:60]!r} is given twice, first on line {lines[name]}", place=row.place)
        lines[name] = row.place.rpartition(":")[2]
        yield kind, row


def _measurements(path: Path, stream: BinaryIO, kinds: Kinds) -> Iterator[tuple[str, Row]]:
    records = _records(path, _lines(path, stream))
    line, names = next(records, (0, []))
    if not names:
        raise InputError("is empty", place=str(path), hint="the first line names the columns")
    header = tuple(name.strip().lower() for name in names)
    kind = _kind(header, f"{path}:{line}", kinds)
    columns = [name for name in header if name in kinds[kind]]
    at, kept = dict(zip(columns, range(len(columns)), strict=True)), [name in kinds[kind] for name in header]
    texts: dict[str, str] = {}
    line = 0
    for line, fields in records:
        place = f"{path}:{line}"
        if len(fields) != len(header):
            raise InputError(f"{len(fields)} fields, but {len(header)} columns", place=place)
        stripped = map(str.strip, itertools.compress(fields, kept))
        yield kind, Row(Cells(at, tuple(texts.setdefault(one, one) for one in stripped)), place)
        if len(texts) > MAX_SHARED:
            texts.clear()
    if not line:
        raise InputError("has a header and no rows", place=str(path))


def _lines(path: Path, stream: BinaryIO) -> Iterator[str]:
    place, read = str(path)[:300], 0
    for number in itertools.count(1):
        raw = stream.readline(MAX_LINE_BYTES + 1)
        read += len(raw)
        if not raw:
            return
        if read > MAX_FILE_BYTES:
            limit = "the limit for a file of measurements"
            raise InputError(f"larger than {MAX_FILE_BYTES // MIB} MiB, {limit}", place=place)
        if len(raw) > MAX_LINE_BYTES:
            raise InputError(f"a line of more than {MAX_LINE_BYTES // MIB} MiB", place=f"{place}:{number}")
        if number == 1:
            raw = raw.removeprefix(BOM_UTF8)
        try:
            yield from (line.decode() for line in raw.splitlines(keepends=True))  # those of old Macs end with \r
        except UnicodeDecodeError:
            raise InputError("not UTF-8 text", place=f"{place}:{number}", hint="save the file as UTF-8") from None


def _records(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of each record that is not blank."""
    reader = csv.reader(lines, strict=True)
    count, start = 0, 1
    try:
        for fields in reader:
            count += any(fields)
            longest = max(map(len, fields), default=0)
            if len(fields) > MAX_COLUMNS:
                raise InputError(f"{len(fields):,} columns, at most {MAX_COLUMNS}", place=f"{path}:{start}")
            if longest > MAX_FIELD_CHARACTERS:
                most = f"at most {MAX_FIELD_CHARACTERS:,}"
                raise InputError(f"a field of {longest:,} characters, {most}", place=f"{path}:{start}")
            if count > MAX_ROWS + 1:
                raise InputError(f"more than {MAX_ROWS:,} rows", place=f"{path}:{start}")
            if any(fields):
                yield start, fields
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"not valid CSV: {error}", place=f"{path}:{reader.line_num}") from None


def _kind(header: Sequence[str], place: str, kinds: Kinds) -> str:
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice:
        raise InputError(f"column {twice[:40]!r} is given twice", place=place)
    required = {kind: [name for name in columns if columns[name].required] for kind, columns in kinds.items()}
    missing = {kind: [name for name in names if name not in header] for kind, names in required.items()}
    kind = min(missing, key=lambda kind: len(missing[kind]))
    if not missing[kind]:
        return kind
    close = {name: nearest(name, header, 1) for name in missing[kind]}
    like = ", ".join(f"{found[0]!r} may be meant as {name}" for name, found in close.items() if found)
    any_of = "runs, recipes, kernels or collectives; nearest to " if len(kinds) > 1 else ""
    message = f"not a file of {any_of}{kind}, without {', '.join(missing[kind])}"
    hint = like[:300] or f"a file of {kind} has at least the columns {', '.join(required[kind])}"
    raise InputError(message, place=place, hint=hint)


class Library:
    """Presets by name or alias, never by path: a row must not make gpuscale read files of its choice.

    What is made once is one object for all rows of a file, by which rows that can be evaluated together are found.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self.presets = Presets()
        self._loaders: dict[str, Callable[[str], Any]] = {
            "models": self.presets.model,
            "clusters": self.presets.cluster,
            "gpus": load_gpu,
        }

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time for this key."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    def find(self, kind: str, name: str) -> Any:
        """Return a preset, or None when there is none of this name, however it is spelled."""
        stem = self.once(kind, lambda: _spellings(kind)).get(_bare(name))
        return None if stem is None else self.once((kind, stem), lambda: self._loaders[kind](stem))


def _spellings(kind: str) -> dict[str, str]:
    found = {_bare(alias): path.stem for alias, path in preset_aliases(kind).items()}
    boxes = {f"box{name}": f"box-{stem}" for name, stem in _spellings("gpus").items()} if kind == "clusters" else {}
    return boxes | found | {_bare(stem): stem for stem in preset_names(kind)}


def _bare(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


MACHINES = known_table("machines")
"""What of a row means which cluster."""

BY_PRINT = {("a100-80gb", 4): "box-a100-pcie-pairs"}
"""GPU as the source prints it and GPUs per node -> cluster, where no fabric is stated. `A100-80GB` is printed for
modules and for cards; boxes of four are taken to hold cards, joined in pairs (guesstimate: systems of four modules are
parts of machines whose fabric is stated)."""

STAGED = WAYS["net"]
"""guesstimate: NCCL over Omni-Path 100, whose cards have the host send and receive (PIO, PSM2): copies at both ends."""

_COUNT = r"(?<!\d)(\d{1,9})"
RATES = (
    (re.compile(rf"{_COUNT}\s*x\s*omni-path"), lambda found, _: int(found[1]) * 12.5e9 / 8),
    (
        re.compile(rf"{_COUNT}\s*x\s*(\d{{1,9}})\s*g(?:b|\b)(?!b?/s)"),
        lambda found, node: int(found[1]) * int(found[2]) / 8 * 1e9 / node,
    ),
    (re.compile(rf"{_COUNT}\s*gb(?:it)?/s per gpu"), lambda found, _: int(found[1]) / 8 * 1e9),
    (re.compile(rf"{_COUNT}\s*gbps"), lambda found, node: int(found[1]) / 8 * 1e9 / node),
)
"""What a fabric says of the network rate of one GPU [bytes/s]: links per node times Gbit/s each (Omni-Path: 100),
Gbit/s per GPU, or Gbit/s per node."""


def described_cluster(row: Row, library: Library) -> tuple[str, dict[str, str]]:
    """Return the name of the cluster preset that a row names, or that its GPU, node and fabric mean, and what these
    change of it: key of the option `set` -> value.

    Raises:
        InputError: no preset has the name, or such GPUs.
    """
    asked, slug, fabric = row.text("cluster"), row.text("gpu"), row.text("fabric")
    if not asked and not slug:
        raise InputError("the GPU is not stated", place=row.place)
    gpu: GpuSpec | None = library.find("gpus", slug)
    per_node = row.whole("gpus_per_node") or 0
    printed = None if asked or fabric else BY_PRINT.get((row.text("gpu_as_published"), per_node))
    name = (
        asked
        or printed
        or MACHINES["node"].get(f"{slug} x {per_node}")
        or next((name for own, words, name in MACHINES["fabric"] if own == slug and re.search(words, fabric)), None)
        or MACHINES["gpu"].get(slug)
        or (MACHINES["gpu"].get(gpu.name, f"box-{gpu.name}") if gpu else None)
    )
    cluster: ClusterSpec | None = library.find("clusters", name) if name else None
    if cluster is None:
        unknown = f"is called {asked[:60]!r}" if asked else f"has GPUs {slug[:60]!r}"
        raise InputError(f"no cluster preset {unknown}", place=row.place)
    settings = {}
    if not asked and not printed and gpu is not None and gpu.name != cluster.gpu.name:
        settings["gpu"] = gpu.name
    inside = sum(level.fabric in INSIDE for level in cluster.levels)
    settings |= _network_settings(cluster.levels[inside:], fabric)
    for pattern, rate in RATES:
        found = pattern.search(fabric)
        if found and inside == 1 and len(cluster.levels) > 1:
            factor = float(rate(found, cluster.host_gpus)) / cluster.levels[1].link_bytes_per_s
            return cluster.name, settings | _scaled_network(cluster, factor)
    return cluster.name, settings


def _network_settings(levels: Sequence[LevelSpec], fabric: str) -> dict[str, str]:
    kind = next((name for name in TRANSPORTS if name in fabric), None)
    settings: dict[str, str] = {}
    for level in levels:
        if kind and level.fabric != kind:
            hop_us = FABRIC_DEFAULTS[kind][0] if kind in FABRIC_DEFAULTS else level.hop_latency_s * 1e6
            settings |= {f"{level.name}.fabric": kind, f"{level.name}.hop_latency_us": f"{hop_us:g}"}
        if "omni-path" in fabric:
            settings |= {f"{level.name}.hop_latency_us": f"{STAGED.hop_us:g}"}
            settings |= {f"{level.name}.link_efficiency": f"{STAGED.efficiency:g}"}
    return settings


def settings_text(settings: Mapping[str, str]) -> str:
    """Write settings as the option `set` takes them."""
    return ",".join(f"{key}={value}" for key, value in settings.items())


def named_cluster(row: Row, library: Library) -> ClusterSpec:
    """Return the cluster of a row, in the size of its preset.

    Raises:
        InputError: no preset has such a name or such GPUs.
    """
    name, settings = described_cluster(row, library)
    return with_settings(library.find("clusters", name), settings_text(settings))


def _scaled_network(cluster: ClusterSpec, factor: float) -> dict[str, str]:
    """Oversubscription stays as it is."""
    if factor == 1.0:
        return {}
    found = {}
    for level in cluster.levels[1:]:
        found[f"{level.name}.link_gb_per_s"] = f"{level.link_bytes_per_s * factor / 1e9:.8g}"
        if level.switches:
            found[f"{level.name}.switch_gb_per_s"] = f"{level.switch_bytes_per_s * factor / 1e9:.8g}"
    return found


BANDWIDTH_STEP = 1.04
"""Measured bandwidths are rounded to powers of this: runs on nearly the same fabric are evaluated together."""

RANKS_BIND = 1.35
"""Probes of `PROBE_BYTES` that take this many times the preset's AllGather are not bound by their bytes; those of the
nanotron sweep are either below 1.3 or above 1.5."""

PROBE_BYTES = 2**30
"""Size of the collective whose bandwidth the `net_*_busbw_gb_per_s` columns state."""


def row_cluster(row: Row, gpus: int, library: Library) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options of a job that say where a run took place, and what had to be assumed.

    Raises:
        InputError: no preset has such GPUs.
    """
    names = ("cluster", "gpu", "gpu_as_published", "fabric", "gpus", "gpu_power_w", "gpus_per_node")
    measured = [row.number(f"net_{name}_busbw_gb_per_s") for name in ("allreduce", "allgather")]
    probes = [None if one is None else BANDWIDTH_STEP ** round(math.log(one * 1e9, BANDWIDTH_STEP)) for one in measured]
    key = ("machine", *(row.text(name) for name in names), *probes)
    return library.once(key, lambda: _machine(row, gpus, probes, library))


def _machine(
    row: Row, gpus: int, probes: Sequence[float | None], library: Library
) -> tuple[dict[str, Any], tuple[str, ...]]:
    name, settings = described_cluster(row, library)
    cluster, assumed = with_settings(library.find("clusters", name), settings_text(settings)), []
    unstated = not row.text("fabric") and not row.text("cluster")
    if unstated and (gpus > cluster.node_gpus or name in BY_PRINT.values()):
        assumed.append(f"cluster {name}")
    per_node, cap_w = row.whole("gpus_per_node"), row.number("gpu_power_w")
    taken = None
    if per_node and per_node < cluster.host_gpus:
        # in a rack the others stay in the NVLink domain
        if cluster.node_gpus % per_node or cluster.host_gpus < cluster.node_gpus:
            assumed.append(f"{cluster.node_gpus} GPUs per node, the row says {per_node}")
        else:
            taken = per_node
            cluster = cluster.with_gpus_per_node(per_node)
    if cap_w and cap_w < cluster.gpu.power_w:
        settings |= {GPU_POWER: f"{cap_w:g}"}
    if gpus > cluster.node_gpus:
        settings |= _calibrated(cluster, gpus, *probes)
    found = {"cluster": name, "set": settings_text(settings) or None, "gpus_per_node": taken}
    return {key: value for key, value in found.items() if value is not None}, tuple(assumed)


def _calibrated(cluster: ClusterSpec, gpus: int, reduced: float | None, gathered: float | None) -> dict[str, str]:
    """Fit the network above the node to what a 1 GiB AllReduce and AllGather over all GPUs measured there [bytes/s].

    Where both take `RANKS_BIND` times what the network needs, each collective waits for every rank of its group
    (docs/model.md, "Ranks"). Otherwise the AllReduce scales the network, by 1/100 to 2: faster would contradict the
    preset.
    """
    sized = cluster.sized_for(gpus)[0]
    if gathered is not None:
        measured_s = PROBE_BYTES * (gpus - 1) / gpus / gathered
        if reduced is not None:  # which does more: an AllGather that takes longer is a probe gone wrong
            measured_s = min(measured_s, PROBE_BYTES * 2 * (gpus - 1) / gpus / reduced)
        if measured_s > RANKS_BIND * float(collective_time_s(sized, "allgather", PROBE_BYTES, gpus)):
            return {RANK_OVERHEAD: f"{measured_s / gpus * 1e6:.8g}"}
    if reduced is None:
        return {}
    time_s = float(collective_time_s(sized, "allreduce", PROBE_BYTES, gpus))
    predicted = PROBE_BYTES / time_s * 2 * (gpus - 1) / gpus
    return _scaled_network(cluster, min(max(reduced / predicted, 0.01), 2.0))
