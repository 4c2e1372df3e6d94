"""`gpuscale show`, `calibrate topology` and `doctor`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import FLAGS, Json, Toml, fills_stdout, flags_of, known, option, plain, whole, with_flags
from gpuscale.errors import InputError
from gpuscale.files import printable_lines
from gpuscale.render.output import print_json
from gpuscale.units import GIGABITS, parse_whole

if TYPE_CHECKING:
    from gpuscale.doctor import Checkup


def _print_file(kind: str, name: str, **beside: object) -> None:
    from gpuscale.presets.files import find_preset, read_toml
    from gpuscale.presets.hardware import cluster_file

    path = find_preset(kind, name) or Path(name)
    _refuse_beside(**beside)
    if kind == "clusters":
        typer.echo(printable_lines(cluster_file(name).text), nl=False)
        return
    if path.suffix.lower() != ".toml":
        raise InputError("not a TOML file", place=name[:300], hint="`toml` prints those of presets, and your own")
    typer.echo(printable_lines(read_toml(path).text), nl=False)


def _refuse_beside(**beside: object) -> None:
    other = next((option for option, value in beside.items() if value), None)
    if other is not None:
        raise InputError(f"`toml` prints the file as it is, without `{other}`", hint="give one of them")


def preset(help_text: str, metavar: str = "NAME") -> Any:
    """Declare the argument that names one preset."""
    return typer.Argument(metavar=metavar, help=f"{help_text}; all without.", show_default=False)


@answers("models")
def models(
    name: Annotated[
        str | None, preset("A model's name, a model file (.toml), or a Hugging Face config.json", "MODEL")
    ] = None,
    family: Annotated[str | None, option("List only this family, such as llama3 or qwen3.")] = None,
    seq: Annotated[
        str | None, option("Sequence length for FLOPs, such as 128k.", "TOKENS", "4096, or the model's maximum")
    ] = None,
    json: bool = False,
    toml: Toml = False,
) -> Answer | None:
    """List the models that can be planned by name, or show one: its shape, parameters item by item, FLOPs per token.

    Examples: gpuscale show models; gpuscale show models llama3-70b
    """
    from gpuscale.architecture.flops import checked_sequence
    from gpuscale.architecture.parameters import model_parameters
    from gpuscale.presets.models import load_model, models_of_family
    from gpuscale.render import presets as render

    if name is None:
        _refuse_alone(seq=seq, toml=toml)
        counted = [(model, model_parameters(model)) for model in models_of_family(family)]
        counted.sort(key=lambda pair: (pair[0].family, pair[1].total, pair[0].name))
        return Answer(render.models_document(counted), lambda: {"models": [render.model_json(*one) for one in counted]})
    own = known("models", name)
    model = load_model(own)
    sequence = checked_sequence(model, None if seq is None else parse_whole(seq, "seq"))
    if toml:
        _print_file("models", own, json=json, seq=seq)
        return None
    return Answer(model, lambda: render.itemised_json(model, sequence), {"sequence": sequence})


@answers("hardware")
def hardware(
    name: Annotated[str | None, preset("A GPU's name or alias, or the path of a TOML file")] = None,
    json: bool = False,
    toml: Toml = False,
) -> Answer | None:
    """List the GPUs, or show one: its numbers, what follows from them, and where they come from.

    Examples: gpuscale show hardware; gpuscale show hardware h100
    """
    from gpuscale.presets.hardware import all_gpus, load_gpu
    from gpuscale.render import presets as render

    if name is None:
        _refuse_alone(toml=toml)
        return Answer(render.gpus_document(all_gpus()), lambda: {"gpus": [render.gpu_json(gpu) for gpu in all_gpus()]})
    own = known("gpus", name)
    gpu = load_gpu(own)
    if toml:
        _print_file("gpus", own, json=json)
        return None
    return Answer(gpu, lambda: {"gpus": [{**render.gpu_json(gpu), "sources": gpu.sources}]})


@answers("clusters")
def clusters(
    name: Annotated[str | None, preset("A cluster's name or alias, or the path of a TOML file")] = None,
    gpus: Annotated[int | None, whole("Extend the cluster to at least this many GPUs.", flags=FLAGS["gpus"])] = None,
    draw: Annotated[bool, option("Draw its levels, switches and rails.", "", flags="--draw")] = False,
    json: bool = False,
    toml: Toml = False,
) -> Answer | None:
    """List the clusters, or show one: its levels, their bandwidth, and where the numbers come from.

    Examples: gpuscale show clusters; gpuscale show clusters dgx-h100-superpod --draw
    """
    from gpuscale.presets.hardware import all_clusters, load_cluster
    from gpuscale.render import presets as render
    from gpuscale.render.placement import topology_document

    if name is None:
        _refuse_alone(gpus=gpus, draw=draw, toml=toml)
        found = all_clusters()
        return Answer(render.clusters_document(found), lambda: {"clusters": list(map(render.cluster_json, found))})
    if draw and (json or toml):
        raise InputError("a drawing is for people", field="draw", hint="leave out the other format")
    own = known("clusters", name)
    cluster = load_cluster(own)
    sized, wider = cluster.sized_for(cluster.gpus if gpus is None else gpus)
    note = "; ".join(filter(None, (wider, *sized.caveats))) or None
    if toml:
        _print_file("clusters", own, json=json, gpus=gpus)
        return None
    body = {"clusters": [{**render.cluster_json(sized), "note": note, "sources": sized.sources}]}
    return Answer(topology_document(sized, note=note) if draw else sized, lambda: body, {"note": note})


@answers("frameworks")
def frameworks(
    name: Annotated[str | None, preset("Name of a profile, or an alias, today or as of NAME@YYYY-MM")] = None,
    json: bool = False,
    toml: Toml = False,
) -> Answer | None:
    """List the framework profiles, or show one with its sources, how to launch it, and its rules.

    Examples: gpuscale show frameworks; gpuscale show frameworks megatron-lm
    """
    from gpuscale.presets.frameworks import all_framework_files, framework_file
    from gpuscale.render import presets as render

    if name is None:
        _refuse_alone(toml=toml)
        files = all_framework_files()
        return Answer(render.frameworks_document(files), lambda: {"frameworks": list(files.values())})
    own = known("frameworks", name)
    file = framework_file(own)
    if toml:
        _print_file("frameworks", own.partition("@")[0], json=json)
        return None
    body = {"frameworks": [{**file, "rules": render.rules_json(file["rule_set"])}]}
    return Answer(render.framework_document(file), lambda: body)


@answers("recipes")
def recipes(
    name: Annotated[str | None, preset("Name of a recipe")] = None,
    model: Annotated[str | None, option("List only those of this model.", "NAME", flags=FLAGS["model"])] = None,
    gpu: Annotated[str | None, option("List only those on this GPU, such as h100.", "NAME")] = None,
    json: bool = False,
    toml: Toml = False,
) -> Answer | None:
    """List the published recipes, or show one: its job, its layout, its source, and how to estimate it.

    Examples: gpuscale show recipes --model deepseek-v3 --gpu b200; gpuscale show recipes llama3-70b-64gpu-h100-bf16
    """
    from gpuscale.planning.recipes import find_recipe, listed_recipes, recipe_table
    from gpuscale.render import presets as render

    if name is None:
        _refuse_alone(toml=toml)
        found = listed_recipes(model and known("models", model), gpu and known("gpus", gpu))
        return Answer(found, lambda: {"recipes": [render.recipe_json(one) for one in found]})
    if model or gpu:
        raise InputError("is for the list of all", field="model" if model else "gpu", hint="leave out the name")
    recipe = find_recipe(name)
    if toml:
        _refuse_beside(json=json)
        typer.echo(printable_lines(recipe_table(recipe)), nl=False)
        return None
    return Answer(recipe, lambda: {"recipes": [render.recipe_json(recipe)]})


def _refuse_alone(**given: object) -> None:
    for option_name, value in given.items():
        if value:
            raise InputError("is about one of them", field=option_name, hint="give its name")


def import_cluster_files(
    files: Annotated[list[Path], typer.Argument(
        metavar="FILE...",
        help="Files of one cluster: NCCL topology XML, `nvidia-smi topo -m`, `nvidia-smi nvlink -s` or `-L`, Slurm "
        "topology.conf or topology.yaml, `ibstat`, `ibnetdiscover`; recognised by content.",
    )],
    gpu: Annotated[str | None, option("The GPU: a name, alias or TOML file.", "NAME")] = None,
    nics: Annotated[
        int | None, option("Network cards per node that serve its GPUs.", parser=plain(int, 0, 1024))
    ] = None,
    nic_gbit_per_s: Annotated[float | None, option(
        "Rate of one network card [Gbit/s].", "RATE", parser=lambda given: GIGABITS.read(given, "nic_gbit", 1, 10_000),
    )] = None,
    nodes: Annotated[
        int | None, option("Number of nodes, where no file describes the network.", parser=plain(int, 1, 1_000_000))
    ] = None,
    base: Annotated[str | None, option("Cluster preset for what the files leave open.", "PRESET")] = None,
    name: Annotated[str | None, option("Title of the cluster.", "TITLE")] = None,
    output: Annotated[
        Path | None, option("Write the cluster file here instead of stdout.", "FILE", flags="--output -o")
    ] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Make a cluster file of what other tools say of a fabric; what no file says is assumed and marked so.

    Example: gpuscale calibrate topology topo.xml topology.conf ibstat.txt -o cluster.toml, then
    gpuscale plan --cluster cluster.toml --model llama3-70b --gpus 256
    """
    from gpuscale.importers.assemble import import_cluster
    from gpuscale.render.measurements import draw_import, import_json

    output = None if fills_stdout(output, other=json) else output
    imported = import_cluster(
        files, gpu=gpu, base=base, nics=nics, nic_gbit_per_s=nic_gbit_per_s, nodes=nodes, name=name, output=output
    )
    if output is not None:
        imported.write(output)
    if json:
        print_json("import", import_json(imported, output))
    else:
        draw_import(imported, output)


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
    steps = _next_steps(found)
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


def _next_steps(found: Checkup) -> list[Step]:
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
