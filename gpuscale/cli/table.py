"""Every command by name: what help says of it, and the function that answers, whose module is loaded when called."""

from typing import NamedTuple


class Entry(NamedTuple):
    """A command."""

    name: str  #: one word or two.
    home: str  #: module of `gpuscale.cli` and function.
    line: str  #: what it is for.
    grouped: bool = False  #: the first of its two words is a group, not a command.
    takes_flags: bool = False  #: its arguments may be quoted strings of flags.


JOBS = {
    "Find and inspect a plan": (
        Entry("plan", "jobs:plan", "Find the best layouts of a training job."),
        Entry("estimate", "jobs:estimate", "Evaluate one layout: step time and memory."),
        Entry("explain", "explain:explain", "Explain one plan: time and memory as trees."),
        Entry("explain checklist", "questions:advise", "Print the checklist before a launch."),
        Entry("compare", "explain:compare", "Compare two plans: where the difference comes from.", takes_flags=True),
        Entry("memory", "questions:memory", "Break down peak memory, and show what reduces it."),
        Entry("schedule", "schedule:schedule", "Draw the pipeline schedule of a plan."),
        Entry("placement", "jobs:placement", "Map ranks and groups to nodes and rails."),
    ),
    "Launch it": (
        Entry("check", "gate:check", "Check a job before launch: a gate for CI."),
        Entry("export", "jobs:export", "Write the launch files of a plan."),
        Entry("tune", "trials:tune", "Propose the next layout to try, by what was measured so far."),
    ),
    "Plan a whole training run": (
        Entry("train-time", "training:train_time", "Estimate time, cost and energy of a training run."),
        Entry("size", "scaling:size", "Choose a model size, or the number of GPUs."),
        Entry("size batch", "scaling:batch_size", "Choose a batch size."),
        Entry("fleet", "fleets:fleet", "Compare ways to use a heterogeneous cluster."),
        Entry("reliability", "reliability:goodput", "Estimate goodput, and when to checkpoint."),
        Entry("reliability stragglers", "reliability:stragglers", "Estimate what slow GPUs, nodes and links cost."),
    ),
    "Study parts, or thousands of jobs": (
        Entry("collective", "collectives:collective", "Evaluate one collective operation."),
        Entry("roofline", "collectives:roofline", "Show where training becomes compute-bound."),
        Entry("sweep", "studies:sweep", "Run a study; resumes where it stopped."),
        Entry("sweep show", "studies:show", "Show the results of a study."),
    ),
    "Validate, calibrate and look up": (
        Entry("validate", "measurements:validate", "Compare predictions with measured runs."),
        Entry("calibrate nccl", "measurements:calibrate_nccl", "Fit a cluster's collectives to nccl-tests logs.", True),
        Entry("calibrate gpu", "gpu:calibrate_gpu", "Measure a GPU's kernels, and fit its constants.", True),
        Entry("calibrate run", "measurements:calibrate_run", "Fit predictions to your training runs.", True),
        Entry("calibrate topology", "presets:import_cluster_files", "Make a cluster file from what other tools report.",
              True),
        Entry("show models", "presets:models", "List the models, or show one: shape, parameters, FLOPs.", True),
        Entry("show hardware", "presets:hardware", "List the GPUs, or show one, with sources.", True),
        Entry("show clusters", "presets:clusters", "List the clusters, or show one, level by level.", True),
        Entry("show frameworks", "presets:frameworks", "List the framework profiles, or show one.", True),
        Entry("show recipes", "presets:recipes", "List the published recipes, or show one, with its source.", True),
        Entry("show skill", "machine:skill", "Print a skill for coding agents.", True),
        Entry("doctor", "machine:doctor", "Show what this machine offers for planning."),
        Entry("mcp", "agents:mcp", "Serve these commands as tools to coding agents."),
    ),
}  # fmt: skip
"""What one comes for -> its commands."""

COMMON = {
    "model", "gpus", "cluster", "framework", "precision", "seq", "gbs", "launch_files", "tp", "pp", "ep", "zero",
    "micro_batch_size", "recompute", "top", "why", "train_tokens", "days", "spares", "output", "html", "json",
}  # fmt: skip
"""Options that most people need: of a command with many, `--help` lists these alone."""

COMMON_OF = {
    "plan": COMMON - {"tp", "pp", "ep", "zero", "micro_batch_size", "recompute", "train_tokens", "days", "spares"}
}
"""The same of commands where fewer will do: `plan` finds the layout by itself."""

MANY = 30
"""Options from which on a command has many."""

HIDDEN = (Entry("bench", "jobs:bench", "Measure how fast plans are found on this machine."),)
"""Commands that help does not list."""

COMMANDS = (*(entry for entries in JOBS.values() for entry in entries), *HIDDEN)

GROUPS = (
    ("calibrate", "Calibrate to your own measurements.", "Calibrate predictions to your own measurements."),
    ("show", "List models, GPUs, clusters, frameworks and recipes.",
     "List the presets, or show one with the source of every number."),
)  # fmt: skip
"""First words of names that are no command: what all commands' help says of it, and its own."""

ALIASES = {
    "goodput": "reliability", "stragglers": "reliability stragglers", "batch-size": "size batch",
    "advise": "explain checklist", "skill": "show skill", "clusters import": "calibrate topology",
    **{f"{kind}{verb}": f"show {kind}" for kind in ("models", "hardware", "clusters", "frameworks")
       for verb in ("", " list", " show")},
}  # fmt: skip
"""Names that commands had before, which go on for one release -> their names."""
