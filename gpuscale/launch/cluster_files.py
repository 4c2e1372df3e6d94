"""What a cluster needs beside a framework's own files: environment of NCCL, Slurm script, JobSet, hostfile."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpuscale.choices import AXES
from gpuscale.launch.quoting import Expansion, comment, yaml_text
from gpuscale.launch.writing import LaunchFile, Program, Writing
from gpuscale.layouts.space import divisors
from gpuscale.placement import parse_order
from gpuscale.planning.placement import Placement, degrees_of, host_names, place_order
from gpuscale.presets.files import known_table
from gpuscale.presets.hardware import load_cluster
from gpuscale.specs.cluster import ClusterSpec, LevelSpec
from gpuscale.units import GIB

Environment = dict[str, tuple[str, str]]
"""Variable -> its value and the reason for it."""

FULL_MEMORY = 0.85
"""Share of a GPU's memory from which the allocator is asked to keep it in one piece (a choice)."""

POD_MEMORY = 0.8
"""Share of a host's memory that a pod asks for; the rest is the system's (a choice)."""

HUGE_PAGES = "5120Mi"
"""Huge pages of 2 MiB that libfabric's EFA provider takes: AWS, EKS user guide, machine learning training with EFA."""

SHARED_MEMORY = "64Gi"
"""Shared memory of a pod: data loaders and NCCL's transport between processes of a host (Kubernetes gives 64 MiB)."""

PORT = 29500

CODE_DIR = "CODE_DIR"
"""Variable of the folder that has a framework's script."""


def machines(writing: Writing) -> tuple[int, int]:
    """Return the machines of a job and the GPUs that it takes of each: as many of all, as launchers want it."""
    gpus, host = writing.spec.gpus, writing.spec.cluster.host_gpus
    per_host = max(part for part in divisors(gpus).tolist() if part <= host)
    if per_host < min(gpus, host):
        writing.warn(f"{gpus} GPUs do not fill machines of {host}: {per_host} of each are used")
    return gpus // per_host, per_host


def environment(writing: Writing) -> Environment:
    """Return the variables of NCCL, its plugins and the allocator that a plan asks for on its cluster."""
    fabric, gpu, cluster = writing.spec.network, writing.spec.cluster.gpu, writing.spec.cluster.name
    known = known_table("variables")

    def asked_for(kind: str, name: str) -> Environment:
        return {variable: (value, why) for variable, (value, why) in known[kind].get(name, {}).items()}

    found = asked_for("gpus", gpu.vendor)
    if writing.asked("nvls") == "off":
        found["NCCL_NVLS_ENABLE"] = "0", "the plan is predicted without in-switch reduction (NVLS)"
    if fabric is not None:
        own = asked_for("clouds", cluster)
        found |= asked_for("networks", fabric.fabric)
        if own and fabric.fabric == "ethernet":  # a cloud with a plugin of its own
            found.pop("NCCL_NET", None)
        found |= own
        if writing.asked("sharp") == "on":
            found["NCCL_COLLNET_ENABLE"] = "1", "in-network reduction (SHARP); needs nccl-rdma-sharp-plugins"
    if gpu.vendor == "NVIDIA" and writing.plan.memory_gib > FULL_MEMORY * writing.plan.memory_limit_gib:
        why = f"{writing.plan.memory_gib:.0f} of {writing.plan.memory_limit_gib:.0f} GiB: less is lost to fragmentation"
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True", why
    return found


def with_cluster(program: Program, writing: Writing) -> Program:
    """Return a program with what its cluster asks for; what the framework sets itself goes before that."""
    found = environment(writing)
    if "PYTORCH_ALLOC_CONF" in program.environment:  # the name since PyTorch 2.9, under which frameworks may set it
        found.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    return replace(program, environment={**found, **program.environment})


def cluster_files(writing: Writing, program: Program) -> tuple[LaunchFile, ...]:
    """Return the files that start `run.sh` on a cluster: by Slurm, by Kubernetes, and a list of hosts.

    Args:
        program: what runs; its environment has the cluster's.
    """
    if writing.spec.cluster.gpu.vendor not in GPU_RESOURCE:
        return ()
    if machines(writing)[0] > 1:
        writing.warn("hostfile: node0001 and so on stand for your nodes, in the order of the fabric: neighbours first")
    cluster = writing.spec.cluster
    if cluster.levels[cluster.domain_index].gpus > cluster.host_gpus:
        writing.warn("jobset.yaml: NVLink between machines takes an IMEX domain (ComputeDomain of NVIDIA's DRA driver)")
    writing.warn("jobset.yaml: set an image with the framework and your data")
    return tuple(
        LaunchFile(name, text)
        for name, text in (
            ("job.sbatch", _slurm_script(writing)),
            ("jobset.yaml", jobset(writing, program)),
            ("hostfile", hostfile(writing)),
        )
    )


def job_name(writing: Writing) -> str:
    """Return a name that Slurm and Kubernetes take: letters, digits and hyphens, a letter first."""
    name = re.sub(r"[^a-z0-9]+", "-", writing.model.name.lower())[:40].strip("-")
    return name if re.match("[a-z]", name) else f"train-{name}".strip("-")


def _slurm_script(writing: Writing) -> str:
    """Return a script for `sbatch`: one task per node, which starts the processes of its GPUs."""
    nodes, per_host = machines(writing)
    cluster = writing.spec.cluster
    rack = cluster.levels[cluster.domain_index].gpus // per_host
    whole = rack > 1 and nodes % min(rack, nodes) == 0
    segment = [f"#SBATCH --segment={min(rack, nodes)}  # nodes of one NVLink rack stay together"] if whole else []
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={job_name(writing)}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1  # which starts a process for each GPU",
        f"#SBATCH --gpus-per-node={per_host}",
        "#SBATCH --exclusive  # all CPUs of a node, and no neighbours on its network cards",
        "#SBATCH --mem=0  # all memory of a node",
        *segment,
        "set -e",
        'cd "$SLURM_SUBMIT_DIR"',
        "# the first node is where processes meet",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"export MASTER_ADDR MASTER_PORT={PORT}",
        "# ranks follow the order of nodes, which Slurm's topology plugin sorts; all CPUs for all processes of a node",
        "srun --cpu-bind=none --kill-on-bad-exit=1 bash run.sh",
    ]
    return "\n".join([*lines, ""])


def hostfile(writing: Writing) -> str:
    """Return the hosts with their slots, in the order in which ranks are dealt out."""
    plan, cluster = writing.plan, writing.spec.cluster
    degrees = degrees_of(plan)
    placed = place_order(cluster, degrees, parse_order("-".join(writing.spec.axis_order or AXES)))
    return Placement(cluster, degrees, placed, host_names(machines(writing)[0], None)).export("hostfile")


GPU_RESOURCE = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu"}
"""Vendor -> what its device plugin calls a GPU."""

NODE_RANK = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
EFA_RESOURCE, RDMA_RESOURCE = "vpc.amazonaws.com/efa", "rdma/rdma_shared_device_a"


def jobset(writing: Writing, program: Program) -> str:
    """Return a JobSet of Kubernetes: one pod per machine, each of which runs `run.sh`."""
    nodes, per_host = machines(writing)
    name, cluster = job_name(writing), writing.spec.cluster
    fabric = writing.spec.network
    given = {**program.environment, **_open(program)}
    container = {
        "name": "train",
        "# image": "that has the framework and your data",
        "image": "IMAGE",
        "workingDir": "/launch",
        "command": ["bash", "run.sh"],
        "env": [
            {"name": "MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
            {"name": "MASTER_PORT", "value": str(PORT)},
            {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": NODE_RANK}}},
            *({"# why": why, "name": variable, "value": value} for variable, (value, why) in given.items()),
        ],
        "resources": {"limits": _devices(writing, per_host, fabric)},
        "securityContext": {"# why": "memory that network cards read is locked", "capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [{"name": "launch", "mountPath": "/launch"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    taints = (GPU_RESOURCE[cluster.gpu.vendor], *([EFA_RESOURCE] if _is(fabric, "efa") else []))
    why = "data loaders and processes of a node share it; Kubernetes gives 64 MiB"
    memory = {"medium": "Memory", "sizeLimit": SHARED_MEMORY}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        **_where(cluster, fabric, name),
        "tolerations": [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in taints],
        "containers": [container],
        "volumes": [
            {"name": "launch", "configMap": {"name": name}}, {"# why": why, "name": "shm", "emptyDir": memory},
        ],
    }  # fmt: skip
    job = {"parallelism": nodes, "completions": nodes, "backoffLimit": 0, "template": {"spec": pod}}
    spec = {
        "# why": "one pod that fails ends the job",
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
    }
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}}
    head = comment(f"kubectl create configmap {name} --from-file=. && kubectl apply -f jobset.yaml")
    return f"{head}\n{yaml_text({**kind, 'spec': spec})}"


def _open(program: Program) -> Environment:
    """Return the variables that a script cannot go without, and what they are: `${TRAIN_FILE:?a text file}`."""
    words = " ".join(word for line in program.arguments for word in line if isinstance(word, Expansion))
    code = {CODE_DIR: f"folder of the image that has {program.file}"} if program.file else {}
    needed = code | dict(re.findall(r"\$\{(\w+):\?([^}]*)\}", words))
    return {variable: ("", f"{what}: to be filled in") for variable, what in needed.items()}


def _is(fabric: LevelSpec | None, *names: str) -> bool:
    return fabric is not None and fabric.fabric in names


def _devices(writing: Writing, per_host: int, fabric: LevelSpec | None) -> dict[str, Any]:
    """Return what a pod takes of its machine: GPUs, network cards, memory."""
    cluster = writing.spec.cluster
    found: dict[str, Any] = {GPU_RESOURCE[cluster.gpu.vendor]: str(per_host)}
    if _is(fabric, "efa"):
        assert fabric is not None
        whole = load_cluster(str(writing.asked("cluster"))).host_gpus  # of a machine, of which the job may take a part
        every = max(1, round(fabric.nics_per_gpu * whole))
        # where several GPUs share a card, one for each GPU while they last
        cards = min(every, max(per_host, round(fabric.nics_per_gpu * per_host)))
        found |= {"# EFA": "all that belong to these GPUs", EFA_RESOURCE: str(cards)}
        found |= {"# huge pages": "buffers of libfabric's EFA provider", "hugepages-2Mi": HUGE_PAGES}
    elif _is(fabric, "infiniband", "roce"):
        found |= {"# RDMA": "as your RDMA device plugin calls its shared devices", RDMA_RESOURCE: "1"}
    if cluster.host is not None:
        found["memory"] = f"{int(cluster.host.memory_bytes * POD_MEMORY / GIB)}Gi"
    return found


def _where(cluster: ClusterSpec, fabric: LevelSpec | None, name: str) -> dict[str, Any]:
    """Return where pods may run: on AWS in one zone, on instances of the preset's type."""
    found: dict[str, Any] = {}
    if _is(fabric, "roce", "ethernet"):
        found |= {"# network": "the cards belong to the host", "hostNetwork": True}
        found["dnsPolicy"] = "ClusterFirstWithHostNet"
    if _is(fabric, "efa", "eni"):
        alike = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}}
        term = {"labelSelector": alike, "topologyKey": "topology.kubernetes.io/zone"}
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        found |= {"# zone": "EFA does not leave an availability zone", "affinity": affinity}
    instance = next((one for one in cluster.aliases if re.fullmatch(r"[a-z]+\d[a-z0-9]*\.\d*xlarge", one)), None)
    if instance is not None:
        found["nodeSelector"] = {"node.kubernetes.io/instance-type": instance}
    return found
