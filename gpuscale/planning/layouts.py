"""What a user says of layouts: sets of values to search in, or one layout completed with defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuscale.errors import InputError, shown
from gpuscale.layouts.arrays import EVERY_OTHER_MATMUL, ONE_F_ONE_B, ZB_V, Candidates, single
from gpuscale.layouts.pins import DEGREES, MAX_DEGREE, Pin, Pins, parse_pin, parse_recompute, recompute_text
from gpuscale.request import Layout, parse_schedule, read, refuse_unknown
from gpuscale.specs.job import JobSpec


def make_pins(pins: Mapping[str, Any]) -> Pins:
    """Parse pins given as text or numbers.

    Raises:
        InputError: an unknown dimension or an unusable value.
    """
    degrees: dict[str, Pin] = {}
    recompute, schedule = None, ONE_F_ONE_B
    refuse_unknown(pins, (*DEGREES, "recompute", "schedule"))
    for name, value in pins.items():
        text = value if isinstance(value, str) else shown(int(value) if isinstance(value, bool) else value)
        if name == "recompute":
            recompute = tuple(dict.fromkeys(parse_recompute(part) for part in text.split(",")))
        elif name == "schedule":
            schedule = parse_schedule(text)
        else:
            degrees[name] = _degree_pin(name, text)
    return Pins(degrees, recompute, schedule)


def _degree_pin(name: str, text: str) -> Pin:
    low, high, values = {"sp": (0, 1, "write on or off"), "zero": (0, 3, "ZeRO stages are 0, 1, 2 and 3")}.get(
        name, (1, MAX_DEGREE, f"values go from 1 to {MAX_DEGREE:,}")
    )
    if name == "sp":
        text = {"on": "1", "true": "1", "off": "0", "false": "0"}.get(text.strip().lower(), text)
    pin = parse_pin(text, name, values if name == "sp" else "")
    if pin.ranges and all(most < low or least > high for least, most in pin.ranges):
        raise InputError(f"{text[:40]!r} allows nothing", field=name, hint=values)
    return pin


def fixed_layout(job: JobSpec, layout: Mapping[str, Any]) -> Candidates:
    """Complete a layout: DP from the GPUs, SP with TP and the ZeRO stage as the framework has them, 1 elsewhere.

    Args:
        layout: values of `gpuscale.request.Layout` by name.

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
        micro_batch_size=given.micro_batch_size,
        num_microbatches=job.global_batch_size // (dp * given.micro_batch_size),
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
    """Return the ZeRO stage where none is asked for: the framework's, where there is anything to shard."""
    return 0 if ranks == 1 else fully_sharded(job, pp) if job.runtime.zero_stage == 3 else job.runtime.zero_stage


def fully_sharded(job: JobSpec, pp: int) -> int:
    """Return the ZeRO stage of FSDP: 2 where the framework keeps gathered parameters from forward to backward pass."""
    kept = job.runtime.reshard == "never" or (job.runtime.reshard == "default" and pp > 1)
    return 2 if kept else 3


def degree_of_data(gpus: int, tp: int, pp: int, cp: int, dp: int | None) -> int:
    """Return the data-parallel degree: what is left of the GPUs where none is given.

    Raises:
        InputError: the degrees do not multiply to the GPUs.
    """
    dp = max(1, gpus // (tp * pp * cp)) if dp is None else dp
    if tp * pp * cp * dp != gpus:
        message = f"TP {tp} x PP {pp} x CP {cp} x DP {dp} = {tp * pp * cp * dp:,}, but the job has {gpus:,} GPUs"
        hint = "TP x PP x CP x DP must equal `gpus`; leave `dp` out to have it computed"
        raise InputError(message, place="layout", hint=hint)
    return dp


def domain_groups(layout: Mapping[str, Any]) -> tuple[int, int]:
    """Return the sizes of the groups of a layout that belong into one NVLink domain: TP and EP x ETP."""
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
    return ", ".join(f"`{name}`" for name in (*pins.degrees, *(["recompute"] if pins.recompute else [])))
