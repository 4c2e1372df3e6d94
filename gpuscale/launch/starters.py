"""Programs that start others: how each calls what it counts, and where the command stands that it starts.

What each of them has stands with its sources in `presets/known/starters.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscale.presets.files import known_table

_KNOWN = known_table("starters")

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
AS_TORCHRUN, PROGRAMS, QUIET = _KNOWN["as_torchrun"], _KNOWN["programs"], _KNOWN["quiet"]
LAUNCHERS = [*_KNOWN["launchers"], *AS_TORCHRUN]
NOTHING, QUESTIONS = [*QUIET, *_KNOWN["nothing"]], _KNOWN["questions"]
MODULES: Mapping[str, str] = _KNOWN["modules"]
FILE_TOOLS = frozenset(_KNOWN["file_tools"])
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
    #: what it starts stands behind `--`, whatever its options take.
    dashes: bool = False


STARTERS = {name: Starter(**row) for name, row in _KNOWN["starters"].items()}
STARTERS |= dict.fromkeys(_KNOWN["as_mpirun"], STARTERS["mpirun"])

HOST_OPTIONS, SWITCHES = _KNOWN["host_options"], _KNOWN["switches"]

SCHEDULED = re.compile(r"^[ \t]*#(SBATCH|BSUB|PBS|PJM|FLUX:|flux:|\$|COBALT|OAR)[ \t]+(.*)$", re.MULTILINE)
"""A line that gives options of a scheduler."""

REQUESTS: Mapping[str, list[str]] = _KNOWN["requests"]


def starter(name: str) -> Starter:
    """Return what is known of a launcher by the name of its program."""
    return STARTERS.get(name) or (STARTERS["mpirun"] if name.startswith(("mpi", "orte")) else Starter())
