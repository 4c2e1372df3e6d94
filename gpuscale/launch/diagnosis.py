"""`check --error`: what an error text means, which rule it is, and what this job would need.

Known errors are the tables of `presets/known/errors.toml`. Of each message as few words are kept as tell it from the
others; its numbers are read by the name of the option that they are. What a message means stands with the rule that
it corresponds to, where there is one. Messages were read in the frameworks' sources as they stood in August to November
2026 (Megatron-LM core 0.16 and 0.17, DeepSpeed 0.18, PyTorch 2.9, NCCL 2.28, Transformer Engine 2.9, transformers 5),
older wordings in their earlier releases.
"""

from __future__ import annotations

import math
import re
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.arguments import taking
from gpuscale.calibration.tables import COLOURS
from gpuscale.display import displayed
from gpuscale.errors import InputError
from gpuscale.launch.check import CheckResult, check
from gpuscale.layouts.space import divisors
from gpuscale.planning.neighbours import remedies
from gpuscale.planning.planfile import layout_of
from gpuscale.planning.plans import job_of
from gpuscale.presets.files import known_table
from gpuscale.request import JobOptions, Layout, taken, with_layout
from gpuscale.results import Estimate, Remedy
from gpuscale.rules.check import BY_CODE
from gpuscale.units import GIB, MIB

KINDS = ("job", "memory", "software", "machine", "network", "consequence")
"""What an error is a matter of, that which is likelier the cause of the others first."""


class Divides(NamedTuple):
    """A product of numbers that must divide another one."""

    whole: str  #: the number that is divided.
    parts: tuple[str, ...]  #: factors of its divisor.
    change: str  #: which of them is changed: `whole`, or the first of the parts.
    factor: int = 1  #: of the divisor beside these.
    either: bool = False  #: whether the whole may divide the part instead.
    equal: bool = False  #: whether the product must be the whole, not only divide it.
    grows: bool = False  #: whether the whole can only become larger.


class KnownError(NamedTuple):
    """One error of a framework."""

    code: str  #: its name, which stays the same.
    framework: str  #: who prints it.
    where: str  #: file that prints it.
    keys: tuple[str, ...]  #: words of the message, of which one is there, in lower case.
    #: codes of `gpuscale.rules`, of rules of settings or of `check` that it corresponds to; empty where it is no matter
    #: of the job's options.
    rules: tuple[str, ...] = ()
    says: str = ""  #: what is wrong; the text of the first rule where empty.
    numbers: str = ""  #: pattern of the message with its numbers.
    needed: bool = True  #: whether it is not this message where that pattern does not match.
    divides: Divides | None = None
    advice: tuple[str, ...] = ()  #: what to do; options in backticks.
    kind: str = "job"  #: one of `KINDS`.
    #: whether it counts only where no other error says what the cause is, of these the last in a text that is not of a
    #: warning; of one line the first of the table.
    general: bool = False

    @property
    def pattern(self) -> re.Pattern[str] | None:
        """What the message with its numbers looks like."""
        return re.compile(self.numbers, re.IGNORECASE) if self.numbers else None


_WITHIN = r"(?:[^.;]|\.(?=\w)){0,80}"
_DIVIDES = rf"{_WITHIN}(?:divisible by|multiple of|evenly|%) {_WITHIN}?"
_NUMBERED = r"(?:[^.;()\\d]{0,40}[ (=:]{1,2}(?P<\1>[1-9]\\d{0,8})\\b(?! and \\d))?"
"""Patterns within one sentence: what DIVIDES stands for in the table, and {{tp}}: words and the number `tp`, if any."""


def _known(code: str, row: dict[str, Any]) -> KnownError:
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    divides = row.get("divides", {})
    found["divides"] = Divides(**{**divides, "parts": tuple(divides["parts"])}) if divides else None
    numbers = "".join(row.get("numbers", "")).replace(" DIVIDES ", _DIVIDES)
    return KnownError(code, **{**found, "numbers": re.sub(r"\{\{(\w+)\}\}", _NUMBERED, numbers)})


_TABLE = dict(known_table("errors"))
_IN_WORDS = _TABLE.pop("in_words")
ERRORS = tuple(
    _known(code, {**(_IN_WORDS if code.endswith("_in_words") else {}), **row}) for code, row in _TABLE.items()
)
"""In the order in which answers name them."""

_SIZE = r"(?<![0-9])[0-9]{1,15}(?:\.[0-9]{1,6})? ?(?:[KMGT]iB|bytes?)"
AMOUNTS = {
    name: re.compile(pattern.replace("SIZE", f"({_SIZE})"), re.IGNORECASE)
    for name, pattern in {
        "asked_gib": "(?:tried to allocate|trying to allocate|out of memory allocating|requested :) SIZE",
        "free_gib": r"of which SIZE is free|; SIZE free|free \(according to CUDA\): SIZE",
        "total_gib": "total capacity of SIZE|SIZE total capacity|device limit : SIZE",
        "in_use_gib": "this process has SIZE memory in use|SIZE reserved in total by PyTorch",
        "allocated_gib": "SIZE is allocated by PyTorch|SIZE already allocated|currently allocated : SIZE",
        "idle_gib": "SIZE is reserved by PyTorch but unallocated|SIZE cached",
    }.items()
}
"""What a message about memory says, now, until PyTorch 2.0 and 1.3, and of cudaMallocAsync: field of `MemoryOfError` ->
its size."""


MAX_TEXT_BYTES = MIB
"""Of a text with errors."""

AROUND, BEHIND, BEFORE = 300, 1500, 200
"""Characters before and after the words of an error in which its numbers stand, and before them in their line, which
say whether they are a warning or the code that would print them."""

PLACES = 6
"""Places of the words of one error that are looked at: all ranks say the same."""

NEAREST, SHOWN_REMEDIES, CLOSEST = 2, 4, 3
LARGEST_DIVIDED = 10_000_000
"""Number up to which divisors are looked for."""

OF_WORLD = ("gpus", "tp", "pp", "cp", "dp")
"""Options of an error about degrees that do not multiply to the GPUs."""

LIKE = 0.6
"""Share of the words of an error from which on a text that is not known comes close to it."""

RARE = 20
"""Letters of all of these words that tell an error from other texts: of `cuda out of memory` each is in many."""

MORE_IN_USE = 1.15
"""Memory in use over what is predicted from which on the job does not explain it (guesstimate)."""

OTHERS_GIB = 2.0
"""Memory that a GPU lacks beside this process, from which on another process has it [GiB]."""

_PREFIX = re.compile(
    r"\s{0,80}(?:\[?(?:rank|default)?\d{1,6}\]?:|\([\w ,]{0,60}pid=\d{1,9}[^)]{0,80}\)|E {2,8}(?=\S))?"
)
"""What launchers and pytest put before the lines of a message."""

_IN_SOURCE = re.compile(r"""(?:(?:error|exception)\(|^\W*\d+\W+)[fr]?["'][^"']*$""")
"""What stands in a line before the words of a message where tracebacks show the code that would print it."""

Spelled = Callable[[str, Mapping[str, Any]], Sequence[str]]
"""From a command and options that change to its arguments for this job."""


@dataclass(frozen=True)
class FoundError:
    """An error that is known."""

    error: str  #: its name, which stays the same
    framework: str  #: who prints it
    source: str  #: file of the framework that prints it
    kind: str  #: `job` (its options), `memory`, `software`, `machine`, `network`, or `consequence` of another error
    line: int  #: line of the text where it stands
    rule: str | None  #: rule of `check` that it is: the one that the job breaks; null where it is no matter of options
    message: str  #: what is wrong
    numbers: Mapping[str, int | str]  #: numbers of the text, by the names of options
    #: findings of `check` that the job has of it; null where no job was given, empty where the job keeps the rule
    here: tuple[str, ...] | None
    #: option -> its nearest legal values, the nearest first: in the job, else by the numbers of the text
    legal: Mapping[str, tuple[Any, ...]]
    advice: tuple[str, ...]  #: what else to do
    command: str | None  #: command to go on with; null where there is none


@dataclass(frozen=True)
class MemoryOfError:
    """What a text says of memory, and what is predicted of the job; null where one does not say it."""

    asked_gib: float | None  #: GiB that were asked for
    free_gib: float | None  #: GiB that were free
    total_gib: float | None  #: GiB of the GPU
    in_use_gib: float | None  #: GiB that the process held
    allocated_gib: float | None  #: GiB of them that PyTorch had given out
    idle_gib: float | None  #: GiB of them that it held and had not given out
    predicted_gib: float | None = None  #: GiB per GPU that are predicted, at the fullest stage
    limit_gib: float | None = None  #: GiB that a GPU has for the job
    fit: str | None = None  #: whether that `fits`, is `tight` or (`no`) does not
    stage: int | None = None  #: the fullest stage
    remedies: tuple[Remedy, ...] = ()  #: what takes less memory, the cheapest first


@displayed
@dataclass(frozen=True)
class Diagnosis:
    """What an error text says."""

    recognised: bool  #: whether any error in it is known
    errors: tuple[FoundError, ...]  #: the likeliest cause first
    memory: MemoryOfError | None = None  #: where memory ran out
    closest: tuple[str, ...] = ()  #: names of known errors that come closest, where none is in it
    notes: tuple[str, ...] = ()  #: what the prediction of the job leaves out
    checked: CheckResult | None = field(default=None, repr=False)  #: the job, where one was given

    def to_dict(self) -> dict[str, Any]:
        """Return the body of `gpuscale.check-error/1`."""
        body = asdict(replace(self, checked=None))
        del body["checked"]
        return body


@taking(taken(JobOptions, Layout, beside_files=True))
def diagnose(
    text: str,
    plan_file: str | Path | None = None,
    *,
    launch_files: Sequence[str | Path] = (),
    variables: Mapping[str, str] | None = None,
    layout: Mapping[str, Any] | None = None,
    spelled: Callable[[str, Mapping[str, Any]], Sequence[str]] | None = None,
    **options: Any,
) -> Diagnosis:
    """Say what an error text of a framework means, and what a job would need so as not to have it.

    Args:
        text: what was printed, with or without what stands around it; of at most 1 MiB.
        plan_file, launch_files, variables, layout, options: the job that failed, as `check` takes it; without them
            only the numbers of the text are known.
        spelled: from a command and options that change to its arguments for this job; without it no command is said.

    Raises:
        InputError: a text too long, files that cannot be read, or unusable options.
    """
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        hint = "give what stands around the error: `tail -n 500 LOG`"
        raise InputError(f"larger than {MAX_TEXT_BYTES // MIB} MiB", field="error", hint=hint)
    options, own = with_layout(options, layout)
    found = find_errors(text)
    given = bool(plan_file or launch_files or options or own)
    checked, refused = None, ""
    if given:
        try:
            checked = check(plan_file, launch_files=launch_files, variables=variables, layout=own, **options)
        except InputError as error:
            if error.field not in OF_WORLD or not any("world_size" in one.known.rules for one in found):
                raise
            refused = error.message
    memory = _memory(text, checked) if any(one.known.kind == "memory" for one in found) else None
    errors = tuple(_explained(one, checked, refused, memory, given, spelled) for one in found)
    near = () if errors else tuple(one.code for one in closest(text))
    notes = tuple(one.message for one in checked.findings if one.rule == "not_modelled") if checked else ()
    return Diagnosis(bool(errors), errors, memory, near, notes, checked)


@dataclass(frozen=True)
class _Match:
    """An error that stands in a text."""

    known: KnownError
    line: int
    numbers: dict[str, int | str]


def find_errors(text: str) -> list[_Match]:
    """Return the errors that stand in a text, each once, the likeliest cause first."""
    joined, starts = _joined(text)
    lowered = joined.lower()
    found = [one for known in ERRORS if (one := _found(known, joined, lowered, starts))]
    special = [one for one in found if not one.known.general]
    general = [one for one in found if one.known.general]
    general = sorted(general, key=lambda one: (one.known.kind == "consequence", -one.line))[:1]
    if all(one.known.kind == "consequence" for one in special):
        special += [one for one in general if not special or one.known.kind != "consequence"]
    return sorted(special, key=lambda one: (KINDS.index(one.known.kind), one.line))


def _joined(text: str) -> tuple[str, list[int]]:
    """Return a text as one line of ASCII without colours and prefixes of launchers, and where each line begins."""
    parts, starts, at = list[str](), list[int](), 0
    for line in COLOURS.sub("", text).split("\n"):
        part = re.sub(r"\s+", " ", line[_PREFIX.match(line).end() :].strip())  # type: ignore[union-attr]  # it may be empty
        parts.append(part.encode("ascii", "replace").decode())
        starts.append(at)
        at += len(part) + 1
    return " ".join(parts), starts


def _found(known: KnownError, joined: str, lowered: str, starts: Sequence[int]) -> _Match | None:
    """Look for an error: the first place of its words, or where it is general the last that is not of a warning."""
    last: _Match | None = None
    for key in known.keys:
        at = len(lowered) if known.general else -1
        for _ in range(PLACES):
            at = lowered.rfind(key, 0, at) if known.general else lowered.find(key, at + 1)
            if at < 0:
                break
            match = known.pattern and known.pattern.search(joined, max(at - AROUND, 0), at + BEHIND)
            if match is None and known.needed and known.pattern:
                continue
            line = bisect_right(starts, at)
            before = lowered[max(starts[line - 1], at - BEFORE) : at]
            if _IN_SOURCE.search(before):
                continue
            said = match.groupdict() if match else {}
            numbers = {name: int(one) if one.isdigit() else one for name, one in said.items() if one}
            found = _Match(known, line, numbers)
            if not known.general:
                return found
            if "warning" not in before and (last is None or line > last.line):
                last = found
    return last


def _explained(
    one: _Match,
    checked: CheckResult | None,
    refused: str,
    memory: MemoryOfError | None,
    given: bool,
    spelled: Spelled | None,
) -> FoundError:
    """Lay beside an error what the job has of it."""
    known, rule = one.known, next(iter(one.known.rules), None)
    broken = [finding for finding in checked.findings if finding.rule in known.rules] if checked else []
    here = None if not given or not known.rules else tuple(finding.message for finding in broken)
    if refused and "world_size" in known.rules:
        here = (refused,)
    legal: dict[str, tuple[Any, ...]] = {name: near for finding in broken for name, near in finding.legal.items()}
    by_text = nearest_legal(known.divides, one.numbers) if known.divides else {}
    change: dict[str, Any] = {name: near[0] for name, near in legal.items() if near[0] is not None}
    command, advice = "check", known.advice
    if known.kind == "memory":
        cheapest = memory.remedies[0].change if memory and memory.remedies else {}
        command, change = "estimate", dict(cheapest)
        advice = (*advice, *(_memory_advice(memory) if memory else ()))
    going_on = spelled and given and (change or known.rules)
    return FoundError(
        error=known.code,
        framework=known.framework,
        source=known.where,
        kind=known.kind,
        line=one.line,
        rule=broken[0].rule if broken else rule,
        message=known.says or BY_CODE[str(rule)].text,
        numbers=one.numbers,
        here=here,
        legal=legal or by_text,
        advice=tuple(advice),
        command=shlex.join(["gpuscale", *spelled(command, change)]) if spelled and going_on else None,
    )


def nearest_legal(rule: Divides, numbers: Mapping[str, int | str]) -> dict[str, tuple[int, ...]]:
    """Return the nearest values of the number that a rule changes with which its product divides, by a text's numbers.

    The nearest go first; nothing where the text does not say all of them.
    """
    whole, parts = numbers.get(rule.whole), [numbers.get(part) for part in rule.parts]
    known = [int(part) for part in parts if isinstance(part, int) and part > 0]
    if not isinstance(whole, int) or whole <= 0 or len(known) < len(parts):
        return {}
    product = math.prod(known) * rule.factor
    now, others = known[0], product // known[0]
    if rule.equal:
        return {} if whole % others else {rule.change: (whole // others,)}
    if rule.change == rule.whole:
        below = whole // product * product
        near = [value for value in (below, below + product) if value > whole * rule.grows and value != whole]
        return {rule.change: tuple(sorted(near, key=lambda value: abs(value - whole)))}
    if whole > LARGEST_DIVIDED:
        return {}
    able = [value for value in divisors(whole).tolist() if whole % (value * others) == 0 and value != now]
    able += [whole * (now // whole), whole * (now // whole + 1)] if rule.either and now > whole else []
    return {rule.change: tuple(sorted(set(able) - {now}, key=lambda value: abs(math.log(value / now)))[:NEAREST])}


def _memory(text: str, checked: CheckResult | None) -> MemoryOfError:
    """Read what a text says of memory, and lay beside it what is predicted of the job."""
    joined, _ = _joined(text)
    said: dict[str, Any] = {name: _gib(pattern.search(joined)) for name, pattern in AMOUNTS.items()}
    estimate = checked.estimate if checked else None
    if checked is None or estimate is None:
        return MemoryOfError(**said)
    plan, runs = estimate.plan, not any(finding.rule in BY_CODE for finding in checked.findings)
    cheapest = _cheapest(estimate)[:SHOWN_REMEDIES] if runs else ()
    return MemoryOfError(**said, predicted_gib=plan.memory_gib, limit_gib=plan.memory_limit_gib, fit=plan.fit,
                         stage=plan.peak_stage, remedies=cheapest)  # fmt: skip


def _cheapest(estimate: Estimate) -> tuple[Remedy, ...]:
    """Return what takes less memory, the cheapest first, also of a job that is predicted to fit."""
    layout = layout_of(estimate.plan)
    return estimate.remedies or remedies(job_of(estimate.job, layout), layout)


def _gib(found: re.Match[str] | None) -> float | None:
    if found is None:
        return None
    number, unit = re.fullmatch(r"([0-9.]+) ?(\w+)", next(filter(None, found.groups()))).groups()  # type: ignore[union-attr]
    power = "bkmgt".index(unit[0].lower())
    return round(float(number) * 1024**power / GIB, 3)


def _memory_advice(memory: MemoryOfError) -> Iterator[str]:
    """Yield what the numbers of a text say of memory that the job does not need."""
    if memory.idle_gib and memory.asked_gib and memory.idle_gib >= memory.asked_gib:
        yield (
            f"{memory.idle_gib:.1f} GiB lie idle in pieces: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins them"
        )
    if memory.free_gib and memory.asked_gib and memory.free_gib > memory.asked_gib:
        yield (
            f"{memory.free_gib:.1f} GiB were free, more than was asked for: not the size of the job but a limit of the "
            "process (memory fraction, WSL, pinned host memory) or pieces in the driver"
        )
    if memory.total_gib and memory.in_use_gib and memory.free_gib is not None:
        others = memory.total_gib - memory.in_use_gib - memory.free_gib
        if others > OTHERS_GIB:
            yield f"other processes hold {others:.1f} GiB of the GPU: look at nvidia-smi"
    if memory.in_use_gib and memory.predicted_gib and memory.in_use_gib > MORE_IN_USE * memory.predicted_gib:
        yield (
            f"{memory.in_use_gib:.1f} GiB were in use and {memory.predicted_gib:.1f} are predicted: longer sequences, "
            "a second model, or copies of states in the process"
        )


def closest(text: str) -> list[KnownError]:
    """Return the known errors most of whose words stand in a text, the closest first."""
    words = set(re.findall(r"[a-z0-9_]{3,}", _joined(text)[0].lower()))

    def like(known: KnownError) -> float:
        own = [re.findall(r"[a-z0-9_]{3,}", key) for key in known.keys]
        return max((len(words.intersection(one)) / len(one) for one in own if sum(map(len, one)) > RARE), default=0.0)

    ranked = sorted(ERRORS, key=like, reverse=True)
    return [known for known in ranked[:CLOSEST] if like(known) >= LIKE]
