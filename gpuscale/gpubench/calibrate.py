"""A GPU measured, or a protocol of it read, and its kernel constants fitted."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuscale.arguments import public
from gpuscale.calibration.gpu_protocol import Machine, Protocol, begin, label, line_of, read_protocol, wanted
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.files import appending
from gpuscale.gpubench.fit import Constant, GpuFit, fit_gpu
from gpuscale.importers.smi import product_preset
from gpuscale.presets.files import preset_name, read_toml, resolve_preset
from gpuscale.presets.hardware import load_gpu, parse_gpu
from gpuscale.specs.gpu import GpuSpec
from gpuscale.units import plural

if TYPE_CHECKING:
    from gpuscale.gpubench.torch_runs import Bench

Progress = Callable[[int, int, str], None]
"""Told after every measurement: how many are done, of how many, and what comes next."""


@displayed
class Calibrated(NamedTuple):
    """What became of a GPU."""

    fit: GpuFit  #: its constants and how close they come.
    protocol: Protocol  #: what was measured.
    base: str  #: the GPU file from which the fit began.
    missing: int  #: measurements that the protocol lacks.


@public
def calibrate_gpu(
    protocol: Path,
    *,
    gpu: str | Path | GpuSpec | None = None,
    device: int = 0,
    fit_only: bool = False,
    progress: Progress | None = None,
) -> Calibrated:
    """Measure what a protocol lacks, and fit the kernel constants of its GPU.

    A protocol that is there is fitted to as it is where torch is not installed.

    Args:
        protocol: file to which every measurement is appended as it comes; what it holds is not measured again.
        gpu: name or file of the GPU, where its product name means no preset.
        device: number of the GPU to measure.
        fit_only: measure nothing.
        progress: told after every measurement.

    Raises:
        InputError: no protocol and nothing to measure with, an unknown GPU, or a protocol of another one.
    """
    gpu = preset_name(gpu, load_gpu)
    if fit_only or (protocol.exists() and find_spec("torch") is None):
        recorded = read_protocol(protocol)
        base = _base(recorded.machine, gpu)
    else:
        from gpuscale.gpubench.torch_runs import Bench  # noqa: PLC0415 - torch takes seconds to load

        bench = Bench(device)
        base = _base(bench.machine, gpu)
        _measure(bench, begin(protocol, bench.machine), protocol, load_gpu(base), progress)
        recorded = read_protocol(protocol)
    spec = load_gpu(base)
    missing = len(recorded.missing(wanted(spec, recorded.machine.gpus)))
    try:
        return Calibrated(fit_gpu(recorded, spec), recorded, base, missing)
    except InputError as error:
        raise InputError(error.message, place=str(protocol)[:300], hint=error.hint) from None


def _base(machine: Machine, gpu: str | None) -> str:
    found = gpu or product_preset(machine.gpu)
    if found is None:
        hint = "name the GPU most like it (`gpuscale show hardware`), or a file of your own: `gpu=NAME`"
        raise InputError(f"gpuscale has no preset of {machine.gpu}", hint=hint)
    return found


def _measure(bench: Bench, begun: Protocol, path: Path, gpu: GpuSpec, progress: Progress | None) -> None:
    """Measure what is missing, each appended to the protocol as it comes."""
    every = wanted(gpu, bench.machine.gpus)
    missing = begun.missing(every)
    alone = [one for one in missing if dict(one)["kind"] != "collective"]
    together = [one for one in missing if dict(one)["kind"] == "collective"]
    done = len(every) - len(missing)
    tell = progress or (lambda *_: None)
    with appending(path) as add:
        for one in alone:
            tell(done, len(every), label(one))
            add(line_of(bench.measure(one)))
            done += 1
        if together:
            tell(done, len(every), plural(len(together), "collective"))
        for measured in bench.measure_collectives(together):
            add(line_of(measured))
            done += 1
    tell(done, len(every), "done")


# -- A GPU file with fitted kernel constants. --

MAX_SOURCE = 600


def gpu_file_text(fit: GpuFit, protocol: Protocol, base: str, output: Path) -> str:
    """Return the text of the GPU file `base` with the constants of a fit, as it is to stand at `output`.

    Everything else stays as it stands, with its comments; the measured power limit goes before the datasheet's.

    Args:
        base: name or path of the GPU file that the fit began with.

    Raises:
        InputError: the constants make no file that can be read.
    """
    import tomlkit  # noqa: PLC0415 - only where a file is written

    document = tomlkit.parse(read_toml(resolve_preset("gpus", base)).text)
    title = str(document["title"]).partition(", kernels as measured")[0]
    document["title"] = f"{title}, kernels as measured on {fit.device}"[:200]
    document.pop("aliases", None)
    document.pop("announced", None)
    if protocol.machine.power_limit_w and protocol.machine.power_limit_w < fit.gpu.power_w:
        document["power_w"] = protocol.machine.power_limit_w
        document["sources"]["power_w"] = "the power limit that was set when it was measured"
    document.pop("kernels_like", None)
    document.pop("kernels", None)
    document.append("kernels", _kernels(fit))
    text = tomlkit.dumps(document)
    parse_gpu(text, output)  # through the checks of every GPU file, before it is written
    return text


def _kernels(fit: GpuFit) -> Any:
    import tomlkit  # noqa: PLC0415

    constants = {one.name: one for one in fit.constants}
    table, sources = tomlkit.table(), tomlkit.table()
    fractions = tomlkit.inline_table()
    for name, one in constants.items():
        if name.startswith("gemm_fraction."):
            fractions.append(name.partition(".")[2], one.after)
    table.append("gemm_fraction", fractions)
    told = {"gemm_fraction": [one for name, one in constants.items() if name.startswith("gemm_fraction.")]}
    told |= {name: [one] for name, one in constants.items() if not name.startswith("gemm_fraction.")}
    if fit.gpu.kernels.sustained_16bit_fraction is None:
        del told["sustained_16bit_fraction"]
    for name, (one, *_) in told.items():
        if name != "gemm_fraction":
            table.append(name, one.after)
        sources.append(name, _source(fit, told[name]))
    table.append("sources", sources)
    return table


def _source(fit: GpuFit, constants: list[Constant]) -> str:
    """Say what a constant was fitted to; what was not keeps the preset's source."""
    key = f"kernels.{constants[0].name.partition('.')[0].replace('sustained_16bit', 'sustained_clock')}"
    before = fit.gpu.sources.get(key, "")
    if not any(one.kernels for one in constants):
        return before
    precisions = {one.name: one.kernels for one in constants}
    twin = "gemm_fraction.fp16" if "gemm_fraction.bf16" in precisions else ""
    count = sum(kernels for name, kernels in precisions.items() if name != twin)
    said = f"fitted by gpuscale calibrate gpu to {count} kernels measured on {fit.device}"
    kept = ", ".join(one.name.partition(".")[2] for one in constants if not one.kernels)
    software = f" ({fit.software})" if fit.software else ""
    return (f"{said}{software}" + (f"; {kept} not measured: {before}" if kept else ""))[:MAX_SOURCE]
