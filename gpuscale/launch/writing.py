"""The frameworks whose launch files are read and written, and a plan on its way into them: what it has to express,
what it cannot, and what a cluster needs beside their files (environment of NCCL, Slurm script, JobSet, hostfile).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gpuscale.choices import AXES
from gpuscale.launch.quoting import Expansion, comment, yaml_text
from gpuscale.launch.settings import Reading, Source
from gpuscale.layouts.space import divisors
from gpuscale.placement.groups import parse_order
from gpuscale.planning.jobs import Job
from gpuscale.planning.placement import Placement, degrees_of, host_names, place_order
from gpuscale.presets.files import known_table
from gpuscale.presets.hardware import load_cluster
from gpuscale.request import Layout, declared, overlap_name, overlap_of, read
from gpuscale.results import PlanRow
from gpuscale.rules.rule import Option
from gpuscale.specs.cluster import ClusterSpec, LevelSpec
from gpuscale.specs.job import JobSpec
from gpuscale.specs.model import ModelSpec
from gpuscale.units import GIB


@dataclass(frozen=True)
class LaunchFile:
    """A file of an export."""

    path: str  #: relative to the folder of the export
    text: str  #: what it holds


@dataclass(frozen=True)
class Program:
    """What a target runs on every node."""

    script: str  #: what torchrun (or the target's own launcher) starts: `pretrain_gpt.py`, `-m torchtitan.train`.
    arguments: tuple[tuple[str, ...], ...] = ()  #: its options, each with its values: one line of a script each.
    files: tuple[LaunchFile, ...] = ()  #: configuration files that it reads.
    #: variable -> its value and the reason for it.
    environment: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: what starts it: `torchrun`, `deepspeed` or `accelerate`; None where the target's file is all.
    launcher: str | None = "torchrun"
    installed: bool = False  #: whether its script is a command that comes with its package.

    @property
    def file(self) -> str:
        """The script where it is a file of the framework's repository, which need not be where the export is."""
        return "" if self.installed or self.script.startswith("-") else self.script.partition(" ")[0]


class Writing:
    """A plan on its way into a target's files.

    A target asks for what it needs, refuses what it cannot express and warns of what a user has to see to.

    Attributes:
        job: the job as it was built; `job.spec` has the physics, `job.request` the options in full.
        layout: every value of `Layout`, none of them None.
        plan: the plan with its predictions.
        refused: option -> why the target cannot express its value, with the rule of the target.
        warnings: what a user has to see to.
        left: what the files do not set, and is named in the script.
    """

    def __init__(self, job: Job, plan: PlanRow) -> None:
        self.job, self.plan = job, plan
        stated = {**plan.to_dict(), "shard": plan.shard_size}
        stated["schedule"] = {"none": "1f1b", "interleaved": "1f1b"}.get(plan.schedule, plan.schedule)
        self.layout = read(Layout, {name: stated[name] for name in declared(Layout)})
        self.refused: dict[str, str] = {}
        self.warnings: list[str] = []
        self.left: list[str] = []

    @property
    def spec(self) -> JobSpec:
        """The job in SI units."""
        return self.job.spec

    @property
    def model(self) -> ModelSpec:
        """The model that is trained."""
        return self.job.spec.model

    def asked(self, name: str) -> Any:
        """Return an option of the job; None where it is as the framework has it."""
        return self.job.request.get(name)

    def value(self, name: str) -> Any:
        """Return an option of the job or of the layout, or after `model.` a key of a model file, as the plan has it."""
        spec, layout, model = self.spec, self.layout, self.spec.model
        attention = model.attentions[0] if model.attentions else None
        block = model.kinds[0].mlp or model.kinds[0].moe
        own = {
            "seq": spec.sequence, "gbs": spec.global_batch_size, "precision": spec.precision,
            "vocab_multiple": spec.vocab_multiple, "axis_order": "-".join(spec.axis_order),
            "overlap": overlap_name(overlap_of(spec.runtime)), "recompute": layout.recompute.partition(":")[0],
            "model.layers": model.layers, "model.hidden": model.hidden, "model.vocab": model.vocab,
            "model.ffn": block and block.ffn, "model.sequence": model.max_sequence,
            "model.heads": attention and attention.heads, "model.kv_heads": attention and attention.kv_heads,
            "model.tied_embeddings": model.tied_embeddings,
        }  # fmt: skip
        held = next((one for one in (layout, spec.runtime) if hasattr(one, name)), None)
        return own[name] if name in own else self.asked(name) if held is None else getattr(held, name)

    def told(self, table: Iterable[Option], worked_out: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a framework's table for the plan; what cannot be told is refused.

        Args:
            worked_out: values by option, or by setting where a row has no option.
        """
        found: dict[str, Any] = {}
        for row in table:
            unasked = row.words is not None and None in row.words  # whatever it runs, nobody may have asked for it
            if (row.ours or row.name) in worked_out:
                value = worked_out[row.ours or row.name]
            else:
                value = self.asked(row.ours) if unasked else self.value(row.ours)
            if row.words is not None and value not in row.words:
                self.refuse(row.ours, row.why if row.name else f"{row.why} ({row.ours} = {value})")
            elif row.name:
                found[row.name] = value if row.words is None else row.words[value]
        return found

    def refuse(self, name: str, why: str) -> None:
        """Say that the target cannot express an option of the plan."""
        self.refused.setdefault(name, why)

    def warn(self, text: str) -> None:
        """Say what a user has to see to."""
        if text not in self.warnings:
            self.warnings.append(text)

    def leave(self, text: str) -> None:
        """Say in the script what it does not set."""
        if text not in self.left:
            self.left.append(text)


def section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of a section by their names in it."""
    own = ((key.removeprefix(f"{name}."), value) for key, value in settings.items() if key.startswith(f"{name}."))
    return {key: value for key, value in own if "." not in key}


class Target(NamedTuple):
    """A framework and its launch files."""

    name: str  #: as users give it.
    title: str  #: name for people.
    basis: str  #: the release or commit whose options are written, with its date.
    frameworks: tuple[str, ...]  #: presets of frameworks whose plans it runs; the first is taken where none is given.
    write: Callable[[Writing], Program] | None  #: makes the program of a plan; None for what is only read.
    claims: Callable[[Source], bool]  #: whether a source is one of this framework's.
    read: Callable[[Reading], None]  #: reads the sources that are claimed.
    attention: Mapping[str, str] = {}  #: `attention` -> its own word; what is not there, no setting of it says.
    adapters: bool = False  #: whether its files can say that adapters are trained, and what is frozen beside them.
    #: whether each export is read again, and refused where it runs something else than the plan.
    reads_again: bool = False


def targets() -> dict[str, Target]:
    """Return every target by name, in the order in which they are asked whether a source is theirs."""
    from gpuscale.launch import (  # noqa: PLC0415 - most need none
        huggingface,
        megatron_family,
        nanotron,
        olmo_core,
        others,
        posttraining,
        tabled,
        torchtitan,
        torchtune,
        xtuner,
    )  # fmt: skip

    found = [
        *tabled.tabled_targets(),
        *megatron_family.TARGETS,
        torchtitan.TARGET,
        nanotron.TARGET,
        olmo_core.TARGET,
        xtuner.TARGET,
        *others.TARGETS,
        *posttraining.TARGETS,
        torchtune.TARGET,
        *huggingface.TARGETS,
    ]
    return {target.name: target for target in found}


IN_PYTHON = ("megatron-bridge", "nemo", "torchtitan", "nanotron", "olmo-core", "xtuner")
"""Targets that read Python files."""


def configured_in(source: Source) -> bool:
    """Whether what a Python file configures is known to a target that reads such."""
    known = targets()
    return any(known[name].claims(source) for name in (*IN_PYTHON, "accelerate"))


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
