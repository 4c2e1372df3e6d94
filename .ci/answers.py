"""Writes what many commands print into a folder: python .ci/answers.py FOLDER [--many], from the root of a checkout.

The same commands give the same bytes with every version of Python and of the libraries.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from unittest import mock

from gpuscale.cli import run

JOBS = """
llama3-70b 640 dgx-h100-superpod
llama3.1-405b 16384 dgx-h100-superpod
deepseek-v3 2048 h800-deepseek
mixtral-8x22b 128 aws-p5
qwen3-235b-a22b 512 gb200-nvl72
nemotron-h-56b 256 b200-hgx
qwen3-next-80b-a3b 64 h200-hgx
gpt3-175b 1024 dgx-a100-superpod
llama2-70b 128 mi300x
bloom-176b 384 dgx-a100-superpod
gemma3-27b 64 aws-g6e
llama3-8b 8 box-l40s
palm-540b 2048 tpu-v5p-pod
megatron-8.67b 512 dgx2-v100
gpt-oss-120b 64 mi355x
kimi-k2 1024 gb300-nvl72
"""
PLANS = ("", "--robust", "--pareto step_time,memory", "--space full --top 50", "--precision fp8", "--offload optimizer")
SHOWN = ("models", "hardware", "clusters", "frameworks")
FOLDERS = {"hardware": "gpus"}
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "sendrecv")


def few():
    """Yield every command of the list of tests: as JSON, those without it as text."""
    listed = tomllib.loads(Path("tests/commands.toml").read_text(encoding="utf-8"))
    yield from (f"{line} --json" for line in listed["answers"].values())
    yield from listed["texts"].values()


def many():
    """Yield commands over all presets, options and files of measurements, for some minutes."""
    for line in JOBS.strip().splitlines():
        model, gpus, cluster = line.split()
        for more in PLANS:
            yield f"plan -m {model} -n {gpus} -c {cluster} --json {more}"
        yield f"plan -m {model} -n {gpus} -c {cluster} -v"
        yield f"estimate -m {model} -n {gpus} -c {cluster} --tp 4 --despite-rules --json"
    for path in sorted(Path("presets/clusters").glob("*.toml")):
        for kind in COLLECTIVES:
            yield f"collective {kind} --bytes 32MiB -c {path.stem} --json"
        yield f"placement -n 64 --tp 4 --pp 2 -c {path.stem} --best --json"
        yield f"roofline -c {path.stem} --json"
    for kind in SHOWN:
        for path in sorted(Path("presets", FOLDERS.get(kind, kind)).glob("*.toml")):
            yield f"{kind} show {path.stem} --json"
            yield f"{kind} show {path.stem}"
    for path in [*sorted(Path("tests/data").glob("*.csv")), *sorted(Path("../shared/validation").glob("*.csv"))]:
        yield f"validate {path} --json"
        yield f"validate {path}"
    yield "calibrate nccl tests/data/example_all_reduce.log --cluster aws-p5 --json"


def answer(command):
    """Return what a command that runs in this process prints, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict("os.environ", COLUMNS="100", GPUSCALE_PRESETS="", XDG_CONFIG_HOME=os.devnull),
        mock.patch("sys.argv", ["gpuscale", *shlex.split(command)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run()
    return f"$ gpuscale {command}\n# exit {code}\n{err.getvalue()}{out.getvalue()}"


def main():
    """Run the commands."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    for command in [*few(), *(many() if "--many" in sys.argv else ())]:
        name = re.sub(r"[^A-Za-z0-9.=-]+", "_", command)[:200]
        said = answer(command)
        (folder / f"{name}.txt").write_text(said, encoding="utf-8")


if __name__ == "__main__":
    main()
