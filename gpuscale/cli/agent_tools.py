"""The commands as tools for agents: what each is for, which arguments it takes, and what command line they mean. Both
the schema of its arguments and the command line follow from the options of its command.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, get_args, get_type_hints

from gpuscale.arguments import ALIASES, refuse_unknown
from gpuscale.cli.main import COMMANDS, COMMON, named
from gpuscale.cli.options import OF_RECIPE
from gpuscale.errors import InputError, did_you_mean, shown
from gpuscale.request import (
    OPTIONS,
    SWITCHES,
    Declared,
    JobOptions,
    Layout,
    Length,
    Means,
    Question,
    Recovery,
    declared,
    one_of,
)
from gpuscale.units import NUMBER

JOB = "A job is `model` and `gpus`, with `cluster`, `framework`, `seq` and `gbs` where they are known"
PLAN = f"{JOB}, and its layout (`tp`, `pp`, `zero` ...); or `plan_file`, or `launch_files` (a script or config)."

TOOLS = {
    "plan": "Rank the parallel layouts of a training job: step time with its 80 % interval, MFU, memory, what binds. "
    f"{JOB}. For which layout is best, whether anything fits, how many GPUs (`gpus`: '64,128'), what a training "
    "costs and how long it takes (`train_tokens`, `gpu_hour_price`). A set pins a dimension: `tp`: 8, '4..8' or '!16'. "
    "`why`: 'tp=8,pp=4' says where a layout ranks; `find`: seq, mbs or gpus says how far that goes.",
    "estimate": "Evaluate one layout: step time and peak memory by component, whether it fits, and what would make it "
    f"fit. {PLAN}",
    "explain": "Explain one layout: where time and memory go, what bounds it, what would speed it up, and which input "
    f"would flip the choice. {PLAN} One view at a time: `traffic`, `memory`, `pipeline` or `placement`.",
    "check": "Check a job before its launch: the framework's rules, memory, limits (`max_memory`: '90%'), settings "
    f"that cost time. With `error`, the text that a run failed with: what it means, and what would run. {PLAN}",
    "compare": "Compare two layouts: which is faster, and where time and memory differ. `a` and `b` each hold the "
    "arguments of `estimate`.",
    "size": "Choose the model to train with `gpus` and `days`, or with a `budget` in USD; or the fewest GPUs on which "
    "`model` sees `train_tokens` within `days`.",
    "collective": "Evaluate one NCCL collective: time, algorithm and bus bandwidth, what binds. `operation` with "
    "`bytes`: '32MB' or `sweep`: '8B..8GB', on `gpus` of `cluster`.",
    "list": "Look up what is known, with sources: models (shape, parameters, FLOPs), hardware (peaks, bandwidths, "
    "memory), clusters (levels and links), frameworks (defaults and rules), recipes (published jobs). With `name` one "
    "of them. `what`: options, with `name` of a tool, says what each of its arguments means.",
}
"""What each tool is for and how it is asked, for who chooses one; `list` is `gpuscale show`."""

LISTS = ("models", "hardware", "clusters", "frameworks", "recipes")
OF_PEOPLE = {
    "help", "html", "csv", "markdown", "json", "toml", "output", "rank", "export", "timing", "no_plot", "format",
    "draw", "require_fit", "args",
}  # fmt: skip
"""Parameters for files, terminals and pipelines, which tools have not."""

WORDED = COMMON | {"budget", "recipe"}
"""Options that the schema explains; `list` has the words of the others."""

KINDS = {int: "integer", float: "number", str: "string", bool: "boolean"}
OWN: dict[str, dict[str, Any]] = {
    "key": {"type": "string", "description": "Answer by one part of the JSON: plans[0].step_time_s; $ is all of it."},
    "offset": {"type": "integer", "minimum": 0, "description": "Where the page begins, as the page before says."},
}

MAX_TEXT = 65_536

MAX_PAGE_BYTES = 7_800
"""Of a page, without the line that says where the next one begins."""


class Asked(NamedTuple):
    """What a call means."""

    arguments: tuple[str, ...]
    stdin: str
    key: str | None  #: the part of the JSON that is wanted; None for the text.
    offset: int  #: where the page begins [characters].


def _commands(tool: str) -> list[str]:
    return [f"show {what}" for what in LISTS] if tool == "list" else [tool]


@cache
def parameters(tool: str) -> Mapping[str, Any]:
    """Return the parameters of a tool's command by name, as Click has them."""
    found = [one for command in _commands(tool) for one in named()[command].params]
    return {"recipe" if one.name == OF_RECIPE else one.name: one for one in found if one.name not in OF_PEOPLE}


@cache
def _declared() -> Mapping[str, Declared]:
    kinds = (JobOptions, Layout, Question, Length, Means, Recovery)
    return {name: one for kind in kinds for name, one in declared(kind).items()}


@cache
def _types(tool: str) -> Mapping[str, str]:
    hints: dict[str, Any] = {}
    for one in COMMANDS:
        if one.name in _commands(tool):
            module, function = one.home.split(":")
            hints |= get_type_hints(getattr(import_module(f"gpuscale.cli.{module}"), function))
    kinds = {name: {hint, *get_args(hint)} for name, hint in hints.items()}
    return {name: next((KINDS[one] for one in KINDS if one in given), "string") for name, given in kinds.items()}


def schema(tool: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    known = parameters(tool)
    properties = {name: _property(tool, name, one) | _words(name, one) for name, one in known.items()}
    required = [name for name, one in known.items() if one.required]
    if tool == "list":
        kinds = {"type": "string", "enum": [*LISTS, "options"], "description": "What is looked up."}
        properties["name"]["description"] = "Name of one of them; all without. With options: a tool."
        properties, required = {"what": kinds, **properties}, ["what"]
    if tool == "compare":
        plan = {name: _property("estimate", name, one) for name, one in parameters("estimate").items()}
        properties["a"] = {"type": "object", "description": "Arguments of `estimate`.", "properties": plan}
        properties["b"] = {"type": "object", "description": "As `a`."}
    if tool == "check":
        properties["error"] = {"type": "string", "description": "Error text of a run, as the framework printed it."}
    more = {"required": required} if required else {}
    return {"type": "object", "properties": properties | OWN, **more}


def _words(name: str, one: Any) -> dict[str, str]:
    if name in OPTIONS and name not in WORDED:
        return {}
    flags = {"--from": "`launch_files`"}
    spelled = re.sub(r"--\w+(?:-\w+)*", lambda flag: flags.get(flag[0], f"`{flag[0][2:].replace('-', '_')}`"), one.help)
    return {"description": spelled}


def _property(tool: str, name: str, one: Any) -> dict[str, Any]:
    declaration, lists = _declared().get(name), ["array"] if one.multiple else []
    if declaration is None:
        return {"type": [_types(tool)[name], *lists] if lists else _types(tool)[name]}
    said, several = declaration.option, "LIST" in one.metavar or one.metavar == "SET" if one.metavar else False
    found = [text for kind, text in KINDS.items() if kind in declaration.kinds]
    texts = several or said.quantity is not NUMBER or said.normal or said.read
    types = list(dict.fromkeys([*found, *(["string"] if texts else []), *lists]))
    made: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if said.choices and not several:
        made["enum"] = list(said.choices)
    if declaration.number is int and said.quantity is NUMBER:
        made |= {"minimum": declaration.limits.low, "maximum": declaration.limits.high}
    return made


def read_call(tool: str, given: Mapping[str, Any]) -> Asked:
    """Return what a call of a tool means.

    Raises:
        InputError: an unknown tool or argument, or a value that no argument takes.
    """
    if tool not in TOOLS:
        raise InputError(f"no such tool {shown(tool)}", hint=did_you_mean(tool, TOOLS, "tools are", len(TOOLS)))
    rest, stdin = {name: value for name, value in given.items() if value is not None}, ""
    key, offset = rest.pop("key", None), rest.pop("offset", 0)
    if key is not None and (not isinstance(key, str) or len(key) > 300):
        raise InputError(f"{shown(key)} is no part of an answer", field="key", hint="write plans[0].step_time_s")
    if isinstance(offset, bool | str | list | dict) or not (0 <= offset < 2**53 and offset == int(offset)):
        raise InputError(f"{shown(offset)} is not a place", field="offset", hint="give what the page before says")
    command = tool
    if tool == "list":
        what = one_of("what", rest.pop("what", ""), (*LISTS, "options"))
        if what == "options":
            asked = one_of("name", rest.pop("name", ""), tuple(TOOLS))
            return Asked((*_commands(asked)[0].split(), "--help-all"), "", None, int(offset))
        command = f"show {what}"
    if tool == "check" and isinstance(rest.get("error"), str):
        stdin, rest["error"] = _bounded("error", rest["error"]), "-"
    if tool == "compare":
        rest |= {name: _plan_text(name, rest[name]) for name in ("a", "b") if name in rest}
    words = command_line(rest, parameters(tool), tool)
    return Asked((*command.split(), *(["--json"] if key is not None else []), *words), stdin, key, int(offset))


def _plan_text(name: str, plan: Any) -> str:
    if isinstance(plan, str):
        return _bounded(name, plan)
    if not isinstance(plan, Mapping) or not plan:
        raise InputError(f"{shown(plan)} is no plan", field=name, hint="give the arguments of `estimate`")
    words = command_line(plan, parameters("estimate"), "estimate")
    return words[1] if words[:1] == ["--"] and not words[1].startswith("-") else shlex.join(words)


def command_line(given: Mapping[str, Any], known: Mapping[str, Any], tool: str) -> list[str]:
    """Return arguments, given by names of parameters, by flags or by what frameworks call them, as those of a command.

    Raises:
        InputError: an unknown name, or a value that is neither a number, a text, a switch, nor a list of these.
    """
    spelled = {flag.lstrip("-").replace("-", "_"): name for name, one in known.items() for flag in one.opts}
    options: list[str] = []
    places: dict[str, str] = {}
    for asked, value in given.items():
        plain = str(asked).lstrip("-").replace("-", "_")
        name = next((one for one in (plain, spelled.get(plain), ALIASES.get(plain.lower())) if one in known), None)
        if name is None:
            refuse_unknown([str(asked)], known, f"the tool list (what=options, name={tool}) explains all")
            raise AssertionError("an unknown name is known")
        one, texts = known[name], _texts(name, value)
        if one.param_type_name == "argument":
            places |= {name: ",".join(texts)} if texts else {}
        elif one.is_flag:
            options += [max(one.opts, key=len)] if _is_on(name, value) else []
        elif texts:
            each = texts if one.multiple else [",".join(texts)]
            options += [f"{max(one.opts, key=len)}={text}" for text in each]
    ordered = [places[name] for name in known if name in places]
    return [*options, *(["--", *ordered] if ordered else [])]


def _is_on(name: str, value: Any) -> bool:
    on = value if isinstance(value, bool) else SWITCHES.get(str(value)[:10].lower(), False if value is None else None)
    if on is None:
        raise InputError(f"{shown(value)} is not true or false", field=name)
    return on


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        value = [f"{key}={_text(name, one)}" for key, one in value.items()]
    texts = [_text(name, one) for one in (value if isinstance(value, list) else [value]) if one is not None]
    _bounded(name, ",".join(texts))
    return texts


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return value
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1000):
        return repr(value)
    what = "out of range" if isinstance(value, int) else "not text, a number, true or false"
    raise InputError(f"{shown(value)} is {what}", field=name)


def _bounded(name: str, text: str) -> str:
    if len(text) > MAX_TEXT:
        raise InputError(f"{len(text):,} characters, at most {MAX_TEXT:,}", field=name, hint="give what matters of it")
    return text


def part_of(document: Any, key: str) -> str:
    """Return one part of a JSON document as JSON, its own parts on a line each.

    Raises:
        InputError: there is no such part.
    """
    found, walked = document, "$"
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d{1,9})\]", key.removeprefix("$")):
        if isinstance(found, list) and number and int(number) < len(found):
            found, walked = found[int(number)], f"{walked}[{number}]"
        elif isinstance(found, dict) and name in found:
            found, walked = found[name], f"{walked}.{name}"
        else:
            hint = f"it has {len(found)} entries" if isinstance(found, list) else "it is a value"
            hint = did_you_mean(name, found, "it has", 50) if isinstance(found, dict) else hint
            raise InputError(f"no {shown(name or number)} in {walked[:200]}", field="key", hint=hint)
    if isinstance(found, dict) and found:
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items()) + "\n}"
    return "[\n" + ",\n".join(map(json.dumps, found)) + "\n]" if isinstance(found, list) else json.dumps(found)


def page_of(text: str, offset: int) -> str:
    """Return what fits on a page from a place on [characters], and where the next page begins.

    Raises:
        InputError: the text ends before that.
    """
    if offset and offset >= len(text):
        hint = f"the answer has {len(text):,} characters"
        raise InputError(f"{offset:,} lies behind the end", field="offset", hint=hint)
    rest = text[offset:]
    page = rest.encode()[:MAX_PAGE_BYTES].decode(errors="ignore")
    if len(page) == len(rest):
        return rest
    whole_lines = page.rfind("\n") + 1
    page = page[:whole_lines] if whole_lines > len(page) // 2 else page
    end = offset + len(page)
    return f"{page.rstrip()}\n[characters {offset:,} to {end:,} of {len(text):,}; `offset`: {end} goes on]"
