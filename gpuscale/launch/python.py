"""Configurations that are Python, as settings: worked out from the text, never run.

torchtitan's `config_registry.py`, recipes of NeMo and Megatron-Bridge, scripts of OLMo-core, nanotron and xtuner are of
this kind: a function returns `Trainer.Config(training=TrainingConfig(...))`, or calls another such function and changes
some of what it returned. What is not written there in plain stands for itself: `${name}` is what must be known first.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from gpuscale.errors import InputError
from gpuscale.launch.python_loops import is_lightning, loop
from gpuscale.launch.python_run import PATCHING, Program
from gpuscale.launch.python_state import (
    ABSENT,
    COMMAND_LINE,
    INSTALLED,
    LINE,
    MAX_STEPS,
    NAMING,
    Assigned,
    Choice,
    Importer,
    Loader,
)
from gpuscale.launch.python_values import (
    MAX_PARTS,
    Class,
    Function,
    Imported,
    Place,
    Record,
    Scope,
    Symbol,
    Unknown,
    asked_name,
    is_plain,
    owners,
    weight,
)
from gpuscale.launch.settings import LackingError, Reading, Said, Setting, Settings, Source
from gpuscale.launch.unread import speaks_of
from gpuscale.presets.files import known_table

_KNOWN = known_table("scripts")["program"]

LOOP = "loop"
"""Name of what a loop of a script's own amounts to."""

MAX_SETTINGS = 20_000
MAX_NESTED = 16
"""Records inside one another."""
MAX_ROOTS = 2000
"""Configurations of one file."""
MAX_LISTED = 256
"""Elements of a list whose own parts are settings."""


Found = tuple[str, Any, str, Place]
"""Name of a setting, its value, why that is not known, and where it stands."""


class Root(NamedTuple):
    """What a file configures: a variable, what a function returns, or a call that a run of the file ends in."""

    name: str  #: of the variable or function; of a call what is called.
    value: Record
    place: Place
    ran: bool = True  #: whether a run of the file makes it; else a function that nothing in the file calls.


class Configured(NamedTuple):
    """What a file configures, as settings without its name."""

    place: Place
    source: Source
    ran: bool
    lost: tuple[Said, ...] = ()  #: documents that say some of it and are not here, or what names them.


def python_sources(
    text: str, file: str, find: Importer, given: Mapping[str, Any], load: Loader = lambda *_: None
) -> list[Configured]:
    """Return each thing that a Python file configures, as settings without its name, which is the source's program.

    Of a call inside another the name is the value: `activation_checkpoint` is `SelectiveAC.Config`. `` is what is
    called itself, `origin` the same with its package, as `model_spec.origin` is of a part. What a module puts into a
    dictionary of another has the dictionary's name: `llama3_configs.8B`, of a function what it returns.

    Raises:
        InputError: not Python, or too much of it to work out.
    """
    program = Program(find, given, load)
    scope = program.module(file, text)
    takers = _Takers(program.called)
    found, tables, before = [], [*_tables(program, scope)], set[str]()
    for root in islice(_roots(program, scope), MAX_ROOTS):
        _build(program, root)
        chosen = {name: one for name, one in program.chosen.items() if root.ran or name not in before}
        before |= chosen.keys()
        every = [("", root.value.name, "", root.place), ("origin", root.value.origin, "", root.place)]
        inner = ((key, one) for key, one in root.value.parts.items() if isinstance(one, Record))
        origins = [(f"{key}.origin", one.origin, "", one.place) for key, one in inner if one.origin != one.name]
        frozen = [("requires_grad", False, "", place) for place in program.frozen[:1]]
        changes = [*takers.changes(root), *frozen, *_touches(root, program), *_lengths(root, program), *_returned(root)]
        inside = [*islice(_inside("", root.value), min(MAX_SETTINGS, max(MAX_STEPS - program.steps, 0) + 1))]
        program.steps += len(inside)
        parts = [*tables, *every, *inside, *origins, *changes]
        settings = _settings(parts, program.choices)
        changed = tuple(
            Said(one.file, one.line, one.text[:120], f"what {one.value} {does} is in no file that is here")
            for name, one in settings.items()
            for does in [_beyond(name)]
            if does and name not in KNOWN_CHANGES and not (_trains(root.value) and name.rpartition(".")[2] in HARMLESS)
        )
        said = (*_assumed(chosen.values()), *changed)
        variables = _settings([(key, *_plain(one), place) for key, (one, place) in program.environment.items()])
        source = Source(file, "python", settings, (root.name,), environment=variables, assumed=said)
        found.append(Configured(root.place, source, root.ran, tuple(_lost_documents(program, settings))))
    if program.steps > MAX_STEPS:
        raise InputError(f"more than {MAX_STEPS:,} steps to work out", place=file, hint="give what it configures alone")
    return found


def _lost_documents(program: Program, settings: Settings) -> Iterator[Said]:
    """Yield the documents that are not here, or what names them, on which settings hang that matter."""
    hang = {str(one.value) for name, one in settings.items()
            if one.why in {ABSENT, NAMING} and not BESIDE.search(name) and not OF_MODEL.search(name)}  # fmt: skip
    for name, (why, place) in program.lost.items():
        if f"${{{asked_name(name)}}}" in hang:
            yield Said(place.file, place.line, asked_name(name) if why == NAMING else name, why)


ENDS = re.compile(
    r"^(.*\.)?(pretrain|finetune|train|fit|main|run|launch|save\w*|dump\w*|validate|print|pprint|info|cli)$"
)
"""Calls that take a configuration to run it, or to write it."""

BESIDE = re.compile(rf"{known_table('scripts')['scripts']['data']}|steps$|epochs|_dir$|run_name")
"""Settings that change no step, on which what a file says may bear."""

OF_MODEL = re.compile(r"(^|\.)model\.model_config\.\*\*$")
"""All of a model's shape, for which `model` stands as well."""

ADAPTERS = "calls.add_adapter"
"""A call that gives a model of transformers adapters of PEFT, whose configuration are settings too."""

HARMLESS = frozenset(known_table("scripts")["scripts"]["harmless"])
"""Calls that are given a model and change neither memory nor time."""

KNOWN_CHANGES = frozenset(_KNOWN["known_changes"])


def _beyond(name: str) -> str:
    """Say what a call or keywords from elsewhere (`**more`) do to a configuration; empty of other settings."""
    return "changes" if name.startswith("calls.") else "gives as keywords" if name.rpartition(".")[2] == "**" else ""


class _Takers:
    """The calls that are not followed, by what they take."""

    def __init__(self, called: list[Record]) -> None:
        self.called, self.seen = called, 0
        self.of: dict[int, list[Record]] = {}

    def changes(self, root: Root) -> Iterator[Found]:
        """Yield the calls that take a configuration or a part of it, and may change it."""
        for call in self.called[self.seen :]:
            for part in call.parts.values():
                self.of.setdefault(id(part), []).append(call)
        self.seen = len(self.called)
        whole = root.value
        for part in (whole, *(one for one in whole.parts.values() if isinstance(one, Record))):
            for call in self.of.get(id(part), ()):
                if call is not whole and not ENDS.match(call.name):
                    yield f"calls.{call.name}", call.name, "", call.place
                    if f"calls.{call.name}" == ADAPTERS:
                        given = {key: one for key, one in call.parts.items() if key != "of"}
                        yield from _inside(ADAPTERS, replace(call, parts=given))


def _touches(root: Root, program: Program) -> Iterator[Found]:
    """Yield what is done to the model that something trains before its training starts.

    The model is what the trainer is given, and all that it is made from: `get_peft_model(from_pretrained(...), ...)`.
    """
    trainer = root.value if _trains(root.value) else root.value.parts.get("0")
    if not isinstance(trainer, Record) or not _trains(trainer):
        return
    own = {id(one) for one in _made_from(trainer)}
    starts = [program.started[id(one)] for one in (root.value, trainer) if id(one) in program.started]
    calls, sets = starts[0] if starts else (None, None)
    if own:
        yield from _done_by_calls(trainer, program, own, calls)
        yield from _done_by_setting(program.assigned[:sets], own)
        yield from _done_by_callbacks(trainer, program)
        yield from _overridden(trainer)
    elif isinstance(trainer.parts.get("model", trainer.parts.get("0")), Unknown):
        yield from _lost(program.unfollowed[:calls])


def _lost(calls: list[Record]) -> Iterator[Found]:
    """Yield calls that make adapters or quantise where nobody knows which model the trainer is given."""
    for call in calls:
        name = call.name.rpartition(".")[2]
        if name in _KNOWN["adapting"] or any(call.parts.get(flag) is True for flag in _KNOWN["quantising"]):
            yield f"{TOUCHES}{LOST}{name}", call.name, "", call.place


def _done_by_calls(trainer: Record, program: Program, own: set[int], until: int | None) -> Iterator[Found]:
    """Yield calls that are not followed and take the model or a part of it, or whose name speaks of what matters."""
    stated = {id(one) for one in program.called}
    read = own | {id(one.value) for one in program.assigned} | {*map(id, _elements(trainer.parts.get("optimizers")))}
    for call in program.unfollowed[:until]:
        name = call.name.rpartition(".")[2]
        if id(call) in read or _trains(call) or (call.name in BUILTIN and "of" not in call.parts):
            continue
        parts = [*call.parts.values(), call.within]
        given = any(id(one) in own for part in parts for held in _elements(part) for one in owners(held))
        of_part = call.within is not None or ("of" in call.parts and id(call.parts["of"]) not in own)
        if given and not (of_part and id(call) not in stated and not name.endswith("_")):  # a value of a part
            yield f"{TOUCHES}{PART * of_part}{name}", *_plain(_first(call, name)), call.place
            continue
        speaks = speaks_of(name) is not None or PATCHING.search(name)  # `apply_liger_kernel_to_llama()`
        if speaks and id(call) in stated and not any(isinstance(one, Record | Unknown) for one in parts):
            yield f"{TOUCHES}{name}", *_plain(_first(call, name)), call.place


def _first(call: Record, name: str) -> Any:
    """Return the first argument of a call: of `to(device, dtype)` the type, wherever it stands."""
    given = [call.parts[key] for key in ("dtype", "0", "1") if key in call.parts] if name == "to" else []
    return next((one for one in given if "float" in str(_plain(one)[0])), call.parts.get("0", name))


def _done_by_setting(assigned: list[Assigned], own: set[int]) -> Iterator[Found]:
    """Yield attributes and elements of the model that are set or deleted, and code of other packages that is."""
    for whole, name, place, value, under in assigned:
        if _in_vain(name, value, under):
            continue
        if not isinstance(whole, Symbol):
            if any(id(one) in own for one in owners(whole)):
                yield f"{TOUCHES}{name}", ASSIGNED, "", place
        elif name == "allow_tf32" and value is True and "matmul" in whole.origin:
            yield f"{TOUCHES}{name}", True, "", place
        elif not is_plain(value) and not UNTOUCHED.match(whole.origin):
            yield f"{TOUCHES}{whole.name.rpartition('.')[2]}.{name}", ASSIGNED, "", place


def _done_by_callbacks(trainer: Record, program: Program) -> Iterator[Found]:
    """Yield what callbacks of a trainer change: by words in the methods of the script's own, in the names of others."""
    added = [one.parts.get("0") for one in program.unfollowed if one.name == "add_callback"]
    for one in [*_elements(trainer.parts.get("callbacks")), *added]:
        kind = one.kind if isinstance(one, Record) else one
        methods = kind.scope.names.values() if isinstance(kind, Class) else ()
        text = "\n".join(ast.unparse(method.node) for method in methods if isinstance(method, Function))
        text = text or ("" if isinstance(kind, Class) else str(getattr(one, "name", "")))
        if found := CHANGING.search(text):
            place = one.place if isinstance(one, Record) else trainer.place
            yield f"{TOUCHES}{getattr(one, 'name', 'callback')}.{found[0].strip('.(').lower()}", "callback", "", place


def _in_vain(name: str, value: Any, under: str) -> bool:
    """Whether what is set changes nothing that counts: vectors in fp32, and logits that a class of its own casts."""
    vectors = name == "data" and under.rpartition(".")[2] in {"ndim", "dim"}
    own = value.kind.scope.names if isinstance(value, Record) and value.kind else {}
    methods = {key for key, one in own.items() if isinstance(one, Function)}
    return vectors or (methods == {"forward"} and value.origin.endswith("nn.Sequential"))


def _returned(root: Root) -> Iterator[Found]:
    """Yield arguments of a trainer that functions of other packages return, which nobody says."""
    trainer = root.value if _trains(root.value) else root.value.parts.get("0")
    if not isinstance(trainer, Record) or not _trains(trainer):
        return
    why = "is what a function returns that is in no file that is here"
    wholes = {name: one for name in ("args", "model") if isinstance(one := trainer.parts.get(name), Record)}
    for name, whole in wholes.items():
        for key, one in whole.parts.items():
            counts = name == "args" or key in _KNOWN["quantising"]
            if counts and isinstance(one, Record) and one.kind is None and one.name.rpartition(".")[2].islower():
                yield f"{name}.{key}", f"${{{one.name}}}", why, whole.places.get(key, whole.place)


def _overridden(trainer: Record) -> Iterator[Found]:
    """Yield methods that say what a step does and that a class of the script has of its own."""
    for kind in trainer.kind.line() if trainer.kind else ():
        for name in sorted(OVERRIDDEN & kind.scope.names.keys()):
            method = kind.scope.names[name]
            place = kind.scope.place(method.node) if isinstance(method, Function) else trainer.place
            yield f"{TOUCHES}{name}", ASSIGNED, "", place


PACKING = "ConstantLengthDataset"
"""Class of TRL that puts samples together until sequences are full."""

OF_TOKENIZERS = ("apply_chat_template", "encode", "encode_plus", "batch_encode_plus", "__call__", "pad")
"""Methods of tokenizers that make tokens of texts."""

TOKENIZED = ("tokenized.padded", "tokenized.cut")
"""Tokens that samples are padded or cut to where a script makes tokens of its texts itself."""


def _lengths(root: Root, program: Program) -> Iterator[Found]:
    """Yield the lengths to which tokenizers pad or cut samples: `tokenizer(text, max_length=256, padding=...)`."""
    for call in program.unfollowed if _trains(root.value) else ():
        length, whole = call.parts.get("max_length"), call.parts.get("padding") == "max_length"
        name = call.name.rpartition(".")[2]
        if name == PACKING and (packed := call.parts.get("seq_length")) is not None:
            yield TOKENIZED[0], *_plain(packed), call.places.get("seq_length", call.place)
        elif (
            length is not None
            and ("truncation" in call.parts or whole)
            and ("of" not in call.parts or name in OF_TOKENIZERS)
        ):
            yield TOKENIZED[not whole], *_plain(length), call.places.get("max_length", call.place)


def _trains(value: Record) -> bool:
    """Whether a call makes a trainer, of another package or of a class that is made from one."""
    return value.name.endswith("Trainer") or value.origin.endswith("Trainer")


def _made_from(trainer: Record) -> Iterator[Record]:
    """Yield a trainer's model and what it is made from, configurations of it among that."""
    seen, table = set[int](), trainer.parts.get("model", trainer.parts.get("0"))
    while isinstance(table, Record) and id(table) not in seen and not table.name.endswith("Config"):
        seen.add(id(table))
        yield table
        config = table.parts.get("config")
        if isinstance(config, Record) and table.name.endswith("from_pretrained"):
            yield config
        whole = table
        table = next(
            (whole.parts[key] for key in made_from(whole.name) if isinstance(whole.parts.get(key), Record)), None
        )


def made_from(called: str) -> tuple[str, ...]:
    """Return the parts of a call that returns a model in which it may be given one, the likeliest first."""
    return ("0", "model") if called.rpartition(".")[2] == "prepare" else MADE_FROM


def _elements(value: Any) -> Iterator[Any]:
    """Yield a value, or what a list or dictionary of values holds."""
    inner = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]
    yield from inner[:MAX_LISTED]


CHANGING = re.compile(r"requires_grad|freez|\.half\(|\.bfloat16\(|gradient_checkpointing|per_device_train|accumulation"
                      r"|prun|quantiz|set_adapter|add_adapter", re.IGNORECASE)  # fmt: skip
"""Words of callbacks that change the model, or how it is trained."""

BUILTIN = frozenset(dir(builtins)) - {"map", "filter", "exec", "eval", "setattr", "delattr"}

UNTOUCHED = re.compile(rf"({'|'.join(_KNOWN['untouched'])})\b")

OVERRIDDEN = frozenset(_KNOWN["overridden"])

ASSIGNED = "is set"
PART = "part."
"""Before the name of a method that is called of a part of the model."""
LOST = "lost."
"""Before the name of a call that makes a model of which nobody knows whether the trainer is given it."""
TOUCHES = "touches."
"""Start of the names of settings that say what a script does to its model: `touches.freeze`, `touches.use_cache`."""

KEYWORDS = '{"per_device_train_batch_size": 4, "bf16": true}'
"""How arguments are written of which a dictionary says what they are."""

MADE_FROM = ("of", "0", "model")
"""What a call that returns a model is given one as."""


def refuse_keywords(reading: Reading, beside: re.Pattern[str]) -> None:
    """Ask for what keywords from elsewhere (`**more`) say.

    Args:
        beside: parts whose keywords change no prediction.

    Raises:
        LackingError: there are some.
    """
    for name, one in reading.settings.items():
        table, _, last = name.rpartition(".")
        if last == "**" and not beside.search(table):
            given = str(one.value).strip("${}")
            line = given == COMMAND_LINE
            what = (
                f"what {'the command line says' if line else f'{given} gives as keywords'} is in no file that is here"
            )
            essential = line or (table == "args" and "args.per_device_train_batch_size" not in reading.settings)
            form = LINE if line else KEYWORDS
            says_all = f"`var={given}={form}` says what of it matters, `{{}}` nothing"
            nothing = f"`var={given}={{}}` says that it gives nothing that matters, or name it: `{form}`"
            hint = says_all if essential else nothing
            place, likely = f"{one.place}: {table}" if table else one.place, () if essential else ("{}",)
            lacks = LackingError(what, given, variable=True, likely=likely, of=name, place=place, hint=hint)
            lacks.answer = form if essential else ""
            raise lacks


def _settings(found: list[Found], choices: Mapping[str, tuple[str, ...]] | None = None) -> dict[str, Setting]:
    made = {}
    for name, value, why, (file, line, text) in found[:MAX_SETTINGS]:
        may_be = (choices or {}).get(str(value)[2:-1], ()) if why else ()
        made[name] = Setting(name, value, file, line, text, why=why, choices=may_be)
    return made


def _assumed(chosen: Iterable[Choice]) -> Iterator[Said]:
    for one in chosen:
        if isinstance(one.value, int | float) and not isinstance(one.value, bool):
            meaning = f"{one.name} is not given: its default {one.value} counts"
            yield Said(one.place.file, one.place.line, one.place.text[:120], meaning)
        elif one.value is INSTALLED and not UNTOUCHED.match(one.name):
            meaning = f"{one.name} is not here and is taken as installed: `var={one.name}=false` says that it is not"
            yield Said(one.place.file, one.place.line, one.place.text[:120], meaning)


def _tables(program: Program, scope: Scope) -> Iterator[Found]:
    """Yield what a module puts into dictionaries of another, of functions what they return."""
    for name, value in scope.names.items():
        if not isinstance(value, Record) or value.name:
            continue
        for key, part in value.parts.items():
            place = value.places.get(key, value.place)
            made = program.follow(part, (), {}, place) if isinstance(part, Function) else part
            yield f"{name}.{key}", *_plain(made), place
            yield from _inside(f"{name}.{key}", made) if isinstance(made, Record) else ()


def _roots(program: Program, scope: Scope) -> Iterator[Root]:
    """Yield what a file configures, each once."""
    seen: set[int] = set()
    ran = set(program.followed)
    yield from _new(_ends(program.called, ran=True), seen)
    variables = (one for one in scope.names.items() if isinstance(one[1], Record) and one[1].name)
    yield from _new((Root(name, value, value.place) for name, value in variables), seen)
    taken = {id(part) for one in program.unfollowed for key, part in one.parts.items() if key != "of"}
    trainers = [one for one in program.unfollowed if _trains(one) and "args" in one.parts and id(one) not in taken]
    yield from _new((Root(one.name, one, one.place) for one in trainers), seen)
    own = [one for one in scope.names.values() if isinstance(one, Function) and one.scope is scope]
    helpers = {name for one in own for name in _called_in(one) if name != one.name}
    for one in own:
        if one.node not in ran:
            calls, place = len(program.called), scope.place(one.node)
            returned = program.follow(one, (), program.chosen_of(one), place)
            if isinstance(returned, Record):
                yield from _new([Root(one.name, returned, place, ran=False)], seen)
            if one.name not in helpers:  # else what calls it is gone through
                yield from _new(_ends(program.called[calls:], ran=False), seen)
    trained = any(_trains(one) and not is_lightning(one) for one in program.unfollowed)
    if not trained and (made := loop(program)):
        yield Root(LOOP, made, made.place)
    plain = {
        name: value
        for name, value in scope.names.items()
        if not isinstance(value, Symbol | Function | Scope | Imported)
    }
    whole = Place(scope.file, 0)
    yield Root("module", Record("module", whole, plain, scope.places, None, "module"), whole)


def _called_in(function: Function) -> Iterator[str]:
    """Yield the names of functions that one calls."""
    for node in ast.walk(function.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def _ends(calls: list[Record], *, ran: bool) -> Iterator[Root]:
    """Yield what calls are given and then the calls themselves."""
    for call in calls:
        for part in call.parts.values():
            if isinstance(part, Record) and part.name:
                yield Root(part.name, part, part.place, ran)
        yield Root(call.name, call, call.place, ran)


def _new(roots: Iterable[Root], seen: set[int]) -> Iterator[Root]:
    """Yield those that are new, of a configuration that returns itself (`Config(...).merge(x)`) what it began with."""
    for root in roots:
        value = root.value
        while not value.kind and value.name.islower() and isinstance(value.parts.get("of"), Record):
            value = value.parts["of"]
        if id(value) not in seen and not _uses(value):
            seen.add(id(value))
            yield root._replace(value=value)


def _uses(value: Record) -> bool:
    """Whether a call only takes a trainer to save, run or look at what it trains."""
    return isinstance(value.parts.get("0"), Record) and _trains(value.parts["0"]) and bool(ENDS.match(value.name))


def _build(program: Program, root: Root) -> None:
    """Put what builders return in their place: functions `..._builder` that are given what is said beside them.

    OLMo-core's have samples of 4,096 tokens where nothing else is said (olmo_core/internal/experiment.py).
    """
    own = root.value.parts
    length = own.get("max_sequence_length", own.get("sequence_length", 4096))
    data = Record("dataset", root.place, {"sequence_length": length, "effective_sequence_length": length})
    beside = Record("common", root.place, {"launch": None, "dataset": data, **own, "max_sequence_length": length})
    make = own.get("model_init")
    if isinstance(make, Function) and own.get("model") is None:  # of the Trainer
        program.started.pop(id(root.value), None)
        root.value.put(
            "model", program.follow(make, (), {}, root.place), root.value.places.get("model_init", root.place)
        )
    for name, part in root.value.parts.items():
        if name.endswith("_builder") and isinstance(part, Function):
            root.value.parts[name] = program.follow(part, (beside,), {}, root.place)


def _plain(value: Any) -> tuple[Any, str]:
    """Return a value as a setting has it, and why it is not known: of a call its name, of names their text."""
    if isinstance(value, Unknown):
        return f"${{{asked_name(value.name)}}}", value.why or "is given no value"
    if isinstance(value, Symbol) and (module := _module_of(value)):
        return f"${{{value.name}}}", f"is of {module}, which is not here"
    if isinstance(value, list) and weight(value) > MAX_PARTS:
        return "...", "is out of bounds"
    if isinstance(value, list):
        made = [_plain(one) for one in value]
        return [one for one, _ in made], next((why for _, why in made if why), "")
    if isinstance(value, dict):
        return {} if not value else "...", ""
    return getattr(value, "name", value), ""


def _module_of(value: Symbol) -> str:
    """Return the file of a value that a script takes from a module that is not here; empty of a class or function.

    It is a constant that is imported by itself, or an attribute of what is called a configuration: `cfg.batch_size`.
    """
    module, _, last = value.origin.rpartition(".")
    if _CONFIGURING.search(value.name) and (last.islower() or last.isupper()):
        module = value.origin.removesuffix(f".{value.name}") if value.origin.endswith(f".{value.name}") else module
    elif last != value.name or not re.fullmatch(r"[A-Z][A-Z0-9_]+", last):
        return ""
    return f"{module.strip('.').replace('.', '/')}.py" if module.strip(".") else ""


_CONFIGURING = re.compile(
    r"(?:^|[._])(?:cfg|conf(?:ig)?s?|settings?|arg(?:ument)?s|h?param(?:eter)?s|opts?|options|constants?|flags)\.(?:\w+\.)*\w+$",
    re.IGNORECASE,
)
"""Names of which an attribute is a value."""


def _inside(prefix: str, whole: Any, depth: int = 0) -> Iterator[Found]:
    """Yield the parts of a record or a dictionary, those of its parts after each."""
    parts, places, usual = whole, {}, Place("", 0)
    if isinstance(whole, Record):
        parts, places, usual = whole.parts, whole.places, whole.place
    for key, value in parts.items() if depth < MAX_NESTED else ():
        name = f"{prefix}.{key}" if prefix else str(key)
        place = places.get(key, usual)
        yield name, *_plain(value), place
        if isinstance(value, Record | dict):
            yield from _placed(_inside(name, value, depth + 1), place)
        elif isinstance(value, list):
            for index, one in enumerate(value[:MAX_LISTED]):
                if isinstance(one, Record | dict):
                    yield f"{name}.{index}", *_plain(one), place
                    yield from _placed(_inside(f"{name}.{index}", one, depth + 1), place)


def _placed(found: Iterator[Found], place: Place) -> Iterator[Found]:
    """Give what stands nowhere of its own, entries of a dictionary, the place of the whole."""
    for name, value, why, own in found:
        yield name, value, why, own if own.file else place
