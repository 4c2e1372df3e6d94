"""`gpuscale collective` and `roofline`: what the network costs, and from where on compute binds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuscale.cli.answering import Answer, answers
from gpuscale.cli.options import FLAGS, known, number, option, whole
from gpuscale.errors import InputError
from gpuscale.request import SWITCH, one_of
from gpuscale.units import parse_bytes

if TYPE_CHECKING:
    from gpuscale.specs.cluster import ClusterSpec


@answers("collective", csv=True)
def collective(
    operation: Annotated[str, typer.Argument(
        metavar="OP", help="allreduce, allgather, reducescatter, alltoall, broadcast, reduce or sendrecv.",
        show_default=False,
    )],
    bytes: Annotated[str | None, option(
        "Size of the whole (gathered, pre-scatter) tensor; for alltoall, one GPU's send buffer. 32MB or 32MiB.", "SIZE",
    )] = None,
    sweep: Annotated[
        str | None, option("A range of sizes, such as 8B..8GB, counted as in nccl-tests.", "FROM..TO")
    ] = None,
    begin: Annotated[str | None, option("First size, as in nccl-tests.", "SIZE", "8", flags="--begin -b")] = None,
    end: Annotated[str | None, option("Last size, as in nccl-tests.", "SIZE", "32M", flags="--end -e")] = None,
    factor: Annotated[int, whole("Ratio of consecutive sizes in the sweep.", default="2", flags="--factor -f")] = 2,
    against: Annotated[
        Path | None, option("A log of nccl-tests or rccl-tests to compare with the prediction.", "LOG")
    ] = None,
    level: Annotated[
        str | None, option("Network level of the cluster.", "NAME", "the innermost that holds the GPUs")
    ] = None,
    cluster: Annotated[
        str, option("A cluster preset or a TOML file.", "NAME|PATH", "dgx-h100-superpod", flags=FLAGS["cluster"])
    ] = "dgx-h100-superpod",
    gpus: Annotated[int | None, whole("GPUs in the group.", default="all under the level", flags=FLAGS["gpus"])] = None,
    stride: Annotated[
        int | None, whole("Rank stride between members of the group.", default="1", flags="--group-stride")
    ] = None,
    concurrent: Annotated[
        int | None, whole("Groups that run at the same time; 1: this one alone.", default="all that fit")
    ] = None,
    sharp: Annotated[
        str | None, option("In-network reduction across nodes (SHARP): on or off.", "on|off", "off; on with `ideal`")
    ] = None,
    nvls: Annotated[
        str, option("In-switch reduction within the NVLink domain (NVLS): on or off.", "on|off", "on")
    ] = "on",
    no_sharp: Annotated[bool, option("Neither SHARP nor NVLS.", "", flags="--no-sharp")] = False,
    ideal: Annotated[bool, option("Bandwidth bound only: no latency, full wire rate.", "", flags="--ideal")] = False,
    no_plot: Annotated[bool, option("Omit the plot of a sweep.", "", flags="--no-plot")] = False,
    algorithm: Annotated[str | None, option(
        "Force ring, tree, nvls, nvls-tree, collnet, pat or pairwise; for alltoall also hierarchical or deepep.",
        "NAME", "the fastest, as NCCL", flags="--algo",
    )] = None,
    protocol: Annotated[
        str | None, option("Force ll, ll128 or simple.", "NAME", "the fastest, as NCCL", flags="--proto")
    ] = None,
    channels: Annotated[
        int | None, whole("NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS; for deepep its SMs.", default="NCCL's own")
    ] = None,
    nccl: Annotated[str | None, option("NCCL's version, such as 2.20.", "VERSION", "2.30")] = None,
    launch: Annotated[
        str,
        option("processes (one per GPU), one-process (nccl-tests -g 8) or graph (nccl-tests -G).", "HOW", "processes"),
    ] = "processes",
    imbalance: Annotated[float, number("For alltoall: bytes of the busiest GPU over the mean.", "F", "1.0")] = 1.0,
    experts_per_token: Annotated[
        int | None, whole("For deepep: experts per token.", default="8", flags="--topk")
    ] = None,
    nodes_per_token: Annotated[int | None, whole("For deepep: nodes that a token is sent to.", default="any")] = None,
    csv: bool = False,
) -> Answer:  # fmt: skip
    """Evaluate one collective, or a sweep of sizes: time, bandwidth, and what binds.

    Example: gpuscale collective allreduce --bytes 32MB --level leaf

    Example: gpuscale collective allreduce --sweep 8B..8GB --gpus 16 --cluster aws-p5

    Example: gpuscale collective allreduce --against all_reduce.log --cluster aws-p5

    Example: gpuscale collective alltoall --bytes 64MB --gpus 64 --algo deepep --nodes-per-token 4
    """
    from gpuscale.calibration.calibrate import compare_log
    from gpuscale.collectives.estimate import Siblings, price_collective, sweep_sizes
    from gpuscale.collectives.nccl_constants import NEWEST, Tuning, parse_version
    from gpuscale.presets.hardware import load_cluster
    from gpuscale.render import collective as render

    ends = f"{begin or '8'}..{end or '32M'}" if begin or end else None
    if sum(one is not None for one in (bytes, sweep, ends, against)) != 1:
        hint = "`bytes=32MB` is one size, `sweep=8B..8GB` a range of them, `against` takes those of a log"
        raise InputError("give either `bytes`, `sweep` (or its ends) or `against`", hint=hint)
    sweep = sweep or ends
    if csv and bytes is not None:
        raise InputError("`csv` is for the rows of `sweep`", hint="`json` prints a single size")
    chosen = _adding(load_cluster(known("clusters", cluster)), sharp, nvls, no_sharp)
    siblings = Siblings(stride, concurrent)
    reach = 0 if gpus is None else siblings.reach(gpus)
    note = chosen.mixture_note(reach or chosen.gpus)
    if reach > chosen.gpus and level in {None, chosen.levels[-1].name}:
        chosen, note = chosen.sized_for(reach)
    note = "; ".join(filter(None, (note, *chosen.caveats))) or None
    more = {"notes": [note] if note else []}
    tuning = Tuning(channels, NEWEST if nccl is None else parse_version(nccl), launch, imbalance)
    if against is not None:
        if ideal or any((level, stride, concurrent, algorithm, protocol, experts_per_token, nodes_per_token)):
            hint = "with it `operation`, `gpus`, `cluster` and how NCCL is run can be said"
            raise InputError("groups, ways and sizes are those of the log", field="against", hint=hint)
        found, notes = compare_log(chosen, against, operation, gpus=gpus, tuning=tuning)
        return Answer(
            render.against_document(found, notes), body=lambda: {"groups": found}, more={"notes": notes},
            rows=lambda: [row for one in found for row in render.against_rows(one)], name="against",
        )  # fmt: skip
    evaluate = partial(
        price_collective, chosen, operation, level=level, gpus=gpus, ideal=ideal, siblings=siblings,
        algorithm=algorithm, protocol=protocol, tuning=tuning, experts_per_token=experts_per_token,
        nodes_per_token=nodes_per_token,
    )  # fmt: skip
    if sweep is not None:
        rows = [evaluate(one) for one in sweep_sizes(sweep, factor)]
        return Answer(
            rows, body=lambda: render.sweep_json(rows), more=more,
            rows=lambda: render.sweep_rows(rows), name="collective-sweep", view={"note": note, "plot": not no_plot},
        )  # fmt: skip
    estimate = evaluate(parse_bytes(bytes or ""))
    return Answer(estimate, body=lambda: render.collective_json(estimate), more=more, view={"note": note})


def _adding(cluster: ClusterSpec, sharp: str | None, nvls: str = "on", none: bool = False) -> ClusterSpec:
    by = None if sharp is None else one_of("sharp", sharp, SWITCH) == "on"
    if none and by:
        raise InputError("`sharp=on` and `no_sharp` are mutually exclusive", hint="leave out one of the two")
    return cluster.adding_up(sharp=False if none else by, nvls=not none and one_of("nvls", nvls, SWITCH) == "on")


@answers("roofline")
def roofline(
    model: Annotated[
        str,
        option("A model preset, a TOML file or a Hugging Face config.json.", "NAME|PATH", "llama3-70b", FLAGS["model"]),
    ] = "llama3-70b",
    cluster: Annotated[list[str] | None, option(
        "A cluster preset or a TOML file; may be repeated.", "NAME|PATH", "an H100, a B200 and an NVL72 cluster",
        FLAGS["cluster"],
    )] = None,
    gpus: Annotated[
        int | None, whole("GPUs of the job, to which clusters are extended.", "N", "all of each", FLAGS["gpus"])
    ] = None,
    precision: Annotated[str, option("fp32, tf32, bf16, fp16, fp8 or fp4.", "NAME", "bf16")] = "bf16",
    sharp: Annotated[str, option("In-network reduction across nodes (SHARP): on or off.", "on|off", "on")] = "on",
) -> Answer:  # fmt: skip
    """Show from which batch size, and up to which degree, training is bound by compute.

    Example: gpuscale roofline --model deepseek-v3 --cluster dgx-h100-superpod
    """
    from gpuscale.presets.hardware import load_cluster
    from gpuscale.presets.models import load_model
    from gpuscale.rooflines import DEFAULT_CLUSTERS
    from gpuscale.rooflines import roofline as find_roofline

    names = tuple(cluster) if cluster else DEFAULT_CLUSTERS
    if len(names) > 32:
        raise InputError(f"{len(names)} clusters are too many", field="cluster", hint="give at most 32")
    no_sharp = one_of("sharp", sharp, SWITCH) == "off"
    clusters = tuple(_adding(load_cluster(known("clusters", name)), "off" if no_sharp else None) for name in names)
    return Answer(find_roofline(load_model(known("models", model)), clusters, precision, gpus))
