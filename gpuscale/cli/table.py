"""Every command by name: what help says of it, and the function that answers, whose module is loaded when called."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A command."""

    name: str  #: one word or two.
    home: str  #: module of `gpuscale.cli` and function.
    line: str  #: what it is for.
    grouped: bool = False  #: the first of its two words is a group, not a command.
    takes_flags: bool = False  #: its arguments may be quoted strings of flags.


COMMANDS = (
    Entry("plan", "jobs:plan", "Find the best layouts of a training job."),
    Entry("estimate", "jobs:estimate", "Evaluate one layout in seconds and GiB."),
    Entry("explain", "explain:explain", "Explain one plan: time and memory as trees."),
    Entry("compare", "explain:compare", "Compare two plans: where the difference comes from.", takes_flags=True),
    Entry("train-time", "training:train_time", "Say what a whole training takes."),
    Entry("fleet", "fleets:fleet", "Compare ways to use a cluster of unlike nodes."),
    Entry("batch-size", "scaling:batch_size", "Say which batch to train with."),
    Entry("size", "scaling:size", "Say which model, or how many GPUs."),
    Entry("check", "gate:check", "Say whether a job may launch: a gate for CI."),
    Entry("export", "jobs:export", "Write what a framework launches for a plan."),
    Entry("memory", "questions:memory", "Show what fills a GPU, and what would fill it less."),
    Entry("advise", "questions:advise", "Say what to see to before a launch."),
    Entry("goodput", "reliability:goodput", "Say how often to checkpoint, and what failures cost."),
    Entry("stragglers", "reliability:stragglers", "Say what slow GPUs, nodes and links cost."),
    Entry("sweep", "studies:sweep", "Answer all questions of a study; resumes where it stopped."),
    Entry("sweep show", "studies:show", "Show the results of a study."),
    Entry("placement", "jobs:placement", "Place ranks and groups on nodes and rails."),
    Entry("schedule", "schedule:schedule", "Draw the pipeline of a plan, slot by slot."),
    Entry("collective", "collectives:collective", "Evaluate one collective operation."),
    Entry("roofline", "collectives:roofline", "Show from where on compute binds."),
    Entry("validate", "measurements:validate", "Hold predictions against measured runs."),
    Entry("doctor", "machine:doctor", "Show what there is on this machine to plan with."),
    Entry("skill", "machine:skill", "Print a skill for coding agents."),
    Entry("bench", "jobs:bench", "Measure how fast plans are found here."),
    Entry("calibrate nccl", "measurements:calibrate_nccl", "Fit a cluster's collectives to logs of nccl-tests.", True),
    Entry("calibrate gpu", "gpu:calibrate_gpu", "Measure a GPU's kernels, and fit its constants to them.", True),
    Entry("calibrate run", "measurements:calibrate_run", "Fit predictions to your training runs.", True),
    Entry("models list", "presets:list_models", "List the models that can be planned by name.", True),
    Entry("models show", "presets:show_model", "Show one model: shape, parameters, FLOPs per token.", True),
    Entry("hardware list", "presets:list_hardware", "List the GPUs: dense TFLOP/s, memory, links.", True),
    Entry("hardware show", "presets:show_hardware", "Show one GPU, with the source of every number.", True),
    Entry("clusters list", "presets:list_clusters", "List the clusters: GPUs, levels, bandwidth per GPU.", True),
    Entry("clusters show", "presets:show_cluster", "Show one cluster, level by level.", True),
    Entry("clusters import", "presets:import_cluster_files", "Make a cluster file of what other tools say.", True),
    Entry("frameworks list", "presets:list_frameworks", "List the framework profiles.", True),
    Entry("frameworks show", "presets:show_framework", "Show one profile: settings, sources, rules.", True),
)

GROUPS = (
    ("calibrate", "Fit a cluster to your own measurements.", "Fit predictions to your own measurements."),
    ("models", "List and show models.", "List and show models: shape, parameters, FLOPs per token."),
    ("hardware", "List and show GPUs.", "List the GPUs, or show one with the source of every number."),
    ("clusters", "List, show and import clusters.", "List the clusters, show one level by level, or import one."),
    ("frameworks", "List and show framework profiles.", "List and show frameworks: how a step runs, and what can run."),
)
"""First words of names that are no command: what all commands' help says of it, and its own."""
