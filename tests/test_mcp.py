"""The commands as tools for agents: what calls mean, what they may read, and the server that speaks MCP."""

import asyncio
import io
import json
import os
import shlex
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest
from command import assert_one_message, gpuscale
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscale import files
from gpuscale.cli.agent_tools import (
    KINDS,
    MAX_TEXT,
    OWN,
    TOOLS,
    WORDED,
    Asked,
    page_of,
    parameters,
    part_of,
    read_call,
    schema,
)
from gpuscale.cli.agent_worker import KEPT, PROGRAM, Desk, _refuse
from gpuscale.errors import InputError
from gpuscale.presets.files import preset_folders, skill_text
from gpuscale.request import JobOptions, declared

ROOT = Path(__file__).parents[1]
LIMIT_BYTES = 8192
JOB = {"model": "llama3-8b", "gpus": 16}
PLAN = JOB | {"tp": 2, "pp": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with files, and links out of it to a folder beside."""
    base = tmp_path_factory.mktemp("agents")
    root, other = base / "root", base / "other"
    root.mkdir()
    other.mkdir()
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
              "intermediate_size": 8192, "vocab_size": 32000, "secret": "do-not-tell"}  # fmt: skip
    for at in (root, other):
        (at / "config.json").write_text(json.dumps(config))
        (at / "flags.sh").write_text("MORE='--tensor-model-parallel-size 2'\n")
    (root / "link.json").symlink_to(other / "config.json")
    (root / "away").symlink_to(other)
    script = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --num-attention-heads 16 "
    script += "--seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16 $MORE\n"
    (root / "run.sh").write_text(f"source ./flags.sh\n{script}")
    (root / "out.sh").write_text(f"source {other}/flags.sh\n{script}")
    return root


@pytest.fixture(scope="module")
def desk(folder):
    own = {"XDG_CONFIG_HOME": os.devnull, "GPUSCALE_PRESETS": ""}
    with mock.patch.dict("os.environ", own):
        desk = Desk(folder, 60)
        yield desk
        desk.close()


# --- what calls mean


@pytest.mark.parametrize("tool", TOOLS)
def test_the_schema_of_a_tool_follows_from_the_declarations(tool):
    made = schema(tool)
    known, properties = parameters(tool), made["properties"]
    assert set(known) | set(OWN) == set(properties) - {"what"}
    assert json.loads(json.dumps(made)) == made
    assert not set(properties) & {"html", "output", "json", "csv", "help"}
    for name, one in properties.items():
        kinds = {one["type"]} if isinstance(one["type"], str) else set(one["type"])
        assert kinds <= {*KINDS.values(), "array", "object"}, name
        if name in WORDED and name in known:
            assert one["description"], name
        assert "--" not in one.get("description", ""), name
    if "model" in declared(JobOptions) and tool in {"plan", "estimate", "explain", "check"}:
        for name, one in declared(JobOptions).items():
            assert ("enum" in properties[name]) <= bool(one.option.choices)
            if one.number is int and "minimum" in properties[name]:
                limits = (properties[name]["minimum"], properties[name]["maximum"])
                assert limits == (one.limits.low, one.limits.high), name


def test_all_tools_together_are_short():
    """They stand in the context of whoever may call them."""
    listed = [{"name": name, "description": text, "schema": schema(name)} for name, text in TOOLS.items()]
    assert len(json.dumps(listed, separators=(",", ":"))) < 44_000


def test_a_schema_is_one(desk):
    jsonschema = pytest.importorskip("jsonschema")
    for tool in TOOLS:
        jsonschema.Draft202012Validator.check_schema(schema(tool))
    check = jsonschema.Draft202012Validator(schema("plan"))
    assert check.is_valid(JOB | {"tp": "1..8", "gbs": "4Mtok", "overlap": "dp"})
    assert not check.is_valid(JOB | {"attention": "fa9"})
    assert not check.is_valid(JOB | {"gpus": 0})
    assert not check.is_valid(JOB | {"tight": "perhaps"})


@pytest.mark.parametrize(
    ("tool", "arguments", "line"),
    [
        ("plan", {**JOB, "tp": "1..4", "tight": True, "top": 3},
         "plan --model=llama3-8b --gpus=16 --tp=1..4 --tight --top=3"),
        ("plan", {"model": "x", "num_gpus": 8.0, "--mbs": 2}, "plan --model=x --gpus=8.0 --mbs=2"),
        ("plan", {"gpus": [16, 32], "set": ["a=1", "b=2"]}, "plan --gpus=16,32 --set=a=1 --set=b=2"),
        ("plan", {"gpu_hour_price": {"aws-p5": 2.5}, "why": {"tp": 4}}, "plan --gpu-hour-price=aws-p5=2.5 --why=tp=4"),
        ("estimate", {"plan_file": "-x.toml", "sp": False, "despite_rules": False}, "estimate --sp=off -- -x.toml"),
        ("estimate", {"from": "run.sh", "tensor_model_parallel_size": 4}, "estimate --from=run.sh --tp=4"),
        ("compare", {"b": {"plan_file": "b.toml"}, "a": {"model": "m", "tp": 2}},
         "compare -- '--model=m --tp=2' b.toml"),
        ("collective", {"bytes": "1MB", "operation": "alltoall"}, "collective --bytes=1MB -- alltoall"),
        ("list", {"what": "models", "name": "gpt3-175b", "key": "$"}, "show models --json -- gpt3-175b"),
        ("list", {"what": "options", "name": "size"}, "size --help-all"),
        ("check", {**JOB, "error": "RuntimeError: x"}, "check --model=llama3-8b --gpus=16 --error=-"),
    ],
)  # fmt: skip
def test_a_call_means_a_command_line(tool, arguments, line):
    asked = read_call(tool, arguments)
    assert shlex.join(asked.arguments) == line
    assert asked.stdin == ("RuntimeError: x" if tool == "check" else "")


@pytest.mark.parametrize(
    ("tool", "arguments", "message", "hint"),
    [
        ("plans", {}, "no such tool 'plans'", "did you mean plan, "),
        ("plan", {"modle": "x"}, "unknown option 'modle'", "did you mean model"),
        ("plan", {"output": "plan.toml"}, "unknown option 'output'", "explains all"),
        ("plan", {"html": "plan.html"}, "unknown option 'html'", ""),
        ("plan", {"model": {"a": [1]}}, "is not text, a number, true or false", ""),
        ("plan", {"gpus": 10**400}, "is out of range", ""),
        ("plan", {"model": "x" * (MAX_TEXT + 1)}, "65,537 characters, at most 65,536", "what matters"),
        ("plan", {"tight": "perhaps"}, "'perhaps' is not true or false", ""),
        ("plan", {"offset": -1}, "-1 is not a place", "the page before"),
        ("plan", {"offset": True}, "True is not a place", "the page before"),
        ("plan", {"offset": 1.5}, "1.5 is not a place", "the page before"),
        ("plan", {"offset": float("nan")}, "nan is not a place", ""),
        ("plan", {"offset": "7"}, "'7' is not a place", ""),
        ("plan", {"key": 3}, "3 is no part of an answer", "plans[0]"),
        ("compare", {"a": {"no": 1}}, "unknown option 'no'", "name=estimate"),
        ("compare", {"a": []}, "is no plan", "arguments of `estimate`"),
        ("list", {}, "unknown value ''", "models, hardware"),
        ("list", {"what": "options", "name": "export"}, "unknown value 'export'", "choose"),
    ],
)
def test_what_a_call_cannot_mean_is_refused(tool, arguments, message, hint):
    with pytest.raises(InputError) as refused:
        read_call(tool, arguments)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize("tool", ["plan", "estimate", "explain", "check", "size", "collective", "list"])
def test_every_argument_of_a_schema_is_taken(tool):
    values = {"string": "x", "integer": 1, "number": 1, "boolean": True}
    beside = {"what": "models"} if tool == "list" else {}
    for name, one in schema(tool)["properties"].items():
        kind = one["type"] if isinstance(one["type"], str) else one["type"][0]
        asked = read_call(tool, {**beside, name: one["enum"][0] if "enum" in one else values[kind]})
        assert name in {"what", "key", "offset"} or len(asked.arguments) > 1, name


# --- answers


CALLS = {
    "plan": {**JOB, "top": 2},
    "estimate": PLAN,
    "explain": PLAN,
    "check": PLAN | {"max_memory": "90%"},
    "compare": {"a": PLAN, "b": PLAN | {"sp": False}},
    "size": {"gpus": 16, "days": 3},
    "collective": {"operation": "allgather", "bytes": "1MB", "level": "node"},
    "list": {"what": "hardware", "name": "h100"},
}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_answers_as_its_command_does(desk, tool):
    asked = read_call(tool, CALLS[tool])
    said, done = desk.call(tool, CALLS[tool]), gpuscale(*asked.arguments)
    assert (said.failed, done.code) == (False, 0)
    assert len(said.text.encode()) <= LIMIT_BYTES
    assert said.text.splitlines()[:3] == done.out.strip("\n").splitlines()[:3]


def test_long_answers_come_in_pages(desk):
    asked, pages, offset = {"what": "models"}, [], 0
    while True:
        said = desk.call("list", asked | {"offset": offset})
        assert not said.failed
        assert len(said.text.encode()) <= LIMIT_BYTES
        page, _, more = said.text.rpartition("\n[characters ")
        pages.append(page or said.text)
        if not page:
            break
        offset = int(more.split("`offset`: ")[1].split()[0])
    whole = gpuscale("show", "models").out
    said = whole.strip("\n").replace("`gpuscale show models NAME`", "the tool list (what=models, name=NAME)")
    assert "\n".join(pages).split("\n") == said.split("\n")
    assert len(pages) > 2
    behind = desk.call("list", asked | {"offset": 10**6})
    assert behind.failed
    assert "lies behind the end" in behind.text


@given(st.text(max_size=30_000), st.integers(0, 30_000))
@settings(max_examples=50, deadline=None)
def test_pages_of_any_text_are_short_and_move_on(text, offset):
    if offset and offset >= len(text):
        with pytest.raises(InputError):
            page_of(text, offset)
        return
    page = page_of(text, offset)
    assert len(page.encode("utf-8", "surrogatepass")) <= LIMIT_BYTES
    assert page == text[offset:] or int(page.split("`offset`: ")[-1].split()[0]) > offset


def test_a_page_ends_between_characters():
    assert "\ufffd" not in page_of("a" + "€" * 9000, 0)


def test_a_desk_keeps_few_answers(desk):
    for number in range(3 * KEPT):
        desk._kept[Asked((str(number),), "", None, 0)] = "text"
    assert not desk.call("list", {"what": "clusters"}).failed
    assert len(desk._kept) == KEPT


def test_a_first_page_is_worked_out_anew_and_the_next_is_of_the_same_answer(desk):
    """Files may have changed since; what a page goes on from may not."""
    asked = {"what": "clusters"}
    desk._kept[read_call("list", asked)] = "an answer of before"
    assert desk.call("list", asked | {"offset": 3}).text == "answer of before"
    assert "of before" not in desk.call("list", asked).text


def test_a_file_whose_name_begins_as_flags_do_stays_a_file():
    asked = read_call("compare", {"a": {"plan_file": "-x.toml"}, "b": {"plan_file": "y.toml"}})
    assert asked.arguments[-2:] == ("-- -x.toml", "y.toml")


def test_a_page_is_full_also_of_long_lines():
    assert read_call("list", {"what": "models", "offset": 1e3}).offset == 1000
    first = page_of("short\n" + "x" * 20_000, 0)
    assert 7_000 < len(first) <= LIMIT_BYTES
    assert page_of("y\n" * 4_000, 0).split("\n[")[0].endswith("y")


def test_a_part_of_the_json_is_an_answer(desk):
    said = desk.call("plan", CALLS["plan"] | {"key": "plans[1].step_time_s"})
    document = json.loads(gpuscale(*read_call("plan", CALLS["plan"] | {"key": "$"}).arguments).out)
    assert json.loads(said.text) == document["plans"][1]["step_time_s"]
    assert json.loads(part_of(document, "$")) == document
    assert json.loads(part_of(document, "plans[0]")) == document["plans"][0]
    wrong = desk.call("plan", CALLS["plan"] | {"key": "plans[0].step_tme_s"})
    assert wrong.failed
    assert "did you mean step_time_s" in wrong.text
    assert "it has 2 entries" in desk.call("plan", CALLS["plan"] | {"key": "plans[7]"}).text


def test_no_layout_that_fits_is_an_answer_with_its_hint(desk):
    asked = {"model": "llama3-70b", "gpus": 8, "cluster": "box-l40s"}
    said = desk.call("plan", asked)
    assert not said.failed
    assert said.text.startswith("error: no layout of llama3-70b fits on 8 x ")
    assert "\n\nhint: it would fit with " in said.text
    assert json.loads(desk.call("plan", asked | {"key": "plans"}).text)["nearest_miss"]["fits"] is False


@pytest.mark.parametrize(
    ("tool", "arguments", "message", "hint"),
    [
        ("plan", {"model": "lama3", "gpus": 8}, "unknown model 'lama3'", "the tool list (what=models) lists all"),
        ("plan", {"gpus": 8}, "missing option --model", "(what=options, name=plan)"),
        ("plan", {"model": "llama3-8b", "gpus": "many"}, "'many' is not a whole number", "write 256"),
        ("plan", {"model": "llama3-8b", "gpus": -4}, "out of range", "give 1 to"),
        ("plan", {"model": "\x1b[31mred\x1b[0m\x00", "gpus": 8}, "unknown model", ""),
        ("estimate", JOB | {"tp": 3}, "cannot be split by TP 3", "16 can"),
        ("collective", {"operation": "allreduce"}, "give either --bytes", "--bytes 32MB"),
        ("estimate", {"plan_file": "none.toml"}, "no such file", ""),
    ],
)
def test_errors_are_the_messages_of_the_command(desk, tool, arguments, message, hint):
    said = desk.call(tool, arguments)
    assert said.failed
    assert said.text.startswith("error: ")
    assert message in said.text
    assert hint in said.text.partition("\n\nhint: ")[2]
    assert "Traceback" not in said.text
    assert said.text.replace("\n", "").isprintable()


def test_an_error_text_is_taken_as_it_is(desk):
    said = desk.call(
        "check", {"error": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", **PLAN}
    )
    assert said.text.startswith("PyTorch: the memory of a GPU is full")


# --- files


def test_files_below_the_folder_are_read(desk, folder):
    said = desk.call("plan", {"model": "config.json", "gpus": 8, "top": 1})
    assert not said.failed
    assert said.text.startswith("root on 8 GPUs")  # a config.json goes by its folder
    assert not desk.call("estimate", {"launch_files": "run.sh", "gpus": 8}).failed
    assert not desk.call("plan", {"model": str(folder / "config.json"), "gpus": 8, "top": 1}).failed


@pytest.fixture
def confined(folder, monkeypatch):
    """The command line in this process, confined as that of a desk's process."""
    monkeypatch.setattr(files, "_folders", tuple(map(Path.resolve, (folder, *preset_folders("")))))
    monkeypatch.chdir(folder)
    return gpuscale


OUTSIDE = ("link.json", "away/config.json", "../other/config.json", "{other}/config.json", "away")


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_the_folder_is_read(confined, folder, path):
    path = path.format(other=folder.parent / "other")
    job = {"model": path, "gpus": 8}, {"launch_files": path, "gpus": 8}, {"plan_file": path}
    beside = ({**PLAN, name: path} for name in ("calibration", "lengths", "cluster"))
    for asked in (*job, *beside):
        done = confined(*read_call("estimate", asked).arguments)
        assert done.code == 2, asked
        assert "secret" not in done.err
        assert_one_message(done, "", "")


def test_a_process_of_a_desk_is_confined(desk, folder):
    said = desk.call("estimate", {"model": "link.json", "gpus": 8})
    assert said.text == f"error: 'link.json': lies outside the folder that may be read\n\nhint: copy it below {folder}"


def test_what_is_outside_is_not_told_from_what_is_not_there(desk, folder):
    there, not_there = (desk.call("estimate", {"launch_files": f"../other/{name}"}) for name in ("flags.sh", "none.sh"))
    assert there.text.replace("flags.sh", "X") == not_there.text.replace("none.sh", "X")
    assert "lies outside the folder that may be read" in there.text
    assert f"copy it below {folder}" in there.text


def test_a_cache_of_models_outside_is_as_none(confined, folder, monkeypatch):
    snapshot = folder.parent / "hub" / "models--some--model" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text((folder / "config.json").read_text())
    said = []
    for name in ("hub", "none"):
        monkeypatch.setenv("HF_HUB_CACHE", str(folder.parent / name))
        said.append(confined("plan", "--model", "some/model", "--gpus", "8").err.replace(f"/{name}/", "/"))
    assert said[0] == said[1]
    assert "unknown model 'some/model'" in said[0]


def test_a_launch_file_reads_nothing_outside(desk):
    """Its `source` of a file below the folder is followed, of one outside it is as of one that is not there."""
    inside, outside = (desk.call("estimate", {"launch_files": name, "gpus": 8}) for name in ("run.sh", "out.sh"))
    assert "TP2" in inside.text
    assert "TP2" not in outside.text


def test_confined_processes_write_nothing_call_nothing_and_run_nothing(folder):
    attempts = ("open('made.txt', 'w')", "os.open('made.txt', os.O_CREAT | os.O_RDWR)", "os.mkdir('made')",
                "os.open('run.sh', os.O_TRUNC)", "os.remove('run.sh')", "__import__('socket').socket()",
                "os.system('true')", "__import__('subprocess').run(['true'])")  # fmt: skip
    program = (
        PROGRAM.removesuffix("main()")
        + "import os\n"
        + "".join(f"try: {one}\nexcept PermissionError: print('refused')\nelse: print({one!r})\n" for one in attempts)
    )
    question = json.dumps({"arguments": [], "root": str(folder)}) + "\n"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *sys.path], input=question, text=True, capture_output=True, check=True
    )
    assert done.stdout.split("\n")[:-1] == ["refused"] * len(attempts), done.stderr
    assert not (folder / "made.txt").exists()
    _refuse("open", ("presets/models/llama3-8b.toml", "rb", os.O_RDONLY))


def test_a_folder_is_no_place_to_import_from(folder, desk):
    (folder / "numpy.py").write_text("raise SystemExit('run')\n")
    try:
        Path(folder / "json.py").write_text("raise SystemExit('run')\n")
        assert not desk.call("estimate", PLAN).failed
    finally:
        (folder / "numpy.py").unlink()
        (folder / "json.py").unlink()


def test_an_answer_that_takes_too_long_is_ended(folder):
    desk = Desk(folder, 0.05)
    try:
        begun = time.monotonic()
        said = desk.call("plan", {"model": "deepseek-v3", "gpus": 2048})
        assert time.monotonic() - begun < 2
        assert said.failed
        assert said.text.startswith("error: no answer within 0.05 s, the limit of a call\n\nhint: ask for less")
        desk.limit_s = 60
        assert not desk.call("estimate", PLAN).failed
    finally:
        desk.close()


# --- fuzzing


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from([
        10**30, -1, 0, 1e308, float("nan"), float("inf"), "", " ", "-", "--help", "--json", "../../etc/passwd",
        "/etc/passwd", "/dev/zero", "away/config.json", "link.json", "\x1b]0;x\x07\x1b[2J", "\x00", "\ud800", "9" * 400,
        "1e999", "8..1", "tp=8,pp=4", "$(reboot)", "`id`", "llama3-8b", "a" * 5000, 8, 2, "2,4",
    ]),
)  # fmt: skip
VALUES = st.recursive(
    ODD, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3)
)


@st.composite
def calls(draw):
    tool = draw(st.sampled_from(sorted(TOOLS)))
    names = st.sampled_from([*schema(tool)["properties"], "a", "b", "error"]) | st.text(max_size=8)
    plain = draw(st.sampled_from([{}, JOB, PLAN, {"what": "models"}, {"what": "recipes"}, {"operation": "allreduce"}]))
    return tool, plain | draw(st.dictionaries(names, VALUES, max_size=3))


@given(calls())
@settings(max_examples=400, deadline=None)
def test_any_arguments_are_a_command_line_or_refused(call):
    try:
        asked = read_call(*call)
    except InputError as error:
        assert error.message
    else:
        assert all(isinstance(one, str) for one in asked.arguments)
        assert asked.arguments[0] in {*TOOLS, "show"} - {"list"}


@given(calls())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_call_has_a_well_formed_answer(confined, call):
    """As a process of a desk answers it, but in this one."""
    try:
        asked = read_call(*call)
    except InputError:
        return
    with mock.patch("sys.stdin", mock.Mock(buffer=io.BytesIO(b"text"))):
        done = confined(*asked.arguments)
    assert done.code in {0, 1, 2}, done.err
    assert "Traceback" not in done.out + done.err
    assert "do-not-tell" not in done.out + done.err
    for text in (done.out, done.err):
        assert text.replace("\n", "").replace("\t", "").replace("\u00a0", "").isprintable()


@pytest.mark.full
@given(call=calls())
@settings(max_examples=150, deadline=None)
def test_any_call_of_a_desk_has_a_well_formed_answer(desk, call):
    said = desk.call(*call)
    assert 0 < len(said.text.encode()) <= LIMIT_BYTES
    assert said.text.replace("\n", "").replace("\t", "").isprintable()
    assert not said.failed or said.text.startswith("error: ")
    assert "Traceback" not in said.text
    assert "do-not-tell" not in said.text


# --- the command and its server


def test_without_the_sdk_one_message_says_how_to_install_it():
    with mock.patch("importlib.util.find_spec", return_value=None):
        done = gpuscale("mcp")
    assert_one_message(done, "the MCP Python SDK, version 2 or newer, is not installed", "pip install 'gpuscale[mcp]'")


@pytest.mark.skipif(find_spec("mcp") is None, reason="the MCP SDK is not installed")
def test_a_root_that_is_no_folder_is_refused():
    assert_one_message(gpuscale("mcp", "--root", "/nowhere"), "is not a folder", "one that exists")
    assert_one_message(gpuscale("mcp", "--timeout", "0"), "0.0 is out of range: give 1 to 3,600", "")


def test_other_commands_load_nothing_of_it():
    code = "import sys; from gpuscale.cli import run; sys.argv = ['gpuscale', *sys.argv[1:]]; run(); "
    code += "print([one for one in sys.modules if one.partition('.')[0] in ('mcp', 'anyio') or 'agent' in one])"
    for arguments in (["--help"], ["plan", "--help"], ["plan", "--model", "llama3-8b", "--gpus", "8"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", arguments


def asked_by_client(root, ask, *, mode="auto"):
    """Run a server of a folder and give `ask` a client of it."""
    mcp = pytest.importorskip("mcp")
    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "gpuscale", "mcp", "--root", str(root)], cwd=str(ROOT),
        env={"XDG_CONFIG_HOME": os.devnull, "PATH": os.environ["PATH"]},
    )  # fmt: skip

    async def run():
        async with mcp.Client(mcp.stdio_client(server), mode=mode) as client:
            return await ask(client)

    return asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_has_tools_answers_and_the_skill(folder, mode):
    async def ask(client):
        tools = (await client.list_tools()).tools
        assert [one.name for one in tools] == list(TOOLS)
        assert tools[0].input_schema == schema("plan")
        assert tools[0].annotations.read_only_hint
        done = await client.call_tool("estimate", PLAN)
        assert not done.is_error
        assert done.content[0].text.startswith("llama3-8b on 16 GPUs: TP2+SP PP2")
        wrong = await client.call_tool("estimate", {"model": "lama", "gpus": 2})
        assert wrong.is_error
        assert wrong.content[0].text.startswith("error: unknown model 'lama'")
        unknown = await client.call_tool("nothing", {})
        assert unknown.is_error
        assert "tools are plan" in unknown.content[0].text
        (skill,) = (await client.list_resources()).resources
        assert (await client.read_resource(skill.uri)).contents[0].text == skill_text()
        return True

    assert asked_by_client(folder, ask, mode=mode)


def test_calls_at_the_same_time_are_answered_each(folder):
    async def ask(client):
        asked = [client.call_tool("estimate", JOB | {"tp": tp}) for tp in (1, 2, 4, 8, 3)]
        return [one.content[0].text.split("\n")[0] for one in await asyncio.gather(*asked)]

    answered = asked_by_client(folder, ask)
    for text, tp in zip(answered, ("TP1", "TP2", "TP4", "TP8", "--tp"), strict=True):
        assert tp in text


def test_a_call_that_nobody_waits_for_is_ended(folder):
    async def ask(client):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call_tool("plan", {"model": "deepseek-v3", "gpus": 2048}), 0.2)
        begun = time.monotonic()
        done = await client.call_tool("estimate", PLAN)
        return done.is_error, time.monotonic() - begun

    failed, taken_s = asked_by_client(folder, ask)
    assert not failed
    assert taken_s < 20  # the plan alone takes a minute of a busy machine


def test_what_is_no_message_ends_nothing(folder):
    """Lines that are no JSON-RPC, and a client that goes in the midst of a call: the server answers, then ends."""
    pytest.importorskip("mcp")
    lines = ["not json", "[]", '{"jsonrpc": "2.0"}', '{"jsonrpc": "2.0", "id": 7, "method": "ping"}', "\x00\xff",
             '{"jsonrpc": "2.0", "id": 8, "method": "tools/call", "params": {"name": "plan"}}']  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "gpuscale", "mcp", "--root", str(folder)], input="\n".join(lines) + "\n", text=True,
        capture_output=True, timeout=60, cwd=ROOT, check=True,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"
    assert "Traceback" not in done.stdout
