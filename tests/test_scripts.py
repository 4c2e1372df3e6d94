"""Scripts, and files beside them: text of others in them runs nothing and arrives as it is."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from functools import cache

import pytest
import round_trips
import tomli_w
from command import gpuscale

from gpuscale.errors import InputError
from gpuscale.launch.cluster_files import cluster_files, job_name, with_cluster
from gpuscale.launch.export import run_script, written
from gpuscale.launch.quoting import Expansion, comment, hydra_value, json_text, shell_word, yaml_text
from gpuscale.launch.targets import targets
from gpuscale.launch.writing import Writing
from gpuscale.planning.jobs import build_job
from gpuscale.request import JobOptions, read

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")

HOSTILE = (
    "two\nlines\ntouch X\n", "\rtouch X\r\n", "\u2028touch X\u2029\x85\x0b\x0c", "$(touch X)", "`touch X`", "\\", "#",
    "'; touch X; '", '"; touch X; "', '"""\nimport os; os.system("touch X")\n"""', "x\\\ntouch X", "\\'; touch X",
    "# x\n#SBATCH --wrap=touch", "#SBATCH --output=X", "%j %x %", "\0", "\x1b]0;x\x07\x1b[2J", "y" * 5000, "-x",
    "--help", "EOF\ntouch X\nEOF", "PYTHON\ntouch X\n", "${IFS}touch${IFS}X", "$HOME", "~", "*", "?", "!!",
    "a && touch X", "| touch X", "> X", "& touch X &", "; touch X", "{a,b}", "\t", " ", "coding: utf-7 +AAo-import os",
    "{{ x }}", "# coding: utf-7", "null", "yes", "1e3", "- a: b", "a: b", "&a *a !!python/object:os.system",
    "\u202etouch X", "\U0001f600", "\x00\x01\x7f\x9f", "\udcff", "é\u0301", "=cmd|' /C calc'!A0", "<script>x</script>",
    "--set=x", "gpu.power_w=600\ntouch X",
)  # fmt: skip


def run_by_bash(text, folder, *, stubs=None, **variables):
    """Run a script in a folder; what it prints, and its exit code."""
    path = f"{stubs}{os.pathsep}{os.environ['PATH']}" if stubs else os.environ["PATH"]
    environment = {"PATH": path, "LC_ALL": "C.UTF-8", **variables}
    return subprocess.run(
        ["bash"], input=os.fsencode(text), cwd=folder, env=environment, capture_output=True, check=False
    )


def holds(text):
    """Whether a text can be an argument of a program."""
    return "\0" not in text


# --- the writer


def test_words_of_the_shell_arrive_as_they_are(tmp_path):
    arguments = [text for text in HOSTILE if holds(text)]
    words = [shell_word(text) for text in (*arguments, "")]
    assert all(word.isprintable() for word in words)
    done = run_by_bash(f"printf '%s\\0' {' '.join(words)}", tmp_path)
    assert [os.fsdecode(one) for one in done.stdout.split(b"\0")[:-1]] == [*arguments, ""]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800"])
def test_what_no_argument_can_hold_is_refused(text):
    with pytest.raises(InputError, match="cannot be an argument"):
        shell_word(text)


def test_a_comment_is_one_line_in_every_language(tmp_path):
    lines = [comment(text) for text in HOSTILE]
    assert all(line.isprintable() and line.startswith("# ") and len(line) < 300 for line in lines)
    script = "\n".join(["set -e", *lines, "echo done"])
    assert run_by_bash(script, tmp_path).stdout == b"done\n"
    assert not list(tmp_path.iterdir())
    assert ast.dump(ast.parse("\n".join(['"""ours"""', "", *lines]))) == ast.dump(ast.parse('"""ours"""'))
    assert yaml.safe_load("\n".join([*lines, "a: 1"])) == {"a": 1}


def test_text_is_read_back_from_every_format():
    for text in HOSTILE:
        tables = {"a": text, "b": {"c": [text, {"d": text}]}, "e": [text], "f": 1e-8, "g": True, "h": None}
        assert json.loads(json_text(tables)) == tables
        if text == "\udcff":  # of no file in UTF-8
            with pytest.raises(InputError, match="cannot be YAML"):
                yaml_text(tables)
            continue
        written = yaml_text({"# why": text, **tables})
        assert yaml.safe_load(written) == tables
        assert len(written.splitlines()) == 11


def test_what_hydra_would_read_as_more_than_text_is_refused():
    assert [hydra_value(one) for one in (True, 1, "a", "Et*2|L", ["a", 1])] == ["true", "1", "a", "'Et*2|L'", "[a,1]"]
    for text in ("'", "${oc.env:X}", "a\nb", "\\"):
        with pytest.raises(InputError, match="cannot be a value of Hydra"):
            hydra_value(text)


# --- every target

MODELS = {
    "megatron-lm": {"model": "mixtral-8x7b"}, "megatron-bridge": {}, "nemo": {}, "primus": {"model": "mixtral-8x7b"},
    "torchtitan": {"model": "llama3-8b,layers=30"}, "nanotron": {}, "deepspeed": {"model": "llama3-8b,layers=30"},
    "accelerate": {},
}  # fmt: skip
LAYOUT = {"tp": 1, "pp": 1, "cp": 1}

VALUE = "$(touch X) `touch X`; touch 'X' \"\n-"
"""Of every variable that a script takes."""
CODE = "$(touch X) 'code'"

STUB = f"""#!{shutil.which("bash")}
printf '%s\\0' "${{0##*/}}" "$@" >> "$LOG"
case "${{0##*/}}" in srun) exec bash run.sh ;; scontrol) echo "$HOST" ;; esac
"""
PROGRAMS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "python",
    "python3",
    "srun",
    "sbatch",
    "scontrol",
    "primus-cli",
    "nemo",
    "kubectl",
)


@cache
def plan_for(target):
    options = {
        "model": "llama3-8b",
        "gpus": 16,
        "gbs": 64,
        "framework": targets()[target].frameworks[0],
        **MODELS[target],
    }
    job = build_job(read(JobOptions, options))
    return job, round_trips.predicted(options, LAYOUT).plan


def files_of(target, **named):
    """The files and the arguments of a small plan, whose model, cluster and GPU have texts of others."""
    job, plan = plan_for(target)
    model = replace(
        job.spec.model, **{key: text for key, text in named.items() if key in {"title", "name", "notes", "family"}}
    )
    cluster = replace(job.spec.cluster, name=named.get("cluster", job.spec.cluster.name),
                      gpu=replace(job.spec.cluster.gpu, name=named.get("gpu", job.spec.cluster.gpu.name)))  # fmt: skip
    writing = Writing(job._replace(spec=replace(job.spec, model=model, cluster=cluster)), plan)
    program = with_cluster(written(targets()[target], writing), writing)
    files = (*program.files, run_script(program, writing), *cluster_files(writing, program))
    return {one.path: one.text for one in files}, program, job_name(writing)


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stubs")
    code = folder / CODE
    code.mkdir()
    for path in (*(folder / name for name in PROGRAMS), code / "primus-cli"):
        path.write_text(STUB)
        path.chmod(0o755)
    return folder


def started(files, folder, stubs, script="run.sh"):
    """Run a script with stubs in the place of all that it may start: the calls that they saw, each a list of words."""
    for name, text in files.items():
        (folder / name).write_text(text)
    before = set(folder.iterdir())
    log = stubs / "log"
    log.unlink(missing_ok=True)
    names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TRAIN_FILE", "OUTPUT_DIR", "TOKENIZER", "SLURM_JOB_NODELIST")
    paths = {"LOG": log, "SLURM_SUBMIT_DIR": folder, "CODE_DIR": stubs / CODE, "HOST": "n1"}
    variables = dict.fromkeys(names, VALUE) | {name: str(path) for name, path in paths.items()}
    done = run_by_bash((folder / script).read_text(), folder, stubs=stubs, **variables)
    assert (done.returncode, done.stderr) == (0, b"")
    assert set(folder.iterdir()) == before
    return os.fsdecode(log.read_bytes()).split("\0")[:-1]


def expected(program):
    return [VALUE if isinstance(word, Expansion) else word for line in program.arguments for word in line]


def safe(files):
    """All that a file may hold of others' text is printable, and on one line; it parses."""
    for name, text in files.items():
        assert all(line.isprintable() for line in text.split("\n")), name
        if name.endswith(".yaml"):
            yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        elif name.endswith(".json"):
            json.loads(text)
        elif name.endswith(".py"):
            compile(text, name, "exec")
    for line in files["job.sbatch"].split("\n"):
        assert not line.startswith("#SBATCH") or re.fullmatch(r"#SBATCH --[a-z-]+(=[a-z0-9-]+)?(  # [^#]+)?", line), (
            line
        )


def stated(text):
    """What a file says beside its comments."""
    return [line for line in text.split("\n") if not line.startswith("# ")]


@pytest.mark.parametrize("target", MODELS)
def test_titles_and_names_run_nothing(target, tmp_path, stubs):
    plain, program, _ = files_of(target)
    calls = started(plain, tmp_path, stubs)
    assert calls[-len(expected(program)) :] == expected(program)
    turn = list(MODELS).index(target)
    for number, text in enumerate(HOSTILE):
        files, _, _ = files_of(target, title=text, notes=(text,), family=text, gpu=text)
        safe(files)
        assert {name: stated(text) for name, text in files.items()} == {
            name: stated(text) for name, text in plain.items()
        }
        if number % len(MODELS) == turn:  # all of them by bash, each in one target
            assert started(files, tmp_path, stubs) == calls
        named, other, name = files_of(target, name=text, cluster=text)
        safe(named)
        assert re.fullmatch("[a-z]([a-z0-9-]{0,50}[a-z0-9])?", name)
        assert other.arguments == program.arguments


@pytest.mark.parametrize("target", MODELS)
def test_a_cluster_job_starts_in_any_folder(target, tmp_path, stubs):
    folder = tmp_path / "$(touch X) 'a' \"b\"\n;`touch X`"
    folder.mkdir()
    files, program, _ = files_of(target)
    calls = started(files, folder, stubs, "job.sbatch")
    assert calls[:4] == ["scontrol", "show", "hostnames", VALUE]
    assert calls[-len(expected(program)) :] == expected(program)


# --- the commands, with files of users

MODEL = {
    "family": "own", "layers": 16, "hidden": 2048, "vocab": 32000, "sequence": 4096, "tied_embeddings": False,
    "heads": 16, "kv_heads": 8, "ffn": 8192,
}  # fmt: skip
BAD = 'x\ntouch X\n$(touch X) `touch X` \'; touch X; \' """ EOF\n#SBATCH --wrap=x\n\u2028\x1b[2J\\'


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A model file and a cluster file with such titles, names, notes and aliases, in the working directory."""
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "m $(touch X)\n'; touch X; '.toml"
    aliases = ["-x/y", "$(touch X)/b", "../c", "a/b\n", BAD[:100]]
    model.write_text(tomli_w.dumps({"title": BAD, "source": BAD, "notes": [BAD], "aliases": aliases, **MODEL}))
    cluster = tmp_path / "c $(touch X)\n.toml"
    shown = gpuscale("clusters", "show", "dgx-h100-superpod", "--toml").out
    lines = [f"title = {json.dumps(BAD)}" if line.startswith("title =") else line for line in shown.split("\n")]
    cluster.write_text("\n".join(lines))
    return ["--model", f"./{model.name}", "--gpus", "16", "--cluster", f"./{cluster.name}", "--gbs", "64"]


@pytest.mark.parametrize("target", MODELS)
def test_plans_of_such_files_are_exported(own, target, tmp_path, stubs):
    framework = targets()[target].frameworks[0]
    layout = ("--tp", "1", "--pp", "1", "--etp", "1")
    assert gpuscale("plan", *own, "--framework", framework, *layout, "-o", "plan.toml").code == 0
    done = gpuscale("export", "plan.toml", "--to", target, "-o", "out")
    assert done.code == 0, done.err
    assert all(line.isprintable() for line in (done.out + done.err).split("\n"))
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    safe(files)
    assert BAD.split("\n")[1] not in "".join(files.values()).split("\n")
    assert started(files, tmp_path / "out", stubs)[0] in PROGRAMS
    printed = gpuscale("export", "plan.toml", "--to", target).out
    assert all(line.isprintable() for line in printed.split("\n"))


def test_what_is_to_be_copied_into_a_shell_runs_nothing(own, tmp_path, stubs):
    done = gpuscale("advise", *own, "--tp", "2", "--markdown")
    assert done.code == 0, done.err
    blocks = re.findall(r"^```sh\n(.*?)^```$", done.out, re.MULTILINE | re.DOTALL)
    assert "export" in "".join(blocks)
    (tmp_path / "here").mkdir()
    exports = "\n".join(line for block in blocks for line in block.split("\n") if line.startswith("export "))
    assert run_by_bash(exports, tmp_path / "here").stderr == b""
    assert not list((tmp_path / "here").iterdir())
    assert "touch X" not in [line.strip() for line in done.out.split("\n")]
    explained = gpuscale("explain", *own, "--tp", "8")
    commands = [line.strip() for line in explained.out.split("\n") if line.startswith("    gpuscale ")]
    for line in commands:
        assert f"./{own[1][2:]}" in run_by_bash(f"set -- {line}; printf '%s\\n' \"$@\"", tmp_path).stdout.decode()


def test_next_steps_of_the_doctor_quote_names_of_files(tmp_path):
    name = "-p; touch X; $(touch X).jsonl"
    (tmp_path / name).write_text('{"format": "gpuscale.gpu-protocol/1"}\n')
    steps = json.loads(gpuscale("doctor", tmp_path, "--json").out)["next"]
    assert [f"./{name}" in shlex.split(one["command"]) for one in steps].count(True) == 1


# --- all or nothing


def test_a_failed_export_leaves_nothing(own, tmp_path, monkeypatch):
    options = ["--model", "llama3-8b", "--gpus", "16", "--tp", "1", "--pp", "1"]
    before = set(tmp_path.iterdir())

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        done = gpuscale("plan", *options, "--export", "nemo", "-o", "new")
    assert (done.code, done.out) == (2, "")
    assert "No space left on device" in done.err
    assert set(tmp_path.iterdir()) == before
    there = tmp_path / "there"
    there.mkdir()
    (there / "plan.toml").write_text("mine")
    done = gpuscale("plan", *options, "--export", "nemo", "-o", "there")
    assert (done.code, done.out, [one.name for one in there.iterdir()]) == (2, "", ["plan.toml"])
    assert "plan.toml would be written over" in done.err
    assert "--force" not in done.err


def test_the_plan_of_an_export_is_read_from_its_folder(own, tmp_path):
    done = gpuscale("plan", *own, "--tp", "1", "--pp", "1", "--export", "nemo", "-o", "new")
    assert done.code == 0, done.err
    assert gpuscale("estimate", "new/plan.toml").code == 0
