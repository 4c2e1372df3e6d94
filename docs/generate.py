"""Writes the reference pages while the site is built: options, JSON, rules and components, from the code itself."""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path

from mkdocs.structure.files import File

from gpuscale.cli.main import flags
from gpuscale.memory.model import COMPONENTS as MEMORY
from gpuscale.memory.model import Memory
from gpuscale.render.output import SCHEMAS
from gpuscale.request import COMPARED, JobOptions, Layout, Question, option_of
from gpuscale.rules.check import ALL_RULES
from gpuscale.rules.rule import EVERY
from gpuscale.specs.job import RULE_SETS
from gpuscale.steptime.components import COMPONENTS as STEP

ROOT = Path(__file__).resolve().parents[1]


def on_files(files, config):
    """Add the generated pages (an event of mkdocs)."""
    pages = {
        "reference/options.md": options_page(),
        "reference/json.md": json_page(),
        "reference/rules.md": rules_page(),
        "reference/components.md": components_page(),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("(docs/", "("),
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def table(header, rows):
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in lines) + "\n"


def options_page():
    """Every option: its flag, what it is, its values, its default, and whether several values are compared."""
    known = flags()
    text = ["# Options", "", "Of `plan`; `estimate` and `placement` take those of the job and the layout.", ""]
    for title, kind in (("The job", JobOptions), ("The layout", Layout), ("The question", Question)):
        rows = []
        for name, field in kind.model_fields.items():
            said = option_of(field)
            default = said.default or ("" if field.is_required() or field.default is None else f"`{field.default}`")
            values = ", ".join(f"`{choice}`" for choice in said.choices) or said.metavar
            compared = "several" if name in COMPARED else ""
            rows.append((f"`{known[name]}`", f"`{name}`", said.help, values, default, compared))
        header = ("flag", "in Python and files", "meaning", "values", "default", "`plan` takes")
        text += [f"## {title}", "", table(header, rows)]
    return "\n".join(text)


def json_page():
    """Every key of every document, from the fields of the result types and their docstrings."""
    text = [
        "# JSON", "",
        "Every command takes `--json` and prints one document to stdout. `schema` names its form,",
        "`gpuscale.<command>/<version>`; keys are added within a version, never renamed or removed. Numbers are SI",
        "unless the key names a unit (`_gib` is 2^30 bytes, `_gb_per_s` 1e9 bytes/s). There is no NaN or infinity.", "",
    ]  # fmt: skip
    told = set()
    for schema, result in SCHEMAS.items():
        text += [f"## {schema}", ""]
        for kind in nested(result):
            if kind in told:
                continue
            told.add(kind)
            meanings, hints = attributes(kind), typing.get_type_hints(kind)
            names = [one.name for one in dataclasses.fields(kind)]
            rows = [(f"`{name}`", words(hints[name]), meanings.get(name, "")) for name in names]
            text += [] if kind is result else [f"### {kind.__name__}", ""]
            text += [table(("key", "type", "meaning"), rows)]
    return "\n".join(text)


def nested(result):
    """A result type and those of its fields, each once, outermost first."""
    found = [result]
    for kind in found:
        for hint in typing.get_type_hints(kind).values():
            found += [part for part in parts(hint) if dataclasses.is_dataclass(part) and part not in found]
    return found


def parts(hint):
    """A type and everything inside it."""
    return [hint, *(inner for part in typing.get_args(hint) for inner in parts(part))]


def words(hint):
    """A type as people say it."""
    names = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null", typing.Any: "any"}
    inner = typing.get_args(hint)
    if hint in names:
        return names[hint]
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(words(part) for part in inner)
    if origin is not None and issubclass(origin, Mapping):
        return f"map of {words(inner[1])}"
    if origin is not None:
        return f"list of {words(inner[0])}"
    return f"[{hint.__name__}](#{hint.__name__.lower()})" if dataclasses.is_dataclass(hint) else str(hint)


def attributes(kind):
    """Field -> meaning, from the `Attributes` of a docstring."""
    found, names = {}, []
    for line in (kind.__doc__ or "").partition("Attributes:\n")[2].splitlines():
        match = re.match(r" {8}([a-z_][\w, ]*): (.*)", line)
        if match:
            names = [name.strip() for name in match[1].split(",")]
        for name in names:
            found[name] = f"{found[name]} {line.strip()}" if name in found else match[2]
    return found


def rules_page():
    """Every rule with its code, and whom it binds."""
    rows = []
    for rule in ALL_RULES:
        bound = "all" if rule.frameworks == EVERY else ", ".join(name for name in RULE_SETS if name in rule.frameworks)
        rows.append((f"`{rule.code}`", rule.text, bound, rule.source))
    intro = "A candidate that breaks a rule is counted under the first that it breaks, in this order."
    return "\n".join(["# Rules", "", intro, "", table(("code", "rule", "frameworks", "source"), rows)])


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
