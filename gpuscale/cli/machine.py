"""`gpuscale doctor`: what there is on this machine to plan with, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import Json, flags_of, with_flags
from gpuscale.render.output import print_json

if TYPE_CHECKING:
    from gpuscale.doctor import Checkup


@dataclass(frozen=True)
class Step:
    """What to do next."""

    why: str  #: what it is good for.
    command: str  #: the command line.


@answers("doctor")
def doctor(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to look for your own calibrations and clusters.")
    ] = Path(),
) -> Answer:
    """Show what this machine offers for planning, and what to do next.

    GPUs and their topology (nvidia-smi, amd-smi, rocm-smi), presets that match, models in the Hugging Face cache,
    presets and calibrations of your own, versions. Works without a GPU and without a network.
    """
    from gpuscale.doctor import check_up
    from gpuscale.render import machine as render

    found = check_up(folder)
    found = replace(found, notes=tuple(map(with_flags, found.notes)))
    steps = next_steps(found)
    told = [(step.why, step.command) for step in steps]
    return Answer(found, body=lambda: render.checkup_json(found), more={"next": steps}, view={"steps": told})


def skill(json: Json = False) -> None:
    """Print a skill for coding agents, as Markdown: what to ask, which command answers, how to read the JSON.

    Example: gpuscale show skill > .claude/skills/gpuscale/SKILL.md
    """
    from gpuscale.presets.files import skill_text

    text = skill_text()
    if json:
        head, _, body = text.removeprefix("---\n").partition("\n---\n")
        print_json("skill", dict(line.split(": ", 1) for line in head.split("\n")), markdown=body.lstrip("\n"))
    else:
        typer.echo(text, nl=False)


def next_steps(found: Checkup) -> list[Step]:
    """Return the commands that lead on from here."""
    from gpuscale.doctor import UNREADABLE
    from gpuscale.launch.quoting import shell_word

    count = len(found.gpus) or 64
    usable = [one for one in reversed(found.files) if not one.detail.startswith(UNREADABLE)]
    here = {one.kind: f"./{one.file}" if one.file.startswith("-") else one.file for one in usable}
    cluster = here.get("cluster") or next((one.name for one in found.clusters if not one.differs), None)
    kinds = {gpu.preset for gpu in found.gpus}
    gpu = next(iter(kinds)) if len(kinds) == 1 else None
    steps = []
    if gpu and found.tool == "nvidia-smi" and count > 1 and "cluster" not in here:
        make = f"nvidia-smi topo -m > topo.txt && gpuscale calibrate topology topo.txt --gpu {gpu} -o cluster.toml"
        steps.append(Step("a cluster file of this machine", make))
        cluster = cluster or "cluster.toml"
    if gpu and found.tool == "nvidia-smi" and "gpu" not in here:
        install = "" if found.extras["gpu"]["torch"] else "pip install 'gpuscale[gpu]' && "
        steps.append(Step("its measured kernels, in minutes", f"{install}gpuscale calibrate gpu -o gpu.toml"))
    if "protocol" in here and "gpu" not in here:
        fit = f"gpuscale calibrate gpu --protocol {shell_word(here['protocol'])} --fit-only -o gpu.toml"
        steps.append(Step("a GPU file from the measurements", fit))
    if gpu and count > 1 and cluster:
        measure = f"all_reduce_perf -b 8 -e 8G -f 2 -g {count} > all_reduce.log"
        fit = f"gpuscale calibrate nccl all_reduce.log {flags_of('cluster')[0]} {shell_word(cluster)} -o measured.toml"
        steps.append(Step("its measured collectives, by nccl-tests", f"{measure} && {fit}"))
    model = next((one for one in found.models if one not in found.unread_models), "llama3-8b")
    given = {"model": model, "gpus": count, "cluster": cluster, "set": here.get("gpu") and f"gpu={here['gpu']}"}
    given["calibration"] = here.get("calibration")
    options = [f"{flags_of(name)[0]} {shell_word(str(value))}" for name, value in given.items() if value is not None]
    steps.append(Step("the best layouts of a model", " ".join(["gpuscale plan", *options])))
    return steps
