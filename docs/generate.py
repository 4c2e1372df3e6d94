"""Writes the reference pages while the site is built: options, JSON, rules and components, from the code itself."""

import ast
import contextlib
import functools
import importlib
import inspect
import io
import itertools
import json
import os
import pkgutil
import re
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import gpuscale
from gpuscale.cli.main import commands, flags
from gpuscale.launch.diagnosis import ERRORS
from gpuscale.memory.model import COMPONENTS as MEMORY
from gpuscale.memory.model import Memory
from gpuscale.render.html.page import framed
from gpuscale.request import (
    COMPARED,
    JobOptions,
    Layout,
    Length,
    Means,
    Noise,
    Question,
    Recovery,
    Sites,
    Slow,
    declared,
)
from gpuscale.rules.check import ALL_RULES, BY_CODE, cited, rules_of
from gpuscale.rules.rule import EVERY, FRAMEWORKS
from gpuscale.search.loop import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY
from gpuscale.specs.job import RULE_SETS
from gpuscale.steptime.components import COMPONENTS as STEP
from gpuscale.units import unit_of

ROOT = Path(__file__).resolve().parents[1]
PYTHON_EXAMPLES = ROOT / "docs" / "python_examples.toml"
JSON_KEYS = ROOT / "docs" / "json_keys.toml"
DATA = ROOT / "tests" / "data"
MACHINE = DATA / "machine"
ENVIRONMENT = {  # no presets of the reader's own
    "GPUSCALE_PRESETS": "", "XDG_CONFIG_HOME": os.devnull, "HF_HUB_CACHE": str(MACHINE / "hub"), "PATH": str(MACHINE),
}  # fmt: skip
MEMORY_RULES = (
    (OUT_OF_HOST_MEMORY, "what is offloaded needs more than 90 % of a host's memory"),
    (OUT_OF_MEMORY, "the fullest stage needs more than the usable memory"),
)
UNSEEN = {
    "trials[].step_time_s": "number", "trials[].memory_gib": "number", "best": "integer", "chance": "number",
    "calibration": "string",
    "pipeline_layout": "string",
    "nic_fabric": "string", "own_presets.<name>": "array",
    "notes": "string", "output": "string", "left_out": "string", "aliases": "string", "pools": "object",
    "switches": "integer", "unmeasured": "string", "layers": "integer",
    "wide_under": "string", "file": "string", "line": "integer",
    "concurrent": "integer", "minimal_share": "number", "gpus_per_pcie_switch": "integer",
    "nics_per_pcie_switch": "integer", "wan_gbit_per_s": "number", "round_trip_ms": "number",
    "risk.turns[].plan": "object", "variants[].reason": "string", "measured.reasons[]": "string",
    "summary.fits.out_of_memory_right": "number", "begins": "string", "skipped": "string", "rank": "integer",
    "beside": "object", "unpacked_bytes": "object",
    "closest": "string", "rows[].kwh_per_1e9_tokens": "number", "rows[].kg_co2_per_1e9_tokens": "number",
}  # fmt: skip
"""Types of what no sample has a value for."""

SMALL = ("plan", "--model", "llama3-8b", "--gpus", "16")
SAMPLES = [
    (*SMALL, "--why", "tp=2", "--timing"),
    (*SMALL, "--why", "tp=3", "--seq", "16384"),
    (*SMALL, "--why", "zero=0,tp=1,pp=1"),
    ("plan", "--model", "mixtral-8x7b", "--gpus", "32", "--cluster", "h200-hgx"),
    (*SMALL, "--risk", "0.9", "--top", "3"),
    ("plan", "--model", "llama3.1-8b", "--gpus", "16", "--find", "mbs", "--top", "1"),
    ("plan", "--recipe", "llama3-8b-8gpu-h100-bf16", "--top", "1"),
    (*SMALL, "--max-step-time", "0.001"),
    (*SMALL[:-1], "4,16", "--gpu-hour-price", "2", "--train-tokens", "1T", "--min-mfu", "45", "--zero", "0,1"),
    (*SMALL, "--framework", "generic", "--schedule", "1f1b,zb-h1", "--pareto", "step_time,memory", "--pp", "2"),
    ("estimate", "--model", "llama3-8b", "--gpus", "16", "--mbs", "4"),
    ("estimate", "--model", "deepseek-v2-lite", "--gpus", "8", "--ep", "8"),
    ("estimate", "--from", str(DATA / "launch" / "megatron_arrays.sh"), "--improve"),
    ("explain", "--model", "llama3-8b", "--gpus", "16", "--tp", "2"),
    ("compare", "--model llama3-8b --gpus 16 --tp 2", "--model llama3-8b --gpus 32 --tp 4"),
    (*SMALL[:-1], "16", "--pareto", "energy,carbon"),
    ("train-time", *SMALL[1:-1], "8,16", "--tokens", "1T"),
    ("fleet", "--model", "llama3-8b", "--cluster", str(DATA / "fleet.toml")),
    ("fleet", "--model", "llama3-70b", "--cluster", str(DATA / "sites.toml"), "--gbs", "2048"),
    ("batch-size", *SMALL[1:], "--tokens", "1T", "--gbs", "128"),
    ("size", "--gpus", "8", "--budget", "500"),
    ("size", "--model", "llama3-8b", "--tokens", "20B", "--days", "1"),
    ("sweep", "--model", "llama3-8b,llama3-70b", "--gpus", "8", "--gpu-hour-price", "2", "--train-tokens", "1T"),
    ("memory", "--model", "llama3-8b", "--gpus", "16", "--tp", "2", "--pp", "2", "--timeline"),
    ("advise", "--model", "mixtral-8x7b", "--gpus", "16", "--tp", "2", "--ep", "8"),
    ("advise", "--model", "llama3-8b"),
    ("advise", "--gpus", "64"),
    ("goodput", "--model", "llama3-8b", "--gpus", "16", "--spares", "1"),
    ("stragglers", "--model", "llama3-8b", "--gpus", "16", "--tp", "8"),
    ("stragglers", "--model", "llama3-8b", "--gpus", "8", "--tp", "8", "--slow-gpu", "1"),
    ("schedule", "--model", "llama3-8b", "--gpus", "16", "--pp", "2"),
    ("schedule", "--pp", "2", "--microbatches", "2", "--schedule", "zb-h1"),
    ("check", "--model", "llama3-8b", "--gpus", "16", "--tp", "16"),
    ("check", "--model", "llama3-8b", "--gpus", "48", "--tp", "3"),
    ("check", "--error", str(DATA / "example_error.txt"), "--model", "llama3-8b", "--gpus", "16", "--tp", "2"),
    ("check", "--error", str(DATA / "example_error.txt"), "--model", "gemma3-27b", "--gpus", "48", "--tp", "12"),
    ("placement", "--gpus", "96", "--tp", "6", "--cp", "2", "--order", "tp-dp-pp-cp", "--pp", "2", "--best"),
    ("placement", "--gpus", "16", "--tp", "2", "--best", "--model", "llama3-8b"),
    ("placement", "--gpus", "64", "--ep", "16", "--pp", "2"),
    ("collective", "allreduce", "--bytes", "1GB"),
    ("collective", "alltoall", "--bytes", "1GB", "--level", "node", "--ideal"),
    ("collective", "allreduce", "--sweep", "8B..8GB", "--gpus", "16", "--concurrent", "2"),
    ("collective", "allreduce", "--against", str(DATA / "example_all_reduce.log"), "--cluster", "aws-p5"),
    ("calibrate", "nccl", str(DATA / "example_all_reduce.log"), "--cluster", "aws-p5", "--holdout"),
    ("calibrate", "run", str(DATA / "example_training.log"), "--measure"),
    ("calibrate", "run", str(DATA / "example_training.log"), *SMALL[1:], "--tp", "4", "--gbs", "128"),
    ("roofline",),
    ("roofline", "--model", "mixtral-8x7b", "--cluster", "dgx-h100-superpod", "--cluster", "box-l40s"),
    ("models", "list"),
    ("models", "show", "llama3-8b"),
    ("models", "show", "deepseek-v3"),
    ("models", "show", "gpt-oss-20b"),
    ("models", "show", "deepseek-v3.2"),
    ("models", "show", "nemotron-3-nano"),
    ("hardware", "list"),
    ("hardware", "show", "h100"),
    ("clusters", "list"),
    ("clusters", "show", "dgx-h100-superpod", "--gpus", "4096"),
    ("clusters", "show", "box-l40s"),
    ("clusters", "show", str(DATA / "fleet.toml")),
    ("clusters", "import", str(DATA / "topo_matrix.txt"), "--gpu", "h100"),
    ("frameworks", "list"),
    ("frameworks", "show", "torchtitan"),
    ("show", "recipes", "deepseek-v3-2048gpu-h800"),
    ("bench", "--model", "llama3.2-1b", "--gpus", "8", "--runs", "1"),
    ("tune", str(DATA / "example_trials.toml")),
    ("doctor", str(MACHINE / "here")),
    ("skill",),
    ("calibrate", "gpu", "--protocol", str(DATA / "made_gpu_protocol.jsonl"), "--fit-only"),
    ("validate", str(DATA / "published_runs.csv")),
    ("validate", str(DATA / "published_kernels.csv")),
    ("validate", str(DATA / "example_recipes.csv")),
]
"""Commands that together print every key; each is run with --json."""


def on_files(files, config):
    """Add the generated pages (an event of mkdocs)."""
    from mkdocs.structure.files import File  # noqa: PLC0415  the tests use the rest of this file without mkdocs

    pages = {
        "reference/options.md": options_page(),
        "reference/json.md": json_page(),
        "reference/python.md": python_page(),
        "reference/rules.md": rules_page(),
        "reference/components.md": components_page(),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("(docs/", "("),
    }
    pages["open.html"] = opening_page()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def opening_page():
    """The page that shows an answer in JSON; it needs no network, and nothing of an answer leaves it."""
    body = (
        '<main id="main">\n<h1>Open an answer</h1>\n<p>Drop a file here that <code>gpuscale plan</code> or '
        "<code>gpuscale estimate</code> printed as JSON, or choose it. It stays in this browser.</p>\n</main>\n"
        '<p><label>Answer in JSON <input id="file" type="file" accept=".json,application/json"></label></p>\n'
        '<p id="said" role="alert"></p>\n'
    )
    return framed("Open an answer of gpuscale", body, (ROOT / "docs" / "open.js").read_text(encoding="utf-8"))


def table(header, rows):
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in lines) + "\n"


OPTIONS_INTRODUCTION = """\
Options of `plan`; `estimate` and `placement` take those of the job and the layout, `goodput`, `train-time`, `size`
and `batch-size` those of failures too, `stragglers` those of slow parts, `fleet` those of sites. `plan` tries all
layouts, and an option of the layout pins its axis to a set of values: `8`, `4..8`, `1,2,4`, or `!1` for all but 1.
`estimate` and `placement` take one value, and the default where none is given. [How a plan is found](../planning.md)
says more.
"""


SECTIONS = {
    "The job": JobOptions, "The layout": Layout, "The question": Question, "Length": Length, "Money": Means,
    "Noise of gradients": Noise, "Failures": Recovery, "Slow parts": Slow, "Sites": Sites,
}  # fmt: skip
"""Title -> the options under it."""


def options_page():
    """Every option: its flag, what it is, its values, its default, and whether several values are compared."""
    known, text = flags(), ["# Options", "", OPTIONS_INTRODUCTION]
    for title, kind in SECTIONS.items():
        rows = []
        for name, field in declared(kind).items():
            said = field.option
            values = ", ".join(f"`{choice}`" for choice in said.choices) or said.metavar
            default = said.default or (f"`{field.default}`" if field.default else "none")
            if field.required:
                default = "required"
            if isinstance(field.default, bool):
                values, default = "a switch", "on" if field.default else "off"
            several = "several" if name in COMPARED else "a set" if kind is Layout else ""
            rows.append((f"`{known[name]}`", f"`{name}`", said.help, values, default, several))
        header = ("flag", "in Python and files", "meaning", "values", "default", "`plan` takes")
        text += [f"## {title}", "", table(header, rows)]
    return "\n".join(text)


JSON_INTRODUCTION = """\
Every command takes `--json` and then prints one document to stdout, and nothing else there. `schema` names its form,
`gpuscale.<command>/<version>`. Keys are added within a version; a key is renamed, removed or given another meaning only
with a new version. Numbers are SI unless the key names a unit (`_gib` is 2^30 bytes, `_gb_per_s` 1e9 bytes/s, `_us`
microseconds); there is no NaN or infinity. Errors go to stderr, and the exit code is not 0 (1: no answer, 2: unusable
input, 3: a bug in gpuscale). `plan` without an answer prints a document too, with what came closest.

`[]` stands for every item of a list and `<name>` for every key of a map. Optional keys are left out where they do not
apply. Degrees multiply: `tp * pp * cp * dp` is the number of GPUs; `ep` and `etp` split the ranks of a stage.
"""


def json_page():
    """Every key of every document that the sample commands print, with its type and meaning."""
    text = ["# JSON", "", JSON_INTRODUCTION]
    for schema, rows in json_rows(documents()).items():
        text += [f"## {schema}", "", table(("key", "type", "meaning"), rows)]
    return "\n".join(text)


@functools.cache
def documents():
    """What the sample commands print, read."""
    printed = []
    for arguments in SAMPLES:
        with (
            mock.patch.dict(os.environ, ENVIRONMENT),
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.suppress(gpuscale.NoAnswerError),
        ):
            commands().main([*arguments, "--json"], prog_name="gpuscale", standalone_mode=False)
        printed.append(json.loads(out.getvalue()))
    return printed


def json_rows(printed):
    """Schema -> rows of key, type and meaning.

    Raises:
        KeyError: a key without a meaning, or a meaning in json_keys.toml without a key.
    """
    schemas = {}
    for document in printed:
        schemas.setdefault(document["schema"], []).append(document)
    known, shown, pages = tomllib.loads(JSON_KEYS.read_text(encoding="utf-8")), [], {}
    general = known.pop("any")
    for schema, same in schemas.items():
        own = known.pop(schema, {})
        pages[schema] = list(rows_of(schema, "", same, own, general, shown))
        if own:
            raise KeyError(f"{JSON_KEYS.name}: {schema} has no {', '.join(own)}, or says nothing new of it")
    if known:
        raise KeyError(f"{JSON_KEYS.name}: no document is a {', '.join(known)}")
    return pages


def rows_of(schema, path, objects, own, general, shown):
    """Rows for the keys of like objects at a path; `own` loses the meanings that are used, `general` holds for all.

    `shown` holds what other objects have been described: a second one with the same keys refers to the first.
    """
    keys = list(dict.fromkeys(key for one in objects for key in one))
    kind = described_by(keys)
    for key in keys:
        place = f"{path}.{key}" if path else key
        values = [one[key] for one in objects if key in one]
        optional = ", optional" if len(values) < len(objects) else ""
        named = f"{key}.<name>" in general or (is_mapping(kind, key) and not any(place in entry for entry in own))
        named = named or any(entry.startswith(f"{place}.<name>") for entry in own)
        listed = [value for value in values if value is not None]
        if len(listed) < len(values) and listed and is_every(list, listed):
            values, optional = listed, f", or null for all of it{optional}"
        while values and (is_every(list, values) or (named and is_every(dict, values))):
            place += "[]" if isinstance(values[0], list) else ".<name>"
            values = [item for value in values for item in (value if isinstance(value, list) else value.values())]
            named = any(entry.startswith(f"{place}.<name>") for entry in own)
        ends = (place, place.split(".")[-1], ".".join(place.split(".")[-2:]))
        said = own.pop(place, "") or meaning(kind, key) or next((general[end] for end in ends if end in general), "")
        if not said:
            raise KeyError(f"{schema}: {place} has no meaning: add it to a docstring or to {JSON_KEYS.name}")
        typed = kinds(values)
        if typed in {"", "null"}:  # no sample has a value
            typed = " or ".join(filter(None, (UNSEEN.get(place) or UNSEEN[key], typed)))
        inside = [value for value in values if isinstance(value, dict)]
        names = {name for one in inside for name in one}
        same = [where for where, others in shown if names == others or (len(names) > 10 and names <= others)]
        refers = f"; keys as in {same[0]}" if inside and same else ""
        yield (f"`{place}`", typed + optional, said + refers)
        if inside and not same:
            shown.append((f"`{place}` of `{schema}`", names))
            yield from rows_of(schema, place, inside, own, general, shown)


def is_every(kind, values):
    """Whether all values are of a type."""
    return all(isinstance(value, kind) for value in values)


def kinds(values):
    """The types of values, in words."""
    words = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", type(None): "null"}
    found = {words[type(value)] for value in values}
    if "number" in found:
        found -= {"integer"}
    return " or ".join(word for word in words.values() if word in found)


@functools.cache
def described():
    """Every type of the package that describes its fields: type -> field -> meaning."""
    found = {}
    for module in pkgutil.walk_packages(gpuscale.__path__, "gpuscale."):
        if not module.name.endswith("__main__"):
            for name, kind in vars(importlib.import_module(module.name)).items():
                if inspect.isclass(kind) and kind.__module__ == module.name and name[0] != "_" and attributes(kind):
                    found[kind] = attributes(kind)
    return found


def described_by(keys):
    """The type that has most of these keys as fields, the smallest of several; None where it has not half, and two."""
    known = {kind: sum(bool(meaning(kind, key)) for key in keys) for kind in described()}
    best = min(known, key=lambda kind: (-known[kind], len(described()[kind])))
    return best if known[best] >= max(2, len(keys) / 2) else None


def meaning(kind, key):
    """What a field means that a key is about, in whatever unit it has; empty where the type has no such field."""
    fields = described().get(kind, {})
    if key in fields:
        return fields[key]
    return re.sub(r" \[[^]]*\]$", "", fields.get(unit_of(key)[0], ""))


def is_mapping(kind, key):
    """Whether a field holds a map from names."""
    hint = typing.get_type_hints(kind).get(unit_of(key)[0]) if kind else None
    parts = [hint, *typing.get_args(hint)]
    return any(isinstance(origin := typing.get_origin(part), type) and issubclass(origin, Mapping) for part in parts)


def attributes(kind):
    """Field -> meaning, from the `#:` beside or above each field; the units in brackets stay, as `None` does not."""
    texts = beside_fields(inspect.getsourcefile(kind)).get(kind.__qualname__, {})
    return {name: re.sub(r"(?<!\.)\.$", "", text).replace("None", "null") for name, text in texts.items()}


@functools.cache
def beside_fields(path):
    """Class -> field -> what the comments that begin with `#:` say of it, of one file."""
    source = Path(path).read_text(encoding="utf-8")
    lines = source.splitlines()
    found = {}
    for kind in ast.walk(ast.parse(source)):
        for field in getattr(kind, "body", ()) if isinstance(kind, ast.ClassDef) else ():
            if isinstance(field, ast.AnnAssign):
                after = lines[field.end_lineno - 1].partition("  #: ")[2]
                before = map(str.strip, lines[field.lineno - 2 :: -1])
                above = itertools.takewhile(lambda line: line.startswith("#: "), before)
                text = after or " ".join(line[3:] for line in reversed(list(above)))
                found.setdefault(kind.name, {}).update({field.target.id: text} if text else {})
    return found


PYTHON_INTRODUCTION = """\
Every command is a function of `gpuscale`, and its result is typed and frozen; `gpuscale.report` makes a page of it.
`**options` are [the options](options.md) by their names in Python; `gpuscale.InputError` says what cannot be used (exit
code 2 of the command line), `gpuscale.NoAnswerError` that there is no answer (1). The examples run in a folder with
`plan.toml` (of `gpuscale plan -o plan.toml`), launch files and logs of their names.
"""


def python_page():
    """Every public function with its signature, what it takes and an example; every public type with its fields."""
    examples = tomllib.loads(PYTHON_EXAMPLES.read_text(encoding="utf-8"))
    found = {name: getattr(gpuscale, name) for name in gpuscale.__all__}
    types = {name: found.pop(name) for name in list(found) if inspect.isclass(found[name])}
    text = ["# Python", "", PYTHON_INTRODUCTION]
    for name, function in found.items():
        taken = inspect.signature(function).parameters
        own = inspect.unwrap(function)
        passed_on = ", ".join(f"`{one}`" for one in taken if one not in inspect.signature(own).parameters)
        text += [f"## {name}", "", "```python", headline(name, function), "```", "", said_in(own), ""]
        text += [f"Options: {passed_on}.", ""] if passed_on else []
        text += ["```python", "import gpuscale", "", examples[name].strip(), "```", ""]
    rows = [(f"`{name}`", inspect.getdoc(kind).split("\n")[0], fields_of(kind)) for name, kind in types.items()]
    return "\n".join([*text, "## Types", "", table(("type", "what it is", "fields"), rows)])


def headline(name, function):
    """The signature of a function with what it names itself; a default that is no plain value is left open."""
    said, parts, named = inspect.signature(function), [], False
    for key, one in inspect.signature(inspect.unwrap(function)).parameters.items():
        if one.kind is one.VAR_KEYWORD:
            parts.append("**options")
            continue
        if one.kind is one.KEYWORD_ONLY and not named:
            parts, named = [*parts, "*"], True
        plain = isinstance(one.default, (str, int, float, tuple, type(None)))
        default = "" if one.default is one.empty else f" = {one.default!r}" if plain else " = ..."
        parts.append(f"{key}: {plainly(said.parameters[key].annotation)}{default}")
    return f"{name}({', '.join(parts)}) -> {plainly(said.return_annotation)}"


def plainly(annotation):
    """An annotation without the modules of its types."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b[a-z_]\w*\.", "", text)


def said_in(function):
    """The docstring of a function, what it takes and raises as lists."""
    lines = []
    for line in inspect.getdoc(function).replace("\n        ", " ").splitlines():
        name, colon, rest = line.strip().partition(": ")
        if line in {"Args:", "Raises:", "Returns:"}:
            lines += [f"{line[:-1]}:", ""]
        else:
            lines.append(f"- `{name}`: {rest}" if line.startswith("    ") and colon else line.strip())
    return "\n".join(lines)


def fields_of(kind):
    """The fields of a dataclass or model, in their order."""
    return ", ".join(f"`{name}`" for name in getattr(kind, "__dataclass_fields__", getattr(kind, "model_fields", {})))


def rules_page():
    """Every rule with its code and whom it binds; for each framework where it says so, and what it does not check."""
    intro = "A candidate that breaks a rule is counted under the first that it breaks, in this order."
    rows = [(f"`{rule.code}`", rule.text, frameworks_text(rule), rule.source) for rule in ALL_RULES]
    rows += [(f"`{code}`", text, "all", "memory model") for code, text in MEMORY_RULES]
    text = ["# Rules", "", intro, "", table(("code", "rule", "frameworks", "source"), rows)]
    header = ("code", "rule", "where", "what its own check misses")
    for name in RULE_SETS[1:]:  # all but `generic`, which has arithmetic alone
        cites = {rule: cited(rule, name) for rule in own_rules(name)}
        rows = [(f"`{rule.code}`", rule.text, cite.where, cite.missed) for rule, cite in cites.items()]
        if rows:
            text += [f"## {name}", "", table(header, rows)]
        told = [] if re.search(r"-20\d\d$", name) else [*settings_of(FRAMEWORKS[name].options)]
        if told:
            text += ["What its files say, and what it runs whatever they say:", "", table(("option", "", "what"), told)]
    return "\n".join([*text, "## Error texts", "", *error_texts()])


def error_texts():
    """Every error that `check --error` knows: whose it is, what it means, and the rules that it is."""
    rows = [
        (f"`{one.code}`", one.framework, one.says or BY_CODE[one.rules[0]].text,
         ", ".join(f"`{rule}`" for rule in one.rules) or one.kind, one.where)
        for one in ERRORS
    ]  # fmt: skip
    yield f"`gpuscale check --error` knows {len(ERRORS)}:"
    yield ""
    yield table(("error", "of", "what is wrong", "rules, or what it is a matter of", "where"), rows)


def settings_of(options):
    """The rows of a framework's table: the setting of an option with its words, or all that it runs, and why."""
    for row in (one for one in options if one.ours):
        name = f"`{row.ours}`" if "." not in row.ours else f"the model's `{row.ours.removeprefix('model.')}`"
        words = row.words or {}
        if row.name:
            said = ", ".join(f"{own} for {ours}" for ours, own in words.items() if ours != own)
            usual = "" if row.usual is None else f"{row.usual} where nothing is said"
            yield name, f"`{row.name}`", "; ".join(filter(None, (said, usual)))
        else:
            runs = " or ".join("not stated" if one is None else str(one) for one in words)
            yield name, f"always {runs}" if None not in words else runs, row.why


def own_rules(name):
    """The rules of one framework beyond arithmetic, and those of arithmetic that its source states; of an earlier
    generation those that today's has no more."""
    rules = [rule for rule in rules_of(name) if rule.frameworks != EVERY or rule.code in FRAMEWORKS[name].cited]
    today = re.sub(r"-20\d\d$", "", name)
    return rules if today == name else [rule for rule in rules if today not in rule.frameworks]


def frameworks_text(rule):
    """The rule sets for which a rule holds; a framework all of whose generations have it goes by its name alone."""
    if rule.frameworks == EVERY:
        return "all"
    names = [name for name in RULE_SETS if name in rule.frameworks]
    for family in ("megatron-lm", "torchtitan"):
        members = [name for name in RULE_SETS if name == family or name.startswith(f"{family}-")]
        if set(members) <= set(names):
            names = [name for name in names if name == family or name not in members]
        elif family in names:
            names[names.index(family)] = f"{family} (today)"
    return ", ".join(names)


def components_page():
    """What a step's time and a GPU's memory are made of."""
    step = [(f"`{name}`", f"`{one.limit}`", one.text, one.meaning) for name, one in STEP.items()]
    meanings = attributes(Memory)
    memory = [(f"`{name}`", meanings[name]) for name in MEMORY]
    return "\n".join([
        "# Components", "", "## Step time", "", "They add up to the step time.", "",
        table(("component", "counts as", "shown as", "meaning"), step), "## Memory", "",
        "GiB per GPU at the fullest stage; they add up to the total.", "", table(("component", "meaning"), memory),
    ])  # fmt: skip
