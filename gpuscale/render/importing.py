"""What `gpuscale clusters import` did: a table of the levels, and messages on what was read and assumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from gpuscale.importers.clusters import ImportedCluster
from gpuscale.render.console import console, report, table
from gpuscale.render.hardware import cluster_body
from gpuscale.render.plain import print_json

GB = 1e9


def print_toml(imported: ImportedCluster) -> None:
    """Write the cluster file to stdout and the messages to stderr."""
    console(stderr=False).file.write(imported.text)
    messages(imported)


def messages(imported: ImportedCluster) -> None:
    """Say on stderr what was read, noted and assumed."""
    width = console(stderr=True).width
    for file, kind in imported.read.items():
        report(fill(f"read {file}: {kind}", width, subsequent_indent="  "))
    for note in imported.notes:
        report(fill(f"note: {note}", width, subsequent_indent="  "))
    if imported.assumed:
        text = f"assumed, as no file says it: {', '.join(imported.assumed)}; the file's sources say how"
        report(fill(text, width, subsequent_indent="  "))


def summary(imported: ImportedCluster, output: Path) -> None:
    """Print the levels of a file that was written to stdout, and the messages to stderr."""
    out, cluster = console(), imported.cluster
    out.print(f"{output}: {cluster.gpus:,} x {cluster.gpu.name}")
    headers = ("level", "fabric", "GPUs", "GPU to GPU\nGB/s", "switches", "hop\nus", "link\nefficiency", "assumed")
    rows = []
    for level in cluster.levels:
        assumed = sum(key.startswith(f"{level.name}.") for key in imported.assumed)
        rows.append(
            (
                level.name,
                level.fabric,
                f"{level.gpus:,}",
                f"{level.egress_bytes_per_s / GB:.4g}",
                str(level.switches) if level.switches else "-",
                f"{level.hop_latency_s * 1e6:g}",
                f"{level.link_efficiency:g}",
                f"{assumed} of {sum(key.startswith(f'{level.name}.') for key in cluster.sources)}",
            )
        )
    out.print(table(headers, rows, left=2))
    out.print("Per GPU and direction, wire rate, all GPUs at once; assumed: numbers that no file states.")
    messages(imported)


def import_json(imported: ImportedCluster, allreduce_bytes_per_s: Sequence[float], output: Path | None) -> None:
    """Write `gpuscale.import/1`: what was read, noted and assumed, the cluster, and the text of its file."""
    print_json(
        "gpuscale.import/1",
        {
            "output": None if output is None else str(output),
            "read": dict(imported.read),
            "notes": list(imported.notes),
            "assumed": dict(imported.assumed),
            "cluster": cluster_body(imported.cluster, allreduce_bytes_per_s),
            "toml": imported.text,
        },
    )
