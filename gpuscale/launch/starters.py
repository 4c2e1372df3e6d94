"""Programs that start others: how each calls what it counts, and where the command stands that it starts.

Sources: the manual pages of Slurm 24.05 (srun, sbatch), Open MPI 5, MPICH and PALS (mpiexec), IBM Job Step Manager
(jsrun), Cray ALPS (aprun), flux-core 0.60 (flux-run), LSF 10.1 (bsub), OpenSSH, pdsh 2.34; NVIDIA Base Command 2.x
(`bcprun --help`, `ngc batch run`); xpk 0.6; Ray 2.9 (`ray job submit`); open-instruct's mason.py, which multiplies the
processes of `accelerate launch` by its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "accelerate-launch", "ft_launcher", "colossalai", "composer")
MODULES = {
    "torch.distributed.launch": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.elastic": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "composer": "composer",
}
PROGRAMS = (
    "axolotl", "xtuner", "llamafactory-cli", "flagscale", "megatron", "swift", "tune", "primus-cli", "arctic_training",
    "nemo", "nemorun", "mcli", "deepspeed.exe",
)  # fmt: skip
"""Programs that have no `.py` in their name."""

FILE_TOOLS = frozenset((
    "sed", "awk", "grep", "cat", "cp", "mv", "rm", "ls", "mkdir", "touch", "chmod", "head", "tail", "tee", "diff",
    "find", "rsync", "scp", "tar", "unzip", "wget", "curl", "git", "pip", "pip3", "vi", "vim", "nano", "echo", "printf",
))  # fmt: skip
"""Programs that may name scripts and start none of them."""

SCRIPT_ENDS = (".sh", ".slurm", ".sbatch", ".bash", ".pbs", ".lsf", ".job")


@dataclass(frozen=True)
class Starter:
    """How a program that starts others is called."""

    #: its options, without dashes, by the name under which `gpuscale.launch.launchers` counts.
    counts: Mapping[str, str] = field(default_factory=dict)
    #: options whose value is the command that it starts, in one text.
    text: tuple[str, ...] = ()
    #: subcommands that start something, the first words of each; empty: it has none.
    words: tuple[str, ...] = ()
    #: the words after its options are a script for a shell of its own, not a program.
    script: bool = False
    #: names between its subcommand and its options.
    names: int = 0
    #: options with a value of which others have switches: queues, limits.
    valued: tuple[str, ...] = ()
    #: the words after its options are a text for a shell on another host, behind so many words.
    remote: int | None = None


_SLURM = {
    "N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus_per_task", "C": "constraint", "p": "partition",
}  # fmt: skip
_MPI = Starter(
    {
        "np": "n", "c": "n", "npernode": "ntasks_per_node", "ppn": "ntasks_per_node", "perhost": "ntasks_per_node",
        "N": "ntasks_per_node",
    }
)  # fmt: skip

STARTERS: Mapping[str, Starter] = {
    "srun": Starter(_SLURM),
    "sbatch": Starter(_SLURM, text=("wrap",), script=True, valued=("q",)),
    "salloc": Starter(_SLURM, script=True),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), _MPI),
    "jsrun": Starter(
        {
            "n": "resource_sets", "nrs": "resource_sets", "a": "tasks_per_rs", "g": "gpu_per_rs", "r": "rs_per_host",
            "c": "cpu_per_rs", "p": "ntasks", "np": "ntasks",
        }
    ),
    "aprun": Starter({"n": "n", "N": "ntasks_per_node", "d": "cpus_per_task"}),
    "flux": Starter(
        {"N": "nodes", "n": "ntasks", "g": "gpus_per_task", "c": "cpus_per_task", "tasks_per_node": "ntasks_per_node"},
        words=("run", "submit", "batch", "alloc", "mini run", "mini submit", "mini batch", "mini alloc"),
    ),
    "bsub": Starter({"nnodes": "nodes"}, script=True, valued=("q", "W", "u")),
    "qsub": Starter(script=True, valued=("q", "W", "l")),
    "bcprun": Starter(
        {"n": "nodes", "nnodes": "nodes", "p": "ntasks_per_node", "npernode": "ntasks_per_node"}, text=("c", "cmd")
    ),
    "ngc": Starter(
        {"replicas": "nodes", "ace_instance": "instance"}, text=("commandline",),
        words=("batch run", "base-command job run"),
    ),
    "xpk": Starter({"num_nodes": "nodes"}, text=("command",), words=("workload create", "workload create-pathways")),
    "gcloud": Starter(
        text=("command",), words=("compute tpus tpu-vm ssh", "alpha compute tpus tpu-vm ssh", "compute ssh"), names=1
    ),
    "composer": Starter({"n": "nproc_per_node", "nproc": "nproc_per_node"}),
    "ray": Starter(words=("job submit",)),
    "mason.py": Starter({"num_nodes": "replicas", "gpus": "gpus_per_node"}),
    "ssh": Starter(remote=1),
    "pdsh": Starter(remote=0),
    "clush": Starter(remote=0),
    "parallel-ssh": Starter(remote=0),
}  # fmt: skip

HOST_OPTIONS = ("o", "p", "i", "l", "F", "J", "w", "R", "f", "t", "u", "x", "h", "host", "H", "b", "L", "D")
"""Options of ssh, pdsh and clush that take a value."""

SWITCHES = (
    "standalone", "no_python", "m", "module", "use_env", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi",
    "multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu", "debug", "quiet", "q",
    "use_parallelism_config", "same_network", "label", "l", "u", "unbuffered", "exclusive", "overlap", "O", "K", "k",
    "run_path", "no_container_mount_home", "no_container_entrypoint", "no_kill", "pty", "allow_run_as_root",
    "oversubscribe",
    "verbose", "v", "report_bindings", "tag_output", "it", "rm", "wait", "parsable", "requeue", "no_requeue",
    "dynamo_use_dynamic",
    "container_remap_root", "container_writable", "mixed", "W", "no_wait", "pernode",
)  # fmt: skip
"""Options of launchers that take no value."""

SCHEDULED = re.compile(r"^[ \t]*#(SBATCH|BSUB|PBS|PJM|FLUX:|flux:|\$|COBALT|OAR)[ \t]+(.*)$", re.MULTILINE)
"""A line that gives options of a scheduler."""

REQUESTS = {
    "PBS": (
        r"select=(?P<nodes>\d+)(?:.*?n?gpus=(?P<gpus_per_node>\d+))?",
        r"nodes=(?P<nodes>\d+)(?:.*?gpus=(?P<gpus_per_node>\d+))?",
    ),
    "BSUB": (r"-nnodes\s+(?P<nodes>\d+)", r"num=(?P<gpus_per_node>\d+)(?!.*/task)"),
    "PJM": (r"node=(?P<nodes>\d+)", r"gpu=(?P<gpus_per_node>\d+)"),
    "COBALT": (r"-n\s*(?P<nodes>\d+)",),
    "OAR": (r"(?:host|nodes)=(?P<nodes>\d+)(?:.*?gpu=(?P<gpus_per_node>\d+))?",),
    "$": (
        r"(?:-l\s+|,)(?:gpu|ngpus)=(?P<gpus_per_node>\d+)",
        r"(?:-l\s+|,)(?P<resource_type>(?:rt|node)_\w+)=(?P<nodes>\d+)",  # ABCI and TSUBAME: nodes of a type
    ),
}
"""Scheduler -> what its lines ask for, where they are no options of the kind that launchers have."""


def starter(name: str) -> Starter:
    """Return what is known of a launcher by the name of its program."""
    return STARTERS.get(name) or (STARTERS["mpirun"] if name.startswith(("mpi", "orte")) else Starter())
