"""`gpuscale clusters list|show`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="List the clusters, or show one level by level.")

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
