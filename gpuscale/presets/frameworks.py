"""Framework profiles: how a training framework runs a step, as documented facts with sources."""

from functools import cache
from typing import Any

from gpuscale.presets.files import named_preset, preset_names, read_toml
from gpuscale.presets.tables import Table, made
from gpuscale.specs.job import FrameworkSpec, MemoryProfile, RuntimeSpec, SpaceSpec, StateBytes

MEMORY, SPACE = Table(MemoryProfile), Table(SpaceSpec)
PROFILE = Table(
    FrameworkSpec,
    RuntimeSpec,
    StateBytes,
    without=("name", "weight", "master", "moments"),
    required=("gradient",),
    inner={"memory": MEMORY, "space": SPACE},
    memory=(dict[str, Any], ...),
    space=(dict[str, Any], {}),
    sources=(dict[str, str], ...),
)


def framework_file(name: str) -> dict[str, Any]:
    """Return every setting of a profile, by name or alias, as its file has it; left-out ones with their defaults.

    Raises:
        InputError: unknown name, or an unusable file.
    """
    document = read_toml(named_preset("frameworks", name))
    tables = {"space": SPACE.shown(document, ("space",)), "memory": MEMORY.shown(document, ("memory",))}
    return {**PROFILE.shown(document), **tables}


def all_framework_files() -> dict[str, dict[str, Any]]:
    """Return every profile by name, in alphabetical order."""
    return {name: framework_file(name) for name in preset_names("frameworks")}


@cache
def load_framework(name: str) -> FrameworkSpec:
    """Return a profile by name or alias, ready for a job.

    Raises:
        InputError: unknown name, or an unusable file.
    """
    path = named_preset("frameworks", name)
    document = read_toml(path)
    stated = PROFILE.read(document)
    memory = MemoryProfile(**MEMORY.read(document, ("memory",)))
    return made(
        FrameworkSpec,
        stated,
        name=path.stem,
        runtime=made(RuntimeSpec, stated, name=path.stem, memory=memory),
        states=made(StateBytes, stated),
        space=SpaceSpec(**SPACE.read(document, ("space",))),
    )
