"""Launch files as settings: which files belong together, and what they state; none is ever executed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from os.path import normpath
from pathlib import Path, PurePosixPath
from typing import Any

from gpuscale.errors import InputError
from gpuscale.files import is_file, is_folder, printable
from gpuscale.launch import strangers
from gpuscale.launch.commands import Command, Commands
from gpuscale.launch.documents import document, interpolated, tree
from gpuscale.launch.dumps import dumped_arguments
from gpuscale.launch.job_files import Started, jobs_in
from gpuscale.launch.launchers import gpus_of
from gpuscale.launch.python import LOOP, UNTOUCHED, Configured, python_sources
from gpuscale.launch.python_state import COMMAND_LINE, NAMING
from gpuscale.launch.settings import UNSET, LackingError, Reading, Said, Setting, Settings, Source
from gpuscale.launch.shell import MAX_LEVELS, Shell
from gpuscale.launch.shell_state import known, unset_in
from gpuscale.launch.targets import IN_PYTHON, configured_in, targets
from gpuscale.launch.traced import LOGS, OpenFile, OpenFiles, Traced, untraced

DOCUMENTS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".zsh", ".job", ".qsub", ".pbs", ".lsf")
MAX_FILES = 60
"""Files that belong to one job, at most."""
MAX_ENTRIES = 4000
"""Files that a folder is searched through for."""

_NOT_OF_THE_JOB = re.compile(r"vocab|token|merge|data|checkpoint|save|load|log|output|template|cache|result|profile")


WITHOUT = " is not here: without it"
"""What is said behind the name of a document that another builds on."""


@dataclass(frozen=True)
class Launch:
    """What may be one job."""

    place: str  #: its file, or file and line of its command.
    sources: tuple[Source, ...]  #: what it states, in the order in which later ones replace earlier ones.
    files: tuple[Path, ...]  #: the files that it takes from, its own first.
    #: documents that its command names as the job's configuration and that are not here.
    missing: tuple[Said, ...] = ()
    unread: tuple[str, ...] = ()  #: files of its own folder that its script reads first and that are not here.
    elsewhere: InputError | None = None  #: what says that all that decides stands in a file that is not here.


def launches(
    paths: Sequence[Path], variables: Mapping[str, str], texts: Mapping[str, str] | None = None
) -> list[Launch]:
    """Return every job that launch files may mean: one for each command of a script, one for documents.

    Args:
        paths: files, and folders whose files belong together; `run.sh:12` is the command of that line.
        variables: values of variables that scripts and documents leave open.
        texts: what files are taken to hold instead of what they do, by name.

    Raises:
        InputError: a file cannot be read, is of no kind that is known, or is broken; a folder without launch files.
    """
    reader = _Reader(paths, variables, OpenFiles(texts))
    found: list[Launch] = []
    documents: list[Launch] = []
    failed: dict[Path, InputError] = {}
    for path in paths:
        if is_folder(path):
            found += reader.folder(path)
        elif len(paths) > 1 and path.suffix == ".py" and is_file(path):  # perhaps a part of another
            try:
                found += reader.file(path)
            except InputError as error:
                failed[path] = error
        else:
            named = None if is_file(path) else re.fullmatch(r"(.+):\d{1,9}|(.+\.py):\w{1,200}", str(path))
            made = reader.file(Path(named[1] or named[2]) if named else path)
            if named:
                label = (str(path).rpartition(":")[2],)
                made = [
                    one for one in made if str(path) == one.place or (named[2] and label == one.sources[-1].program)
                ]
                if not made:
                    raise InputError("no command starts on this line, or nothing has this name", place=str(path))
            whole = not named and bool(made) and all(one.place == str(path) for one in made)
            (documents if whole else found).extend(made)
    taken = {path for one in found for path in one.files[1:]}
    alone = next((error for path, error in failed.items() if path not in taken), None)
    if alone is not None:
        raise alone
    found = [one for one in found if one.sources[-1].kind != "python" or one.files[0] not in taken]
    if not documents:
        return found
    together = Launch(
        documents[-1].place,
        tuple(source for one in documents for source in one.sources),
        tuple(dict.fromkeys(path for one in documents for path in one.files)),
        tuple(said for one in documents for said in one.missing),
    )
    if not found:
        return [together]
    return [
        replace(one, sources=(*together.sources, *one.sources), files=(*one.files, *together.files)) for one in found
    ]


_HYDRA = re.compile(r"^@(?:hydra\.main|hydra_runner|\w+\.hydra_runner)\(([^()]*)\)", re.MULTILINE)
"""What says which document a program of Hydra begins with."""

_PUBLIC = re.compile(rf"{UNTOUCHED.pattern}|(torch|transformers|trl|peft|accelerate|deepspeed|lightning|unsloth)\b")
"""Packages of others of which scripts take all names, and which configure nothing."""

_ELSEWHERE = re.compile(
    r"\.\w*config\w*\.[a-z0-9_]+$|\.[a-z0-9_]*config[a-z0-9_]*$|^[a-z]\w*(\.[a-z]\w*)*\.(\w+_)?(run|train|main|fit|finetune)(_\w+)?$"
)
"""Functions of modules that may hold a job: they return a configuration, or train."""

_SHELLS = re.compile(r"subprocess\.(run|call|check_call|check_output|Popen)|os\.system")


def _command_of(source: Source) -> Started | None:
    """Return the command that a call of a Python file gives to a shell, or starts itself."""
    origin, found = str(source.settings["origin"].value), source.settings.get("0", source.settings.get("args"))
    if origin == "sky.Task":
        found = source.settings.get("run")
    elif not _SHELLS.fullmatch(origin):
        return None
    if found is None or found.why:
        return None
    words = found.value if isinstance(found.value, list) else ["bash", "-c", str(found.value)]
    return Started([untraced(str(word)) for word in words], {}, {})


def _with_loop(source: Source, looped: Settings) -> Source:
    """Return the constants of a module with what its own loop of training says of shards, types and recomputation."""
    if source.called != "module":
        return source
    told = {name.removeprefix("args."): one for name, one in looped.items() if name.partition(".")[2]}
    kept = {name: replace(one, name=name) for name, one in told.items() if name.partition(".")[0] in OF_LOOP}
    return replace(source, settings={**kept, **source.settings})


OF_LOOP = ("fsdp", "deepspeed", "mixed_precision", "torch_dtype", "gradient_checkpointing", "optim", "distributed_type")


def missing_configuration(lost: Sequence[Said]) -> InputError:
    """Say that a job is configured in files that are not here: their names, and where they are named."""
    names, verb = [printable(said.text) for said in lost], "is" if len(lost) == 1 else "are"
    message = f"the job is configured in {' and '.join(names)}, which {verb} not here"
    error = UnknownProgramError(message, place=printable(f"{lost[0].file}:{lost[0].line}"), hint=give_too(names))
    error.lost = tuple(lost)
    return error


def give_too(names: Sequence[str]) -> str:
    """Say how files are given that are not here."""
    ways = ", ".join(f"`launch_files={printable(name)[:MAX_NAME]}`" for name in names)
    return f"give {'it' if len(names) == 1 else 'them'} too: {ways}"


class UnknownProgramError(InputError):
    """Nothing that is known configures a job here; `lost` are files, not here, that may."""

    lost: tuple[Said, ...]


class _Reader:
    def __init__(self, paths: Sequence[Path], variables: Mapping[str, str], files: OpenFiles) -> None:
        self.paths, self.variables, self.files = paths, variables, files
        self.texts: Mapping[str, Traced] = {}  #: files that the script writes whose command is gone through, by name.
        self.entry = Path()  #: the Python file that is gone through, which none of its imports means
        self.imported: dict[Path, None] = {}  #: the files of those imports.
        self.loaded: set[str] = set()  #: the documents that it loads.

    def file(self, path: Path) -> list[Launch]:
        """Return the jobs of one file."""
        kind = self._kind(path)
        if kind == "log":
            source = dumped_arguments(self.files.read(path))
            if source is None:
                hint = "give a log that repeats the arguments, or the script that started it"
                raise InputError("no list of arguments is in this log", place=str(path), hint=hint)
            return [Launch(str(path), (source,), (path,))]
        if kind == "script":
            return list(self._commands(path))
        if kind == "python":
            try:
                return self._configured(path)
            except UnknownProgramError as error:
                asked = any(said.text == DOCUMENT for said in error.lost)  # for the variable that names it
                if asked or not strangers.in_python(self.files.read(path).text):
                    raise
                source = Source(str(path), "program", {}, (path.name,))
                return [
                    Launch(str(path), (source,), (path, *(one for one in self.imported if one != path)), error.lost)
                ]
        seen: dict[Path, None] = {}
        sources = interpolated(tuple(self._documents(path, seen, "")), self.variables)
        jobs = self._jobs(path, jobs_in(sources[-1], self.files, self.files.read(path)))
        return list(jobs) or [Launch(str(path), sources, tuple(seen))]

    def _jobs(self, path: Path, jobs: Iterable[Started]) -> Iterator[Launch]:
        """Yield what a manifest, a job of a cloud or a Python file starts."""
        for started in jobs:
            reader = Commands(self.files, self.find, self.variables)
            for command in reader.container(path, started):
                seen: dict[Path, None] = {}
                beside = {name: self._beside(name, command, seen, []) for name in _named(command.source)}
                sources = tuple(source for found in beside.values() for source in found)
                every = (*interpolated(sources, self.variables), command.source)
                place = f"{command.source.file}:{command.line}" if command.line else str(path)
                yield Launch(place, every, (path, *seen), _missing(command, beside))

    def _commands(self, path: Path) -> Iterator[Launch]:
        """Yield what the commands of a script launch, each with the files that it names."""
        reader = Commands(self.files, self.find, self.variables)
        commands = _told_apart(reader.script(path))
        shell, known_ones = reader.shell, targets().values()
        if commands and not commands[0].source.program:  # options alone
            commands = [one for one in commands if any(target.claims(one.source) for target in known_ones)]
        if not any(strangers.may_train(one.source) for one in commands) and not shell.ends:
            passed = [one for one in shell.passed if strangers.may_train(one.source)]
            folder = f"{path.absolute().parent.name}/{path.name}"
            passed = passed or [one for one in shell.passed if strangers.hands_over(one.source, folder)][-1:]
            commands += _told_apart(passed)
        if not commands:
            _refuse_nothing(shell)
        taken = tuple(
            Said(*self._place(at), f"{name}={text}", _default(name, text))
            for name, (text, at) in shell.defaults.items()
            if re.fullmatch(r"[\d_]*", text)
        )
        unread = tuple(
            Said(*self._place(at), f"source {name}", f"{printable(name)[:MAX_NAME]} is not here: without what it sets")
            for name, at in shell.missing
        )
        unread += tuple(Said(*self._place(at), "exit", PASSED) for at in shell.passing)
        unread += tuple(Said(*self._place(at), "sed -i", UNFOLLOWED) for at in dict.fromkeys(shell.unfollowed))
        cuts = [Said(*self._place(at), "", CUT) for at in shell.cut]
        absent = dict.fromkeys(name for name, _ in shell.missing if known(name) and not name.startswith(("/", "~")))
        for command in commands:
            seen: dict[Path, None] = {}
            chosen: list[Said] = []
            names = _named(command.source)
            for unset in (one for name in names for one in unset_in(name) if one in shell.choices):
                message, place = (
                    f"the variable {unset} decides what is configured",
                    f"{command.source.file}:{command.line}",
                )
                raise LackingError(message, unset, variable=True, likely=tuple(shell.choices[unset]), place=place)
            beside = {name: self._beside(name, command, seen, chosen) for name in names}
            sources = [source for found in beside.values() for source in found]
            sources += self._functions(command, seen)
            lost = tuple(replace(one, text=shell.origins.get(str(PurePosixPath(one.text)), one.text))
                         for one in _missing(command, beside))  # fmt: skip
            cut = next(((one,) for one in cuts if one.line >= command.line and one.file == command.source.file), ())
            own = replace(command.source, assumed=(*command.source.assumed, *cut, *taken, *chosen, *unread))
            every = (*interpolated(tuple(sources), self.variables), own)
            files = tuple(dict.fromkeys((path, *command.followed, *seen)))
            programs = [] if _claimed(every) else self._programs(command)
            for made in programs:
                rest = {name: one for name, one in own.settings.items() if name == "deepspeed"}
                read = [source for name in self.loaded for source in beside.get(name, ())]
                beyond = (one for one, source in zip(every[:-1], sources, strict=True)
                          if one.file not in self.loaded and source not in read)  # fmt: skip
                whole = (*made.sources, *beyond, replace(own, settings=rest))
                inside = made.files[0] == path  # a program that the script itself writes
                yield Launch(made.place if inside else f"{own.file}:{command.line}", whole, (*files, *made.files))
            if own.passed and (jobs := self._job_files(command)):  # `kubectl apply -f job.yaml`, `sky launch job.yaml`
                yield from jobs
            elif not programs:
                lost = lost or self._lost_program(command)
                program = None if _claimed(every) else self._program_file(command)
                files = tuple(dict.fromkeys((*files, program))) if program else files
                yield Launch(f"{own.file}:{command.line}", every, files, lost, tuple(map(normpath, absent)))

    def _programs(self, command: Command) -> list[Launch]:
        """Return what the Python file that a command runs configures, with the command's arguments; often nothing."""
        words = [word for word in command.source.program if word.endswith(".py")]
        path = self._program_file(command)
        written = command.texts.get(str(PurePosixPath(words[0]))) if words else None
        if path is None and written is not None:  # by the script itself
            path = command.path
        if path is None:
            return []
        with suppress(InputError):
            gpus = gpus_of(Reading([command.source]))
            known = {"get_world_size": gpus} if gpus else {}
            after = command.source.program[command.source.program.index(words[0]) :]
            told = known | {f"sys.argv.{at}": word for at, word in enumerate(after)}
            told["sys.argv"] = len(after) + len(command.source.settings)
            options = {name: one.value for name, one in command.source.settings.items()}
            told |= {COMMAND_LINE: options} | options
            self.texts = command.texts
            try:
                return self._configured(path, told, written)
            finally:
                self.texts = {}
        return []

    def _job_files(self, command: Command) -> list[Launch]:
        """Return what the manifests that a command names start, of those that are here."""
        found = filter(None, (self.find(name, command.path) for name in _named(command.source)))
        return [job for path in found for job in self.file(path) if job.sources[-1].kind == "command"]

    def _program_file(self, command: Command) -> Path | None:
        """Return the Python file that a command runs, if it is here: by its path, or as a module."""
        words = command.source.program
        modules = [f"{after.replace('.', '/')}.py" for word, after in pairwise(words) if word == "-m"]
        named = [word for word in words if word.endswith(".py")] or modules
        return self.find(named[0], command.path) if named else None

    def _lost_program(self, command: Command) -> tuple[Said, ...]:
        """Return the Python file that configures a job of xtuner, if it is not here."""
        source = command.source
        words = [one for one in source.program if one.endswith(".py")] if source.program[:1] == ("xtuner",) else []
        lost = bool(words) and not self.find(words[0], command.path)
        return (Said(source.file, command.line, words[0], ""),) if lost else ()

    def _functions(self, command: Command, seen: dict[Path, None]) -> Iterator[Source]:
        """Yield the Python file whose config function a command names (torchtitan: `--module llama3 --config F`)."""
        module = command.source.settings.get("module")
        if module is None or "config" not in command.source.settings or not isinstance(module.value, str):
            return
        stem = module.value.replace(".", "/")
        paths = (self.find(name, command.path) for name in (f"{stem}.py", f"{stem}/config_registry.py"))
        path = next(filter(None, paths), None)
        if path is not None:
            seen[path] = None
            chosen = str(command.source.settings["config"].value)
            yield from (one.source for one in self._python(path, {}) if one.source.program == (chosen,))

    def _python(self, path: Path, given: Mapping[str, Any], written: Traced | None = None) -> list[Configured]:
        """Return what a Python file configures, or the text of one that a script writes, at its lines of the script."""
        self.entry, self.imported, self.loaded = path, {}, set()
        text = self.files.read(path).text
        if written is not None:
            text = "\n" * (self._place(written.at[0])[1] - 1 if written.at else 0) + written.text
        return python_sources(text, str(path), self.module, {**self.variables, **given}, self._load)

    def _configured(
        self, path: Path, given: Mapping[str, Any] | None = None, written: Traced | None = None
    ) -> list[Launch]:
        """Return what a Python file configures, as far as a framework knows it: of what its run makes, else of all."""
        every = self._python(path, given or {}, written)
        files = (path, *(one for one in self.imported if one != path))
        claimed = [one for one in every if configured_in(one.source)]
        looped = next((one.source.settings for one in claimed if one.source.program == (LOOP,)), None)
        claimed = [one for one in claimed if one.source.program != (LOOP,)] or claimed
        if looped is not None:
            claimed = [one._replace(source=_with_loop(one.source, looped)) for one in claimed]
        if _HYDRA.search(self.files.read(path).text):
            claimed = [one for one in claimed if one.source.program != (LOOP,)]  # its document says more
        ran = [one for one in claimed if one.ran] or claimed
        ran = [one for one in ran if not one.source.program[0].startswith("_")] or ran  # helpers of the others
        if not ran:
            return self._begun(path, [one.source for one in every])
        naming = next((said for one in ran for said in one.lost if said.meaning == NAMING), None)
        if naming is not None:
            place, hint = f"{naming.file}:{naming.line}", f"`var={naming.text}={DOCUMENT}` gives it"
            message = f"the variable {naming.text} {NAMING}"
            lacks = LackingError(message, naming.text, variable=True, place=place, hint=hint)
            lacks.answer = DOCUMENT
            raise lacks
        if lost := [said for one in ran for said in one.lost]:
            raise missing_configuration(list(dict.fromkeys(lost)))
        return [
            Launch(f"{path}:{one.place.line}" if one.place.line else str(path), (one.source,), files) for one in ran
        ]

    def _begun(self, path: Path, every: list[Source]) -> list[Launch]:
        """Return what a Python file starts that configures nothing itself: commands, what Hydra reads for it.

        Raises:
            InputError: nothing that is known here.
        """
        commands = [command for one in every if (command := _command_of(one))]
        known = targets().values()
        started = list(self._jobs(path, commands))
        jobs = [job for job in started if any(target.claims(one) for target in known for one in job.sources)]
        if jobs := jobs or [
            job for job in started if job.sources[-1].program[-1:] and job.sources[-1].program[-1].endswith(".py")
        ]:
            return jobs
        named = _HYDRA.search(self.files.read(path).text)
        if named:
            said = dict(re.findall(r"(config_\w+)\s*=\s*[\"']([^\"']+)[\"']", named[0]))
            folder, name = said.get("config_path", "."), said.get("config_name", "config").removesuffix(".yaml")
            likely = [path.parent / folder / f"{name}.yaml", *(one for one in self.paths if one.name == f"{name}.yaml")]
            document = next(filter(is_file, likely), None)
            if document is not None:
                return [replace(one, files=(path, *one.files)) for one in self.file(document)]
            line = self.files.read(path).text[: named.start()].count("\n") + 1
            raise missing_configuration([Said(str(path), line, str(PurePosixPath(folder) / f"{name}.yaml"), "")])
        lost: list[str] = []
        hint = "give what it prints: a log with its arguments, or the command with its options"
        message = "no configuration of a known framework is in this program"
        origins = (str(one.settings["origin"].value) for one in every)
        elsewhere = next((one for one in origins if _ELSEWHERE.search(one) and not UNTOUCHED.match(one)), "")
        if elsewhere:
            does = "returns" if "config" in elsewhere else "does"
            message = f"what {printable(elsewhere)[:MAX_NAME]} {does} is in no file that is here"
            module = printable(elsewhere.rpartition(".")[0].strip(".").replace(".", "/"))[:MAX_NAME]
            lost = [f"{module}.py"] if module else []
            which = f"`launch_files={module}.py`, or the folder of its package" if module else "what defines it"
            hint = f"give {which}, too, or {hint.removeprefix('give ')}"
        if missing := list(self._missing(path)):
            message = f"what it takes from {printable(', '.join(missing[:4]))[:MAX_NAME]} by `import *` is not here"
            hint, lost = f"give these files too, or {hint.removeprefix('give ')}", missing[:4]
        error = UnknownProgramError(message, place=str(path), hint=hint)
        error.lost = tuple(Said(str(path), 0, name, "") for name in lost)
        raise error

    def _missing(self, path: Path) -> Iterator[str]:
        """Yield the files, not here, of modules of which a Python file takes all names: `from setting import *`."""
        for dots, name in re.findall(r"^from\s+(\.*)([\w.]*)\s+import\s+\*", self.files.read(path).text, re.MULTILINE):
            of_others = name.partition(".")[0] in sys.stdlib_module_names or _PUBLIC.match(name)
            if name and (dots or not of_others) and self.module(name, len(dots), str(path)) is None:
                yield f"{name.replace('.', '/')}.py"

    def _load(self, name: str, importer: str) -> dict[str, Any] | None:
        """Return what a document holds that a Python file loads; None of one that is not here."""
        kind = DOCUMENTS.get(PurePosixPath(name).suffix.lower())
        written = self.texts.get(str(PurePosixPath(name)))
        if kind and written is not None:
            self.loaded.add(name)
            return tree(kind, written.text, name)
        path = self.find(name, Path(importer)) if kind else None
        if kind is None or path is None:
            return None
        file = self.files.read(path)
        self.loaded.add(file.name)
        return tree(kind, file.text, file.name)

    def module(self, name: str, level: int, importer: str) -> tuple[str, str] | None:
        """Return name and text of the file of a Python module that is here; None of one that is not.

        Args:
            name: its dotted name, empty for the package itself.
            level: dots before it: 1 is the package of the file that imports it.
            importer: the file that imports it.
        """
        parts, path = name.split(".") if name else [], Path(importer)
        ends = ["/".join([*parts[:-1], f"{parts[-1]}.py"])] if parts else []
        ends.append("/".join([*parts, "__init__.py"]))
        folders = (
            path.parents[level - 1 : level]
            if level
            else (*path.parents[:MAX_LEVELS], *path.absolute().parents[:MAX_LEVELS])
        )
        with suppress(OSError, ValueError):
            found = [folder / end for folder in folders for end in ends if is_file(folder / end)]
            name = (parts or [path.parent.name])[-1]
            found += [one for one in self.paths if one.name == f"{name}.py" and one != self.entry]
            if found and found[0] != path:
                self.imported[found[0]] = None
                return str(found[0]), self.files.read(found[0]).text
        return None

    def _place(self, at: int) -> tuple[str, int]:
        found = self.files.place(at)
        return (found[0].name, found[1]) if found else ("", 0)

    def _beside(self, name: str, command: Command, seen: dict[Path, None], chosen: list[Said]) -> list[Source]:
        """Return the document that a command names: one that the script wrote, or one that is here."""
        written = command.texts.get(str(PurePosixPath(name)))
        if written is not None:
            kind = DOCUMENTS[PurePosixPath(name).suffix.lower()]
            return [document(kind, written, self.files, command.source.file)]
        path = self.find(name, command.path) or self._only(name)
        if path is not None and not path.match(PurePosixPath(name).name):
            chosen.append(Said(command.source.file, command.line, name, f"{path} is taken: no other file here fits"))
        return list(self._documents(path, seen, "")) if path else []

    def _only(self, name: str) -> Path | None:
        """Return the one file of the given folders that a name with open variables can mean."""
        pattern = "[^/]*".join(re.escape(part) for part in UNSET.split(name)[::3])
        if pattern.count("[^/]*") == 0 or len(pattern) < 12:
            return None
        every = [path for folder in self.paths if is_folder(folder) for path in walk(folder)]
        fitting = [path for path in every if re.search(rf"(?:^|/){pattern}$", path.as_posix())]
        return fitting[0] if len(fitting) == 1 else None

    def _kind(self, path: Path) -> str:
        suffix = path.suffix.lower()
        if suffix in DOCUMENTS:
            return DOCUMENTS[suffix]
        if suffix == ".py":
            return "python"
        if suffix in LOGS:
            return "log"
        if suffix in SCRIPTS:
            return "script"
        inner = next((kind for end, kind in DOCUMENTS.items() if end in path.name.lower()), None)
        start = self.files.read(path).text[:400].lstrip()
        return "script" if start.startswith("#!") else inner or ("json" if start.startswith("{") else "script")

    def _documents(self, path: Path, seen: dict[Path, None], prefix: str, depth: int = 0) -> Iterator[Source]:
        """Yield a document after those that it refers to; a file counts once."""
        if path in seen or len(seen) >= MAX_FILES or depth > MAX_LEVELS:
            return
        seen[path] = None
        file = self.files.read(path)
        prefix = "" if re.search(r"^# *@package _global_", file.text, re.MULTILINE) else prefix
        kind = self._kind(path)
        own = document(kind, self.files.traced(file), self.files, file.name, prefix)
        missing: list[Said] = []
        before, after = self._defaults(path, file, own, prefix, missing)
        for other, package in before:
            yield from self._documents(other, seen, package, depth + 1)
        for setting in own.settings.values():
            for other in self.referred(setting, path):
                yield from self._documents(other, seen, "", depth + 1)
        yield replace(own, assumed=(*own.assumed, *missing))
        for other, package in after:
            yield from self._documents(other, seen, package, depth + 1)

    def _defaults(
        self, path: Path, file: OpenFile, own: Source, prefix: str, missing: list[Said]
    ) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
        """Return the files that Hydra's `defaults` choose, before and after the file itself, each with a prefix."""
        before: list[tuple[Path, str]] = []
        after: list[tuple[Path, str]] = []
        to = before
        for name, one in own.settings.items():
            head, _, key = name.removeprefix(prefix).partition(".")
            if head != "defaults" or not isinstance(one.value, str | list):
                continue
            group = re.sub(r"^\d+\.?", "", key)
            for value in one.value if isinstance(one.value, list) else [one.value]:
                if value == "_self_":
                    to = after
                    continue
                optional = group.startswith("optional ")
                chosen, _, package = re.sub(r"^(optional|override) +", "", group).partition("@")
                other = path.parent / chosen.lstrip("/") / f"{str(value).removesuffix('.yaml')}.yaml"
                if is_file(other):
                    below = package or chosen.replace("/", ".")
                    to.append((other, "" if below in {"", "_global_"} else f"{prefix}{below}."))
                elif not optional and value is not None:
                    missing.append(Said(file.name, one.line, one.text, f"{other.name}{WITHOUT}"))
        return before, after

    def referred(self, setting: Setting, path: Path) -> list[Path]:
        """Return the documents that a setting names and that are here."""
        found: list[Path] = []
        for value in setting.value if isinstance(setting.value, list) else [setting.value]:
            named = isinstance(value, str) and len(value) < 300 and value.endswith(tuple(DOCUMENTS))
            if named and not _NOT_OF_THE_JOB.search(setting.name.lower()) and "://" not in value:
                other = self.find(value, path)
                found += [other] if other else []
        return found

    def find(self, name: str, path: Path) -> Path | None:
        """Return the file that another names: beside it, below a folder above it, or by its name among those given."""
        with suppress(OSError, ValueError):
            for base in (*path.parents[:MAX_LEVELS], *path.absolute().parents[:MAX_LEVELS]):
                if is_file(base / name):
                    return base / name
            last = PurePosixPath(name).name
            given = [one for one in self.paths if one.name == last and is_file(one)]
            for folder in self.paths:
                if is_folder(folder):
                    given += [one for one in walk(folder) if one.name == last]
            if len(given) == 1:
                return given[0]
        return None

    def folder(self, folder: Path) -> list[Launch]:
        """Return the jobs of a folder: of its scripts, else of documents that no other refers to."""
        every = list(walk(folder))
        scripts = [path for path in every if path.suffix.lower() in SCRIPTS]
        documents = [path for path in every if path.suffix.lower() in DOCUMENTS]
        logs = [path for path in every if path.suffix.lower() in LOGS]
        for kind in (scripts, documents, logs):
            found = _with_accelerate(_jobs_of(self._quietly(kind)))
            if found:
                return found
        hint = "launch scripts, YAML, TOML, JSON, or logs with their arguments"
        raise InputError("no launch files are in this folder", place=str(folder), hint=hint)

    def _quietly(self, paths: Sequence[Path]) -> list[Launch]:
        """Return the jobs of files of which some may be of other kinds; where none can be read, say why not."""
        found, first = [], None
        for path in paths:
            try:
                found += self.file(path)
            except InputError as error:
                first = first or error
        if not found and first is not None:
            raise first
        return found


def _default(name: str, text: str) -> str:
    """Say that a variable or an argument is taken as the script takes it when it is not given."""
    return f"{'$' * name.isdigit()}{name} is not given: {f'its default {text}' if text else 'what holds then'} is taken"


def _refuse_nothing(shell: Shell) -> None:
    """Say why a script that was followed starts nothing, where that is known.

    Raises:
        LackingError: it ends by a variable that nobody sets.
        InputError: it ends, or hands over to a script that is not here.
    """
    if shell.ends:
        message, place = "ends here before any command that trains", shell.place(shell.ends[-1])
        asked = sorted(sorted(shell.asked), key=lambda name: name not in shell.choices)
        if not asked or not asked[0].isidentifier():  # `$#`, `$@`: what hangs on all arguments
            raise InputError(message, place=place, hint="give the arguments that it wants: `args=TEXT`")
        hint = f"give what it depends on: {', '.join(f'`var={name}=...`' for name in asked[:3])}"
        choices = tuple(shell.choices.get(asked[0], ()))
        raise LackingError(message, asked[0], variable=True, likely=choices, place=place, hint=hint)
    if shell.missing:
        name, at = shell.missing[-1]
        hint = f"give it too: `launch_files={printable(name)[:MAX_NAME]}`"
        raise InputError(
            f"hands over to {printable(name)[:MAX_NAME]}, which is not here", place=shell.place(at), hint=hint
        )


def _told_apart(commands: Sequence[Command]) -> list[Command]:
    """Return commands with lines of their own where one line calls the functions that several are in."""
    lines = Counter(one.line for one in commands)
    return [one._replace(line=one.own_line) if lines[one.line] > 1 else one for one in commands]


_CONFIGURATION = re.compile(r"(?:yaml_)?(?:config|cfg)(?:_file|_path|_yaml)?")
"""Last parts of names of settings that say where the whole job is configured."""


def _missing(command: Command, beside: Mapping[str, Sequence[Source]]) -> tuple[Said, ...]:
    """Return the documents that configure a job and are not among those that were found beside its command."""
    lost = [one for one in _configurations(command) if not beside.get(one.text)]
    launcher = command.source.launcher.get("config_file")
    if lost and launcher is not None and not beside.get(str(launcher.value)):
        lost.append(Said(launcher.file, launcher.line, str(launcher.value), ""))
    return tuple({one.text: one for one in lost}.values())


def _configurations(command: Command) -> list[Said]:
    """Return the documents that a command names as the job's configuration: a word before its options, `--config X`."""
    source = command.source
    words = (*source.program, *_composed(source, needed=True))
    found = [Said(source.file, command.line, word, "") for word in words]
    found += [Said(one.file, one.line, str(_first(one)), "") for name, one in source.settings.items()
              if _CONFIGURATION.fullmatch(name.rpartition(".")[2])]  # fmt: skip
    return [one for one in found if one.text.lower().endswith(tuple(DOCUMENTS)) and len(one.text) < MAX_NAME]


def _first(setting: Setting) -> Any:
    return setting.value[0] if isinstance(setting.value, list) and setting.value else setting.value


_IN_NEMO = re.compile(r"(?:^|/)megatron_gpt_pretraining\.py$")
"""The program of NeMo 1 that trains from a YAML file of Hydra, its own if none is named."""
_WHOLE_IN_NEMO = {
    "model.num_layers", "model.hidden_size", "model.encoder_seq_length", "trainer.precision", "model.optim.name",
}  # fmt: skip
"""Settings that together say what else the YAML file would."""


def _composed(source: Source, needed: bool = False) -> list[str]:
    """Return the YAML file that a program of Hydra takes: `--config-path DIR --config-name NAME`.

    Args:
        needed: only one that the job is nothing without; files of a framework's own say what is known.
    """
    settings = source.settings
    if _IN_NEMO.search(source.program[-1] if source.program else ""):
        folder, name = "conf", "megatron_gpt_config"
        wanted = not settings.keys() >= _WHOLE_IN_NEMO
    else:  # options of transformers have the same names, but are never beside `name=value`
        folder, name = "", ""
        wanted = not needed and any(one.text and not one.text.startswith("-") for one in settings.values())
    said = [settings[key].value if key in settings else own
            for key, own in (("config_path", folder), ("config_name", name))]  # fmt: skip
    if not wanted or not said[1]:
        return []
    own, name = map(str, said)
    module = next((one for word, one in pairwise(source.program) if word == "-m"), "")
    base = PurePosixPath(*module.split(".")[:-1])  # where Hydra looks: beside the program, by most in `config`
    folders = [normpath(base / own), str(base / "config")] if module and not own.startswith("/") else []
    paths = [PurePosixPath(one, name) for one in (*(folders if own else folders[1:]), own)]
    return [*dict.fromkeys(str(one if one.suffix in DOCUMENTS else f"{one}.yaml") for one in paths)]


DOCUMENT = "FILE.yaml"
"""How the file is called that a variable is to name."""

UNFOLLOWED = "what `sed` changes here is not followed: the file counts as it was"
PASSED = "what the script ends without is taken for given"
CUT = "the command ends here, as the shell has it: the lines below are not part of it"
MAX_NAME = 300
"""Characters of a document's name."""


def _named(source: Source) -> list[str]:
    """Return the documents that a command names."""
    found = [word for word in source.program if word.lower().endswith(tuple(DOCUMENTS))] + _composed(source)
    for setting in (*source.launcher.values(), *source.settings.values()):
        for value in setting.value if isinstance(setting.value, list) else [setting.value]:
            ends = (*DOCUMENTS, ".conf") if setting.name.startswith("deepspeed") else tuple(DOCUMENTS)
            named = isinstance(value, str) and len(value) < MAX_NAME and value.lower().endswith(ends)
            found += [value] if named and not _NOT_OF_THE_JOB.search(setting.name.lower()) else []
    return list(dict.fromkeys(found))


def _claimed(sources: Sequence[Source]) -> bool:
    """Whether sources state a job by themselves, whatever the program that they run configures in Python."""
    known = targets()
    return any(known[name].claims(source) for name in (*IN_PYTHON, "megatron-lm", "primus") for source in sources)


def _jobs_of(made: list[Launch]) -> list[Launch]:
    """Leave out what others take from, and what lies beside that: other choices."""
    taken = {path.resolve() for one in made for path in one.files[1:]}
    beside = {path.parent for path in taken} - {one.files[0].resolve().parent for one in made if one.files[1:]}
    return [one for one in made if one.files[0].resolve() not in taken and one.files[0].resolve().parent not in beside]


def _with_accelerate(made: list[Launch]) -> list[Launch]:
    """Give every job the one file of accelerate that lies among them, which says how jobs run and none by itself."""
    own = [one for one in made if "compute_environment" in one.sources[-1].settings and len(one.sources) == 1]
    jobs = [one for one in made if one not in own]
    if len(own) != 1 or not jobs:
        return made
    return [replace(one, sources=(*own[0].sources, *one.sources), files=(*one.files, *own[0].files)) for one in jobs]


def walk(folder: Path) -> list[Path]:
    """Return the files of a folder and those below it, in a fixed order, as far as the limits go."""
    found: list[Path] = []
    level = [folder]
    for _ in range(MAX_LEVELS):
        deeper: list[Path] = []
        for one in level:
            if len(found) >= MAX_ENTRIES:
                return found[:MAX_ENTRIES]
            with suppress(OSError):
                for path in sorted(one.iterdir()):
                    if path.name.startswith(".") or path.is_symlink():
                        continue
                    if path.is_dir():
                        deeper.append(path)
                    elif path.is_file():
                        found.append(path)
        level = deeper
    return found[:MAX_ENTRIES]
