"""What a user says of layouts: sets of values to search in, or one layout completed with defaults."""

from __future__ import annotations

from collections.abc import Mapping

from gpuscale.errors import InputError, nearest
from gpuscale.layouts.arrays import ONE_F_ONE_B, SCHEDULES, ZB_V, Candidates, single
from gpuscale.layouts.pins import DEGREES, MAX_DEGREE, Pin, Pins, parse_pin, parse_recompute
from gpuscale.specs.job import JobSpec

ALIASES = {"mbs": "micro_batch_size", "micro-batch-size": "micro_batch_size", "vp": "vpp", "shard-size": "shard"}
NAMES = (*DEGREES, "recompute", "schedule")
KNOWN_VALUES = {"sp": (0, 1, "write on or off"), "zero": (0, 3, "ZeRO stages are 0, 1, 2 and 3")}
"""Dimensions that have no values from 1 on -> the first and the last, and what to say of them."""


def make_pins(pins: Mapping[str, str | int]) -> Pins:
    """Parse pins given as text or numbers.

    Raises:
        InputError: an unknown dimension or an unusable value.
    """
    degrees: dict[str, Pin] = {}
    recompute, schedule = None, ONE_F_ONE_B
    for name, value in pins.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "recompute":
            recompute = tuple(dict.fromkeys(parse_recompute(part, flag) for part in str(value).split(",")))
        elif name in DEGREES:
            degrees[name] = _degree_pin(name, str(int(value)) if isinstance(value, bool) else str(value))
        elif name == "schedule":
            schedule = parse_schedule(str(value), 0)
        else:
            raise InputError(f"unknown dimension {name[:40]!r}", hint=f"pin {', '.join(DEGREES)} or recompute")
    return Pins(degrees, recompute, schedule)


def _degree_pin(name: str, text: str) -> Pin:
    """Parse the pin of one degree.

    Raises:
        InputError: not a set of values, or one of values that no layout has.
    """
    flag = flag_of(name)
    if name == "sp":
        text = {"on": "1", "true": "1", "off": "0", "false": "0"}.get(text.strip().lower(), text)
    try:
        pin = parse_pin(text, flag)
    except InputError as error:
        raise InputError(
            error.message, place=flag, hint=KNOWN_VALUES[name][2] if name == "sp" else error.hint
        ) from None
    low, high, values = KNOWN_VALUES.get(name, (1, MAX_DEGREE, f"values go from 1 to {MAX_DEGREE:,}"))
    if pin.ranges and all(most < low or least > high for least, most in pin.ranges):
        raise InputError(f"{text[:40]!r} allows nothing", place=flag, hint=values)
    return pin


def flag_of(name: str) -> str:
    """The option that pins a field of a candidate."""
    return "--mbs" if name == "micro_batch_size" else f"--{name.replace('_', '-')}"


def parse_layout(text: str, place: str) -> dict[str, str]:
    """Parse `tp=4,pp=8,recompute=full` into names and values as text.

    Raises:
        InputError: not of this form, an unknown name, or one given twice.
    """
    out: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text[:500].replace(" ", ",").split(","))):
        name, equals, value = item.partition("=")
        name = ALIASES.get(name.lower(), name.lower())
        if not equals or not value:
            raise InputError(f"{item[:40]!r} is not name=value", place=place, hint="write tp=4,pp=8")
        if name not in NAMES:
            close = nearest(name[:40], NAMES)
            hint = f"did you mean {', '.join(close)}? " if close else ""
            raise InputError(f"unknown name {name[:40]!r}", place=place, hint=f"{hint}names are {', '.join(NAMES)}")
        if name in out:
            raise InputError(f"{name} is given twice", place=place, hint="give each name once")
        out[name] = value
    if not out:
        raise InputError("no layout is given", place=place, hint="write tp=4,pp=8")
    return out


def fixed_layout(job: JobSpec, layout: Mapping[str, int | str | bool]) -> Candidates:
    """Complete a layout: DP from the GPUs, SP with TP and the ZeRO stage as the framework has them, 1 elsewhere.

    Raises:
        InputError: a value that is not a whole number, or degrees that do not multiply to the GPUs.
    """
    given = {name: degree(name, value) for name, value in layout.items() if name not in {"recompute", "schedule"}}
    unknown = set(given) - set(DEGREES)
    if unknown:
        raise InputError(f"unknown dimension {min(unknown)!r}", hint=f"give {', '.join(NAMES)}")
    if given.get("sp", 0) > 1:
        raise InputError(f"{given['sp']} is neither on nor off", place="--sp", hint="give on or off")
    tp, pp, cp = (given.get(name, 1) for name in ("tp", "pp", "cp"))
    dp = given.get("dp", max(1, job.gpus // max(1, tp * pp * cp)))
    if tp * pp * cp * dp != job.gpus or min(tp, pp, cp, dp) < 1:
        raise InputError(
            f"TP {tp} x PP {pp} x CP {cp} x DP {dp} = {tp * pp * cp * dp}, but the job has {job.gpus} GPUs",
            place="layout",
            hint="TP x PP x CP x DP must equal --gpus; leave --dp out to have it computed",
        )
    zero = given.get("zero", job.runtime.zero_stage if dp * cp > 1 else 0)
    if not 0 <= zero <= 3:
        raise InputError(f"{zero} is not a ZeRO stage", place="--zero", hint="give 0, 1, 2 or 3")
    micro = given.get("micro_batch_size", 1)
    recompute = parse_recompute(str(layout.get("recompute", "none")))
    per_stage = -(-job.model.layers // pp)
    layers = recompute.layers_of(per_stage)
    schedule = parse_schedule(str(layout.get("schedule", "1f1b")), pp)
    sp = given.get("sp", int(tp > 1 and job.runtime.sequence_parallel))
    return single(
        tp=tp, sp=sp, pp=pp, vpp=given.get("vpp", 2 if schedule == ZB_V else 1), cp=cp,
        ep=given.get("ep", 1), etp=given.get("etp", 1), dp=dp,
        zero=zero, shard=given.get("shard", dp * cp if zero else 1),
        micro_batch_size=micro, num_microbatches=job.global_batch_size // max(1, dp * micro),
        recompute_modules=recompute.modules, recompute_layers=layers, schedule=schedule,
    )  # fmt: skip


def parse_schedule(text: str, pp: int) -> int:
    """Return the code of a pipeline schedule given by name.

    Raises:
        InputError: an unknown name, or a schedule that needs a pipeline where there is none, or an even one.
    """
    name = text[:40].strip().lower()
    if name in {"", "none"}:
        return ONE_F_ONE_B
    if name not in SCHEDULES:
        close = nearest(name, SCHEDULES)
        hint = f"did you mean {', '.join(close)}? " if close else ""
        raise InputError(
            f"unknown schedule {name!r}", place="--schedule", hint=f"{hint}schedules are {', '.join(SCHEDULES)}"
        )
    if name == "dualpipe" and pp % 2:
        raise InputError(f"dualpipe needs an even number of stages, not {pp}", place="--schedule")
    return SCHEDULES[name]


def degree(name: str, value: int | str | bool) -> int:
    """Return one entry of a layout as a whole number.

    Raises:
        InputError: not a number, or out of range.
    """
    flag = f"--{name.replace('_', '-')}"
    text = str(int(value)) if isinstance(value, bool | int) else str(value).strip()
    low = 0 if name in {"sp", "zero"} else 1
    if text.lower() in {"on", "true", "off", "false"} and name == "sp":
        return int(text.lower() in {"on", "true"})
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= MAX_DEGREE):
        raise InputError(f"{text[:40]!r} is not a usable value", place=flag, hint=f"give {low} to {MAX_DEGREE}")
    return int(text)
