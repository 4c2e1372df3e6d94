"""Commands of shell scripts as what they launch: launcher, program, its options, its environment."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gpuscale.errors import InputError
from gpuscale.launch.job_files import Started
from gpuscale.launch.settings import Said, Setting, Source, Span
from gpuscale.launch.shell import Shell
from gpuscale.launch.shell_state import REST, State, fields_at, known, mark, split, unset_in
from gpuscale.launch.starters import (
    AS_TORCHRUN,
    FILE_TOOLS,
    HOST_OPTIONS,
    LAUNCHERS,
    MODULES,
    PROGRAMS,
    REQUESTS,
    SCHEDULED,
    SCRIPT_ENDS,
    SHELLS,
    STARTERS,
    SWITCHES,
    Starter,
    starter,
)
from gpuscale.launch.traced import OpenFiles, Traced, joined, untraced

MAX_DEPTH = 20
MAX_ARGUMENTS = 99

LEAST_OPTIONS = 6
"""Options that a script without a command sets, to be read as those of a job."""
ALONE = "no command is here: read are the options that the file sets for one"

ALL_ARGUMENTS = "@"
"""The variable that stands for all arguments of a script: `"dsw 70B"`."""

_OVERRIDE = re.compile(r"[+~]{0,2}@?[A-Za-z_][\w/@-]*(\.[\w/@-]+)*=")
_DOTTED = re.compile(r"[+~]{0,2}[A-Za-z_]\w*(\.[\w-]+)+=")
_SUBCOMMAND = re.compile(r"[a-z][\w-]*:[a-z][\w-]*")
_FLAG = re.compile(r"--?[A-Za-z]")
_ENDS = re.compile(r"\s+--?[A-Za-z]|\s*\\?\r?\n|\s*\\?$|[\"')]|\s+[;&|]")
_OPTIONAL = re.compile(r"(ARGS?|OPTS?|OPTIONS?|FLAGS?|EXTRA\w*|OVERRIDES?|CMD|PREFIX|PARAMS?)$", re.IGNORECASE)
_PYTHON = re.compile(r"(python|pypy)[\d.]*|\$\{?\w*PYTHON\w*\}?", re.IGNORECASE)
"""What starts Python, among it variables that say which: `$PYTHON_BIN`."""
_LAUNCHING = re.compile(
    r"\s*(?:\w+=\S+\s+)*(?:(?:cd|source|export|conda|\.)\s[^\n]*?(?:&&|;)\s*)*(?:torchrun|deepspeed|accelerate|python[\d.]*|srun)\s"
)
"""A text that is a command which launches something."""
_VARIABLE = re.compile(r'"([A-Z][A-Z0-9_]{0,99})" *: *"([^"{}]{0,200})"')
"""A variable in the JSON of an environment."""


class Command(NamedTuple):
    """What a command launches; its line, the files that the script wrote before, the script, and all followed."""

    source: Source
    line: int
    texts: Mapping[str, Traced]
    path: Path
    followed: tuple[Path, ...]
    own_line: int = 0  #: where its words stand, where `line` is that of a call of the function that they are in.


class Commands:
    """Reads scripts for the commands in them.

    Attributes:
        found: what each command launches, with the files that it names.
    """

    def __init__(self, files: OpenFiles, find: Callable[[str, Path], Path | None], given: Mapping[str, str]) -> None:
        self.files, self.find, self.given = files, find, given
        self.shell = Shell(files, find, given, self.command)
        self.launcher: dict[str, Setting] = {}
        self.submitted: dict[str, Setting] = {}  # options of `sbatch`, which outrank those of the script's own lines
        self.found: list[Command] = self.shell.launched
        self.depth = 0

    def script(self, path: Path) -> list[Command]:
        """Return what the commands of a script launch."""
        state = State()
        state.take(given_arguments(self.given))
        with self._bounded(path):
            self._scheduled(self.files.traced(self.files.read(path)), state)
            begin = state.copy()
            self.shell.run_file(path, state)
            if not self.found and self.shell.ends:  # perhaps by a check of what nobody gives
                ended, self.shell = self.shell, Shell(self.files, self.find, self.given, self.command)
                self.found, self.shell.passing = self.shell.launched, ended.ends[-1:]
                self.shell.run_file(path, begin)
                self.shell = self.shell if self.found else ended
            elif not self.found:
                self._options_alone(state)
        return self.found

    def _options_alone(self, state: State) -> None:
        """Keep the options that a script without a command sets, for others to start something with."""
        lists = [joined(value, " ") if isinstance(value, tuple) else value for value in state.variables.values()]
        texts = [one for one in lists if isinstance(one, Traced) and re.match(r"\s*--[A-Za-z]", one.text)]
        whole = [one for one in texts if not any(one.text in two.text and one is not two for two in texts)]
        words = [word for one in whole for word in split(one)]
        if sum(bool(_FLAG.match(word.text)) for word in words) >= LEAST_OPTIONS:
            self._program(state, [], words, {})
            told = Said(self.found[-1].source.file, self.found[-1].line, words[0].text, ALONE)
            self.found[-1] = self.found[-1]._replace(source=replace(self.found[-1].source, assumed=(told,)))

    def container(self, path: Path, started: Started) -> list[Command]:
        """Return what a job of a cluster launches."""
        state = State()
        self.shell.path, self.launcher = path, started.launcher
        state.variables |= started.environment
        state.exported |= set(started.environment)
        with self._bounded(path):
            self.command(state, started.words, started.environment, None)
        return self.found

    @contextmanager
    def _bounded(self, path: Path) -> Iterator[None]:
        try:
            yield
        except RecursionError:
            raise InputError("branches or expansions nested deeper than is followed", place=str(path)) from None

    # --- from words to a source

    def command(self, state: State, fields: list[Traced], environment: dict[str, Traced], read: Traced | None) -> None:
        """Take a command: pass what only starts another, and keep what is launched."""
        fields = [part for field in fields if not field.text.isspace()  # `\\ `, a backslash that ends no line
                  for part in (split(field) if _glued(field.text) else [field])]  # fmt: skip
        self.depth += 1
        before, submitted = dict(self.launcher), self.submitted
        if self.depth <= MAX_DEPTH and fields and _base(fields[0].text) not in FILE_TOOLS:
            self._started(state, _present(fields), environment, read)
        self.launcher, self.submitted = before, submitted
        self.depth -= 1

    def _started(self, state: State, fields: list[Traced], environment: dict[str, Traced], read: Traced | None) -> None:
        name = _base(fields[0].text) if fields else ""
        if name in SHELLS or name.endswith(SCRIPT_ENDS):
            self._shell(state, fields, environment, read)
            return
        fields = [field for field in fields if not REST.fullmatch(field.text)]
        if _PYTHON.fullmatch(name):
            self._python(state, fields, environment)
        elif name in LAUNCHERS:
            self._launched(state, fields, environment)
        elif name.endswith(".py") or name in PROGRAMS:
            self._program(state, [], fields, environment)
        elif name in STARTERS:
            self._scheduler(state, fields, environment, read)
        elif fields:
            following = next((at for at in range(1, len(fields)) if _starts(fields[at].text)), None)
            if following is None:
                self._other(state, fields, environment, read)
                return
            for field in fields[:following]:  # `env A=1`, `docker run -e A=1`
                variable, equals, value = field.text.partition("=")
                if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", variable):
                    environment = {**environment, variable: field.cut(len(variable) + 1) if value else untraced("")}
            self._started(state, fields[following:], environment, read)

    def _python(self, state: State, fields: list[Traced], environment: dict[str, Traced]) -> None:
        rest = _after_python(fields[1:])
        module = rest[1].text if len(rest) > 1 and rest[0].text == "-m" else ""
        if module in MODULES:
            name = MODULES[module]
            self._launched(state, [untraced(name), *rest[2:]], environment, subcommand=False)
        elif rest and _base(rest[0].text) in STARTERS:
            self._scheduler(state, rest, environment, None)
        elif rest and rest[0].text != "-c":
            self._program(state, fields[:1], rest, environment)

    def _scheduler(
        self, state: State, fields: list[Traced], environment: dict[str, Traced], read: Traced | None
    ) -> None:
        """Take `srun`, `mpirun`, `sbatch` with their options, and what they start."""
        name = _base(fields[0].text)
        own = starter(name)
        words_of_it = _subcommand(own, [field.text for field in fields[1:7]])
        if words_of_it is None:
            return
        if own.remote is not None:
            words = _after_hosts(fields[1:], own.remote)
            self._text(joined(words, " ") if words else read, state, environment)
            return
        before, called = dict(self.launcher), fields[:1]
        fields = self._options([fields[0], *fields[1 + words_of_it :]], name, state)
        if own.script:
            self.submitted = {key: one for key, one in self.launcher.items() if before.get(key) is not one}
        for variable, value in _VARIABLE.findall(str(getattr(self.launcher.get("runtime_env_json"), "value", ""))):
            if known(value):  # of `ray job submit`
                state.variables[variable] = untraced(value)
                state.exported.add(variable)
        text = next((one for key in own.text if (one := self.launcher.pop(key, None)) is not None), None)
        if text is not None or (own.script and read is not None and not fields):
            self._text(untraced(str(text.value)) if text else read, state, environment)
        elif fields and own.script and " " in fields[0].text:
            self._text(fields[0], state, environment)
        elif fields and own.script and not _starts(fields[0].text):
            self._shell(state, fields, environment, read)
        elif fields:
            self._started(state, fields, environment, read)
        else:  # `srun ${CMD}`
            self._program(state, [], called, environment, passed=True)

    def _other(self, state: State, fields: list[Traced], environment: dict[str, Traced], read: Traced | None) -> None:
        """Take a command of no kind that is known: a script, or a program with at least two options."""
        script = self._script(fields[0].text, state)
        text = next((field for field in fields[1:] if _LAUNCHING.match(field.text)), None)
        if script is not None:
            self._shell(state, [untraced("bash"), *fields], environment, read)
        elif text is not None:  # `tmux send-keys -t job "torchrun ..." C-m`
            self._text(text, state, environment)
        elif read is not None and re.search(r"\b(torchrun|python3?|deepspeed|srun)\b", read.text):
            self._text(read, state, environment)
        elif not _FLAG.match(fields[0].text):
            told = sum(bool(_FLAG.match(field.text) or _DOTTED.match(field.text)) for field in fields)
            self._program(state, [], fields, environment, passed=told < 2)

    def _text(self, text: Traced | None, state: State, environment: dict[str, Traced]) -> None:
        if text is None:
            return
        inner = state.copy()
        inner.variables.update(environment)
        inner.exported |= set(environment)
        self._scheduled(text, inner)
        self.shell.run_text(text, inner)

    def _shell(self, state: State, fields: list[Traced], environment: dict[str, Traced], read: Traced | None) -> None:
        """Follow `bash -c text`, `bash script arguments` and `bash <<EOF`."""
        rest = fields[1:] if _base(fields[0].text) in SHELLS else fields
        while rest and re.fullmatch(r"-[a-zA-Z]+|--\w+", rest[0].text):
            if "c" in rest[0].text and not rest[0].text.startswith("--"):
                if len(rest) > 1:
                    inner = state.copy()
                    inner.take(rest[3:])
                    self._text(rest[1], inner, environment)
                return
            rest = rest[2:] if rest[0].text in {"-o", "--rcfile"} else rest[1:]
        if not rest:
            self._text(read, state, environment)
            return
        script = self._script(rest[0].text, state)
        if script is None:
            self._handed_on(state, rest, environment)
            return
        inner = State()  # another process: it sees what is exported
        inner.variables = {name: state.variables[name] for name in sorted(state.exported) if name in state.variables}
        inner.variables.update(environment)
        inner.exported = state.exported | set(environment)
        inner.unknown, inner.texts = dict(state.unknown), state.texts
        inner.take(rest[1:])
        if isinstance(script, Path):
            self._scheduled(self.files.traced(self.files.read(script)), inner)
            self.shell.run_file(script, inner)
        else:
            self._scheduled(script, inner)
            self.shell.run_text(script, inner)

    def _handed_on(self, state: State, fields: list[Traced], environment: dict[str, Traced]) -> None:
        """Take what a script that is not here is given to start: `./wrap.sh python train.py`."""
        self.shell.missing.append((fields[0].text, fields_at(fields)))
        following = next((at for at in range(1, len(fields)) if _starts(fields[at].text)), None)
        if following is not None:
            self._started(state, fields[following:], environment, None)
        else:
            self._program(state, [], fields, environment, passed=True)

    def _script(self, name: str, state: State) -> Path | Traced | None:
        """Return a script that is here, or that the script wrote."""
        text = state.text(name)
        if text is not None:
            return text
        return self.find(name, self.shell.where(state)) if known(name) and name.endswith(SCRIPT_ENDS) else None

    def _launched(
        self, state: State, fields: list[Traced], environment: dict[str, Traced], *, subcommand: bool = True
    ) -> None:
        """Take `torchrun`, `deepspeed`, `accelerate launch` with their options, and what they launch."""
        name = _base(fields[0].text)
        if name in AS_TORCHRUN:
            name, fields = "torchrun", [untraced("torchrun"), *fields[1:]]
        rest = fields[1:]
        if name in {"accelerate", "colossalai"} and subcommand:
            if not rest or rest[0].text not in {"launch", "run"}:
                return
            rest = rest[1:]
        rest = self._options([fields[0], *rest], name, state)
        if rest and _base(rest[0].text) in SHELLS:
            self._shell(state, rest, environment, None)
            return
        if rest and re.fullmatch(r"python[\d.]*", _base(rest[0].text)):
            rest = _after_python(rest[1:])
        if rest:
            self._program(state, [fields[0]], rest, environment)

    def _options(self, fields: list[Traced], name: str, state: State) -> list[Traced]:
        """Take the options of a launcher and return the words after them."""
        own = starter(name)
        fields, at = _with_one_value(fields) if own.dashes else fields, 1
        while at < len(fields):
            text = fields[at].text
            if text == "--":
                return fields[at + 1 :]
            glued = re.fullmatch(r"-([A-Za-z])=?(\d+)", text)
            if not _FLAG.match(text):
                break
            option, equals, _ = text.lstrip("-").partition("=")
            key = option.replace("-", "_")
            flag, value = fields[at], None
            at += 1
            if glued and own.counts:
                key, value = glued[1], flag.cut(glued.start(2))
            elif equals:
                value = flag.cut(text.index("=") + 1)
            elif key in SWITCHES and key not in own.valued:
                if key in {"m", "module"}:
                    return [untraced("-m"), *fields[at:]]
            elif key in {"mca", "x", "genv", "env"} and name.startswith("mpi"):
                at += self._hand_on(key, fields[at : at + 2], state)
                continue
            elif at < len(fields) and (key in own.text or _is_value(key, fields[at].text)):
                value = fields[at]
                at += 1
            key = own.counts.get(key, key)
            self.launcher[key] = self.setting(key, flag, [value] if value is not None else [], state)
        self._count_slots(state)
        return fields[at:]

    def _hand_on(self, option: str, words: list[Traced], state: State) -> int:
        """Set a variable that mpirun hands on (`-x A=1`, `-x A`, `-genv A 1`); return how many words say so."""
        name, equals, _ = words[0].text.partition("=") if words else ("", "", "")
        count = 1 if option == "x" or equals else 2
        if option != "mca" and name.isidentifier():
            state.exported.add(name)
            if equals or len(words) == count == 2:
                state.variables[name] = words[0].cut(len(name) + 1) if equals else words[1]
        return count

    def _count_slots(self, state: State) -> None:
        """Count the slots of a hostfile that the script wrote, or that is here: `node1 slots=8`."""
        named = self.launcher.get("hostfile") or self.launcher.get("machinefile")
        text = self.shell.written(str(named.value), state) if named else None
        slots = re.findall(r"^[ \t]*[\w.-]+[ \t]+slots=(\d{1,4})\b", text.text if text else "", re.MULTILINE)
        if named and slots:
            self.launcher["slots"] = replace(named, name="slots", value=str(sum(map(int, slots))), span=None)

    def _program(
        self, state: State, before: list[Traced], rest: list[Traced], environment: dict[str, Traced], *,
        passed: bool = False,
    ) -> None:  # fmt: skip
        """Keep what is launched, apart where nothing says that it is a program that trains."""
        words: list[Traced] = []
        while rest and (rest[0].text == "-m" or not (_FLAG.match(rest[0].text) or _OVERRIDE.match(rest[0].text))):
            words.append(rest[0])
            rest = rest[1:]
        settings: dict[str, Setting] = {}
        ignored: list[Said] = []
        for one in self.settings(rest, state):
            if one.name in settings:
                again = f"given again on line {one.line}, which counts"
                before_it = settings[one.name]
                ignored.append(Said(before_it.file, before_it.line, before_it.text, again))
            settings[one.name] = one
        own_at = fields_at([*words, *before, *rest])
        at = next(iter(self.shell.calls), own_at)
        (file, line), (own_file, own_line) = self.shell.line(at), self.shell.line(own_at)
        seen = {name: self._variable(name, state, None) for name in sorted(state.exported) if name in state.variables}
        seen |= {name: self._variable(name, state, value) for name, value in environment.items()}
        program = tuple(word.text for word in [*before, *words])
        launcher = dict(self.launcher)
        variables = {name: self._variable(name, state, None) for name in sorted(state.variables)}
        source = Source(file, "command", settings, program, launcher, seen, (), tuple(ignored), variables, passed)
        texts, where = dict(state.texts), self.shell.where(state)
        own_line = own_line if own_file == file else line
        kept = self.shell.passed if passed else self.found
        kept.append(Command(source, line, texts, where, tuple(self.shell.followed), own_line))

    def settings(self, fields: Sequence[Traced], state: State) -> Iterator[Setting]:
        """Yield the options of a program: `--a 1`, `--a=1`, `--a 1 2`, `--a`, `-a 1` and `a.b=c`.

        A subcommand that chooses part of a configuration (tyro: `activation-checkpoint:full`) has itself for a name.
        """
        at = 0
        while at < len(fields):
            text = fields[at].text
            override = _OVERRIDE.match(text)
            if override and not _FLAG.match(text):
                name = text[: override.end() - 1].lstrip("+~@")
                yield self.setting(name, fields[at], [fields[at].cut(override.end())], state)
                at += 1
                continue
            if not _FLAG.match(text):
                if _SUBCOMMAND.fullmatch(text):
                    yield self.setting(text, fields[at], [], state)
                at += 1
                continue
            option, equals, _ = text.lstrip("-").partition("=")
            flag, values = fields[at], [fields[at].cut(text.index("=") + 1)] if equals else []
            at += 1
            while at < len(fields) and not equals and not _FLAG.match(fields[at].text):
                if _DOTTED.match(fields[at].text):
                    break
                if values and "=" not in values[0].text and _OVERRIDE.match(fields[at].text):
                    break
                if values and fields[at].text == "slurm":  # where NeMo's performance scripts run, with options of that
                    break
                values.append(fields[at])
                at += 1
            yield self.setting(option.replace("-", "_"), flag, values, state)

    def setting(self, name: str, flag: Traced, values: Sequence[Traced], state: State) -> Setting:
        """Return a setting with its place."""
        place = self.files.place(fields_at([flag])) or self.files.place(fields_at(values))
        texts = [value.text for value in values]
        value = True if not texts else texts[0] if len(texts) == 1 else texts
        spoken = " ".join([flag.text, *([] if "=" in flag.text else texts)])
        file, line, text = str(self.shell.path), 0, spoken
        if place:
            opened, line, column = place
            file, raw = opened.name, opened.line(line)[column:]
            end = _ENDS.search(raw, min(len(flag.text), len(raw)))
            stands = raw[: end.start()] if end else raw
            one = re.match(r"[^\s=]+[\s=]+\S+", stands)
            stands = one[0] if one and len(values) == 1 else stands
            if stands.startswith(flag.text[:3]) and "$" in stands:
                text = f"{stands} ({' '.join(texts)})" if known(spoken) else stands
        unset = next(iter(unset_in(texts)), "")
        choices = tuple(self.shell.choices.get(unset, ()))
        return Setting(name, value, file, line, text, self._span(values), self.why(texts, state), choices)

    def _span(self, values: Sequence[Traced]) -> Span | None:
        return self.files.span(values[0]) if len(values) == 1 else None

    def why(self, texts: Sequence[str], state: State) -> str:
        """Say why the value of a setting is not known; nothing where it is."""
        names = unset_in(list(texts))
        if not names:
            return ""
        name = names[0]
        if not name:
            return "is the output of a command, and commands are not run"
        if name in state.unknown:
            return state.unknown[name]
        if name.isdecimal():
            return "is an argument of the script"
        lost = ", ".join(f"{file} ({self.shell.place(at)})" for file, at in self.shell.missing[:2])
        return "is given no value" + (f"; {lost}, which may, is not here" if lost else "")

    def _variable(self, name: str, state: State, value: Traced | None) -> Setting:
        found = value if value is not None else state.variables.get(name)
        text = found if isinstance(found, Traced) else joined(list(found) if isinstance(found, tuple) else [], " ")
        at = fields_at([text]) if value is not None else state.places.get(name, fields_at([text]))
        why = self.why([text.text], state)
        return Setting(name, text.text, *self.shell.line(at), f"{name}={text.text}", self._span([text]), why)

    def _scheduled(self, text: Traced, state: State) -> None:
        """Take the options that a script gives its scheduler, and set the variables that follow."""
        for found in SCHEDULED.finditer(text.text):
            words = split(text.cut(found.start(2), found.end(2)))
            comment = next((at for at, word in enumerate(words) if word.text.startswith("#")), len(words))
            words = [word for word in self.shell.fields(words[:comment], state) if not word.text.startswith(("<", ">"))]
            if found[1] in REQUESTS:
                for pattern in REQUESTS[found[1]]:
                    asked = re.search(pattern, found[2][:500])
                    for key, value in asked.groupdict().items() if asked and words else ():
                        if value:
                            self.launcher[key] = self.setting(key, words[0], [untraced(value)], state)
                continue
            name = "flux" if found[1].lower() == "flux:" else "sbatch"
            while words:
                words = self._options([untraced(name), *words], name, state)[1:]
        self.launcher |= self.submitted
        self._slurm_variables(state)

    def _slurm_variables(self, state: State) -> None:
        asked = {
            name: one.value for name, one in self.launcher.items() if isinstance(one.value, str) and known(one.value)
        }
        nodes, tasks, per_node = (asked.get(name, "") for name in ("nodes", "ntasks", "ntasks_per_node"))
        name = next((one for one in ("gres", "gpus_per_node", "gpus_per_task") if one in asked), "")
        found = re.search(r"(?:^|:)(\d+)$", asked.get(name, ""))
        gpus = found[1] if found else ""
        if gpus and name == "gres" and "gpus_per_node" not in self.launcher:
            self.launcher["gpus_per_node"] = replace(self.launcher[name], name="gpus_per_node", value=gpus, span=None)
        if not tasks and nodes.isdecimal() and per_node.isdecimal():
            tasks = str(int(nodes[:6]) * int(per_node[:6]))
        for text, names in (
            (nodes, ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NHOSTS")), (tasks, ("SLURM_NTASKS", "SLURM_NPROCS")),
            (per_node, ("SLURM_NTASKS_PER_NODE",)), (gpus, ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE")),
            (asked.get("resource_type", ""), ("SGE_RESOURCE_TYPE",)),
        ):  # fmt: skip
            for name in names if text else ():
                state.variables.setdefault(name, untraced(text))


def given_arguments(given: Mapping[str, str]) -> list[Traced]:
    """Return the arguments of a script as the user gives them: all in one text, or some by their numbers.

    Raises:
        InputError: a quotation that does not end.
    """
    try:
        words = shlex.split(given.get(ALL_ARGUMENTS, ""))[:MAX_ARGUMENTS]
    except ValueError:
        hint = "give them as they stand behind the script in a shell"
        raise InputError("a quotation that does not end", field="args", hint=hint) from None
    found = {at: untraced(word) for at, word in enumerate(words, start=1)}
    found |= {int(name): untraced(text) for name, text in given.items() if re.fullmatch(r"[1-9]\d?", name)}
    last = max(found, default=0)
    whole = [found.get(at) or mark(str(at)) for at in range(1, last + 1)]
    return whole if ALL_ARGUMENTS in given else [*whole, mark(f"@{last + 1}")]


def _base(text: str) -> str:
    return PurePosixPath(text).name if "://" not in text else text


def _starts(text: str) -> bool:
    """Whether a word is a program that may launch a training."""
    name = _base(text)
    python = _PYTHON.fullmatch(name)
    named = name in SHELLS or name in LAUNCHERS or name in STARTERS or name in PROGRAMS
    return bool(python) or named or (name.endswith((".py", ".sh")) and not text.startswith("-"))


def _with_one_value(fields: list[Traced]) -> list[Traced]:
    """Return words without what options before `--` take beside their first value: `--env-secret A=A B=B`."""
    end = next((at for at, one in enumerate(fields) if one.text == "--"), len(fields))
    more = {at for at in range(2, end) if not any(_FLAG.match(one.text) for one in fields[at - 1 : at + 1])}
    return [one for at, one in enumerate(fields) if at not in more]


def _subcommand(own: Starter, words: Sequence[str]) -> int | None:
    """Return how many words a subcommand that starts something takes; None where there is none of them."""
    fitting = (len(one.split()) for one in own.words if list(words[: len(one.split())]) == one.split())
    taken = next(fitting, None) if own.words else 0
    return None if taken is None else taken + own.names


def _after_hosts(fields: list[Traced], hosts: int) -> list[Traced]:
    """Return what ssh and its like run on other hosts: the words behind its options and so many names of hosts."""
    while fields and re.fullmatch(r"-{1,2}[A-Za-z].*", fields[0].text):
        fields = fields[2 if fields[0].text.lstrip("-") in HOST_OPTIONS else 1 :]
    named = bool(fields) and " " not in fields[0].text and not _starts(fields[0].text)
    return fields[hosts if named else 0 :]


def _is_value(option: str, text: str) -> bool:
    """Whether a word is the value of a launcher's option, not the next option or the program that it starts."""
    if _FLAG.match(text):
        return False
    named = _base(text) in PROGRAMS or option.startswith("container") or option in {"output", "error", "job_name", "o"}
    return named or not _starts(text)


def _glued(text: str) -> bool:
    return _FLAG.match(text) is not None and re.match(r"--?[\w.-]+\s", text) is not None


def _after_python(fields: list[Traced]) -> list[Traced]:
    """Return the words after Python's own options."""
    while fields and re.fullmatch(r"-[uOBEsSIvbqd]+|-[XW]", fields[0].text):
        fields = fields[2:] if fields[0].text in {"-X", "-W"} else fields[1:]
    return fields


def _present(fields: list[Traced]) -> list[Traced]:
    """Leave out words that are only a variable without a value, as optional arguments are."""
    found: list[Traced] = []
    for field in fields:
        name = re.fullmatch(r"\$\{(\w+)\}", field.text)
        asked = found and _FLAG.match(found[-1].text) and "=" not in found[-1].text
        if name and (not asked or _OPTIONAL.search(name[1])) and not _PYTHON.fullmatch(field.text):
            continue
        found.append(field)
    return found
