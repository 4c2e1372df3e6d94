"""What launch files leave open: asked for at once, each with what the files suggest for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import lcm, prod
from os.path import normpath
from pathlib import Path
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.files import printable, read_text
from gpuscale.launch.hardware import USUAL_NODE, machines_of
from gpuscale.launch.launchers import MISSING, gpus_of_replica, gpus_per_node
from gpuscale.launch.own_files import BATCHES, is_called
from gpuscale.launch.settings import GROWING_BATCH, OPEN_VALUES, LackingError, Reading, Said, Suggestion, digits, way_to
from gpuscale.launch.sources import Launch
from gpuscale.launch.traced import MAX_LINES, MAX_LOG_BYTES
from gpuscale.presets.models import load_model
from gpuscale.request import JobOptions, declared

MAX_LACKS = 30
USUAL_SEQUENCE = 4096

GPUS_SAID = re.compile(
    r"\b\d{1,3}\s*[x*×]\s*(?:RTX[ -]?)?[2345]0[789]0\b|\b\d{1,6}\s*x\s*\d{0,3}x?\s*(?:\d+\s*GB\s+)?[ABHGV]\d{2,3}\w*\b"
    r"|\b(?:\d{1,3},\d{3}|\d{1,6})(?:[ -]?x?[ -]?|(?:[ -]|[ -]?x)[ -]?\d+GB )(?:GPU|node|[ABH]\d00)s?\b"
    r"|(?<![A-Za-z0-9])\d{1,5}N\b"
    r"|\b\d{2,6} devices\b|\btune run \w+_single_device\b",
    re.IGNORECASE,
)
MODEL_SAID = re.compile(
    r"(?<![a-z0-9])(?<!distill-)(?:llama|qwen|mixtral|mistral|deepseek|gpt|gemma|olmo|falcon|bloom|opt|phi|dbrx|mpt)"
    r"[\w.-]{0,12}?\d[\w.]*(?![\w.]*[-_][\w.-]*(?:distill|\d[bm]\b))",
    re.IGNORECASE,
)
"""Names of models, not of which another one is said further on (DeepSeek-R1-Distill-Qwen-14B)."""

_NODES = re.compile(r"(\d{1,5})(?:[ _-]*nodes?|N)\b", re.IGNORECASE)
_GPUS = re.compile(
    r"(\d{1,6})(?:[ _-]?x?[ _-]?|(?:[ _-]|[ _-]?x)[ _-]?\d+GB )(?:GPUs?|[ABH]\d00s?|devices)\b", re.IGNORECASE
)
_ONE = re.compile(r"single_device\b")
_CARDS = re.compile(r"(\d{1,3})\s*[x*×]\s*(?:RTX[ -]?)?[2345]0[789]0\b", re.IGNORECASE)
_GRID = re.compile(r"\b(\d{1,5})\s*x\s*(\d{1,2})(?:\s*x)?\s*(?:GPUs?|[ABHGV]\d{2,3})", re.IGNORECASE)

USUAL = (
    (r"n_?proc_?per_?node|^n?_?procs?$|gpus?_?(per|on)_?node|ntasks_per_node|devices_per_node|^gpu_?num$|num_gpus?$|^n?gpus?$",
     str(USUAL_NODE), "as most nodes have"),
    (r"nnodes|(num|n|slurm)_?(of_)?nodes|node_?(num|count|cnt)|job_num_nodes|(^|_)nodes?$|world_size|num_workers", "1",
     "one node"),
    (r"(^|_)([tpce]|et|vp)p(_|$)|parallel|virtual", "1", "nothing split"),
    (r"micro_?(train_?)?batch|(^|_)mbs|per_(device|gpu)|train_batch_size_per", "1", "one sequence"),
    (r"seq_?(uence)?_?len|max_?len|block_size|(^|_)seq|pad_len|position_emb", str(USUAL_SEQUENCE), "usual"),
    (r"global_?batch|(^|_)gbs|(^|_)batch_?size", "256", "usual"),
    (r"accum", "1", "none"),
    (r"precision|dtype|^pr$", "bf16", "usual"),
)  # fmt: skip
"""Names of variables and of what hangs on them -> a value that is usual, and why."""


PROBES = {
    "method": "dpo",
    "model": "llama3-8b",
    "precision": "bf16",
    "optimizer": "adamw",
    "recompute": "none",
    "offload": "none",
    "lora_targets": "all-linear",
    "teacher": "llama3-8b",
    "train": "head",
    "cluster": "dgx-h100-superpod",
}
"""Option -> a value with which reading goes on where nothing is suggested; for others the first choice, or 1."""


ROLES = {
    r"(^|[_.])models?(_|$)": "model",
    r"target_modules$": "lora_targets",
    r"optim(izer)?(_name|_type)?$": "optimizer",
}
"""Names of variables and of what hangs on them -> the option whose values they have."""


class Lack(NamedTuple):
    """Something that is missing, with what the files suggest for it."""

    error: LackingError
    suggested: Suggestion | None
    other: str = ""
    """A value that can run with the rest, where what is suggested cannot."""

    @property
    def name(self) -> str:
        """The option, or the variable as the option that gives it has it: `var=2`."""
        return f"var={self.error.name}" if self.error.variable else self.error.name

    @property
    def probe(self) -> str:
        """A value with which reading may go on, to find what else is missing."""
        error, role = self.error, self.error.of or self.error.name
        named = (option for words, option in ROLES.items() if error.variable and re.search(words, role.lower()))
        name = next(named, error.name)
        choices = declared(JobOptions)[name].option.choices if name in declared(JobOptions) else ()
        likely = (*error.likely, *error.known, *([PROBES[name]] if name in PROBES else []), *choices, "1")[0]
        return self.other or error.answer or (self.suggested.value if self.suggested else likely)

    @property
    def way(self) -> str:
        """How to give it."""
        error, suggested = self.error, self.suggested
        if error.way:
            return error.way
        if not (suggested or error.answer or error.variable or error.likely):
            return way_to(error.name)
        value = "VALUE" if error.variable else OPEN_VALUES.get(error.name, "...")
        if suggested or error.answer:
            value = self.probe
        why = "with which the rest can run" if self.other and suggested else suggested.why if suggested else ""
        others = [one for one in error.likely or error.known if one != value]
        if error.variable and not suggested and re.search(r"(^|_)model(_|$)", error.of):
            others.append(way_to("model"))  # where the variable is a path that says nothing
        alone = not suggested and (error.known or not error.variable)
        listed = f"{'' if alone else 'or '}{', '.join(others)}" if others else ""
        said = "; ".join(filter(None, [why, listed, error.instead and f"or {error.instead}"]))
        return f"`{self.name}={value}`" + (f" ({printable(said)})" if said else "")

    @property
    def free(self) -> bool:
        """Whether a value is suggested that no file speaks of, so that another one is as good."""
        return self.suggested is not None and not re.search(r"\bsays?\b", self.suggested.why)

    def said(self) -> Said:
        """Say that its suggestion was taken."""
        assert self.suggested is not None
        why = "with which the rest can run" if self.other else self.suggested.why
        return Said("", 0, f"{self.name.removeprefix('var=')}={self.probe}", f"suggested: {why}")


def typed(lacks: Sequence[Lack]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return values with which reading may go on: of variables, and of options."""
    values = {lack.error.name: lack.probe for lack in lacks if lack.error.variable}
    options = {lack.error.name: lack.probe for lack in lacks if not lack.error.variable}
    numbers = {name: digits(value) for name, value in options.items()}
    return values, {name: value if (one := numbers[name]) is None else one for name, value in options.items()}


OTHERS = {"zero": ("0", "2", "3", "1"), "micro_batch_size": ("2", "4"), "precision": ("bf16", "fp16", "fp32")}
"""Option -> other values of it, where what is suggested cannot run with the rest; of GPUs and nodes multiples."""
_BATCH = re.compile(r"global_?batch|^gbs$|^train_batch_size$", re.IGNORECASE)


def others_of(lacks: Sequence[Lack], layout: Mapping[str, Any]) -> Iterator[list[Lack]]:
    """Yield what is missing with another value for one thing of it."""
    ways = ways_of(layout)
    for at, lack in enumerate(lacks):
        values = OTHERS.get(lack.name, ())
        if lack.name == "gpus" or (lack.error.variable and any(_usual(lack.error, words) for words, _, _ in USUAL[:2])):
            least = ways if lack.name == "gpus" else int(digits(lack.probe) or 1)
            values = tuple(str(least * count) for count in (1, 2, 4, 8, 16, 32, 64))
        for value in values if lack.free or lack.name == "zero" else ():
            yield [*lacks[:at], lack._replace(other=value), *lacks[at + 1 :]]


def batches_of(lacks: Sequence[Lack], options: Mapping[str, Any], layout: Mapping[str, Any]) -> Iterator[list[Lack]]:
    """Yield what is missing with whole batches that are microbatches of every replica, if the batch is among it."""
    each = max(1, int(options.get("gpus") or 1) // gpus_of_replica(layout)) * int(layout.get("micro_batch_size") or 1)
    for at, lack in enumerate(lacks):
        if (lack.free or lack.error.answer) and _BATCH.search(
            lack.error.of if lack.error.variable else lack.error.name
        ):
            count = max(1, -(-int(digits(lack.probe) or 1) // each))
            for total in (each * count, each * 4 * int(layout.get("pp") or 1), each):
                yield [*lacks[:at], lack._replace(other=str(total)), *lacks[at + 1 :]]


def _usual(error: LackingError, words: str) -> bool:
    """Whether a variable, or what hangs on it, has a name of these words."""
    return any(re.search(words, name.lower()) for name in (error.name, error.of))


def asked_for(
    lacks: Sequence[Lack], unread: Sequence[str] = (), cut: Sequence[int] = (), script: Path | None = None,
    wrong: InputError | None = None,
) -> LackingError:  # fmt: skip
    """Build the error that asks for all that is missing.

    Args:
        unread: files that may say it as well.
        wrong: what is wrong with the job even then, as far as what is given here can tell.
        cut: lines on which the command ends before others that look like more of it.
        script: what is called with the arguments that are missing.
    """
    lacks = sorted(
        lacks,
        key=lambda lack: (
            lack.error.variable,
            int(lack.error.name) if lack.error.name.isdecimal() else 0,
            not lack.error.lead,
        ),
    )
    first, *more = (lack.error for lack in lacks)
    sure = wrong is not None and all(lack.suggested or lack.error.answer for lack in lacks)
    then = f"; and then {': '.join(filter(None, [wrong.place, wrong.message]))}" if wrong and sure else ""
    whole = all(lack.suggested for lack in lacks)
    lead = f"{printable(first.lead)}, and " if first.lead else ""
    either = f"{first.files}, or " if first.files else ""
    named = {normpath(name) for name in re.findall(r"`launch_files=([^`]*)`", first.files)}
    rest = [name for name in unread if name not in named]
    if not more:
        suggested = lacks[0].suggested
        hint = f"{first.hint or ''}" + (f"; `assume` takes {lacks[0].way}" if suggested else "")
        hint = hint.removeprefix("; ") + _or_files(rest, cut)
        hint += "" if suggested or first.name != "zero" or not first.likely else f": {', '.join(first.likely)}"
        told = f"{either}{hint.removeprefix('; ')}" or None
        made = LackingError(f"{lead}{first.message}{then}", first.name, place=first.place, hint=told)
        made.setting = first.setting
        return made
    said, message = "no file states ", first.message
    for error in more:
        again = error.message.startswith(said) and said in message.rpartition("; ")[2]
        more_said = f", {error.message.removeprefix(said)}" if again else f"; {_placed(error)}"
        message += more_said if _placed(error) not in {_placed(first), *message.split("; ")} else ""
    hint = f"{either}give {', '.join(lack.way for lack in lacks)}" + (
        "; `assume` takes what is suggested" if whole else ""
    )
    if script is not None and sum(lack.error.name.isdecimal() for lack in lacks) > 1:
        hint += _usage(script)
    return LackingError(f"{lead}{message}{then}", first.name, place=first.place, hint=hint + _or_files(rest, cut))


def _usage(script: Path) -> str:
    """Say how a comment of a script calls it: `# bash run.sh 7B 2048`."""
    called = re.compile(
        rf"#\s*(?:usage:?\s+)?(?:(?:ba)?sh\s+)?\S{{0,200}}{re.escape(script.name)}((?:\s+[^\s<>\[\]$]+){{2,60}})\s*",
        re.IGNORECASE,
    )
    for number, line in enumerate(read_text(script, MAX_LOG_BYTES, "a launch file").splitlines()[:MAX_LINES], start=1):
        found = called.fullmatch(line[:2000])
        if found:
            return f"; or all as line {number} has them, `args=TEXT`: {printable(found[1].strip())[:500]}"
    return ""


def _or_files(unread: Sequence[str], cut: Sequence[int]) -> str:
    """Say what else may state what is missing: files that the script reads first, lines that the command misses."""
    ways = ", ".join(f"`launch_files={printable(name)[:100]}`" for name in unread[:3])
    lines = f"; the command ends on line {cut[0]}, as the shell has it: lines below are no part of it" if cut else ""
    return (f"; or what is read first, may say it, and is not here: {ways}" if unread else "") + lines


def _placed(error: LackingError) -> str:
    """Return a message with the setting that it is of, if it is of one."""
    of_setting = (not error.variable or error.answer) and error.place is not None and ": " in error.place
    return f"{error.place}: {error.message}" if of_setting else error.message


# --- what the files suggest


def suggestion(
    error: LackingError, launch: Launch | None, reading: Reading | None, guessed: Collection[str]
) -> Suggestion | None:
    """Return what the files suggest for something that is missing, if anything does; what is `guessed` does not."""
    if error.variable or error.answer:
        usual = None if error.answer else _for_variable(error, launch)
        return None if usual and error.known and usual.value not in error.known else usual
    layout = reading.layout if reading is not None else {}
    if error.name in {"seq", "gbs"} and error.likely:
        return Suggestion(error.likely[0], "as it says")
    if error.name == "gpus" and launch is not None and not error.likely:
        return _for_gpus(launch, layout, reading)
    if error.name in {"seq", "gbs"} and reading is not None and error.name in reading.options:
        return Suggestion(str(reading.options[error.name]), "as the rest says")
    if error.name == "seq":
        return _for_sequence(reading if "model" not in guessed else None)
    if error.name == "gbs" and reading is not None:
        return _for_batch(reading)
    if error.name == "model" and launch is not None and not error.likely:
        return _for_model(launch, error.message)
    if error.name == "model" and len(error.likely) > 1:
        return _among(error.likely, launch)
    if error.name == "lora_targets" and error.message.startswith("no file states"):
        return Suggestion("q,v", "PEFT's own of most models")
    reasons = {"zero": "the file's name says so", "model": "what is likely of these sizes"}
    named = reasons.get(error.name, "the only one that is likely" if len(error.likely) == 1 else "the likeliest")
    why = named if error.place else "usual"
    return Suggestion(error.likely[0], why) if error.likely else None


def ways_of(layout: Mapping[str, Any]) -> int:
    """Return what the number of GPUs is a multiple of, by the degrees that are stated."""
    tp, pp, cp, ep, etp, shard = (int(layout.get(name) or 1) for name in ("tp", "pp", "cp", "ep", "etp", "shard"))
    ways = lcm(tp * pp * cp, pp * ep * (etp if "etp" in layout else 1)) * int(layout.get("dp") or 1)
    return lcm(ways, tp * pp * shard)


def nearly(launch: Launch, pattern: re.Pattern[str]) -> str:
    """Return the name or line of a file that nearly says what is missing."""
    found = next(_mentions(launch, pattern), None)
    return f"; {found[1]}" if found else ""


def shards_said(launch: Launch) -> Suggestion | None:
    """Return the stage of ZeRO that a name or line of the files says of GPUs or nodes."""
    found = next(_mentions(launch, _SHARDS_SAID), None)
    return Suggestion(found[0][-1], found[1]) if found else None


_SHARDS_SAID = re.compile(r"(?:GPU|node|\b[ABH]\d00)s?\b.*?\bzero[ _-]?(?:stage[ _-]?)?[0-3]\b", re.IGNORECASE)


def _mentions(launch: Launch, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield what names and lines of files say that a pattern finds, each with its place in words."""
    for path in launch.files:
        names = (path.name.replace("_", " ").replace("-", " "), path.name.replace("_", "-"), path.name)
        found = next(filter(None, map(pattern.search, names)), None)
        if found:
            yield found[0], f"the file's name says {printable(found[0].strip())}"
    for path in launch.files:
        text = read_text(path, MAX_LOG_BYTES, "a launch file")
        for number, line in enumerate(text.split("\n")[:MAX_LINES], start=1):
            if len(line) < 400 and (found := pattern.search(line)):
                yield found[0], f"line {number} of {path.name} says: {printable(line.strip())[:100]}"


def _for_gpus(launch: Launch, layout: Mapping[str, Any], reading: Reading | None) -> Suggestion:
    solved = _of_batches(reading) if reading is not None else None
    if solved:
        return solved
    each, counted = (gpus_per_node(reading), machines_of(reading)) if reading is not None else (0, None)
    ways, node = ways_of(layout), each or USUAL_NODE
    if counted and counted[0] % ways == 0:
        return Suggestion(str(counted[0]), counted[1])
    for text, where in _mentions(launch, GPUS_SAID):
        grid, nodes, gpus = (pattern.search(text.replace(",", "")) for pattern in (_GRID, _NODES, _GPUS))
        gpus = gpus or _CARDS.search(text)
        count = (
            prod(map(int, grid.groups())) if grid else int(nodes[1]) * node if nodes else int(gpus[1]) if gpus
            else int(bool(_ONE.search(text)))
        )  # fmt: skip
        if count and count % ways == 0:
            return Suggestion(str(count), f"{where}{f', {node} GPUs each' if nodes and not grid else ''}")
    own = launch.sources[-1]
    if ways == 1 and not each and "".join(own.program[:1]).startswith("python") and not own.launcher:
        return Suggestion("1", "python starts one process")
    least = lcm(ways, node) if lcm(ways, node) <= 4 * max(ways, node) else ways
    return Suggestion(
        str(least), f"the fewest nodes of {node} that {ways} ways fill" if ways > 1 else f"one node of {node}"
    )


def _of_batches(reading: Reading) -> Suggestion | None:
    """Return the GPUs with which a whole batch is microbatches times accumulation steps, where all three are stated."""
    found = [next((one for one in reading.settings.values() if digits(one.value)
                   and is_called(ours, one.last)), None) for ours in BATCHES]  # fmt: skip
    total, micro, steps = (digits(one.value) if one is not None else None for one in found)
    if not (total and micro and steps) or total % (micro * steps) or (steps == 1 and reading.layout.get("pp", 1) > 1):
        return None  # what is stated once for all: the microbatches of a pipeline are no such steps
    replicas = total // (micro * steps)
    gpus = replicas * gpus_of_replica(reading.layout)
    return Suggestion(str(gpus), f"a batch of {total:,} is {micro} x {steps} steps x {replicas}")


def _for_sequence(reading: Reading | None) -> Suggestion:
    name = reading.options.get("model") or reading.given.get("model") if reading is not None else None
    try:
        longest = load_model(str(name)).max_sequence if name else 0
    except InputError:
        longest = 0
    length = min(longest, USUAL_SEQUENCE) if longest else USUAL_SEQUENCE
    return Suggestion(str(length), f"the model is made for {longest:,}" if longest else "usual")


def _for_batch(reading: Reading) -> Suggestion | None:
    grows = next((one for name in GROWING_BATCH if (one := reading.settings.get(name)) is not None), None)
    if grows is not None:
        last = re.findall(r"\d+", str(grows.value))
        return Suggestion(last[-1], f"where {grows.name} ends") if last and grows.name != "rampup_batch_size" else None
    gpus = reading.given.get("gpus") or reading.options.get("gpus")
    if not gpus:
        return None
    replicas = max(1, int(gpus) // gpus_of_replica(reading.layout))
    mbs, pp = int(reading.layout.get("micro_batch_size") or 1), int(reading.layout.get("pp") or 1)
    microbatches = 4 * pp if pp > 1 else 1
    fills = f", {microbatches} microbatches to fill the pipeline" if pp > 1 else ""
    why = f"{replicas} replica{'s' * (replicas > 1)} of {mbs}{fills}"
    return Suggestion(str(replicas * mbs * microbatches), why)


_OF_DATA = re.compile(r" says: (?:export |--)?[\w-]*(?:data|corpus|vocab|merge|token)[\w-]*[= ]", re.IGNORECASE)
"""A line that names data or a tokenizer, which are of other models too."""


def _for_model(launch: Launch, message: str) -> Suggestion | None:
    """Return a model by what files mention: where one is named that is not known, by its own name alone."""
    named = re.match(r"the model '([^']*)'", message)
    for text, where in _mentions(launch, MODEL_SAID):
        if (named is not None and text not in named[1]) or "tokenizer" in where.lower() or _OF_DATA.search(where):
            continue
        plain = re.sub(r"(?<=[a-z]\d)(?=\d-)", ".", re.sub(r"[ _]", "-", text.lower()))
        parts = plain.split("-")[:8]
        shorter = ("-".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))  # `llama3-8b-4k`
        sized = (one for one in shorter if re.search(r"\d[bm]$", one))
        for name in (text, text.replace("_", "-"), re.sub(r"[ _]", "-", text.lower()), plain, *sized):
            try:
                return Suggestion(load_model(name.strip()).name, where)
            except InputError:
                continue
    return None


def _among(models: Sequence[str], launch: Launch | None) -> Suggestion | None:
    """Return the first of several models whose family the files speak of, if they speak of no other."""
    families = dict.fromkeys(re.split(r"[^a-z]", one)[0] for one in models)
    said = {name: found for name in families if launch
            and (found := next(_mentions(launch, re.compile(name, re.IGNORECASE)), None))}  # fmt: skip
    if len(said) != 1:
        return None
    ((family, (_, where)),) = said.items()
    return Suggestion(next(one for one in models if one.startswith(family)), where)


def _for_variable(error: LackingError, launch: Launch | None) -> Suggestion | None:
    if error.likely == ("{}",):  # keywords from elsewhere
        return Suggestion("{}", "nothing that matters")
    if error.likely:
        names = " ".join(path.name for path in launch.files).lower() if launch else ""
        named = [
            one
            for one in error.likely
            if len(one) > 1 and re.search(rf"(?<![a-z0-9]){re.escape(one.lower())}(?![a-z0-9])", names)
        ]
        return (
            Suggestion(named[0], "the file's name says so")
            if named
            else Suggestion(error.likely[0], "the first choice")
        )
    alias = _assigned(error.name, launch) if error.name.isdecimal() and launch else ""
    counts = any(re.search(words, alias.lower()) for words, _, _ in USUAL[:2])  # nodes or GPUs, of which others follow
    for name in [alias] if counts else (error.name, error.of):
        found = next(((value, why) for words, value, why in USUAL if re.search(words, name.lower())), None)
        if found is not None and found[1] == "one node" and launch is not None:
            said = next(((_NODES.search(text), where) for text, where in _mentions(launch, _NODES)), None)
            return Suggestion(said[0][1], said[1]) if said and said[0] else Suggestion(*found)
        if found is not None:
            return Suggestion(*found)
    return None


def _assigned(number: str, launch: Launch) -> str:
    """Return the variable that a script gives one of its arguments to: `NNODES=$1`."""
    said = re.compile(rf"(?:export )?([A-Za-z_]\w*)=[\"']?\$\{{?{number}\b")  # not indented: of no function
    lines = (
        line
        for path in launch.files[:1]
        for line in read_text(path, MAX_LOG_BYTES, "a launch file").split("\n")[:MAX_LINES]
    )
    return next((found[1] for line in lines if (found := said.match(line))), "")


def lacking(name: str, place: str, hint: str) -> LackingError:
    """Build the error for an option without which nothing can be predicted."""
    return LackingError(MISSING[name], name, place=place, hint=hint)
