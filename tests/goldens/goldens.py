"""Golden outputs of the `gpuscale` command line: what a refactoring must not change.

    python goldens.py record [--root DIR] [--only TEXT]     store what the code in DIR answers
    python goldens.py check  [--root DIR] [--only TEXT]     compare with what is stored; exit code 1 on any difference

`commands.txt` holds one case per line: one command, or several joined by ` ; `. Each case runs in a fresh folder with
a copy of `data` and an empty folder `out`; files left in `out` are part of the answer. `{shared}` stands for the folder
`shared` in DIR or beside one of its parents; cases that name it are skipped where there is none.

Numbers agree to 1e-9; JSON, TOML and CSV may gain keys but lose none; the time that a search took is ignored. A
changed message (stderr, tables, sentences in JSON) is counted apart, and listed and failed only with `--messages`.
Nothing of gpuscale is used but `gpuscale.cli.run`, and with `--subprocess` only `python -m gpuscale`.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDENS = HERE / "goldens.json"
ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "GPUSCALE_PRESETS": "", "XDG_CONFIG_HOME": os.devnull}
ELAPSED = re.compile(r"(?<=; )[0-9.]+ s$", re.MULTILINE)  # how a table says the time of the search


def in_process(arguments):
    """Exit code, stdout and stderr of one command, run inside this process."""
    from gpuscale.cli import run  # noqa: PLC0415 - that of --root

    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["gpuscale", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a crash is one more difference: go on with the other cases
            code = f"crash: {error!r}"
    return code, out.getvalue(), err.getvalue()


def in_subprocess(arguments):
    """The same from a process of its own, which finds the package by PYTHONPATH."""
    done = subprocess.run([sys.executable, "-m", "gpuscale", *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def parsed(text, kind):
    """An output as values: JSON, TOML or CSV; other text by lines, without the time of the search."""
    if text.startswith("{"):
        return json.loads(text, object_hook=lambda table: {k: v for k, v in table.items() if k != "elapsed_s"})
    if kind == ".toml":
        return json.loads(json.dumps(tomllib.loads(text), default=str))
    if kind == ".csv":
        return list(csv.DictReader(io.StringIO(text)))
    return ELAPSED.sub("ELAPSED", text).splitlines()


def answers_of(case, command, shared):
    """What each command of a case says, then the files they leave."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shutil.copytree(HERE / "data", ".", dirs_exist_ok=True)
        Path("out").mkdir()
        if shared:
            Path("shared").symlink_to(shared)
        steps = []
        for line in case.split(" ; "):
            arguments = shlex.split(line.replace("{shared}", "shared"))
            code, *texts = command(arguments)
            out, err = (text.replace(folder + "/", "").replace(folder, ".") for text in texts)
            kind = ".csv" if "--csv" in arguments else ".toml" if arguments[:2] == ["clusters", "import"] else ""
            out, err = ("", out + err) if "--help" in arguments else (out, err)
            steps.append({"code": code, "out": parsed(out, "" if code else kind)})
            if "--json" not in arguments or code:
                steps[-1]["err"] = err.splitlines()
        files = {path.name: parsed(path.read_text(), path.suffix) for path in sorted(Path("out").iterdir())}
    return [*steps, files] if files else steps


def same(old, new):
    """Whether two values agree; numbers, those in text too, to 1e-9."""
    if bool not in {type(old), type(new)} and isinstance(old, str) == isinstance(new, str):
        with contextlib.suppress(TypeError, ValueError):
            one, other = float(old), float(new)
            return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return type(old) is type(new) and old == new


def differences(old, new, place=""):
    """Every place where `new` is not what `old` was, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        yield from (f"{place}.{key}: missing, was {value!r:.200}" for key, value in old.items() if key not in new)
        for key in (key for key in old if key in new):
            yield from differences(old[key], new[key], f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{place}: {len(new)} items, were {len(old)}"
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, f"{place}[{index}]")
    elif not same(old, new):
        prose = isinstance(old, str) and isinstance(new, str) and " " in old
        yield f"{place}{'~' * prose}: {new!r:.200}, was {old!r:.200}"


def main():
    """Record or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the folder that holds the package gpuscale")
    parser.add_argument("--only", default="", help="the cases that contain this text")
    parser.add_argument("--messages", action="store_true", help="fail on changed messages too")
    parser.add_argument("--subprocess", action="store_true", help="a process for every command")
    flags = parser.parse_args()
    root = (flags.root / "gpuscale").resolve(strict=True).parent
    os.environ.update(ENVIRONMENT, PYTHONPATH=str(root))
    sys.path.insert(0, str(root))
    shared = next((up / "shared" for up in (root, *root.parents) if (up / "shared" / "formats").is_dir()), None)
    command = in_subprocess if flags.subprocess else in_process
    cases = [line for line in (HERE / "commands.txt").read_text().splitlines() if line and not line.startswith("#")]
    wanted = [case for case in cases if flags.only in case]
    chosen = [case for case in wanted if shared or "{shared}" not in case]
    stored = json.loads(GOLDENS.read_text()) if GOLDENS.exists() else {}
    answers = {case: answers_of(case, command, shared) for case in chosen}
    if flags.action == "record":
        stored |= answers
        lines = (json.dumps({case: stored[case]}, separators=(",", ":"))[1:-1] for case in cases if case in stored)
        GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    failed = messages = 0
    for case, new in answers.items():
        found = list(differences(stored[case], new)) if case in stored else ["no golden: record it"]
        said = [text for text in found if re.match(r"\[\d+\]\.(err\b|out(\[\d+\])?~?: |[\w.\[\]]+~: )", text)]
        failed += len(found) > len(said) or (flags.messages and bool(said))
        messages += bool(said)
        shown = found if flags.messages else [text for text in found if text not in said]
        if shown:
            lines = [f"    {'message changed: ' if text in said else ''}{text}" for text in shown]
            print(f"gpuscale {case}", *lines[:12], *(["    ..."] if len(lines) > 12 else []), sep="\n")
    print(f"{len(chosen)} of {len(wanted)} cases ran: {failed} differ, {messages} with changed messages")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
