"""docs/json.md and docs/planning.md say all that there is to say, and nothing else."""

import json
import re
from pathlib import Path

import pytest
from command import gpuscale
from update_frameworks import rewritten

from gpuscale.cli.main import flags
from gpuscale.layouts.arrays import RECOMPUTE_MODULES
from gpuscale.layouts.pins import DEGREES
from gpuscale.memory.model import COMPONENTS as MEMORY_COMPONENTS
from gpuscale.planning.failures import SCALES
from gpuscale.planning.variants import MAX_VARIANTS
from gpuscale.presets.frameworks import all_framework_files
from gpuscale.request import COMPARED, DTYPE_BYTES, OPTIMIZER_MOMENTS
from gpuscale.rules.check import ALL_RULES
from gpuscale.search import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY
from gpuscale.search.objectives import OBJECTIVES
from gpuscale.specs.job import RULE_SETS
from gpuscale.steptime.components import BOUNDS, COMPONENTS

DOCS = Path(__file__).parents[1] / "docs"
DATA = Path(__file__).parent / "data"
SMALL = ("plan", "--model", "llama3-8b", "--gpus", "16")
SAMPLES = [
    (*SMALL, "--why", "tp=2"),
    (*SMALL, "--why", "tp=3", "--seq", "16384"),
    (*SMALL, "--why", "zero=0,tp=1,pp=1"),
    ("plan", "--model", "mixtral-8x7b", "--gpus", "32", "--cluster", "h200-hgx"),
    (*SMALL, "--robust", "--top", "3"),
    (*SMALL[:-1], "4,16", "--gpu-hour-price", "2", "--train-tokens", "1T", "--min-mfu", "45", "--zero", "0,1"),
    (*SMALL, "--framework", "generic", "--schedule", "1f1b,zb-h1", "--pareto", "step_time,memory", "--pp", "2"),
    ("estimate", "--model", "llama3-8b", "--gpus", "16"),
    ("estimate", "--model", "deepseek-v2-lite", "--gpus", "8", "--ep", "8"),
    ("placement", "--gpus", "96", "--tp", "6", "--cp", "2", "--order", "tp-dp-pp-cp", "--pp", "2", "--best"),
    ("placement", "--gpus", "16", "--tp", "2", "--best", "--model", "llama3-8b"),
    ("placement", "--gpus", "64", "--ep", "16", "--pp", "2"),
    ("collective", "allreduce", "--bytes", "1GB"),
    ("collective", "alltoall", "--bytes", "1GB", "--level", "node", "--ideal"),
    ("collective", "allreduce", "--sweep", "8B..8GB", "--gpus", "16", "--concurrent", "2"),
    ("calibrate", "nccl", str(DATA / "example_all_reduce.log"), "--cluster", "aws-p5", "--holdout"),
    ("roofline",),
    ("roofline", "--model", "mixtral-8x7b", "--cluster", "box-l40s-pcie"),
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
    ("clusters", "show", "box-l40s-pcie"),
    ("clusters", "show", str(DATA / "fleet.toml")),
    ("clusters", "import", str(DATA / "topo_matrix.txt"), "--gpu", "h100"),
    ("frameworks", "list"),
    ("frameworks", "show", "torchtitan"),
    ("bench", "--model", "llama3.2-1b", "--gpus", "8", "--runs", "1"),
    ("validate", str(DATA / "published_runs.csv")),
    ("validate", str(DATA / "published_kernels.csv")),
]
PLAIN = {"string": str, "boolean": bool, "integer": int, "number": float}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def tables(name):
    """Heading -> rows of the table below it; a heading's backticks are dropped."""
    found, heading = {}, ""
    for line in (DOCS / name).read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip("`")
            found[heading] = []
        elif line.startswith("|---"):
            found[heading].clear()  # what stood above was the header
        elif line.startswith("| "):
            found[heading].append(cells(line))
    return found


JSON = {heading: {row[0].strip("`"): row[1] for row in rows} for heading, rows in tables("json.md").items()}


def check(value, kind, where, seen):
    """Hold a value to its documented type, and note which documented keys it has."""
    kind = kind.removesuffix(", optional")
    if kind.endswith(" or null"):
        if value is None:
            return
        kind = kind.removesuffix(" or null")
    if kind.startswith("list of "):
        assert isinstance(value, list), where
        for item in value:
            check(item, kind.removeprefix("list of "), where, seen)
    elif kind.startswith("map of "):
        assert isinstance(value, dict), where
        for key, item in value.items():
            check(item, kind.removeprefix("map of "), f"{where}.{key}", seen)
    elif kind == "string or number":
        assert isinstance(value, str | int | float), where
    elif kind in PLAIN:
        wanted = (int, float) if kind == "number" else PLAIN[kind]
        assert isinstance(value, wanted), f"{where} is {value!r}"
        assert isinstance(value, bool) == (kind == "boolean"), f"{where} is {value!r}"
    else:
        check_object(value, kind.strip("`"), where, seen)


def check_object(value, heading, where, seen):
    documented = JSON[heading]
    assert set(value) <= set(documented), f"{where}: not documented: {set(value) - set(documented)}"
    needed = {key for key, kind in documented.items() if not kind.endswith(", optional")}
    assert needed <= set(value), f"{where}: missing: {needed - set(value)}"
    for key, item in value.items():
        seen.add((heading, key))
        check(item, documented[key], f"{where}.{key}", seen)


@pytest.fixture(scope="module")
def documents():
    out = []
    for arguments in SAMPLES:
        done = gpuscale(*arguments, "--json")
        assert (done.code, done.err) == (0, "")
        out.append(json.loads(done.out))
    return out


def test_every_json_key_is_documented_with_its_type_and_the_other_way_round(documents):
    seen = set()
    for document in documents:
        check_object(document, document["schema"], document["schema"], seen)
    documented = {(heading, key) for heading, rows in JSON.items() for key in rows}
    assert documented - seen == set()


def test_schemas_are_those_of_the_commands(documents):
    headings = {heading for heading in JSON if heading.startswith("gpuscale.")}
    assert headings == {document["schema"] for document in documents}


def test_values_of_plans_are_among_the_documented(documents):
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


def test_json_page_lists_every_bound():
    row = next(row for row in tables("json.md")["plan"] if row[0] == "`bound_by`")
    assert set(re.findall(r"`([a-z_]+)`", row[2])) == set(BOUNDS)


PLANNING = tables("planning.md")


def column(heading, index=0):
    return [row[index].strip("`") for row in PLANNING[heading]]


def test_tables_of_rules_are_those_of_the_code():
    for page in ("planning.md", "frameworks.md"):
        text = (DOCS / page).read_text()
        assert rewritten(text) == text, "run python tests/update_frameworks.py"
    assert column("Rules") == [*(rule.code for rule in ALL_RULES), OUT_OF_HOST_MEMORY, OUT_OF_MEMORY]
    marked = set(re.findall(r"<!-- rules of ([a-z0-9-]+) -->", (DOCS / "frameworks.md").read_text()))
    assert marked == set(RULE_SETS) - {"generic"}


def test_frameworks_page_names_every_profile_and_alias():
    text = (DOCS / "frameworks.md").read_text()
    for name, file in all_framework_files().items():
        assert f"`{name}`" in text or f"`{name.removeprefix('megatron')}`" in text
        if not file["rule_set"].startswith("megatron-lm-"):
            assert all(f"`{alias}`" in text for alias in file["aliases"])


def test_planning_page_lists_every_component_with_what_it_counts_as():
    assert {row[0].strip("`"): row[1].strip("`") for row in PLANNING["Step time"]} == {
        name: one.limit for name, one in COMPONENTS.items()
    }
    assert column("Memory") == list(MEMORY_COMPONENTS)


def test_planning_page_lists_axes_objectives_and_modules():
    text = (DOCS / "planning.md").read_text()
    flags = {name.replace("micro_batch_size", "mbs") for name in DEGREES} | {"recompute"}
    assert {name.removeprefix("--") for name in column("Axes", 1)} == flags
    assert column("Ranking") == list(OBJECTIVES)
    for module in RECOMPUTE_MODULES:
        assert f"`{module}`" in text
    for name in (*DTYPE_BYTES, *OPTIMIZER_MOMENTS):
        assert f"`{name}`" in text


def test_planning_page_names_everything_that_may_have_several_values():
    named = {flag for row in PLANNING["What to ask"] for flag in re.findall(r"`(--[a-z-]+)", row[0])}
    assert named == {flags()[name] for name in (*COMPARED, "space")}
    text = (DOCS / "planning.md").read_text()
    assert f"At most {MAX_VARIANTS} combinations" in text
    for code in SCALES:
        assert f"`--{code.replace('_', '-')} " in text


def test_links_between_pages_lead_somewhere():
    root = DOCS.parent
    made = {DOCS / name for name in re.findall(r'"([a-z/]+\.md)":', (DOCS / "generate.py").read_text())}
    for page in (*DOCS.glob("*.md"), root / "README.md", root / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                there = (page.parent / target).resolve()
                assert there.exists() or there in made, f"{page.name}: {target}"
