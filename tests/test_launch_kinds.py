"""Scripts, manifests and job files of the kinds that people have: what is read of each, and that none breaks it."""

import inspect
import random
import re
import sys
from pathlib import Path

import pytest

from gpuscale import estimate_launch, read_launch
from gpuscale.errors import GpuscaleError, InputError
from gpuscale.launch import (
    commands,
    shell,
    shell_arithmetic,
    shell_flow,
    shell_outputs,
    shell_state,
    shell_syntax,
    shell_words,
)
from gpuscale.launch.sources import launches

KINDS = Path(__file__).parent / "data" / "launch" / "kinds"

# file, with its arguments or variables -> GPUs, TP, PP, CP, EP, microbatch, global batch, sequence, precision, ZeRO
TABLE = """
accelerate.slurm                          |   32  -  - - - 1  128 4096 bf16 3
apptainer.slurm                           |   32  2  - - - 1   64 2048 bf16 0 mi250x
arrays.sh                                 | 1024  8 16 - - 1 1536 2048 fp16 0
azure_ml.yml                              |   32  2  - - - 1   64 2048 bf16 0 azure-ndv5
base_command.sh                           |   64  8  4 - - 1  512 2048 bf16 -
base_command_batch.sh                     |   32  4  - - - 1   64 2048 bf16 0 dgx-a100-superpod
batch_by_tokens.sh                        |   32  4  - - - 2 1024 4096 bf16 0
bridge.sbatch                             |   32  2  - 2 - 1  256 8192 bf16 -
by_host.sh                                |   16  2  2 - - 1   64 2048 bf16 0
checked_arguments.sh NODES=2 1=plain      |   16  -  - - - 1   64 2048 bf16 0
choose_cluster.sh                         |   64  8  - - - 1   64 2048 bf16 0
choose_cluster.sh @=perlmutter            |   64  4  - - - 1   64 2048 bf16 0
composer.sh                               |   16  -  - - - 1   64 2048 bf16 0
container.sh                              |    8  4  - - - 1   64 2048 bf16 0
cray.sh                                   |   32  -  2 - - 1   64 2048 bf16 0
crlf.sh                                   |    8  2  - - - 1   64 2048 bf16 0
deepspeed_hosts.sh                        |   24  2  - - - 2  192 2048 bf16 1
defaults_of_arguments.sh                  |   16  1  - - - 1  128 8192 fp8-current -
defaults_of_arguments.sh @=ckpt 4         |   16  4  - - - 1  128 8192 fp8-current -
determined.yaml                           |   32  2  - - - 1   64 2048 bf16 0
dstack.yml                                |   16  2  - - - 1   64 2048 bf16 0 h200-hgx
exported.sh                               |   16  2  - - - 1   64 2048 bf16 0
fine_tuning.sh                            |    8  -  - - - 4   64  512 bf16 3
fine_tuning.sh @=out 2                    |    8  -  - - - 4   64  512 bf16 2
flux.sh                                   |   64  4  - - - 2  512 2048 bf16 0
gcloud_ssh.sh                             |   16  2  - - - 1   64 2048 bf16 0
getopt.sh @=--tp=4 --pp 2 -n 4 -- mbs=2 gbs=128 | 32 4 2 - - 2 128 2048 bf16 0
getopts.sh @=-m large -n 4 -t8            |   32  8  - - - 1  256 2048 bf16 0
gpus_of_the_scheduler.slurm               |   16  8  - - - 1   64 2048 bf16 0 h200-hgx
hydra.sbatch                              |  128  4  4 - - 2 1024 2048 bf16 1
jobset.yaml                               |   64  8  - - - 1   64 2048 bf16 0 gcp-a3-mega
launch_module.sh                          |   32  2  2 - - 4   64 1024 fp16 0
leaderworkerset.yaml                      |   32  -  4 - - 1   64 2048 bf16 0
long_options.sh @=--tp 4 --pp=2 -N 4 -- 128 --bf16 | 32 4 2 - - 1 128 2048 bf16 0
main_at_the_end.sh @=4 8                  |   32  8  - - - 1  128 2048 bf16 0
loops.sh                                  |   32  4  2 - - 1  256 2048 bf16 0
many_arguments.sh @=dsw 72B 1 256 4096 4096 bf16 8 1 full true | 8 8 1 - - 1 256 4096 bf16 -
mixture.sh                                |   32  1  4 - 8 1  256 4096 bf16 -
mpijob.yaml                               |   16  2  - - - 1   64 2048 bf16 0 aws-p4d
name_of_run.sh                            |   32  2  4 - - 1   64 2048 bf16 0
nanotron.slurm                            |   64  2  1 - - 4  512 2048 bf16 0 dgx-h100-superpod
nested_heredoc.sh                         |   32  2  - - - 1   64 2048 bf16 0
one_string.slurm                          |  256  4 32 - - 1 2048 2048 fp16 1
openmpi.sh                                |   16  -  - - - 4  128 2048 bf16 0
packed_layout.sh                          |   64  4  2 - - 1  128 2048 bf16 0
packed_layout.sh 1=2,2,16                 |   64  2  2 - - 1  256 2048 bf16 0
partial_arguments.sh 1=big                |   16  -  - - - 1   64 1024 bf16 0
partial_arguments.sh @=small 4            |   32  -  - - - 1   64 1024 bf16 0
parts.sh                                  |   64  8  4 - - 1   64 2048 bf16 0
pdsh.sh                                   |   32  2  - - - 2  256 2048 bf16 0
pipes.sh                                  |    8  2  - - - 1   64 2048 bf16 0
polaris.pbs                               |   40  -  - - - 1   80 2048 bf16 -
pytorchjob.yaml                           |   64  4  - - - 1   64 2048 bf16 0 h200-hgx
ray_job.sh                                |   16  4  - - - 1   64 2048 bf16 0
rayjob.yaml                               |   16  2  - - - 1   64 2048 bf16 0
restart_loop.sh                           |    8  4  2 - - 1   64 2048 bf16 0
service_and_job.yaml                      |   16  -  - - - 1   64 2048 bf16 0
sizes_by_if.sh                            |   64  4  - - - 16 512 2048 fp16 1
sizes_by_if.sh 1=13                       |   64  4  - - - 32 1024 2048 fp16 1
skypilot.yaml                             |   16  4  - - - 1   64 2048 bf16 0 dgx-a100-superpod
summit.lsf                                |  192  6  - - - 1  384 2048 fp16 0
swift.sh                                  |   16  4  - - - 1   32 8192 bf16 -
table_of_sizes.sh                         |   32  8  - - - 1   64 4096 bf16 0
table_of_sizes.sh SIZE=13b NODES=2        |   16  2  - - - 1   64 4096 bf16 0
template.sh                               |   32  2  - - - 1   64 2048 bf16 0
trainer_fsdp.sh                           |    4  -  - - - 2  128 2048 bf16 3
trainjob.yaml                             |   32  2  - - - 1   64 2048 bf16 0
volcano.yaml                              |   32  2  - - - 1   64 2048 bf16 0
wrapper_absent.slurm                      |    8  4  - - - 1   64 2048 bf16 0 dgx-a100-superpod
xpk.sh                                    |   32  8  - - - 1  128 2048 bf16 0 gcp-a3-mega
"""
NAMES = ("gpus", "tp", "pp", "cp", "ep", "micro_batch_size", "gbs", "seq", "precision", "zero", "cluster")
ROWS = [re.split(r"\s*\|\s*", line) for line in TABLE.strip().splitlines()]


def given(told):
    """The file of a row and its variables; `@=` takes the rest of the line."""
    name, _, rest = told.partition(" ")
    if rest.startswith("@="):
        return KINDS / name, {"@": rest[2:]}
    return KINDS / name, dict(one.split("=", 1) for one in rest.split())


@pytest.mark.parametrize(("told", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_a_kind_is_read(told, expected):
    path, variables = given(told)
    job = read_launch([path], variables)
    found = {**job.options, **job.layout}
    wanted = [*expected.split(), "-"][: len(NAMES)]
    assert [str(found.get(name, "-")) for name in NAMES] == wanted
    assert estimate_launch([path], variables=variables, despite_rules=True).estimate.plan.step_time_s > 0


def test_there_are_sixty_kinds_and_each_is_in_the_table():
    files = {path.name for path in KINDS.iterdir()} - {"parts_common.sh"}
    assert files == {told.split()[0] for told, _ in ROWS}
    assert len(files) >= 60


@pytest.mark.parametrize(
    ("name", "asked", "hint"),
    [
        ("many_arguments.sh", "the variable 2 decides on HIDDEN_SIZE", "`var=2=7B` (the first choice; or 72B)"),
        ("getopts.sh", "the variable MODEL has to be given", "`assume` takes `var=MODEL=small`"),
        ("checked_arguments.sh", "the variable NODES has to be given", "`var=1=plain` (the first choice; or sharded)"),
        ("partial_arguments.sh", "the variable 1 decides on A, H, L", "small, big"),
        ("main_at_the_end.sh", "the variable 2 has to be given", "`var=1=1` (one node), `var=2=1` (nothing split)"),
        ("long_options.sh", "the variable 1 is an argument of the script", "`assume` takes `var=1=256`"),
    ],
)
def test_arguments_that_a_kind_needs_are_asked_for_and_taken_when_assumed(name, asked, hint):
    with pytest.raises(InputError, match=re.escape(asked)) as caught:
        read_launch([KINDS / name])
    assert hint in caught.value.hint
    said = "; or all as line 2 has them, `args=TEXT`: dsw 7B 2 256"
    assert (said in caught.value.hint) is (name == "many_arguments.sh")
    assert read_launch([KINDS / name], {"*": "suggested"}).options["gpus"] >= 8


# --- the shell reader and these kinds

READER = (shell, shell_flow, shell_outputs, shell_words, shell_state, shell_syntax, shell_arithmetic, commands)
COVERED = 0.90


def lines_of(code):
    """Lines of the functions of a module, without those that define them."""
    own = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
    found = own if code.co_flags & inspect.CO_OPTIMIZED else set()
    return found.union(*(lines_of(one) for one in code.co_consts if inspect.iscode(one)))


def test_these_kinds_meet_nine_tenths_of_the_shell_reader():
    met = {Path(one.__file__).resolve().as_posix(): set() for one in READER}

    def follow(frame, _, __):
        lines = met.get(frame.f_code.co_filename)
        if lines is None:
            return None
        lines.add(frame.f_lineno)
        return follow

    before = sys.gettrace()
    sys.settrace(follow)
    try:
        for told, _ in ROWS:
            path, variables = given(told)
            launches([path], variables)
    finally:
        sys.settrace(before)
    whole = {name: lines_of(compile(Path(name).read_text(), name, "exec")) for name in met}
    hit = sum(len(lines & whole[name]) for name, lines in met.items())
    assert hit / sum(map(len, whole.values())) >= COVERED


# --- what is broken

PIECES = (
    "$(", "`", "${", "}", "'", '"', "((", "))", "[[", "<<E\n", "|", ";;", "&", "$@", "$1", "${1:-8}", "${!X}", "shift",
    "\\", "\x00", "{1..9}", "done", "fi", "esac", "if true; then", "case $1 in", "while true; do", "exit", "return",
    ">(", "\n", "\t", "$((1/0))", "touch X", "$(touch X)", "`touch X`", "; touch X;", "eval", "source", "getopts a: o",
    "set -- ", "${A[@]:1}", "999999999999",
)  # fmt: skip


def mutated(text, dice):
    """A script with some pieces cut out, moved or put in."""
    for _ in range(dice.randint(1, 6)):
        at, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        end = min(end, at + 200)
        kind = dice.randrange(4)
        piece = dice.choice(PIECES) if kind else text[at:end] * dice.randint(1, 3)
        text = text[:at] + piece + text[end if kind == 1 else at :]
    return text


@pytest.mark.parametrize("seed", range(4))
def test_broken_kinds_are_read_or_refused_and_never_run(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dice = random.Random(seed)
    for path in sorted(KINDS.iterdir()):
        broken = tmp_path / path.name
        broken.write_text(mutated(path.read_text(), dice))
        variables = dice.choice([{}, {"@": "1 2 3"}, {"1": "a"}, {"*": "suggested"}])
        try:
            job = read_launch([broken], variables)
        except GpuscaleError as error:
            assert str(error).isprintable() or "\n" in str(error)
            assert len(str(error)) < 20_000
        else:
            assert job.options["gpus"] >= 1
        broken.unlink()
    assert not list(tmp_path.iterdir())
