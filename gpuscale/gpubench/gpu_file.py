"""A GPU file with fitted kernel constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuscale.calibration.gpu_protocol import Protocol
from gpuscale.gpubench.fit import Constant, GpuFit
from gpuscale.presets.files import read_toml, resolve_preset
from gpuscale.presets.hardware import parse_gpu

MAX_SOURCE = 600
"""Longest source of a preset file."""


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
