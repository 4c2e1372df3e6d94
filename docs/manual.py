"""Writes gpuscale's manual page and the completions of shells into a folder: python docs/manual.py FOLDER.

The page is made of the declarations of commands and options, the completions are what the installed command prints for
each shell; both are for packages of distributions.
"""

import os
import subprocess
import sys
from pathlib import Path

from gpuscale.cli.main import HIDDEN, JOBS, named
from gpuscale.version import RELEASED, __version__

PAGE = "gpuscale.1"
SHELLS = {"bash": "gpuscale.bash", "zsh": "_gpuscale", "fish": "gpuscale.fish"}
"""Shell -> the file that packages of distributions install for it."""
EXIT_CODES = (
    ("0", "an answer"), ("1", "no answer to a valid question: nothing fits, or a limit is missed"),
    ("2", "unusable input"), ("3", "a defect of gpuscale, or too little memory for it"), ("130", "interrupted"),
)  # fmt: skip
VARIABLES = (
    ("GPUSCALE_PRESETS", "folders of your own presets, which come before those of gpuscale"),
    ("GPUSCALE_DEBUG", "where set, a defect shows its traceback"),
    ("NO_COLOR", "where set, no colours"),
)


def manual() -> str:
    """The manual page, in the macros of man(7): every command, and every option once with the commands that take it."""
    parts = [
        f'.TH GPUSCALE 1 "{RELEASED}" "gpuscale {__version__}" "User Commands"',
        ".SH NAME", "gpuscale \\- plans the parallelism of LLM training",
        ".SH SYNOPSIS", "\\fBgpuscale\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]",
        ".SH DESCRIPTION",
        plain(
            "Ranks every way to split the training of a model over GPUs by predicted step time, within the memory and "
            "the rules of a framework, offline and without a GPU. Data goes to stdout, messages to stderr."
        ),
        ".SH COMMANDS",
    ]  # fmt: skip
    for title, entries in JOBS.items():
        parts.append(f".SS {plain(title)}")
        parts += [item(entry.name, entry.line) for entry in entries if entry not in HIDDEN]
    parts.append(".SH OPTIONS")
    parts += [item(flags, f"{text} ({commands})") for flags, text, commands in options()]
    for title, rows in (("EXIT STATUS", EXIT_CODES), ("ENVIRONMENT", VARIABLES)):
        parts += [f".SH {title}", *(item(*row) for row in rows)]
    return "\n".join(parts) + "\n"


def options() -> list[tuple[str, str, str]]:
    """Flags, help and commands of every option that is shown; one row where several commands share it."""
    found: dict[tuple[str, str], list[str]] = {}
    hidden = {entry.name for entry in HIDDEN}
    for name, command in named().items():
        if name in hidden:
            continue
        for param in command.params:
            if param.param_type_name != "option" or param.hidden:
                continue
            value = "" if param.is_flag else f" {param.metavar or param.name.upper()}"
            flags = ", ".join((*param.opts, *param.secondary_opts)) + value
            found.setdefault((flags, param.help or ""), []).append(name)
    total = len([name for name in named() if name not in hidden])
    return [
        (flags, text, ", ".join(names) if len(names) < total // 2 else f"{len(names)} commands")
        for (flags, text), names in sorted(found.items(), key=lambda one: one[0][0].lstrip("-"))
    ]


def item(name: str, text: str) -> str:
    """A tagged paragraph."""
    return f".TP\n\\fB{plain(name)}\\fR\n{plain(text)}"


def plain(text: str) -> str:
    """Text in which roff sees no command."""
    said = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{said}" if said.startswith((".", "'")) else said


def write(folder: Path) -> None:
    """Write the page, and what the installed command completes in each shell."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(manual(), encoding="utf-8")
    for shell, name in SHELLS.items():
        environment = os.environ | {"_GPUSCALE_COMPLETE": f"source_{shell}"}
        said = subprocess.run(["gpuscale"], env=environment, check=True, capture_output=True, text=True)
        (folder / name).write_text(said.stdout, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/manual.py FOLDER")
    write(Path(sys.argv[1]))
