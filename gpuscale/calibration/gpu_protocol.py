"""The protocol of `gpuscale calibrate gpu`: what was measured on a GPU, one JSON object per line, appended as it comes.

The first line says on which machine (`Machine`), every other one is a measurement: its kind, its sizes, and `time_us`,
or `error` where the machine cannot run it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpuscale.errors import InputError, did_you_mean, shown
from gpuscale.files import appending, is_there, printable, read_text, reading, reads, refuse_irregular
from gpuscale.specs.gpu import PRECISIONS, GpuSpec
from gpuscale.units import MIB

FORMAT = "gpuscale.gpu-protocol/1"
MAX_PROTOCOL_BYTES = 8 * MIB
MAX_MEASUREMENTS = 20_000
MAX_SIZE = 2**40
MAX_TIME_US = 1e9

REGIMES = ("short", "sustained")
"""Regimes of GEMMs: bursts that no power limit slows, or seconds of the same product."""

STREAMS = ("copy", "add", "norm", "adam")
LAUNCHES = ("queued", "graph")
COLLECTIVES = ("allreduce", "allgather", "reducescatter")

KINDS: Mapping[str, Mapping[str, Sequence[str] | type[int] | type[bool]]] = {
    "gemm": {"precision": PRECISIONS, "m": int, "n": int, "k": int, "regime": REGIMES},
    "attention": {"sequences": int, "tokens": int, "heads": int, "head_dim": int, "backward": bool},
    "stream": {"op": STREAMS, "bytes": int, "kernels": int},
    "launch": {"op": LAUNCHES},
    "collective": {"op": COLLECTIVES, "gpus": int, "bytes": int},
}
"""Kind of measurement -> its sizes, and what each may be.

gemm: m x k by k x n, output of 16 bits (32 where operands have so many). attention: causal, fused, in 16 bits, as many
heads of keys as of queries. stream: all bytes that it reads and writes. launch: one of many tiny kernels in a full
queue, or of a CUDA graph. collective: bytes as nccl-tests counts them.
"""

KernelCase = tuple[tuple[str, Any], ...]
"""What is measured: ("kind", ...) and its sizes, in the order of `KINDS`."""


def case(kind: str, **sizes: Any) -> KernelCase:
    """Return what is to be measured, its sizes in the order of `KINDS`."""
    return (("kind", kind), *((name, sizes[name]) for name in KINDS[kind]))


def label(one: KernelCase) -> str:
    """Return a case in words: `gemm bf16 4096 x 4096 x 4096`."""
    sizes = dict(one)
    if sizes["kind"] == "gemm":
        return f"gemm {sizes['precision']} {sizes['m']} x {sizes['n']} x {sizes['k']}, {sizes['regime']}"
    if sizes["kind"] == "attention":
        way = "backward" if sizes["backward"] else "forward"
        shape = f"{sizes['sequences']} x {sizes['tokens']} tokens, {sizes['heads']} heads"
        return f"attention {way} {shape} of {sizes['head_dim']}"
    if sizes["kind"] == "launch":
        return f"launch, {sizes['op']}"
    return f"{sizes['op']} {sizes['bytes'] / MIB:g} MiB" + (f" on {sizes['gpus']} GPUs" if "gpus" in sizes else "")


@dataclass(frozen=True)
class Machine:
    """Where a protocol was measured."""

    gpu: str  #: product name of the GPU.
    gpus: int = 1  #: GPUs of the machine.
    sm_count: int = 0  #: compute units of one; 0 where it is not known.
    power_limit_w: float = 0.0  #: power limit that was set; 0 where it is not known [W].
    software: str = ""  #: versions of what ran, in words.


@dataclass(frozen=True)
class Measurement:
    """One line of a protocol."""

    case: KernelCase
    time_s: float | None  #: how long it took; None where the machine cannot run it [s].
    error: str = ""


@dataclass(frozen=True)
class Protocol:
    """A protocol as it stands in its file."""

    machine: Machine
    measurements: tuple[Measurement, ...]  #: what was, in the order of the file; of one measured again the last.
    #: bytes at the end of the file that are no whole line, as a process that was killed leaves them.
    torn_bytes: int = 0

    def missing(self, wanted: Iterable[KernelCase]) -> list[KernelCase]:
        """Return the cases that have not been measured; those for which memory lacked are tried again."""
        done = {one.case for one in self.measurements if "out of memory" not in one.error}
        return [one for one in wanted if one not in done]


def is_protocol(path: Path) -> bool:
    """Whether a file begins as a protocol does."""
    with reading(path) as stream:
        return f'"{FORMAT.partition("/")[0]}/'.encode() in stream.read(100)


@reads("protocol")
def read_protocol(path: Path) -> Protocol:
    """Read a protocol of at most 8 MiB and 20,000 measurements.

    Raises:
        InputError: missing, no protocol, or a line that is none of it (the place says which).
    """
    refuse_irregular(path, "a protocol", "`gpuscale calibrate gpu` writes one")
    text = read_text(path, MAX_PROTOCOL_BYTES, "a protocol")
    *lines, torn = text.split("\n")
    if not lines:
        raise InputError(f"not a protocol: a first line with {FORMAT} is missing", place=str(path)[:300])
    if len(lines) > MAX_MEASUREMENTS:
        raise InputError(f"{len(lines):,} lines, at most {MAX_MEASUREMENTS:,}", place=str(path)[:300])
    found: dict[KernelCase, Measurement] = {}
    at = f"{str(path)[:300]}:"
    machine = _machine(_object(lines[0], f"{at}1"), f"{at}1")
    for number, line in enumerate(lines[1:], 2):
        if line.strip():
            one = _measurement(_object(line, f"{at}{number}"), f"{at}{number}")
            found[one.case] = one
    return Protocol(machine, tuple(found.values()), len(torn.encode()))


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        hint = "every line is one JSON object; delete this one to measure it again"
        raise InputError("not a JSON object", place=place, hint=hint) from None
    if not isinstance(found, dict):
        raise InputError("not a JSON object", place=place)
    return found


def _machine(data: dict[str, Any], place: str) -> Machine:
    if data.get("format") != FORMAT:
        raise InputError(f"format is not {FORMAT!r}", place=place, hint="`gpuscale calibrate gpu` writes such files")
    known = {one.name for one in fields(Machine)}
    odd = next((key for key in data if key not in known | {"format"}), None)
    if odd is not None:
        raise InputError(f"unknown key {shown(odd)}", place=place, hint=did_you_mean(odd, known, "known keys:"))
    if not isinstance(data.get("gpu"), str) or not isinstance(data.get("software", ""), str):
        raise InputError("gpu or software is not text", place=place)
    gpus, sms = (_number(data.get(key, low), key, place, low, 65536) for key, low in (("gpus", 1), ("sm_count", 0)))
    power_w = _number(data.get("power_limit_w", 0), "power_limit_w", place, 0, 10_000)
    software = printable(data.get("software", "")[:200])
    return Machine(printable(data["gpu"][:80]), int(gpus), int(sms), power_w, software)


def _measurement(data: dict[str, Any], place: str) -> Measurement:
    kind = data.get("kind")
    sizes = KINDS.get(kind) if isinstance(kind, str) else None
    if sizes is None:
        raise InputError(f"unknown kind {shown(kind)}", place=place, hint=f"there are {', '.join(KINDS)}")
    keys = {"kind", *sizes, "time_us", "error"}
    odd = next((key for key in data if key not in keys), None) or next((key for key in sizes if key not in data), None)
    if odd is not None:
        what = f"unknown key {shown(odd)}" if odd in data else f"key {odd!r} is missing"
        raise InputError(what, place=place, hint=f"a {kind} has {', '.join(sizes)} and time_us or error")
    found = tuple((name, _size(data[name], name, allowed, place)) for name, allowed in sizes.items())
    error, time_us = data.get("error"), data.get("time_us")
    if (error is None) == (time_us is None) or not isinstance(error, str | None):
        raise InputError("needs either time_us or error, a text", place=place)
    time_s = None if time_us is None else _number(time_us, "time_us", place, 1e-3, MAX_TIME_US) / 1e6
    return Measurement((("kind", kind), *found), time_s, printable((error or "")[:200]))


def _size(value: Any, name: str, allowed: Sequence[str] | type, place: str) -> Any:
    if allowed is bool or not isinstance(allowed, type):
        choices = (False, True) if isinstance(allowed, type) else allowed
        if not any(value is one or (isinstance(value, str) and value == one) for one in choices):
            raise InputError(f"{name} = {shown(value)} is none of {', '.join(map(str, choices))}", place=place)
        return value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
        raise InputError(f"{name} = {shown(value)} is not a whole number from 1 to 2^40", place=place)
    return value


def _number(value: Any, name: str, place: str, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} = {shown(value)} is not a number from {low:g} to {high:g}", place=place)
    return float(value)


# --- writing


def machine_line(machine: Machine) -> str:
    """Return the first line of a protocol."""
    return json.dumps({"format": FORMAT, **{one.name: getattr(machine, one.name) for one in fields(Machine)}}) + "\n"


def line_of(one: Measurement) -> str:
    """Return a measurement as a line."""
    result = {"error": one.error} if one.time_s is None else {"time_us": float(f"{one.time_s * 1e6:.6g}")}
    return json.dumps({**dict(one.case), **result}) + "\n"


def begin(path: Path, machine: Machine) -> Protocol:
    """Return the protocol at `path`, made with its first line where there is none; what a killed process left of a
    line is cut off.

    Raises:
        InputError: it cannot be read or written, or it was measured on another GPU.
    """
    if not is_there(path) or (path.is_file() and path.stat().st_size == 0):
        with appending(path) as add:
            add(machine_line(machine))
        return Protocol(machine, ())
    found = read_protocol(path)
    if found.machine.gpu != machine.gpu:
        message = f"was measured on {found.machine.gpu}, and this machine has {machine.gpu}"
        raise InputError(message, place=str(path)[:300], hint="give another file: `recorded=other.jsonl`")
    if found.torn_bytes:
        os.truncate(path, path.stat().st_size - found.torn_bytes)
    return found


# --- what is measured

_SQUARES = (1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288)
_ROWS = (1024, 2048, 4096, 8192, 16384)
_MATRICES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (1280, 8192), (8192, 1024), (7168, 8192))
"""Columns and inner size of weights: of an 8B model whole, of a 70B model over eight GPUs."""
_WAVES = range(1152, 4736, 256)
"""Rows whose tiles fill the last wave in all degrees."""
_THIN = (64, 128, 256, 512, 1024, 2048)
"""Inner sizes from which the memory, the tiles' overhead and the arithmetic bind in turn."""
_TINY = ((128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 256, 256))


def _gemms(
    precisions: Iterable[str], shapes: Sequence[tuple[int, int, int]], regime: str = "short"
) -> list[KernelCase]:
    return [case("gemm", precision=one, m=m, n=n, k=k, regime=regime) for one in precisions for m, n, k in shapes]


def wanted(gpu: GpuSpec, gpus: int = 1) -> list[KernelCase]:
    """Return all that is to be measured on a machine with `gpus` of these GPUs."""
    wide = [name for name in ("bf16", "fp16") if name in gpu.peak_flops_per_s][:1]
    narrow = [name for name in ("fp8",) if name in gpu.peak_flops_per_s]
    shapes = [(size, size, size) for size in _SQUARES] + [(m, n, k) for m in _ROWS for n, k in _MATRICES]
    shapes += [(m, 4096, 4096) for m in _WAVES] + [(8192, 8192, k) for k in _THIN] + list(_TINY)
    few = [(size, size, size) for size in (1024, 2048, 4096, 8192)] + [(8192, 4096, 1024)]
    others = [name for name in ("tf32", "fp32") if name in gpu.peak_flops_per_s]
    found = [*_gemms(wide, shapes), *_gemms(narrow, shapes[::2]), *_gemms(others, few)]
    found += [
        case("stream", op=op, bytes=tensors * size * MIB // 2, kernels=1)
        for op, tensors in (("copy", 2), ("add", 3), ("norm", 2))
        for size in (1, 4, 16, 64, 256, 1024)
    ]
    found += [case("stream", op="adam", bytes=28 * size * MIB, kernels=1) for size in (4, 16, 64)]
    found += [case("launch", op=op) for op in LAUNCHES]
    found += [
        case("attention", sequences=16384 // tokens, tokens=tokens, heads=heads, head_dim=dim, backward=backward)
        for backward in (False, True) for dim in (64, 128) for heads in (8, 32)
        for tokens in (1024, 2048, 4096, 8192, 16384)
    ]  # fmt: skip
    found += _gemms([*wide, *narrow], [(8192, 8192, 8192), (8192, 28672, 4096), (8192, 4096, 14336)], "sustained")
    counts = [count for count in (2, 4, 8, 16) if count < gpus] + [gpus] if gpus > 1 else []
    found += [
        case("collective", op=op, gpus=count, bytes=size)
        for count in counts for op in COLLECTIVES for size in (2**16, 2**20, 2**24, 2**27, 2**30)
    ]  # fmt: skip
    return list(dict.fromkeys(found))
