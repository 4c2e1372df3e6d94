"""The reference pages have a line for everything, and what the other pages say by name is there."""

import re
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import gpuscale
from gpuscale.cli.main import flags
from gpuscale.launch.diagnosis import ERRORS
from gpuscale.layouts.arrays import RECOMPUTE_MODULES
from gpuscale.layouts.pins import DEGREES
from gpuscale.memory.model import COMPONENTS as MEMORY_COMPONENTS
from gpuscale.planning.jobs import CONSTRAINTS
from gpuscale.planning.variants import MAX_VARIANTS
from gpuscale.presets.frameworks import all_framework_files
from gpuscale.request import COMPARED, OPTIONS
from gpuscale.rules.check import ALL_RULES
from gpuscale.search.loop import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY
from gpuscale.search.objectives import OBJECTIVES
from gpuscale.specs.job import RULE_SETS
from gpuscale.steptime.components import BOUNDS, COMPONENTS
from gpuscale.units import unit_of

DOCS = Path(__file__).parents[1] / "docs"


def tables(text):
    """Heading -> rows of the table below it; a heading's backticks are dropped."""
    found, heading = {}, ""
    for line in text.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip("`")
            found[heading] = []
        elif line.startswith(("|---", "| ---")):
            found[heading].clear()  # what stood above was the header
        elif line.startswith("| "):
            cells = re.split(r" *(?<!\\)\| ?", line.strip().removeprefix("| ").removesuffix("|").rstrip())
            found[heading].append([cell.strip() for cell in cells])
    return found


def column(rows, index=0):
    return [row[index].strip("`") for row in rows]


def test_every_field_of_a_spec_is_described_and_in_si(generate):
    specs = [
        kind for kind in generate.described() if kind.__module__.startswith("gpuscale.specs.") and is_dataclass(kind)
    ]
    assert len(specs) > 20
    for kind in specs:
        names = [field.name for field in fields(kind)]
        assert list(generate.attributes(kind)) == names
        assert not [name for name in names if unit_of(name)[1] != 1]  # units other than SI are for keys of files


def test_every_json_key_has_a_type_and_a_meaning(generate):
    page = tables(generate.json_page())
    assert list(page)[1:] == list(dict.fromkeys(document["schema"] for document in generate.documents()))
    rows = [row for rows in page.values() for row in rows]
    assert len(rows) > 500
    assert all(len(row) == 3 and all(row) for row in rows)
    assert {"string", "boolean", "integer", "number", "integer or null"} <= {row[1] for row in rows}


def test_a_key_without_a_meaning_is_refused(generate):
    documents = [document for document in generate.documents() if document["schema"] != "gpuscale.estimate/1"]
    estimate = {"schema": "gpuscale.estimate/1", "model": "llama3-8b", "fortune": 1}
    with pytest.raises(KeyError, match="fortune has no meaning"):
        generate.json_rows([*documents, estimate])
    with pytest.raises(KeyError, match=r"no document is a .*gpuscale\.collective-sweep/1"):
        generate.json_rows([document for document in documents if "collective-sweep" not in document["schema"]])


def test_meanings_come_from_the_type_of_the_object_and_in_the_unit_of_the_key(generate):
    rows = {row[0].strip("`"): row for row in tables(generate.json_page())["gpuscale.collective/1"]}
    assert rows["levels[].egress_gb_per_s"][1:] == ["number", "per GPU and direction, at wire rate"]
    assert rows["time_s"][1] == "number"
    assert rows["concurrent"][1] == "integer or null"


def test_values_of_plans_are_among_the_documented(generate):
    documents = generate.documents()
    plans = [plan for document in documents for plan in document.get("plans", [])]
    plans += [document["plan"] for document in documents if "breakdown" in document]
    assert len(plans) > 20
    for plan in plans:
        assert plan["zero"] in {0, 1, 2, 3}
        assert plan["bound_by"] in BOUNDS
        assert re.fullmatch(r"none|selective:[a-z_+]+|full:[0-9]+", plan["recompute"])
        assert plan["sharding"] == ("none", "distopt", "fsdp", plan["sharding"])[plan["zero"]]
        assert plan["sharding"] in {"none", "distopt", "fsdp", "hsdp"}
        assert plan["schedule"] in {"none", "1f1b", "interleaved", "zb-h1"}
        assert "attention" in plan["flop_convention"]
        assert 0 < plan["mfu"] < 1
    rejected = {code for document in documents if "search" in document for code in document["search"]["rejected"]}
    assert rejected <= {rule.code for rule in ALL_RULES} | {OUT_OF_MEMORY, "min_mfu"}


def test_reference_of_options_says_flag_help_and_default_of_each(generate):
    rows = [row for rows in tables(generate.options_page()).values() for row in rows]
    known = flags()
    assert [(row[0], row[1]) for row in rows] == [(f"`{known[name]}`", f"`{name}`") for name in OPTIONS]
    for row, option in zip(rows, OPTIONS.values(), strict=True):
        assert row[2].replace("\\|", "|") == option.help
        assert all(row[:5]), row


def test_reference_of_rules_and_components_is_whole(generate):
    rules = tables(generate.rules_page())
    assert column(rules["Rules"]) == [*(rule.code for rule in ALL_RULES), OUT_OF_HOST_MEMORY, OUT_OF_MEMORY]
    assert column(rules.pop("Error texts")) == [one.code for one in ERRORS]
    assert set(rules) - {"Rules"} == set(RULE_SETS) - {"generic"}
    components = tables(generate.components_page())
    assert column(components["Step time"]) == list(COMPONENTS)
    assert column(components["Memory"]) == list(MEMORY_COMPONENTS)
    assert all(all(row) for rows in components.values() for row in rows)


FILES = {
    "all_reduce.log": "example_all_reduce.log", "training.log": "example_training.log", "fleet.toml": "fleet.toml",
    "topo_matrix.txt": "topo_matrix.txt", "results.csv": "studies/results.csv", "runs.csv": "compared_collectives.csv",
    "gpu_protocol.jsonl": "made_gpu_protocol.jsonl", "run.sh": "launch/megatron_arrays.sh",
    "trials.toml": "example_trials.toml",
}  # fmt: skip
"""What the examples in Python read: its name there and in the data of the tests."""
PLAN = ("plan", "--model", "llama3-8b", "--gpus", "16", "--pp", "2")


def test_every_public_function_has_an_example_that_runs(generate, tmp_path, monkeypatch):
    page = generate.python_page()
    examples = re.findall(
        r"^## (\w+)\n(?:(?!^## ).*\n)*?```python\nimport gpuscale\n\n((?:.+\n)+)```$", page, re.MULTILINE
    )
    assert [name for name, _ in examples] == [one for one in gpuscale.__all__ if one[0].islower()]
    for name, source in FILES.items():
        shutil.copy(Path(__file__).parent / "data" / source, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "gpuscale", *PLAN, "-o", "plan.toml"], check=True, stdout=subprocess.DEVNULL)
    for name, lines in examples:
        assert f"gpuscale.{name}(" in lines
        exec(f"import gpuscale\n{lines}", {})


def test_python_page_has_every_type_and_all_that_a_function_takes(generate):
    page = generate.python_page()
    types = tables(page)["Types"]
    assert column(types) == [one for one in gpuscale.__all__ if one[0].isupper()]
    assert all(row[1] for row in types)
    assert "- `layout`: `tp`, `pp`, `micro_batch_size`, `recompute` and the like in one piece, by name." in page
    assert "estimate(model: str | Path | ModelSpec, gpus: int, layout: Mapping[str, Any] | None = None, *, " in page
    assert not re.search(r" object at 0x|<class", page)


def test_frameworks_page_names_every_profile_and_alias():
    text = (DOCS / "frameworks.md").read_text()
    for name, file in all_framework_files().items():
        assert f"`{name}`" in text or f"`{name.removeprefix('megatron')}`" in text
        if not file["rule_set"].startswith("megatron-lm-"):
            assert all(f"`{alias}`" in text for alias in file["aliases"])


def test_planning_page_lists_axes_objectives_and_modules():
    text = (DOCS / "planning.md").read_text()
    planning = tables(text)
    flags_of_axes = {name.replace("micro_batch_size", "mbs") for name in DEGREES} | {"recompute"}
    assert {name.removeprefix("--") for name in column(planning["Axes"], 1)} == flags_of_axes
    assert column(planning["Ranking"]) == list(OBJECTIVES)
    for module in RECOMPUTE_MODULES:
        assert f"`{module}`" in text


def test_planning_page_names_everything_that_may_have_several_values():
    text = (DOCS / "planning.md").read_text()
    named = {flag for row in tables(text)["What to ask"] for flag in re.findall(r"`(--[a-z-]+)", row[0])}
    assert named == {flags()[name] for name in (*COMPARED, "space")}
    assert f"At most {MAX_VARIANTS} combinations" in text
    for code in CONSTRAINTS:
        assert f"`--{code.replace('_', '-')} " in text


def test_links_between_pages_lead_somewhere():
    root = DOCS.parent
    made = {DOCS / name for name in re.findall(r'"([a-z/]+\.md)":', (DOCS / "generate.py").read_text())}
    for page in (*DOCS.glob("*.md"), root / "README.md", root / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                there = (page.parent / target).resolve()
                assert there.exists() or there in made, f"{page.name}: {target}"
