"""What a user says of layouts: sets of values to search in, or one layout completed with defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuscale.arguments import refuse_unknown
from gpuscale.choices import MAX_DEGREE
from gpuscale.errors import InputError, shown
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, ONE_F_ONE_B, ZB_V, Candidates, single
from gpuscale.layouts.pins import Pin, Pins, parse_pin, parse_recompute, recompute_text
from gpuscale.layouts.space import divisors, layouts, shapes, sharded
from gpuscale.request import PINS, Layout, parse_schedule, read
from gpuscale.specs.job import JobSpec
from gpuscale.units import enumerated, plural


def make_pins(pins: Mapping[str, Any]) -> Pins:
    """Parse pins given as text or numbers; of schedules one, as a search has one."""
    degrees: dict[str, Pin] = {}
    recompute, schedule = None, ONE_F_ONE_B
    refuse_unknown(pins, PINS)
    for name, value in pins.items():
        several = value if isinstance(value, list | tuple) else (value,)
        numbers = (int(one) if isinstance(one, bool) else one for one in several)
        text = ",".join(one if isinstance(one, str) else shown(one) for one in numbers)
        if name == "recompute":
            recompute = tuple(dict.fromkeys(parse_recompute(part) for part in text.split(",")))
        elif name == "schedule":
            schedule = parse_schedule(text)
        else:
            low, high, values = _VALUES.get(name, (1, MAX_DEGREE, f"values go from 1 to {MAX_DEGREE:,}"))
            if name == "sp":
                text = {"on": "1", "true": "1", "off": "0", "false": "0"}.get(text.strip().lower(), text)
            degrees[name] = pin = parse_pin(text, name, values if name == "sp" else "")
            if pin.ranges and all(most < low or least > high for least, most in pin.ranges):
                raise InputError(f"{text[:40]!r} allows nothing", field=name, hint=values)
    return Pins(degrees, recompute, schedule)


_VALUES = {"sp": (0, 1, "write on or off"), "zero": (0, 3, "ZeRO stages are 0, 1, 2 and 3")}
"""Pin -> least and largest value, and what to say of them; of the others 1 to `MAX_DEGREE`."""


def fixed_layout(job: JobSpec, layout: Mapping[str, Any]) -> Candidates:
    """Complete values of `gpuscale.request.Layout`: DP from the GPUs, SP with TP and ZeRO as the framework has them,
    else 1.

    Raises:
        InputError: an unknown name, an unusable value, or degrees that do not multiply to the GPUs.
    """
    given = read(Layout, layout)
    tp, pp, cp = given.tp, given.pp, given.cp
    dp = degree_of_data(job.gpus, tp, pp, cp, given.dp)
    zero = usual_zero(job, pp, dp * cp) if given.zero is None else given.zero
    per_stage, share = -(-job.model.layers // pp), job.runtime.selective_share
    if share and given.recompute == "selective":  # a way of the framework's own
        modules, layers = EVERY_OTHER_MATMUL, max(1, round(per_stage * share))
    else:
        recompute = parse_recompute(given.recompute)
        modules, layers = recompute.modules, recompute.layers_of(per_stage)
    schedule = parse_schedule(given.schedule, pp)
    microbatch = given.micro_batch_size if "micro_batch_size" in given.given else job.method.sequences
    return single(
        tp=tp,
        sp=int(tp > 1 and job.runtime.sequence_parallel if given.sp is None else given.sp),
        pp=pp,
        vpp=given.vpp or (2 if schedule == ZB_V else 1),
        cp=cp,
        ep=given.ep,
        etp=usual_etp(job, tp, given.ep) if given.etp is None else given.etp,
        dp=dp,
        zero=zero,
        shard=given.shard or (dp * cp if zero else 1),
        micro_batch_size=microbatch,
        num_microbatches=job.global_batch_size // (dp * microbatch),
        recompute_modules=modules,
        recompute_layers=layers,
        schedule=schedule,
    )


def usual_etp(job: JobSpec, tp: int, ep: int) -> int:
    """Return the TP of experts where none is asked for: in Megatron-LM that of the dense layers (training/arguments.py,
    `expert_tensor_parallel_size`), in torchtitan too unless EP splits the experts; 1 elsewhere."""
    family = job.runtime.rule_set.partition("-20")[0]
    split = family == "megatron-lm" or (family == "torchtitan" and ep == 1)
    return tp if job.model.is_moe and split else 1


def usual_zero(job: JobSpec, pp: int, ranks: int) -> int:
    """Return the ZeRO stage where none is asked for."""
    if (ranks == 1 and not job.runtime.zero_alone) or job.projection is not None:
        return 0
    return fully_sharded(job, pp) if job.runtime.zero_stage == 3 else job.runtime.zero_stage


def fully_sharded(job: JobSpec, pp: int) -> int:
    """Return the ZeRO stage of FSDP: 2 where the framework keeps gathered parameters from forward to backward pass."""
    kept = job.runtime.reshard == "never" or (job.runtime.reshard == "default" and pp > 1)
    return 2 if kept else 3


def degree_of_data(gpus: int, tp: int, pp: int, cp: int, dp: int | None) -> int:
    """Return the data-parallel degree: what is left of the GPUs where none is given; an InputError where nothing is."""
    degrees = {"tp": tp, "pp": pp, "cp": cp}
    product = math.prod(degrees.values())
    if gpus % product:
        raise indivisible(gpus, {name: Pin(((degree, degree),)) for name, degree in degrees.items() if degree > 1})
    if dp not in {None, gpus // product}:
        said = f"TP {tp} x PP {pp} x CP {cp} x DP {dp} = {product * (dp or 1):,}"
        hint = f"leave `dp` out, or give {gpus // product:,}"
        raise InputError(f"{said}, but the job has {plural(gpus, 'GPU')}", place="layout", hint=hint)
    return gpus // product


def impossible(job: JobSpec, pins: Pins) -> InputError | None:
    """Return why no layout of a job has the pinned degrees, whatever runs it; None where one may."""
    if not job.model.is_moe:
        for name in ("ep", "etp"):
            if not pins.allows(name, np.ones(1, dtype=np.int64))[0]:
                return no_experts(job, name)
    plain = replace(pins, schedule=ONE_F_ONE_B, cp_elsewhere=())
    rows = shapes(job, plain)
    if not len(rows):
        return indivisible(job.gpus, {name: pin for name, pin in pins.degrees.items() if name in SHAPE})
    if sharded(job, plain, layouts(job, plain, rows)).marked().any():
        return None
    experts = max((kind.moe.experts for kind in job.model.kinds if kind.moe), default=1)
    for name in (name for name in _SPLITS if name in pins.degrees):
        free = replace(plain, degrees={other: pin for other, pin in plain.degrees.items() if other != name})
        legal = sharded(job, free, layouts(job, free, rows)).listed()
        values = [] if name == "sp" else np.unique(getattr(legal, name)).tolist()
        if len(legal):
            known = {"value": pin_text(pins.degrees[name]), "experts": experts, "layers": job.model.layers}
            text = _SPLITS[name].format(**known, model=job.model.name)
            if name == "vpp" and rows.pp.max() == 1:
                text = "virtual stages need PP above 1"
            return InputError(text, field=name, hint=f"here {listed(values)} can" if values else "leave it out")
    return None


SHAPE = ("tp", "pp", "cp", "dp")
"""Degrees whose product is the number of GPUs."""

_SPLITS = {
    "sp": "sequence parallelism needs TP above 1",
    "vpp": "the {layers} layers of {model} cannot be split into PP x VPP chunks with VPP {value}",
    "ep": "the {experts} experts of {model} cannot be split by EP {value}",
    "etp": "experts are split as TP or not at all, not by ETP {value}",
    "zero": "nothing is sharded without DP x CP above 1, as ZeRO {value} does",
    "shard": "states are sharded over all of DP x CP, or over GPUs of one level, not over {value}",
}
"""Degree -> what is wrong with a value that no layout of its job has, the surest first."""


def no_experts(job: JobSpec, name: str) -> InputError:
    """Build the error for a degree of experts of a model without any."""
    return InputError(f"{job.model.name} has no experts: `{name}` must be 1", field=name, hint="leave it out")


def indivisible(gpus: int, pins: Mapping[str, Pin]) -> InputError:
    """Build the error for degrees into which a number of GPUs cannot be split, of TP, PP, CP and DP."""
    counts = divisors(gpus)
    wrong = next((name for name, pin in pins.items() if not pin.allows(counts).any()), None)
    name = wrong or list(pins)[-1]
    singles = {other: pin.single() for other, pin in pins.items()}
    product = math.prod(one or 1 for one in singles.values())
    by = " x ".join(f"{other.upper()} {pin_text(pins[other])}" for other in ([wrong] if wrong else pins))
    total = f" = {product:,}" if not wrong and None not in singles.values() else ""
    left, rest = divmod(gpus, product // (singles[name] or 1))
    can = listed((counts if rest else counts[left % counts == 0]).tolist())
    hint = f"{can} can" if rest or len(pins) == 1 else f"beside the others `{name}` may be {can}"
    return InputError(f"{plural(gpus, 'GPU')} cannot be split by {by}{total}", field=name, hint=hint)


def listed(values: Sequence[int], most: int = 8) -> str:
    """List values, the first where there are many: `1, 2, 4 or 8`."""
    shown = [f"{one:,}" for one in values[:most]]
    return f"{', '.join(shown)}, ..." if len(values) > most else enumerated(shown, "or")


def pin_text(pin: Pin) -> str:
    """Write a pin as `parse_pin` reads it."""
    parts = [(low, high, "") for low, high in pin.ranges] + [(low, high, "!") for low, high in pin.excluded]
    return ",".join(f"{mark}{low}" if low == high else f"{mark}{low}..{high}" for low, high, mark in parts)


def domain_groups(layout: Mapping[str, Any]) -> tuple[int, int]:
    """Return the sizes of groups that belong into one NVLink domain: TP and EP x ETP."""
    given = read(Layout, layout)
    return given.tp, given.ep * (given.etp or 1)


def layout_text(layout: Mapping[str, int]) -> str:
    """One layout in a line: `TP8+SP PP4 DP20 ZeRO-1 mb1`, with what differs from 1 or none."""
    parts = [f"TP{layout['tp']}{'+SP' if layout['sp'] else ''}", f"PP{layout['pp']}"]
    parts += [f"{name.upper()}{layout[name]}" for name in ("vpp", "cp", "ep", "etp") if layout[name] > 1]
    parts += [f"DP{layout['dp']}", f"ZeRO-{layout['zero']}", f"mb{layout['micro_batch_size']}"]
    recompute = recompute_text(layout["recompute_modules"], layout["recompute_layers"])
    return " ".join([*parts, *([] if recompute == "none" else [f"recompute {recompute}"])])


def pins_text(pins: Pins) -> str:
    """The pinned dimensions, for a message."""
    said = [f"`{name}={pin_text(pin)}`" for name, pin in pins.degrees.items() if name != "sp"]
    said += ["`sp`"] if "sp" in pins.degrees else []
    return " ".join([*said, *(["`recompute`"] if pins.recompute else [])])
