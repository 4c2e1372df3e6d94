"""The process of the `gpuscale` command, which is also `python -m gpuscale`: set up, run, end."""

import gc
import os
import sys

gc.disable()  # a short process: arrays are freed by their counts, and collecting while modules load costs a tenth
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy would start a thread per core for matrix products
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # it would look for some in every installed package


def main() -> None:
    """Run the command line in a process of its own, and end the process with its exit code."""
    from gpuscale.cli import run  # noqa: PLC0415 - what it imports starts after the settings above

    code = run()
    gc.freeze()  # the interpreter would first look through every object once more
    sys.exit(code)


if __name__ == "__main__":
    main()
