"""What kind a file is, by how it begins; for the message where one is given that is read elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from gpuscale.errors import InputError
from gpuscale.files import is_file, reading

Given = ParamSpec("Given")
Found = TypeVar("Found")

HEAD_BYTES = 65536
"""How much of a file is looked at."""


class Kind(NamedTuple):
    """A kind of file."""

    what: str  #: what such a file is, with its article.
    use: str  #: what to do with FILE, which is one.


KINDS = {
    "plan": Kind("a plan file", "`gpuscale estimate FILE` reads it"),
    "training": Kind("a training of several phases", "`gpuscale train-time FILE` reads it"),
    "study": Kind("a study", "`gpuscale sweep FILE -o results.parquet` answers it"),
    "trials": Kind("a study of trials", "`gpuscale tune FILE` proposes the next layout to try"),
    "results": Kind("the results of a study", "`gpuscale sweep show FILE` shows them"),
    "answer": Kind("the answer of a command", "`gpuscale plan -o plan.toml` saves a plan that other commands read"),
    "cluster": Kind("a cluster file", "give it as `cluster=FILE`"),
    "gpu": Kind("a GPU file", "give it as `set=gpu=FILE`, or name it in a cluster file"),
    "model": Kind("a model file", "give it as `model=FILE`"),
    "config": Kind("a model's config.json", "give it as `model=FILE`"),
    "framework": Kind("a framework profile", "put it into `frameworks/` of your folder of presets, and give its name"),
    "rates": Kind("a file of rates", "put it into `rates/` of your folder of presets"),
    "calibration": Kind("a calibration of a site", "give it as `calibration=FILE`"),
    "failures": Kind("a study of failures", "give it as `failure_rate=FILE`"),
    "launch": Kind("a launch file", "give it as `launch_files=FILE`"),
    "topology": Kind("a description of a fabric", "`gpuscale calibrate topology FILE` makes a cluster file of it"),
    "collectives": Kind("a log of collectives", "`gpuscale calibrate nccl FILE` fits a cluster to it"),
    "run": Kind("a log of a training run", "`gpuscale calibrate run FILE` fits a site to it"),
    "trace": Kind("a trace of a profiler", "`gpuscale calibrate run FILE` fits a site to it"),
    "protocol": Kind("a file of measured kernels", "`gpuscale calibrate gpu` wrote it, and fits a GPU to it"),
    "measured": Kind("a table of measurements", "`gpuscale validate FILE` predicts them"),
}
"""Kinds of files by name."""

_OWN = {
    "planfile": "plan",
    "training": "training",
    "calibration": "calibration",
    "gpu-protocol": "protocol",
    "trials": "trials",
}
_STARTS = (
    ("topology", r"\s*<\?xml|\s*<system"),
    ("launch", r"#!.*sh\b"),
    ("results", r"key,task,status,"),
    ("answer", r"rank,tp,sp,pp,"),
    ("measured", r"id,source,|recipe,source,"),
)
"""Kind -> how its first line begins."""
_KEYS = (
    ("trace", {"traceEvents"}),
    ("results", {"key", "task", "status"}),
    ("config", {"model_type"}),
    ("config", {"architectures"}),
    ("run", {"log_history"}),
    ("run", {"current_steps", "elapsed_time"}),
    ("launch", {"zero_optimization"}),
    ("launch", {"train_micro_batch_size_per_gpu"}),
)
"""Kind -> keys of JSON that tell it."""
_LINES = (
    ("study", r"\[study\]|\[\[questions\]\]"),
    ("cluster", r"\[\[(?:levels|pools)\]\]"),
    ("failures", r"\[interruptions[.\]]"),
    ("framework", r"(?:rule_set|as)[ \t]*="),
    ("gpu", r"sm_count[ \t]*="),
    ("model", r"published_params[ \t]*=|tied_embeddings[ \t]*=|base_emb_dim[ \t]*:"),
    ("collectives", r"#?.{0,300}\balgbw[ \t]+busbw"),
    ("run", r".{0,300}\biteration:?[ \t]+[0-9]+[ \t/]|.{0,300}\bstep:?[ \t]+[0-9]+.{0,300}\bloss"),
    (
        "launch",
        r"\[(?:parallelism|training|optim|trainer|orchestrator)\]|#SBATCH|(?:trainer|parallelism|modules|recipe):",
    ),
    ("launch", r"[^#\n]*\b(?:torchrun|deepspeed|srun|accelerate launch)[ \t]"),
    ("topology", r"[ \t]*GPU0[ \t]+GPU1|SwitchName=|CA '|vendid=|GPU 0: .*UUID"),
    ("rates", r"source[ \t]*=.*\ndate[ \t]*="),
)
"""Kind -> how a line begins that tells it, the surest first."""


def kind_of(path: Path) -> str | None:
    """Return the kind of a file by name, one of `KINDS`; None of others, and where there is no file."""
    raw = b""
    with suppress(InputError):
        if is_file(path):
            with reading(path) as stream:
                raw = stream.read(HEAD_BYTES)
    if raw.startswith(b"PAR1"):
        return "results"
    if not raw or b"\0" in raw:
        return None
    text = raw.decode(errors="replace").removeprefix("\ufeff")
    own = re.search(r'^[{\s]*"?(?:format|schema)"?\s*[=:]\s*"gpuscale\.([a-z-]{1,40})/', text)
    own = own or re.search(r'^format = "gpuscale\.([a-z-]{1,40})/', text, re.MULTILINE)
    if own is not None:
        return _OWN.get(own[1], "answer")
    keys = set(re.findall(r'"(\w{1,60})"\s*:', text)) if text.lstrip()[:1] == "{" else set()
    by_keys = (kind for kind, needed in _KEYS if needed <= keys)
    by_start = (kind for kind, start in _STARTS if re.match(start, text))
    by_line = (kind for kind, line in _LINES if not keys and re.search(rf"^(?:{line})", text, re.MULTILINE))
    by_name = ("launch" for suffix in (".sh", ".sbatch", ".slurm", ".yaml", ".yml") if path.suffix == suffix)
    return next(chain(by_keys, by_start, by_line, by_name), None)


def use_of(kind: str, path: Path) -> str:
    """Say what to do with a file of a kind."""
    name = str(path) if re.fullmatch(r"[\w./~+-]{1,200}", str(path)) else "FILE"
    return KINDS[kind].use.replace("FILE", name)


@contextmanager
def expecting(path: Any, *kinds: str) -> Iterator[None]:
    """Where a file, or one of several, cannot be used (an `InputError`) and is of another kind than these, say that
    instead."""
    try:
        yield
    except InputError:
        given = path if isinstance(path, list | tuple) else [path]
        for one in (Path(one) for one in given if isinstance(one, str | Path)):
            found = kind_of(one)
            if found is not None and found not in kinds:
                message = f"this is {KINDS[found].what}, not {KINDS[kinds[0]].what}"
                raise InputError(message, place=str(one)[:300], hint=use_of(found, one)) from None
        raise


def reads(*kinds: str) -> Callable[[Callable[Given, Found]], Callable[Given, Found]]:
    """Let a function that reads files, its first argument, say what they are where they are of another kind."""

    def wrap(function: Callable[Given, Found]) -> Callable[Given, Found]:
        @wraps(function)
        def read(*args: Given.args, **kwargs: Given.kwargs) -> Found:
            with expecting(next(chain(args, kwargs.values()), None), *kinds):
                return function(*args, **kwargs)

        return read

    return wrap
