"""Launch files as the question that they ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from gpuscale.arguments import public
from gpuscale.errors import InputError, shown
from gpuscale.files import printable, reads
from gpuscale.launch import own_programs, strangers, trainer_scripts
from gpuscale.launch.asking import (
    GPUS_SAID,
    MAX_LACKS,
    MODEL_SAID,
    OTHERS,
    Lack,
    asked_for,
    batches_of,
    lacking,
    nearly,
    others_of,
    shards_said,
    suggestion,
    typed,
    ways_of,
)
from gpuscale.launch.hardware import take_hardware
from gpuscale.launch.launchers import MISSING, gpus_of, take_gpus
from gpuscale.launch.settings import (
    GROWING_BATCH,
    LackingError,
    LaunchJob,
    NotHereError,
    Reading,
    Said,
    Setting,
    said_of,
)
from gpuscale.launch.sources import CUT, WITHOUT, Launch, give_too, launches, missing_configuration
from gpuscale.launch.targets import targets
from gpuscale.launch.unread import IGNORED
from gpuscale.launch.writing import Target
from gpuscale.planning.planfile import replaced
from gpuscale.planning.plans import job_of, legal_layout
from gpuscale.presets.models import load_model
from gpuscale.presets.tools import STRANGER
from gpuscale.presets.towers import BACKBONE, FROZEN, FROZEN_TOWERS, LANGUAGE, NOT_TRAINED, TRAINED
from gpuscale.request import JobOptions, Layout, declared, read

_NOISE = re.compile(r"MASTER|PORT|ADDR|RANK|CUDA|NCCL|SEED|ITER|STEP|INTERVAL|WORKERS|THREADS|EPOCH|DIR|PATH")
"""Variables whose defaults change no prediction."""


STATED_MODEL = "model"
"""Place of what is wrong with a model that launch files state: it could be read, and is none."""


@public
@reads("launch", "run")
def read_launch(
    launch_files: Sequence[str | Path],
    variables: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
    *,
    texts: Mapping[str, str] | None = None,
) -> LaunchJob:
    """Read the launch files of one job.

    Args:
        launch_files: scripts, YAML, TOML, JSON, logs with arguments, folders of them; `run.sh:12` is one command.
        variables: values of variables that the files leave open; arguments of a script are `1`, `2`, or all of them in
            one text, `@`; `*` with the value `suggested` takes for all else that is missing what the files suggest.
        given: options of the job that are given beside the files and need not stand there.
        texts: what files are taken to hold instead of what they do, by name.

    Raises:
        InputError: a file that cannot be read or is of no framework that is known, a variable without a value, several
            jobs, or a job that is not modelled (LoRA, encoder and decoder, images, inference).
    """
    given, values = _checked(given or {}), dict(variables or {})
    assume = values.pop(ANY, None)
    if assume not in {None, SUGGESTED}:
        raise InputError(f"{shown(assume)} is no value of `{ANY}`", field="variables", hint=f"it may be {SUGGESTED!r}")
    lacks: list[Lack] = []
    attempt = _Attempt(launch_files, given, values, texts)
    while True:
        try:
            job = attempt(lacks)
        except LackingError as error:
            if len(lacks) >= MAX_LACKS or any(lack.error.name == error.name for lack in lacks):
                raise _asked(lacks, attempt.followed.values()) from None
            suggested = error.suggested or suggestion(error, None, None, typed(lacks)[1].keys())
            lacks.append(Lack(error, suggested))
            continue
        except InputError as error:
            if not lacks:
                raise _wanting(error, launch_files, variables, given, texts) from None
            if assume and all(lack.suggested for lack in lacks):
                raise
            raise _asked(lacks, attempt.followed.values(), error) from None
        if not lacks:
            return job
        lacks, job, wrong = _agreed(lacks, job, attempt)
        if not (assume and all(lack.suggested for lack in lacks)):
            raise _asked(lacks, attempt.followed.values(), wrong)
        return replace(job, assumed=(*job.assumed, *(lack.said() for lack in lacks)))


class _Attempt:
    """Reads the launch files of one job with values for what is missing."""

    def __init__(
        self, launch_files: Sequence[str | Path], given: Mapping[str, Any], values: Mapping[str, str],
        texts: Mapping[str, str] | None,
    ) -> None:  # fmt: skip
        self.files, self.given, self.values, self.texts = launch_files, given, values, texts
        self.followed: dict[tuple[tuple[str, str], ...], list[Launch]] = {}
        self.replaced: dict[str, str] = {}  #: settings that cannot be read -> the options that are given instead.

    def __call__(self, lacks: Sequence[Lack]) -> LaunchJob:
        """Return the job; errors are those of `_read`."""
        variables, asked = typed(lacks)
        options = {**self.given, **asked}
        known = {"get_world_size": str(options["gpus"])} if options.get("gpus") else {}
        known |= {**self.values, **variables}
        key = tuple(sorted(known.items()))
        if key not in self.followed:
            values_of = {name: value for name, value in known.items() if name != IGNORED}  # no variable of scripts
            self.followed[key] = launches([Path(path) for path in self.files], values_of, self.texts)
        while True:
            try:
                ignored = known.get(IGNORED, "")
                job = _read(self.files, self.followed[key], options, asked.keys(), ignored, self.replaced)
                break
            except LackingError as error:
                settled = not error.variable and options.get(error.name) is not None
                if not settled or not error.of or error.of in self.replaced or len(self.replaced) >= MAX_LACKS:
                    raise
                self.replaced[error.of] = error.name
        taken = _checked(asked)
        layout = {name: taken.pop(name) for name in [*taken] if name in declared(Layout)}
        return replace(job, options={**job.options, **taken}, layout={**job.layout, **layout})

    def legal(self, lacks: Sequence[Lack]) -> LaunchJob | None:
        """Return the job with values for what is missing; None where nothing can be read or run with them."""
        with suppress(InputError):
            job = self(lacks)
            return job if self.wrong_with(job) is None else None
        return None

    def wrong_with(self, job: LaunchJob) -> InputError | None:
        """Return what is wrong with a job as a whole: degrees that contradict the GPUs, a rule that it breaks."""
        try:
            made = with_given(job, self.given, {})
            legal_layout(job_of(made.options, made.layout), made.layout)
        except InputError as error:
            return error
        return None


def _agreed(lacks: list[Lack], job: LaunchJob, attempt: _Attempt) -> tuple[list[Lack], LaunchJob, InputError | None]:
    """Return what is missing with values that can run together, the job with them, and what is wrong where none can."""
    for at, lack in enumerate(lacks):  # which of the few values there are can run with the rest
        if lack.name == "zero" and not lack.suggested:
            ways = {stage: [*lacks[:at], lack._replace(other=stage), *lacks[at + 1 :]] for stage in OTHERS["zero"]}
            jobs = {stage: made for stage, way in ways.items() if (made := attempt.legal(way)) is not None}
            lack.error.likely = tuple(sorted(jobs))
            for stage in [*jobs][:1]:
                lacks, job = ways[stage], jobs[stage]
    wrong = attempt.wrong_with(job)
    if wrong is None:
        return lacks, job, None
    tried = [(lacks, job)]
    for changed in others_of(lacks, job.layout):
        with suppress(InputError):
            tried.append((changed, attempt(changed)))
    for taken, made in tried:
        for changed in (taken, *batches_of(taken, {**made.options, **attempt.given}, made.layout)):
            again = attempt.legal(changed)
            if again is not None:
                return changed, again, None
    return lacks, job, wrong


def _asked(
    lacks: Sequence[Lack], followed: Iterable[Sequence[Launch]], wrong: InputError | None = None
) -> LackingError:
    """Build the error that asks for all that is missing, and for files that may say it; say where a command is cut."""
    found = [launch for one in followed for launch in one]
    cut = {one.line: None for launch in found for one in launch.sources[-1].assumed if one.meaning == CUT}
    unread = [name for launch in found for name in launch.unread]
    unread += [said.meaning.removesuffix(WITHOUT) for launch in found for source in launch.sources
               for said in source.assumed if said.meaning.endswith(WITHOUT)]  # fmt: skip
    probes = {lack.probe for lack in lacks if lack.error.variable}
    unread = [name for name in unread if not probes.intersection(Path(name).parts)]  # made of what is asked for
    script = next((one.files[0] for one in found if one.files), None)
    error = asked_for(lacks, list(dict.fromkeys(unread)), list(cut), script, wrong)
    error.values = {name: value for name, value in typed(lacks)[0].items() if name != IGNORED}
    return error


class SeveralJobsError(InputError):
    """Files hold several jobs that differ, at `places`."""

    places: tuple[str, ...]


def _wanting(
    error: InputError, launch_files: Sequence[str | Path], variables: Mapping[str, str] | None,
    given: Mapping[str, Any], texts: Mapping[str, str] | None,
) -> InputError:  # fmt: skip
    """Say beside a choice among several jobs what one lacks that runs with it, so that the answer is one command."""
    if not isinstance(error, SeveralJobsError) or [*map(str, launch_files)] == [error.places[0]]:  # they share a place
        return error
    found = None
    for place in error.places[:3]:
        try:
            read_launch([place], variables, given, texts=texts)
        except LackingError as more:
            made = InputError(error.message, hint=f"name one: `launch_files={place}`, and with it {more.hint}")
            values = {**(variables or {}), **more.values}
            with suppress(InputError):
                runs = _claimed(launches([Path(one) for one in launch_files], values, texts)) if more.values else ()
                if not more.values or {one.place for one, _ in runs} == {place}:
                    return made
            found = found or made
        except InputError:
            pass  # said when it is named
    return found or error


ANY, SUGGESTED = "*", "suggested"
"""Every variable and option that is missing, and its value: what the files suggest for it."""


def _read(
    launch_files: Sequence[str | Path], found: Sequence[Launch], given: Mapping[str, Any], guessed: Collection[str],
    ignored: str, replaced: Mapping[str, str],
) -> LaunchJob:  # fmt: skip
    """Read what launch files launch; options that are `guessed` speak for nothing, `ignored` settings change nothing.

    Options that are given stand for the settings that they `replaced`.

    Raises:
        LackingError: something is missing.
        InputError: as `read_launch`.
    """
    launch, reading = None, None
    try:
        if not found:
            titles = ", ".join(target.title for target in targets().values())
            place = ", ".join(map(str, launch_files))[:300]
            raise InputError("it contains no training command", place=place, hint=f"supported: {titles}")
        launch, target = _one(list(_claimed(found)), found)
        if target.name != STRANGER and (target.name in KNOWN_CONFIGURATIONS or not launch.missing):
            reading = Reading(launch.sources, given, ignored, replaced)
            try:
                return _job(launch, target, reading)
            except NotHereError as elsewhere:
                launch = replace(launch, elsewhere=elsewhere)
        reading = Reading(launch.sources, given, ignored, replaced)
        reading.sources = strangers.with_programs(launch.sources, launch.files)
        return _job(launch, strangers.TARGET._replace(frameworks=target.frameworks), reading)
    except LackingError as caught:
        error = caught
        lone = error.name == "gbs" and reading is not None and "gpus" not in reading.options
        lone |= error.name == "get_world_size" and reading is not None
        if lone and launch is not None and reading is not None and gpus_of(reading) is None:
            error = lacking("gpus", launch.place, _hint_gpus(launch, reading.layout))  # from which the batch may follow
        near = strangers.nearest(error, reading.sources) if reading is not None else None
        error.suggested = error.suggested or near or suggestion(error, launch, reading, guessed)
        if error.place is None and launch is not None:
            error.place = launch.place
        raise error from None


def _job(launch: Launch, target: Target, reading: Reading) -> LaunchJob:
    """Read one job.

    Raises:
        LackingError: something is missing.
        InputError: as `read_launch`.
    """
    try:
        if target.name != STRANGER:
            _refuse_frozen(reading)
        target.read(reading)
    except LackingError as error:
        if target.name == STRANGER:
            error.lead, error.files = _unread(launch)
            raise
        if error.name != "gpus" or error.likely:
            raise
        way = _hint_gpus(launch, reading.layout)
        raise LackingError(error.message, "gpus", place=launch.place, hint=way) from None
    except InputError as error:
        if error.place == STATED_MODEL:
            said = reading.setting_of_shape(error.message)
            place = f"{STATED_MODEL}: {said.place}" if said else STATED_MODEL
            where = {"field": error.field, "place": place, "hint": error.hint}
            raise StatedError("impossible_model", error.message, said, **where) from None
        if error.place is not None or error.field not in MISSING:
            raise
        hint = f"add `model=NAME`{nearly(launch, MODEL_SAID)}" if error.field == "model" else error.hint
        raise LackingError(error.message, str(error.field), place=launch.place, hint=hint) from None
    if target.name == STRANGER:
        profile = "what is not given is as the profile of the framework has it, and `framework` names another"
        reading.assume(f"{_unread(launch)[0]}: none of its settings is read, none of its defaults known; {profile}")
    _take_towers(reading)
    take_gpus(reading)
    reading.options.setdefault("framework", target.frameworks[0])
    take_hardware(reading, launch.files)
    _need(reading, launch)
    job = reading.result(target.name)
    matters = tuple(one for one in job.assumed if not (one.file and _NOISE.search(one.text.partition("=")[0])))
    return replace(job, assumed=matters)


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a job and a layout in their usual spelling; what is None is not given.

    Raises:
        InputError: a value of the wrong type or out of range.
    """
    known = {name: value for name, value in given.items() if value is not None}
    layout = {name: value for name, value in known.items() if name in declared(Layout)}
    options = {name: value for name, value in known.items() if name in declared(JobOptions)}
    job = read(JobOptions, {"model": "", "gpus": 1, **options}).values()
    return {name: job[name] for name in options} | read(Layout, layout).stated()


def with_given(job: LaunchJob, options: Mapping[str, Any], layout: Mapping[str, Any]) -> LaunchJob:
    """Return a job with options that are given beside its files, each listed in `assumed`.

    Raises:
        InputError: degrees that contradict the number of GPUs.
    """
    read(Layout, layout)  # what is none is refused before it is compared
    assumed, given = [], _checked({**options, **layout})
    options = {name: value for name, value in given.items() if name in declared(JobOptions)}
    layout = {name: value for name, value in given.items() if name in declared(Layout)}
    for name, value in given.items():
        stated = job.layout.get(name, job.options.get(name))
        said = job.setting(name)
        at = f" ({said.place})" if said else ""
        before = f"replaces {stated}{at}" if stated is not None else "no file states it"
        assumed.append(Said("", 0, f"{name}={value}", f"given: {before}"))
    if "cluster" not in job.options and "cluster" not in options:
        usual = declared(JobOptions)["cluster"].default
        assumed.append(Said("", 0, f"cluster={usual}", "no file states on what it runs: the usual cluster"))
    made_of = job.layout.keys() | layout.keys() | job.options.keys() | options.keys()
    unsaid = [f"{name}={declared(Layout)[name].default}" for name in NOT_SPLIT if name not in made_of]
    own = [name for name in OF_FRAMEWORK if name not in made_of]
    framework = {**job.options, **options}["framework"]
    for names, meaning in ((unsaid, ""), (own, f": as {framework} has it")):
        if names:
            assumed.append(Said("", 0, ", ".join(names), f"no file states it{meaning}"))
    kept = {"shard": job.layout["shard"]} if "shard" in job.layout and not layout else {}  # read with the given GPUs
    made = replace(
        job,
        options={**job.options, **options},
        layout={**replaced(job.layout, layout, gpus="gpus" in options), **kept},
        assumed=(*job.assumed, *assumed),
    )
    _check_degrees(made, given)
    return made


NOT_SPLIT = ("tp", "pp", "cp", "ep", "recompute")
"""Values of a layout that stand for nothing where nobody states them, so that an answer says that nobody did."""

OF_FRAMEWORK = ("zero", "optimizer", "master_dtype", "grad_dtype", "moment_dtype")
"""What is as its framework has it where nobody states it."""


class StatedError(InputError):
    """What launch files state cannot be: degrees that do not multiply to the GPUs (`world_size`), `impossible_model`.

    Attributes:
        rule: which of them it is.
        said: the setting that says it first, if one does.
    """

    def __init__(self, rule: str, message: str, said: Setting | None, **where: str | None) -> None:
        super().__init__(message, **where)
        self.rule, self.said = rule, said


def _check_degrees(job: LaunchJob, given: Mapping[str, Any]) -> None:
    """Refuse degrees that do not multiply to the GPUs, with the places of those that are not given beside the files."""
    degrees = {name: int(job.layout.get(name) or 1) for name in ("tp", "pp", "cp")}
    gpus, dp = int(job.options["gpus"]), job.layout.get("dp")
    ways = prod(degrees.values()) * (dp or 1)
    if gpus % ways == 0 and (dp is None or gpus == ways):
        return
    names = [*(name for name, degree in degrees.items() if degree > 1), *(["dp"] if dp else [])]
    places = {name: said for name in names if name not in given and (said := job.setting(name))}
    stands = "".join(f"; `{name}` stands at {one.place}" for name, one in places.items())
    whole = " x ".join(f"{name.upper()} {job.layout.get(name)}" for name in names)
    relation = f"make {ways:,} GPUs" if dp else f"take a multiple of {ways:,} GPUs"
    own = None if "gpus" in given else job.setting("gpus")
    message = f"{whole} {relation}, not {gpus:,}{stands}" + (f"; {gpus:,} at {own.place}" if own else "")
    first = next(iter(places.values()), own)
    raise StatedError("world_size", message, first, field="gpus", hint="give other `gpus`, or other degrees")


# --- which job


def _claimed(found: Sequence[Launch]) -> Iterator[tuple[Launch, Target]]:
    """Yield what a framework recognises as its own, with that framework."""
    known, some = targets(), False
    for launch in found:
        target = next((one for one in known.values() for source in launch.sources if one.claims(source)), None)
        if target is not None:
            some = True
            yield launch, target
    for launch in () if some else found:
        own = not launch.missing and _trains(launch) and own_programs.claims(launch.sources[-1])
        if own and not strangers.does_other(launch.sources[-1]):
            some = True
            yield launch, known["deepspeed" if launch.sources[-1].program[0] == "deepspeed" else "accelerate"]
    for launch in () if some else found:
        if strangers.trains(launch.sources):
            yield launch, strangers.TARGET


_OF_DATA = re.compile(r"dataset|(output|logging)_dir|run_name")
"""Settings of a script in which runs of a loop over data differ, which are one job."""


def _one(claimed: list[tuple[Launch, Target]], found: Sequence[Launch]) -> tuple[Launch, Target]:
    """Return the one job that is there.

    Raises:
        InputError: none, or several that differ.
    """
    if not claimed:
        lost = next((launch.missing for launch in found if launch.missing), ())
        raise missing_configuration(lost) if lost else _unknown(found)
    trainings = [one for one in claimed if _trains(one[0])]
    scripts = [one for one in trainings if any(map(trainer_scripts.claims, one[0].sources))]
    different: dict[tuple[Any, ...], tuple[Launch, Target]] = {}
    for launch, target in reversed(scripts or trainings or claimed):
        groups = (group for source in launch.sources for group in (source.settings, source.launcher))
        content = (
            tuple(
                (name, str(one.value))
                for group in groups
                for name, one in sorted(group.items())
                if not (scripts and _OF_DATA.search(name))
            )
            if target.name != STRANGER
            else strangers.content(launch.sources)
        )
        different[content] = (launch, target)
    if len(different) == 1:
        return next(iter(different.values()))
    jobs = sorted(different.values(), key=lambda one: _by_line(one[0].place))
    listed = "; ".join(f"{one.place} ({_differs(one, jobs[0][0])})" for one, _ in jobs[:6])
    more = f" and {len(jobs) - 6} more" if len(jobs) > 6 else ""
    places = tuple(one.place for one, _ in jobs)
    error = SeveralJobsError(f"{len(jobs)} jobs are here: {listed}{more}", hint=f"name one: `launch_files={places[0]}`")
    error.places = places
    raise error


def _trains(launch: Launch) -> bool:
    """Whether a command trains: not by its program's name, nor where the Trainer is only told to predict."""
    return not strangers.evaluates(launch.sources[-1])


KNOWN_CONFIGURATIONS = ("maxtext",)
"""Targets whose files repeat what is known of the framework (MaxText's base.yml)."""


def _unread(launch: Launch) -> tuple[str, str]:
    """Say what of a job is of no framework that is known, or not here; return it with what would help."""
    lost = launch.elsewhere or (missing_configuration(launch.missing) if launch.missing else None)
    if lost is not None:
        return lost.message, lost.hint or ""
    last = launch.sources[-1]
    words = [Path(word).name for word in last.program[:6] if word != "--"]
    scripts = [word for word in last.program if re.search(r"\.(py|sh)$", word)][:3]
    absent = [word for word in scripts if Path(word).name not in {path.name for path in launch.files}]
    what = printable(" ".join(words)[:80] or Path(last.file).name)
    return f"{what} is of no framework that is known here", give_too(absent) if absent else ""


def _by_line(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return (file, int(line)) if line.isdigit() else (place, 0)


def _differs(launch: Launch, first: Launch) -> str:
    """Return what of a job is not as in the first, or its program."""
    if launch.sources[-1].kind == "python":
        return printable(launch.sources[-1].program[0])
    own, other = launch.sources[-1].settings, first.sources[-1].settings
    names = [name for name in own if name not in other or str(other[name].value) != str(own[name].value)]
    if launch is not first and 0 < len(names) <= 4:
        return ", ".join(f"{name} {shown(own[name].value)}" for name in names)
    program = launch.sources[-1].program
    return " ".join(program)[:60] or f"{len(own)} settings"


def _unknown(found: Sequence[Launch]) -> InputError:
    """Say what was recognised in files of no framework that is known."""
    titles = ", ".join(target.title for target in targets().values())
    parts, other = [], False
    for launch in found[:4]:
        last = launch.sources[-1]
        names = ", ".join(list(last.settings)[:5])
        what = " ".join(last.program)[:60] or f"{last.kind} with {names or 'no settings'}"
        does = next(filter(None, map(strangers.does_other, launch.sources)), "")
        parts.append(f"{launch.place}: {what}{f', which {does}' if does else ''}")
        other |= bool(does)
    hint = "training of language models with PyTorch or JAX is predicted" if other else f"supported: {titles}"
    return InputError(f"nothing here is of a known framework ({printable('; '.join(parts))})", hint=hint)


# --- what is not a language model in training


def _refuse_frozen(reading: Reading) -> None:
    """Refuse jobs that train the towers of a multimodal model alone.

    Raises:
        InputError: they do.
    """
    typed = reading.get(TUNE_TYPE)
    if typed is not None and str(typed.value).lower() != "full":
        reading.refuse(
            typed, NOT_TRAINED if str(typed.value).lower() == "frozen" else "adapters that are not read", TRAINED
        )
    own = any(name.rpartition(".")[2].lower() in LANGUAGE for name in reading.settings)
    for name in list(reading.settings):
        frozen = FROZEN.get(".".join(name.lower().split(".")[-2:]), FROZEN.get(name.rpartition(".")[2].lower()))
        if own and name.rpartition(".")[2].lower() == BACKBONE:
            reading.means("of the tower for images, which is not modelled", name)
            continue
        if frozen is not None and reading.flag(name, default=not frozen) == frozen:
            reading.refuse(reading.get(name), NOT_TRAINED, TRAINED)
        elif frozen is not None:
            reading.means("the language model is trained", name)


ADAPTED = ("lora", "qlora")
TUNE_TYPE = "tune_type_llm"
"""What TinyLLaVA does to the language model: `frozen`, `lora` or `full` (tinyllava/utils/arguments.py)."""


def _take_towers(reading: Reading) -> None:
    """Say whether towers are trained where the model has some that are counted and a switch, or its default, says."""
    counted = 0
    with suppress(InputError):  # refused where the job is built
        counted = load_model(reading.given.get("model") or reading.options.get("model", "")).counted_tower
    if not counted:
        return
    named = [name for name in reading.settings if name.rpartition(".")[2].lower() in FROZEN_TOWERS]
    name = reading.first(*named, *FROZEN_TOWERS)
    if name and not reading.flag(name) and (reading.given.get("tune") or reading.options.get("tune")) in ADAPTED:
        reading.option("tower", "frozen", name)
        reading.assume("adapters of the vision tower are not counted: they take little", name)
    elif name:
        reading.option("tower", "frozen" if reading.flag(name) else "trained", name)


# --- what is missing


def _need(reading: Reading, launch: Launch) -> None:
    """Refuse a job of which nobody says what no default can stand for.

    Raises:
        InputError: it is missing; the hint says which option to add, and what nearly says it.
    """
    grows = [name for name in GROWING_BATCH if name in reading.settings]
    hints: Mapping[str, Callable[[], str]] = {
        "model": lambda: f"add `model=NAME`{nearly(launch, MODEL_SAID)}",
        "gpus": lambda: _hint_gpus(launch, reading.layout),
        "seq": lambda: "add `seq=4096`, or what is meant",
        "gbs": lambda: "add `gbs=N`" + "".join(f"; {said_of(reading.settings[one], '').text}" for one in grows[:1]),
    }
    for name, hint in hints.items():
        if name not in reading.options and name not in reading.given:
            raise lacking(name, launch.place, hint())
    open_ = "zero" not in reading.given and reading.stated_by("zero") is None
    said = shards_said(launch) if open_ else None
    if said is not None and said.value != str(reading.layout.get("zero", said.value)):
        error = LackingError(
            "no file states how the job is sharded", "zero", place=launch.place, hint="add `zero=STAGE`"
        )
        error.suggested = said
        raise error


def _hint_gpus(launch: Launch, layout: Mapping[str, Any]) -> str:
    """Say how to give the GPUs, what they are a multiple of, and what nearly says them."""
    ways = ways_of(layout)
    multiple = f", a multiple of {ways:,}" if ways > 1 else ""
    return f"add `gpus=N`{multiple}{nearly(launch, GPUS_SAID)}"
