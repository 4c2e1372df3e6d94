"""The process of the `gpuscale` command, which is also `python -m gpuscale`: set up, run, end."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

POSTPONED = frozenset({
    "ctypes",  # NumPy, for arrays shared with C
    "importlib.metadata._adapters",  # pydantic, for its plugins: all of email
    "numpy._core._add_newdocs",  # texts for help()
    "numpy._core._add_newdocs_scalars",
    "secrets",  # pydantic, to compare passwords: all of hashlib
})  # fmt: skip
"""Modules that the libraries import, that take long, and that no command uses."""


class Postponing:
    """Finds the modules of `POSTPONED`, to be loaded when something of them is first used."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return what imports a module, None where it is none of these."""
        spec = PathFinder.find_spec(name, path, target) if name in POSTPONED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def main() -> None:
    """Run the command line in a process of its own, and end the process with its exit code."""
    sys.meta_path.insert(0, Postponing)
    gc.disable()  # a short process: arrays are freed by their counts, and collecting while modules load costs a tenth
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start a thread per core for matrix products
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # it would look for some in every installed package
    from gpuscale.cli import run  # noqa: PLC0415 - what it imports starts after the settings above

    code = run()
    if sys.getprofile() or sys.gettrace():  # a profiler reports when the interpreter ends
        sys.exit(code)
    os._exit(code)  # what was printed is flushed; the interpreter would first free every object one by one


if __name__ == "__main__":
    main()
