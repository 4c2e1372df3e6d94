"""`export`: a plan as the files that a framework launches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuscale.arguments import public
from gpuscale.display import displayed
from gpuscale.errors import InputError, NoAnswerError
from gpuscale.files import is_there, reason, write_texts
from gpuscale.launch.cluster_files import CODE_DIR, cluster_files, machines, with_cluster
from gpuscale.launch.quoting import Expansion, comment, shell_word
from gpuscale.launch.subject import estimate_file, stated_plan
from gpuscale.launch.targets import targets
from gpuscale.launch.writing import LaunchFile, Program, Target, Writing
from gpuscale.planning.layouts import fixed_layout
from gpuscale.planning.planfile import layout_of
from gpuscale.planning.plans import job_of
from gpuscale.request import JobOptions, Layout, declared, one_of
from gpuscale.results import Estimate
from gpuscale.rules.check import broken_rules, source_in
from gpuscale.specs.tuning import SFT
from gpuscale.units import plural


@displayed
@dataclass(frozen=True)
class Export:
    """A plan as files of a framework."""

    target: str  #: the framework
    files: tuple[LaunchFile, ...]  #: what to launch; `run.sh` starts it
    warnings: tuple[str, ...]  #: what to see to before it runs

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@public
def export(plan_file: str | Path, target: str) -> Export:
    """Return a saved plan as the files that a framework launches.

    Args:
        plan_file: a plan file, as `gpuscale plan -o` writes it.
        target: a name of `gpuscale.launch.targets`.

    Raises:
        InputError: an unusable file, or an unknown target.
        NoAnswerError: the target cannot express the plan; the message names each option with the reason.
    """
    return exported(estimate_file(plan_file), target)


def writable(name: str) -> Target:
    """Return the target of a name.

    Raises:
        InputError: no target that is written has it; the hint lists those that are.
    """
    known = {one.name: one for one in targets().values() if one.write}
    return known[one_of("to", name, tuple(known))]


def exported(estimate: Estimate, target: str) -> Export:
    """Return an evaluated plan as the files that a framework launches; see `export`."""
    chosen = writable(target)
    job = job_of(estimate.job, layout_of(estimate.plan))
    writing = Writing(job, estimate.plan)
    for one in left_out(writing):
        writing.warn(one)
    program = with_cluster(written(chosen, writing), writing)
    files = (*program.files, run_script(program, writing))
    if chosen.reads_again or writing.spec.tuning is not None:
        _refuse_what_reads_otherwise(chosen, estimate, files)
    return Export(chosen.name, (*files, *cluster_files(writing, program)), tuple(writing.warnings))


BESIDE = ("cluster", "set", "gpus_per_node", "memory_limit_gib", "moe_imbalance", "calibration")
"""Options that no launch file holds."""


def _refuse_what_reads_otherwise(target: Target, estimate: Estimate, files: tuple[LaunchFile, ...]) -> None:
    """Read files as a user would, and hold what they run against the plan.

    Raises:
        NoAnswerError: they run something else; the message names each option.
    """
    beside = {name: estimate.job[name] for name in BESIDE if estimate.job.get(name) is not None}
    with TemporaryDirectory() as name:
        write_texts([(Path(name) / one.path, one.text) for one in files])
        try:
            again = stated_plan(None, beside, {}, [Path(name) / files[-1].path]).estimate()
        except InputError as error:
            raise _inexpressible(target, {error.field or "framework": error.message}) from None
    if _predictions(estimate) == _predictions(again):
        return
    layouts = [{**one.plan.to_dict(), "shard": one.plan.shard_size} for one in (estimate, again)]
    pairs = {name: tuple(one[name] for one in layouts) for name in declared(Layout)}
    pairs = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    for name in declared(JobOptions):
        mine, theirs = estimate.job.get(name), again.job.get(name)
        with suppress(InputError):
            if mine == theirs or _predictions(estimate) == _predictions(_with(estimate, name, theirs)):
                continue
        pairs[name] = (mine, theirs)
    runs = f"{target.title} runs {{}} by these files, not {{}}"
    refused = {name: runs.format(_word(theirs), _word(mine)) for name, (mine, theirs) in pairs.items()}
    raise _inexpressible(target, refused)


def _word(value: Any) -> str:
    return "its default" if value is None else ("off", "on")[value] if isinstance(value, bool) else str(value)


def _predictions(one: Estimate) -> tuple[dict[str, Any], ...]:
    return one.plan.to_dict(), dict(one.breakdown), dict(one.memory)


def _with(estimate: Estimate, name: str, value: Any) -> Estimate:
    job = {key: one for key, one in {**estimate.job, name: value}.items() if one is not None}
    return stated_plan(None, job, layout_of(estimate.plan)).estimate()


def _inexpressible(target: Target, refused: Mapping[str, str]) -> NoAnswerError:
    listed = "; ".join(f"`{name}`: {why}" for name, why in refused.items())
    hint = "`gpuscale plan` with these pinned otherwise, or another target"
    return NoAnswerError(f"{target.title} cannot express the plan: {listed}", field="to", hint=hint)


def left_out(writing: Writing) -> tuple[str, ...]:
    """Return what is to be known of the model of a plan, and of files that launch it."""
    job = writing.spec
    counted = job.trained_tower or job.frozen_tower
    alone = "these files build the language model alone; the plan counts its towers too (`tower=none` plans without)"
    return (*writing.model.caveats_with(job.tower), *([alone] if counted else []))


def written(target: Target, writing: Writing) -> Program:
    """Write a plan for a target: first by the rules of its framework, then by what its files can say.

    Raises:
        NoAnswerError: it cannot express all of the plan.
    """
    assert target.write is not None
    own, of = writing.spec.runtime.name, target.frameworks
    if own.partition("@")[0] not in of:
        hint = f"`gpuscale plan` with `framework={of[0]}` finds plans for it"
        message = f"the plan is for the framework {own}, and {target.title} runs plans for {', '.join(of)}"
        raise NoAnswerError(message, field="to", hint=hint)
    spec = writing.spec
    for rule in broken_rules(fixed_layout(spec, writing.layout.values()), spec):
        writing.refuse(rule.options[0], f"{rule.text} [{source_in(rule, spec.runtime.rule_set)}]")
    if spec.tuning is not None and not target.adapters:
        able = ", ".join(one.name for one in targets().values() if one.adapters)
        why = f"{target.title}'s files are written for training of whole models (tune = {writing.asked('tune')})"
        writing.refuse("tune", f"{why}; {able} can say it")
    if spec.method != SFT:
        writing.refuse("method", f"its files train on next tokens, not {spec.method.title}")
    if spec.lengths is not None:
        writing.refuse("lengths", "its files do not say how long samples are")
    kernels = writing.asked("attention")
    if kernels and kernels not in target.attention:
        why = f"which kernels run ({kernels}) is chosen where models are built or packages installed"
        writing.refuse("attention", why)
    program = None if writing.refused else target.write(writing)
    if program is None or writing.refused:
        raise _inexpressible(target, writing.refused)
    return program


NODE_RANK, MASTER_ADDR, MASTER_PORT = (
    shell_word(Expansion(one))
    for one in ("${NODE_RANK:-${SLURM_NODEID:-0}}", "${MASTER_ADDR:-localhost}", "${MASTER_PORT:-29500}")
)


def run_script(program: Program, writing: Writing) -> LaunchFile:
    """Return the shell script that starts a program on each node."""
    nodes, per_node = machines(writing)
    each = f"run on each of {nodes} nodes" if nodes > 1 else "run on one node"
    head = [f"{writing.model.title:.100} on {plural(writing.spec.gpus, 'GPU')}: {each}.", *left_out(writing)]
    if writing.left:
        head += ["Not set by this script:", *(f"  {one}" for one in writing.left)]
        writing.warn("run.sh lists what it leaves to you and to the framework's defaults")
    lines = ["#!/bin/bash", *map(comment, head), "set -e"]
    if program.file:
        lines.append(comment(f"{CODE_DIR}: the folder that has {program.file}, where it is not this one"))
        writing.warn(f"set {CODE_DIR} to the folder that has {program.file}, or start run.sh in it")
    for name, (value, why) in program.environment.items():
        lines += [comment(why), f"export {name}={shell_word(value)}"]
    if writing.spec.offload.optimizer and per_node > 1:
        lines.append(comment("the optimizer on the CPU: of several processes the launcher gives each one thread"))
        lines.append(f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$(($(nproc) / {per_node}))}}"')
    start = {
        "torchrun": f"torchrun --nnodes={nodes} --nproc-per-node={per_node} --node-rank={NODE_RANK}"
        f" --master-addr={MASTER_ADDR} --master-port={MASTER_PORT} ",
        "accelerate": f"accelerate launch --config_file=accelerate.yaml --machine_rank={NODE_RANK}"
        f" --main_process_ip={MASTER_ADDR} --main_process_port={MASTER_PORT} ",
    }.get(program.launcher or "", "")
    code = f'"${{{CODE_DIR}:-.}}/{program.file}"' if program.file else ""
    script = code + program.script.removeprefix(program.file)
    command = [start + script, *(" ".join(map(shell_word, one)) for one in program.arguments)]
    return LaunchFile("run.sh", "\n".join([*lines, " \\\n  ".join(command), ""]))


def save_export(result: Export, folder: Path, *, force: bool | None = False) -> None:
    """Write the files of an export, all or none, into a folder, which is made where there is none.

    Args:
        force: also over files that are there; None: not, and who asks has no way to say otherwise.

    Raises:
        InputError: the folder is a file, cannot be written, or has such files already.
    """
    there = [one.path for one in result.files if is_there(folder / one.path)]
    if there and not force:
        hint = "give another folder" + (", or `force` to write over what is there" if force is not None else "")
        raise InputError(f"{', '.join(there)} would be written over", place=str(folder), hint=hint)
    new = not is_there(folder)
    try:
        folder.mkdir(exist_ok=True)
    except (OSError, ValueError) as error:
        hint = "give a folder; the one above it must be there"
        raise InputError(f"cannot make the folder: {reason(error)}", place=str(folder), hint=hint) from None
    try:
        write_texts([(folder / one.path, one.text) for one in result.files])
    except BaseException:
        if new:
            with suppress(OSError):
                folder.rmdir()
        raise
