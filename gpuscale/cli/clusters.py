"""`gpuscale clusters list|show|import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List the clusters, show one level by level, or import one.")

Json = Annotated[bool, typer.Option("--json", help="Write JSON (gpuscale.clusters/1) instead of a table.")]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the clusters: GPUs, levels, bandwidth per GPU."""
    from gpuscale.collectives.ideal import allreduce_rates
    from gpuscale.presets.hardware import all_clusters
    from gpuscale.render import hardware as render

    clusters = all_clusters()
    if json:
        render.clusters_list_json(clusters, [allreduce_rates(cluster) for cluster in clusters])
    else:
        render.clusters_list(clusters)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A cluster's name or alias, or the path of a TOML file.")],
    gpus: Annotated[int | None, typer.Option(help="Widen the cluster to at least this many GPUs.")] = None,
    json: Json = False,
) -> None:
    """Show one cluster: its levels, what each carries, and where the numbers come from."""
    from gpuscale.collectives.ideal import allreduce_rates
    from gpuscale.presets.hardware import load_cluster
    from gpuscale.render import hardware as render

    cluster = load_cluster(name)
    sized, note = cluster.sized_for(cluster.gpus if gpus is None else gpus)
    rates = allreduce_rates(sized)
    render.clusters_show_json(sized, rates, note) if json else render.clusters_show(sized, rates, note)


@app.command(
    "import",
    epilog="Example: gpuscale clusters import topo.xml topology.conf ibstat.txt -o cluster.toml, then "
    "gpuscale plan --cluster cluster.toml --model llama3-70b --gpus 256",
)
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Files of one cluster: NCCL topology XML, `nvidia-smi topo -m`, `nvidia-smi nvlink -s`, Slurm "
            "topology.conf or topology.yaml, `ibstat`, `ibnetdiscover`; told apart by content.",
        ),
    ],
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="The GPU: a name, alias or TOML file.")] = None,
    nics: Annotated[
        int | None, typer.Option(min=0, max=1024, metavar="N", help="Network cards of a node that serve its GPUs.")
    ] = None,
    nic_gbit: Annotated[
        float | None, typer.Option(min=1, max=10000, metavar="RATE", help="Rate of one of them [Gbit/s].")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, metavar="N", help="Nodes, where no file describes the network.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="PRESET", help="The cluster that says what the files leave open.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="TITLE", help="Title of the cluster.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the cluster file here, not to stdout.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON (gpuscale.import/1) instead.")] = False,
) -> None:
    """Make a cluster file of what other tools say of a fabric; what no file says is assumed and marked so."""
    from gpuscale.importers.clusters import ImportOptions, import_cluster
    from gpuscale.render import importing as render

    imported = import_cluster(files, ImportOptions(gpu, base, nics, nic_gbit, nodes, name), output)
    if output is not None:
        imported.write(output)
    if json:
        from gpuscale.collectives.ideal import allreduce_rates

        render.import_json(imported, allreduce_rates(imported.cluster), output)
    elif output is not None:
        render.summary(imported, output)
    else:
        render.print_toml(imported)
