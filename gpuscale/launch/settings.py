"""Settings of launch files with their places, and what a reader makes of them: the options of a job and of a layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

from gpuscale.choices import MAX_GPUS
from gpuscale.display import displayed
from gpuscale.errors import InputError, did_you_mean, shown
from gpuscale.files import printable
from gpuscale.launch.unread import IGNORED, UNKNOWN, concern, ignores, is_on, speaks_of, tables_of, unasked
from gpuscale.presets.tools import COMMON, STRANGER, Asked, Tool, load_tool
from gpuscale.request import JobOptions, Layout, declared
from gpuscale.rules.rule import Option

MAX_TEXT = 120
"""Characters of a setting that answers repeat."""


class Span(NamedTuple):
    """A part of a line of a file: columns from 0, the last one excluded."""

    file: str
    line: int
    start: int
    end: int


@dataclass(frozen=True)
class Setting:
    """One setting as it stands in a file."""

    #: as its framework spells it: nested keys joined by dots (`parallelism.tp`); flags without their dashes and with
    #: underscores for those inside (`tensor_model_parallel_size`).
    name: str
    #: what YAML, TOML or JSON has; on a command line a text, the texts of several values, or True for a flag without
    #: any.
    value: Any
    file: str  #: the file's name as it was given.
    line: int  #: from 1; 0 where it is of the whole file.
    text: str  #: how it stands there.
    #: where its value stands in one piece, which may be where a variable is assigned; None where it does not.
    span: Span | None = None
    why: str = ""  #: why its value is not known, where it holds a variable without one: `${NAME}`.
    choices: tuple[str, ...] = ()  #: texts that conditions of the script compare that variable with.

    @property
    def place(self) -> str:
        """Where it stands, for a message."""
        return printable(f"{self.file}:{self.line}" if self.line else self.file)

    @property
    def last(self) -> str:
        """The last part of its name, in lower case."""
        return self.name.lower().rpartition(".")[2]

    @property
    def usual(self) -> bool:
        """Whether no file states it: its tool has it so where nothing is said."""
        return not self.file

    @property
    def undecided(self) -> bool:
        """Whether it is of a Python file and hangs on what nobody gives."""
        return bool(self.why) and self.file.endswith(".py")


DEGREES = frozenset({"tp", "pp", "cp", "ep"})
"""Options of a layout that count GPUs, and divide them."""

DECIDING = DEGREES | {"zero", "shard", "gbs", "micro_batch_size"}
"""Options of degrees, batches and sharding: what speaks of one is not taken to change nothing before it is given."""

PRIMUS = "modules.pre_trainer"
"""Where Primus has a training: `framework`, `model` and `overrides`."""

GROWING_BATCH = ("step_batch_size_schedule", "rampup_batch_size")
"""Settings by which the batch grows, so that none is the batch of the job."""

Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class Source:
    """What one file states, or one command in a script."""

    file: str  #: its name as it was given.
    kind: str  #: `command`, `arguments` (a dumped list of a program's arguments), `yaml`, `toml` or `json`.
    settings: Settings  #: by name; of one given twice the last.
    #: of a command, the words before its own options that say what runs: `torchrun`, `pretrain_gpt.py`.
    program: tuple[str, ...] = ()
    #: options of what starts the program (torchrun, srun, #SBATCH, mpirun, deepspeed, accelerate launch), by name as in
    #: `settings`: `nnodes`, `nproc_per_node`, `nodes`, `ntasks_per_node`, `gpus_per_node`, `n`.
    launcher: Settings = field(default_factory=dict)
    environment: Settings = field(default_factory=dict)  #: variables that the program sees.
    assumed: tuple[Said, ...] = ()  #: what had to be taken as usual to read it: defaults of variables.
    ignored: tuple[Said, ...] = ()  #: settings that others of the same name replace.
    variables: Settings = field(default_factory=dict)  #: those of a script, whether the program sees them or not.
    passed: bool = False  #: whether nothing says of a command that it is a program which trains.

    @property
    def called(self) -> str:
        """Of a Python file, what is called to make the configuration, by its own name; else empty."""
        found = self.settings.get("origin")
        return "" if found is None else str(found.value).rpartition(".")[2]


@dataclass(frozen=True)
class Said:
    """What was made of one setting."""

    file: str  #: where it stands; empty for what no file says
    line: int  #: from 1; 0 where it is of no line
    text: str  #: the setting as it stands there
    meaning: str  #: what it means for the prediction, or why it has none


@displayed
@dataclass(frozen=True)
class LaunchJob:
    """The job and the layout that launch files state."""

    target: str  #: the framework, by its name in `gpuscale.launch.targets`.
    options: Mapping[str, Any]  #: values of `JobOptions` by name; what no file states is not there.
    layout: Mapping[str, Any]  #: values of `Layout` by name.
    understood: tuple[Said, ...]  #: settings that the prediction follows from.
    ignored: tuple[Said, ...]  #: settings that change nothing of it, or are not known.
    #: what no file says and had to be taken as usual, and what is predicted otherwise than stated.
    assumed: tuple[Said, ...]
    environment: Settings = field(default_factory=dict)  #: variables that the program sees.
    settings: Settings = field(default_factory=dict)  #: every setting, by name.
    #: option, or after `model.` a key of a model file -> the settings that state it, in the order of their places.
    stated: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    #: those of `understood` that state the model's shape, each with its keys: `heads = 32`.
    of_model: Mapping[Said, tuple[str, ...]] = field(default_factory=dict)

    def setting(self, name: str) -> Setting | None:
        """Return the first setting that states an option, or a key of a model file by its name in a table."""
        found = (one for key, settings in self.stated.items() if key == name or key.endswith(f".{name}")
                 for one in settings if one.line)  # fmt: skip
        return min(found, key=_by_place, default=None)


class Suggestion(NamedTuple):
    """A value for something that is missing, and what speaks for it."""

    value: str
    why: str


class LackingError(InputError):
    """Something is needed that no file states.

    Attributes:
        name: the option that gives it, or the variable.
        variable: whether it is a variable of a file.
        likely: values that the files themselves speak of, the likeliest first.
        answer: the value that settles it, where there is one and nothing speaks for it.
        way: how to give what settles it, where an answer does.
        instead: another way to settle it.
        of: the setting that hangs on the variable.
        suggested: a value with what speaks for it, once it was looked for.
        setting: what cannot be as long as it is missing, if anything.
        lead: what is said once before all that is missing.
        files: how files are given, in words, that may state all that is missing.
        known: values that it may have, where they are few and the files speak of none.
        values: those of all variables that are asked for with it, suggested or tried.
    """

    suggested: Suggestion | None = None
    known: tuple[str, ...] = ()
    setting: Setting | None = None
    values: Mapping[str, str] = {}
    answer, way, instead, lead, files = "", "", "", "", ""

    def __init__(
        self, message: str, name: str, *, variable: bool = False, likely: Iterable[str] = (), of: str = "", **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.name, self.variable, self.likely, self.of = name, variable, tuple(likely), of


class NotHereError(InputError):
    """What decides stands in a file that is not here."""


UNSET = re.compile(r"\$\{\s*(?:(?:oc\.)?env:\s*)?([\w.]+)[^${}]*\}|\$(\w+)|\$\([^)]*\)?")
"""A variable without a value in a text (`${X}`, `${oc.env:X}`, of nested ones the innermost); a command's output."""

OPEN_VALUES = {"model": "NAME", "cluster": "NAME", "gpus": "N", "seq": "N", "gbs": "N", "zero": "STAGE"}
"""How a value that is asked for is called; others are `...`."""


def way_to(option: str) -> str:
    """Return how an option is given, with its names where it takes few: `tune=...` (full, lora, qlora)."""
    choices = declared(JobOptions)[option].option.choices if option in declared(JobOptions) else ()
    listed = f" ({', '.join(choices)})" if 0 < len(choices) <= MAX_CHOICES else ""
    return f"`{option}={OPEN_VALUES.get(option, '...')}`{listed}"


MAX_CHOICES = 8
"""Names of an option that a hint lists, at most."""

NOTHING = ("", "none", "null", "auto", "~")
"""Texts that mean that nothing is said."""

_NCCL = (("NCCL_NVLS_ENABLE", "0", "nvls", "off"), ("NCCL_COLLNET_ENABLE", "1", "sharp", "on"))
"""Variable, its value, and the option that it sets."""

_ORIGIN = re.compile(r"|(.*\.)?origin")
"""Names of settings that say where a Python file takes something from, and state nothing."""

_NUMBER = re.compile(r"[+-]?\d*\.?\d+(?:[eE][+-]?\d{1,2})?|\d+\.", re.ASCII)
ON, OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
"""Texts that switch something on or off, in lower case."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
TORCH_DTYPES = {precision: dtype for dtype, precision in DTYPES.items()}
"""Type of PyTorch -> precision as users give it, and back."""


class Reading:
    """The settings of one job as a reader goes through them.

    A reader asks for settings by name (`integer`, `flag`, `text`, ...), which marks them as read, and says what they
    mean (`option`, `model`, `nothing`, `assume`). What nobody asks for is ignored and listed as such.
    """

    def __init__(
        self, sources: Iterable[Source], given: Mapping[str, Any] | None = None, ignored: str = "",
        replaced: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Begin with what files state, and with options that are given beside them: `gpus` where no file says.

        Args:
            ignored: names of settings, with commas between them, that are given as changing neither memory nor time.
            replaced: settings that cannot be read and the options that are given instead of each.
        """
        self.sources, self.given = tuple(sources), dict(given or {})
        self.ignored = tuple(filter(None, map(str.strip, ignored.split(","))))
        self.settings: dict[str, Setting] = {}
        self.launcher: dict[str, Setting] = {}
        self.environment: dict[str, Setting] = {}
        self.tool = load_tool(COMMON)
        self.lost: set[str] = set()  #: settings that name files which are not here, for which an option is given.
        self.script = False  #: whether a Python script gives the arguments of a Trainer.
        self.defaults: dict[str, Setting] = {}
        for source in self.sources:
            self.settings |= source.settings
            self.launcher |= source.launcher
            self.environment |= source.environment
        self.options: dict[str, Any] = {}
        self.layout: dict[str, Any] = {}
        self.shape: dict[str, Any] = {}
        """Keys of a model file (docs/models.md), those of its tables after the table's name: `moe.top_k`."""
        self._read: dict[int, Setting] = {}
        self._meanings: dict[int, str] = {}
        self._stated: dict[str, tuple[Setting, ...]] = {}
        self._of_model: dict[int, list[str]] = {}
        self._assumed = [said for source in self.sources for said in source.assumed]
        self._replaced = [said for source in self.sources for said in source.ignored]
        for name, option in (replaced or {}).items():
            taken = [one.pop(name, None) for one in (self.settings, self.launcher, self.environment)]
            said = [said_of(one, f"replaced by the {option} that is given") for one in taken if one is not None]
            self._replaced += said

    def run_by(self, tool: Tool) -> None:
        """Take what a tool has where nothing is said, and what it knows of settings that nobody asks for."""
        self.tool = tool
        self.defaults = {
            name: Setting(name, value, "", 0, f"{name}: {str(value).lower() if isinstance(value, bool) else value}")
            for name, (value, _) in tool.defaults.items()
        }

    def lift(self, table: str) -> None:
        """Take what stands in a table, if there is one, for settings of the file itself where these say nothing."""
        for name in [name for name in self.settings if table and name.startswith(table)]:
            own = name.removeprefix(table)
            self.settings.setdefault(own, replace(self.settings.pop(name), name=own))

    # --- asking

    def get(self, *names: str) -> Setting | None:
        """Return the first of these settings that says something, else that its tool has, and mark it as read."""
        return self._first(names)[1]

    def needed(self, *names: str) -> Setting | None:
        """Return the first of these settings that says something, with a value that is known.

        Raises:
            InputError: it hangs on a variable that is given none.
        """
        found = self.get(*names)
        if found is not None:
            self.need(found)
        return found

    def stated(self, *names: str) -> Setting | None:
        """Return the first of these settings that says something in a file, and mark it as read."""
        found = self._first(names)[1]
        return None if found is None or found.usual else found

    def first(self, *names: str) -> str:
        """Return the first of these names under which something is said; empty where nothing is."""
        return self._first(names)[0]

    def _first(self, names: Iterable[str]) -> tuple[str, Setting | None]:
        usual: tuple[str, Setting | None] = "", None
        for name in names:
            found = self.settings.get(name) or self.launcher.get(name) or self.environment.get(name)
            if found is not None:
                self._read[id(found)] = found
                if says(found.value):
                    return name, found
            left = found is None or str(found.value).strip().lower() == "auto"
            if left and usual[1] is None and name in self.defaults:
                usual = name, self.defaults[name]
        if usual[1] is not None:
            self._read[id(usual[1])] = usual[1]
        return usual

    def integer(self, *names: str) -> int | None:
        """Return a whole number; underscores and `1e6` are read as such.

        Raises:
            InputError: the setting is something else.
        """
        number = self.number(*names)
        if number is None:
            return None
        if number != int(number):
            self.refuse(self.get(*names), f"{shown(number)} is not a whole number")
        return int(number)

    def number(self, *names: str) -> float | None:
        """Return a number.

        Raises:
            InputError: the setting is something else.
        """
        found = self.get(*names)
        return None if found is None else self.number_of(found)

    def number_of(self, found: Setting) -> float:
        """Return the number that a setting has.

        Raises:
            InputError: it has another value, or none.
        """
        self.need(found)
        text = str(found.value).replace("_", "").strip()[:40]
        if re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
            return int(text)
        empty = re.search(r"\$\{?([A-Za-z_]\w*)", found.text) if found.value is True else None
        if empty:  # `--tp $TP`
            raise LackingError(
                f"the variable {empty[1]} is empty", empty[1], variable=True, of=found.name,
                place=f"{found.place}: {printable(found.name[:80])}", hint=f"`var={empty[1]}=VALUE` gives it a value",
            )  # fmt: skip
        if isinstance(found.value, bool) or not _NUMBER.fullmatch(text):
            self._of_module(found)
            self.refuse(found, f"{shown(found.value)} is not a number")
        return float(text)

    def _of_module(self, found: Setting, known: Sequence[str] = ()) -> None:
        """Ask for a value that a Python file takes from a module that is not here, where it is none of its own.

        Raises:
            LackingError: it does.
        """
        name = str(found.value).strip()
        if found.file.endswith(".py") and re.fullmatch(r"[A-Za-z_]\w{0,60}(\.\w{1,60}){1,6}", name):
            self.need(replace(found, value=f"${{{name}}}", why="is of a module that is not here"), known)

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return whether a switch is on.

        Raises:
            InputError: the setting is neither on nor off.
        """
        found = self.get(*names)
        if found is None:
            return default
        self.need(found, ("true", "false"))
        text = str(found.value).strip().lower()
        if text not in (*ON, *OFF):
            self._of_module(found, ("true", "false"))
            self.refuse(found, f"{shown(found.value)} is neither true nor false")
        return text in ON

    def text(self, *names: str, known: Iterable[str] = ()) -> str | None:
        """Return a text, in lower case where it is one of `known`.

        Raises:
            InputError: it is none of `known`, where there are any.
        """
        found = self.get(*names)
        if found is None:
            return None
        text, choices = str(found.value).strip(), tuple(known)
        if choices or self._decides(found):
            self.need(found, choices)
        if choices and text.lower() not in choices:
            self._of_module(found, choices)
            self.refuse(found, f"unknown value {shown(text)}", did_you_mean(text, choices, "known are"))
        return text.lower() if choices else text

    def words(self, *names: str) -> list[str]:
        """Return the values of a list, which may be written as one text with spaces or commas."""
        found = self.get(*names)
        if found is None:
            return []
        if self._decides(found):
            self.need(found)
        values = (
            found.value
            if isinstance(found.value, list | tuple)
            else re.split(r"[\s,]+", str(found.value).strip("[]() "))
        )
        return [str(value).strip("'\"") for value in values if str(value).strip()]

    def _decides(self, found: Setting) -> bool:
        """Whether a word has to be known: no other value, nor what stands where it is absent, may be taken for it."""
        option = speaks_of(found.last)
        return found.undecided or (option is not None and not self.given.get(option))

    def need(self, found: Setting, known: Sequence[str] = ()) -> None:
        """Refuse a setting whose value hangs on a variable that is given none.

        Args:
            found: the setting.
            known: values that it may have, where they are few.

        Raises:
            InputError: it does; the message names the variable, the hint how to give it.
        """
        texts = found.value if isinstance(found.value, list | tuple) else [found.value]
        unset = next((one for text in texts if isinstance(text, str) and (one := UNSET.search(text))), None)
        if unset is not None:
            name = unset[1] or unset[2]
            if re.match(r"\$\{\s*\w+\.[\w.]+:(?<!\.env:)", unset[0]):
                self.refuse(found, f"the resolver in {unset[0][:60]} is not known", "write the value that it gives")
            why = found.why or "is given no value"
            if not name:
                self.refuse(found, f"its value {why}", "give the option itself, or the script's variable")
            alone = str(found.value).strip() == unset[0] and len(known) <= MAX_CHOICES
            values = found.choices or (known if alone else ())
            listed = f": {', '.join(values)}" if values else ""
            error = LackingError(
                printable(f"the variable {name} {why}"), name, variable=True, likely=found.choices, of=found.name,
                place=f"{found.place}: {printable(found.name[:80])}", hint=f"`var={name}=VALUE` gives it one{listed}",
            )  # fmt: skip
            error.known = () if found.choices else tuple(values)
            raise error

    # --- saying what it means

    def option(self, name: str, value: Any, *of: str) -> None:
        """Set an option of the job or of the layout; `of` are the settings that say so.

        Raises:
            InputError: a degree below 1, or above all GPUs that a job may have.
        """
        if name in DEGREES and not 1 <= value <= MAX_GPUS:
            self.refuse(self.get(*of), f"{shown(value)} is out of range", f"give 1 to {MAX_GPUS:,}")
        if isinstance(value, str) and UNSET.search(value):
            for found in self.every(*of):
                self.need(found)
        (self.layout if name in declared(Layout) else self.options)[name] = value
        assert name in declared(Layout) or name in declared(JobOptions), name
        said = value if not isinstance(value, bool) else "on" if value else "off"
        self.means(f"{name} = {said}", *of)
        self.state(name, self.every(*of))

    def switch(self, name: str, on: Any, off: Any, *of: str) -> None:
        """Set an option by a switch; None leaves it as it is.

        Raises:
            InputError: the setting is neither on nor off.
        """
        value = on if self.flag(*of) else off
        if value is not None:
            self.option(name, value, *of)

    def number_from(self, least: int, name: str, *of: str) -> bool:
        """Set an option by a whole number where one is stated, from `least` on; whether there is one.

        Raises:
            InputError: the setting is no whole number.
        """
        value = self.integer(*of)
        if value is None or value < least:
            return False
        self.option(name, value, *of)
        return True

    def take(self, table: Iterable[Option]) -> None:
        """Set what the settings of a framework's table state, or what it has where they state nothing.

        Raises:
            InputError: a value that makes no sense, or a setting that is missing.
        """
        for row in table:
            if not row.name or not (row.ours or row.missing):
                continue
            if row.beside and self.layout.get(row.beside, 1) == 1:
                continue
            value, stated = self.told(row), self.get(row.name) is not None
            if value is None and row.missing:
                self.refuse(None, f"`{row.name}` is missing", row.missing)
            if not row.ours or (value is None and row.usual is None):
                continue
            value = row.usual if value is None else value
            if row.ours.startswith("model."):
                self.model(row.ours.removeprefix("model."), value, row.name)
            else:
                self.option(row.ours, value, row.name)
            if row.assumed and not stated:
                self.assume(row.assumed)

    def told(self, row: Option) -> Any:
        """Return what the setting of a row states, as our option has it; None where it states nothing."""
        if row.words is None:
            return self.integer(row.name)
        ours = {str(word).lower(): value for value, word in row.words.items()}
        if set(ours) == {"true", "false"}:
            return None if self.get(row.name) is None else ours[str(self.flag(row.name)).lower()]
        text = self.text(row.name, known=ours)
        return None if text is None else ours[text]

    def model(self, key: str, value: Any, *of: str) -> None:
        """Set a key of the model; `of` are the settings that say so."""
        self.shape[key] = value
        for found in self.every(*of):
            if id(found) in self._of_model or id(found) not in self._meanings:
                self._of_model.setdefault(id(found), []).append(f"{key} = {value}")
        self.means(f"model: {key} = {value}", *of)
        self.state(f"model.{key}", self.every(*of))

    def state(self, name: str, settings: Iterable[Setting | None]) -> None:
        """Say which settings state an option, or after `model.` a key of a model file."""
        stated = {id(found): found for found in settings if found is not None}
        self._stated[name] = tuple(sorted(stated.values(), key=_by_place))

    def means(self, meaning: str, *of: str) -> None:
        """Say what settings mean, where they stand."""
        for found in self.every(*of):
            self.say(found, meaning)

    def every(self, *of: str) -> list[Setting]:
        """Return these settings as far as files state them; where none does, as far as the tool has them."""
        found = [one for name in of if (one := self.get(name)) is not None]
        return [one for one in found if not one.usual] or found

    def say(self, found: Setting, meaning: str) -> None:
        """Say what a setting means."""
        self._read[id(found)] = found
        before = self._meanings.get(id(found), "")
        said = before and meaning in before.split("; ")
        self._meanings[id(found)] = before if said else f"{before}; {meaning}" if before else meaning

    def assume(self, meaning: str, *of: str | Setting) -> None:
        """Say what is taken as usual, or predicted otherwise than the settings `of` say."""
        found = next((one for name in of if (one := self.get(name) if isinstance(name, str) else name)), None)
        if found is None:
            self._assumed.append(Said("", 0, "", meaning))
        else:
            self._assumed.append(said_of(found, meaning))
            self._meanings.setdefault(id(found), meaning)

    def stated_by(self, option: str) -> Setting | None:
        """Return the first setting that states an option."""
        return next(iter(self._stated.get(option, ())), None)

    def setting_of_shape(self, message: str) -> Setting | None:
        """Return what states the first key of the model that a message speaks of."""
        for key in self.shape:
            settings = self._stated.get(f"model.{key}", ())
            if settings and re.search(rf"\b{key.rpartition('.')[2]}\b", message):
                return settings[0]
        return None

    def refuse(
        self,
        found: Setting | None,
        message: str,
        hint: str | None = None,
        *,
        settles: str = "",
        likely: Iterable[str] = (),
        elsewhere: bool = False,
    ) -> NoReturn:
        """Refuse a setting.

        Args:
            found: the setting.
            message: what is wrong with it.
            hint: what may be done.
            settles: the option that settles it where it is given beside the files; it is asked for with all else that
                is missing.
            likely: its values of which the files speak.
            elsewhere: it stands for what is in a file that is not here.

        Raises:
            InputError: always.
        """
        if found is not None and not settles and re.fullmatch(r"\$\{\w+\}", str(found.value).strip()):
            self.need(found)  # what is wrong is that it has no value
        name = printable(found.name[:80]) if found else None
        place = f"{found.place}: {name}" if found else None
        if found is not None and found.usual:
            message, place = f"{message} ({found.text}, {self.tool.title}'s default)", self.sources[-1].file
        if settles:
            hint = hint or f"add {way_to(settles)}"
            of = found.name if found is not None and not found.usual else ""
            raise LackingError(printable(message), settles, likely=likely, of=of, place=place, hint=hint)
        raise (NotHereError if elsewhere else InputError)(printable(message), field=None, place=place, hint=hint)

    def _ask(self) -> None:
        """Refuse settings that nobody asked for and that change memory or time, unless what settles them is given.

        Raises:
            InputError: there is one.
        """
        asked: dict[str, list[tuple[Setting, Asked]]] = {}
        guessed: dict[str, tuple[Setting, Asked]] = {}
        for found, does in self._unread():
            if does.option and self.given.get(does.option) is not None:
                self.say(found, f"replaced by the {does.option} that is given")
            elif _OF_PRODUCTS.search(found.name) and precision_word(found) == self.options.get("precision"):
                self.say(found, "as the precision that is read")
            elif does.of:
                self.need(found)
                guessed.setdefault(does.of, (found, does))
            else:
                self.need(found)
                asked.setdefault(does.option, []).append((found, does))
        for option in sorted(asked):  # what no option settles comes first
            (first, does), *more = asked[option]
            also = "".join(f"; {_line_of(one)}: {other.why}" for one, other in more[:5])
            out = f"add {way_to(option)}, or take the setting out"
            hint = out if option else "training of whole models and of LoRA adapters is predicted"
            whole = option in {"seq", "gbs"} and re.fullmatch(r"(seq|global_?batch)\w*", first.name.rpartition(".")[2])
            likely = str(first.value) if whole and digits(first.value) is not None else does.likely
            self.refuse(first, f"{does.why}{also}", hint, settles=option, likely=(likely,) if likely else ())
        if guessed:
            self._ask_about(guessed)

    def _unread(self) -> Iterator[tuple[Setting, Asked]]:
        """Yield settings that nobody asked for and that change memory or time; say those that are left out."""
        # a model's config.json, which is read as a model; what one section repeats of another
        models = {one.file for one in self.sources if _KIND & one.settings.keys() and _SIZE & one.settings.keys()}
        again = {_alike(one) for one in self._read.values()}
        dumps = {source.file for source in self.sources if source.kind in {"arguments", "python"}}
        touched = {table for one in self._read.values() for table in tables_of(one.name)}
        off = tuple(f"{name}_" for name, one in self.settings.items() if str(one.value).lower() == "false")
        for found in {id(one): one for one in self.settings.values()}.values():
            known = id(found) in self._read or _alike(found) in again
            if known or found.file in models or _ORIGIN.fullmatch(found.name):
                continue
            if ignores(self.ignored, found.name):
                self.assume("taken to change neither memory nor time, as given", found)
                continue
            if (note := self.tool.notes(found.name)) and is_on(found.value):
                self.assume(note, found)
            dumped = (found.file in dumps or found.file.endswith(".py")) and not self._written(found)
            does = concern(self.tool, found.name, found.value, dumped=dumped, touched=touched)
            if does and does.of and found.name.startswith(off):
                self.say(found, "of what is switched off")
            elif does:
                yield found, does

    def _ask_about(self, guessed: Mapping[str, tuple[Setting, Asked]]) -> NoReturn:
        """Ask at once for all settings that are not known and whose names speak of memory or time.

        Raises:
            LackingError: always.
        """
        for of, (found, does) in guessed.items():
            if does.option in DECIDING:
                way = f"`var={IGNORED}={','.join([*self.ignored, of])}`"
                hint = printable(f"add {_meant(found, does.option)}; {way} takes it to change neither")
                place = f"{found.place}: {printable(found.name[:80])}"
                error = LackingError(printable(does.why), does.option, place=place, hint=hint)
                error.answer = _number_meant(found, does.option)
                error.instead = printable(way)
                raise error
        (first, does), *more = guessed.values()
        also = "".join(f"; so is {_line_of(one)}" for one, _ in more)
        others = [_meant(found, other.option) for found, other in guessed.values() if other.option]
        names = ",".join([*self.ignored, *guessed])
        alike = f"`var={IGNORED}={names}`"
        hint = f"{alike} takes {'them' if more else 'it'} to change neither" + "".join(f", or {way}" for way in others)
        error = LackingError(
            printable(f"{does.why}{also}"), IGNORED, variable=True, of=first.name,
            place=f"{first.place}: {printable(first.name[:80])}", hint=printable(hint),
        )  # fmt: skip
        error.way = printable(alike + (f" (or {', '.join(dict.fromkeys(others))})" if others else ""))
        error.answer = names
        raise error

    def _written(self, found: Setting) -> bool:
        """Whether a script says a setting itself: what it gives by names without a dot is its Trainer's arguments."""
        return self.script and "." not in found.name and bool(_PLAIN.fullmatch(str(found.value)))

    def _left(self, one: Setting) -> Said:
        """Say why a setting has no meaning: of one that is not known with the tables that it stands in."""
        if id(one) in self._read:
            return said_of(one, "says nothing more")
        if self.tool.name == STRANGER:
            return said_of(one, "not read: its program is of no framework that is known here")
        why = unasked(self.tool, one.name, one.value)
        whole = why == UNKNOWN and "." in one.name and one.name not in one.text and not one.file.endswith(".py")
        return said_of(replace(one, text=f"{one.name}: {one.text}") if whole else one, why)

    # --- the whole

    def result(self, target: str) -> LaunchJob:
        """Return what was read; variables of NCCL mean the same under every framework."""
        for variable, value, option, meant in _NCCL:
            found = self.environment.get(variable)
            if found is not None and str(found.value).strip() == value:
                self.option(option, meant, variable)
        self._ask()
        groups = (self.settings, self.launcher)
        every = {id(one): one for group in groups for name, one in group.items() if not _ORIGIN.fullmatch(name)}
        every |= self._read
        for one in self.defaults.values():
            every.pop(id(one), None)
            if id(one) in self._meanings:
                meaning = f"{self._meanings[id(one)]}: {self.tool.title}'s default"
                self._assumed.append(Said("", 0, one.text, meaning))
        ordered = sorted(every.items(), key=lambda item: _by_place(item[1]))
        understood = {key: said_of(one, self._meanings[key]) for key, one in ordered if key in self._meanings}
        of_model = {said: tuple(self._of_model[key]) for key, said in understood.items() if key in self._of_model}
        ignored = [self._left(one) for key, one in ordered if key not in self._meanings]
        return LaunchJob(
            target, self.options, self.layout, tuple(understood.values()), (*ignored, *self._replaced),
            tuple(self._assumed), self.environment, self.defaults | self.settings, self._stated, of_model,
        )  # fmt: skip


def precision_word(found: Setting) -> str | None:
    """Return the precision that a setting names or switches on; None where it does neither."""
    value, last = str(found.value).strip().lower(), found.name.removesuffix(".enabled").rpartition(".")[2]
    if last in {"bf16", "fp16", "tf32", "fp8"}:
        on = value in {*ON, "auto", "full"}
        return last if on else "fp32" if last == "tf32" else None
    word = re.sub(r"-(mixed|true)$", "", value.removeprefix("torch.").removeprefix("amp_"))  # Lightning: bf16-mixed
    word = {"16": "fp16", "32": "fp32"}.get(word, word) if last == "precision" else word
    return {**DTYPES, "half": "fp16"}.get(word, word if word in {"bf16", "fp16", "fp32", "fp8"} else None)


_OF_PRODUCTS = re.compile(r"(^|\.)(bf16|fp16|fp8)(\.enabled)?$|(^|\.)((torch_)?dtype|(mixed_)?precision)$")
"""Settings that name the type in which products are computed."""


def says(value: Any) -> bool:
    """Whether a value says anything."""
    if isinstance(value, list | dict):
        return bool(value)
    return value is not None and not (isinstance(value, str) and value.strip().lower() in NOTHING)


def digits(value: Any) -> int | None:
    """Return the whole number that a value is, 0 or more, in at most 18 ASCII digits; None of any other."""
    text = str(value)
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


_KIND, _SIZE = {"model_type", "architectures"}, {"hidden_size", "n_embd", "d_model", "vocab_size"}
"""Keys by which a model's config.json is known: of both."""

_PLAIN = re.compile(r"True|False|[\d.e+-]+|[a-z0-9_ ]+")
"""Values that are switches, numbers or words, and not what a call makes."""


def _meant(found: Setting, option: str) -> str:
    """Return how an option is given that a setting by its name speaks of, with the number that the setting has."""
    number = _number_meant(found, option)
    return f"`{option}={number}`" if number else way_to(option)


def _number_meant(found: Setting, option: str) -> str:
    number = digits(found.value) if option in {*DEGREES, "gbs", "micro_batch_size", "seq"} else None
    return "" if number is None or (option in DEGREES and not 1 <= number <= MAX_GPUS) else str(number)


def _line_of(found: Setting) -> str:
    return printable(f"{found.text[:60]} ({found.place})")


def _alike(found: Setting) -> tuple[str, str]:
    """Return what two settings of sections that repeat one another share; of a name that says little the whole name."""
    table, _, last = found.name.rpartition(".")
    of_deepspeed = last == "stage" and table.endswith("zero_optimization")  # wherever its configuration stands
    return found.name if last in SAYS_LITTLE and not of_deepspeed else last, str(found.value).lower()


SAYS_LITTLE = (
    "enabled", "enable", "use", "mode", "type", "name", "kind", "method", "size", "value", "impl", "policy", "stage",
)  # fmt: skip
"""Names that say little without the table that they stand in."""


def _by_place(found: Setting) -> tuple[str, int]:
    return found.file, found.line


def said_of(found: Setting, meaning: str) -> Said:
    """Say what was made of a setting."""
    text = found.text if len(found.text) <= MAX_TEXT else f"{found.text[: MAX_TEXT - 3]}..."
    return Said(printable(found.file), found.line, printable(text), printable(meaning))
