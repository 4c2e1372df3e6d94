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
    "Find a plan, and look into it": (
        Entry("plan", "jobs:plan", "Find the best layouts of a training job."),
        Entry("estimate", "jobs:estimate", "Evaluate one layout in seconds and GiB."),
        Entry("explain", "explain:explain", "Explain one plan: time and memory as trees."),
        Entry("explain checklist", "questions:advise", "Say what to see to before a launch."),
        Entry("compare", "explain:compare", "Compare two plans: where the difference comes from.", takes_flags=True),
        Entry("memory", "questions:memory", "Show what fills a GPU, and what would fill it less."),
        Entry("schedule", "schedule:schedule", "Draw the pipeline of a plan, slot by slot."),
        Entry("placement", "jobs:placement", "Place ranks and groups on nodes and rails."),
    ),
    "Launch it": (
        Entry("check", "gate:check", "Say whether a job may launch: a gate for CI."),
        Entry("export", "jobs:export", "Write what a framework launches for a plan."),
    ),
    "Plan a whole training": (
        Entry("train-time", "training:train_time", "Say what a whole training takes."),
        Entry("size", "scaling:size", "Say which model, or how many GPUs."),
        Entry("size batch", "scaling:batch_size", "Say which batch to train with."),
        Entry("fleet", "fleets:fleet", "Compare ways to use a cluster of unlike nodes."),
        Entry("reliability", "reliability:goodput", "Say how often to checkpoint, and what failures cost."),
        Entry("reliability stragglers", "reliability:stragglers", "Say what slow GPUs, nodes and links cost."),
    ),
    "Ask about parts, or thousands of questions": (
        Entry("collective", "collectives:collective", "Evaluate one collective operation."),
        Entry("roofline", "collectives:roofline", "Show from where on compute binds."),
        Entry("sweep", "studies:sweep", "Answer all questions of a study; resumes where it stopped."),
        Entry("sweep show", "studies:show", "Show the results of a study."),
    ),
    "Know what the numbers rest on": (
        Entry("validate", "measurements:validate", "Hold predictions against measured runs."),
        Entry(
            "calibrate nccl", "measurements:calibrate_nccl", "Fit a cluster's collectives to logs of nccl-tests.", True
        ),
        Entry("calibrate gpu", "gpu:calibrate_gpu", "Measure a GPU's kernels, and fit its constants to them.", True),
        Entry("calibrate run", "measurements:calibrate_run", "Fit predictions to your training runs.", True),
        Entry(
            "calibrate topology", "presets:import_cluster_files", "Make a cluster file of what other tools say.", True
        ),
        Entry("show models", "presets:models", "List the models, or show one: shape, parameters, FLOPs.", True),
        Entry("show hardware", "presets:hardware", "List the GPUs, or show one, with sources.", True),
        Entry("show clusters", "presets:clusters", "List the clusters, or show one, level by level.", True),
        Entry("show frameworks", "presets:frameworks", "List the framework profiles, or show one.", True),
        Entry("show skill", "machine:skill", "Print a skill for coding agents.", True),
        Entry("doctor", "machine:doctor", "Show what there is on this machine to plan with."),
    ),
}
"""What one comes for -> its commands."""

COMMON = {
    "model", "gpus", "cluster", "framework", "precision", "seq", "gbs", "launch_files", "tp", "pp", "ep", "zero",
    "micro_batch_size", "recompute", "top", "why", "train_tokens", "days", "spares", "output", "html", "json",
}  # fmt: skip
"""Options that most people need: of a command with many, `--help` lists these alone."""

MANY = 30
"""Options from which on a command has many."""

HIDDEN = (Entry("bench", "jobs:bench", "Measure how fast plans are found here."),)
"""Commands that help does not list."""

COMMANDS = (*(entry for entries in JOBS.values() for entry in entries), *HIDDEN)

GROUPS = (
    ("calibrate", "Fit to your own measurements.", "Fit predictions to your own measurements."),
    ("show", "List and show what is known.", "List what is known, or show one with the source of every number."),
)
"""First words of names that are no command: what all commands' help says of it, and its own."""

ALIASES = {
    "goodput": "reliability", "stragglers": "reliability stragglers", "batch-size": "size batch",
    "advise": "explain checklist", "skill": "show skill", "clusters import": "calibrate topology",
    **{f"{kind}{verb}": f"show {kind}" for kind in ("models", "hardware", "clusters", "frameworks")
       for verb in ("", " list", " show")},
}  # fmt: skip
"""Names that commands had before, which go on for one release -> their names."""
