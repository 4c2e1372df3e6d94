"""Training by preferences and rewards in launch files: the method that a tool's settings name, and its reference model.

Which words mean which method stands with each tool in `presets/tools/` (`method`, and `started` for names of programs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from gpuscale.launch.huggingface_models import known_model
from gpuscale.launch.settings import OFF, Reading
from gpuscale.presets.files import known_table
from gpuscale.specs.tuning import METHOD_SPECS, MethodSpec

_KNOWN = known_table("scripts")["preferences"]

TEACHER = tuple(_KNOWN["teacher"])

SERVER = tuple(_KNOWN["teacher_server"])

AGAINST = (*_KNOWN["against"], *TEACHER)

OWN_REFERENCE = tuple(_KNOWN["own_reference"])

BEFORE = ("precompute_ref_log_probs", "reference_free")
"""Switches by which no reference model is there while the model is trained (trl 1.16 trainer/dpo_trainer.py)."""

_DOCUMENTS = ("yaml", "toml", "json")

OTHERWISE = "options say what is predicted: `method=dpo`, kto, orpo, reward, or the training step of grpo"
"""What to do about files of a method that is not known."""


def read(reading: Reading) -> str:
    """Set what a job learns from, and return it: one of `METHODS`.

    Raises:
        InputError: it learns from another model, or nobody says from what.
    """
    method, of = _said(reading)
    server = next((one for name in SERVER if (one := reading.stated(name)) and str(one.value).lower() not in OFF), None)
    if method == "distill" and server is not None:
        method, of = "sft", (*of, server.name)
        reading.means("what it learns from", *of, *AGAINST)
        reading.assume("the model that is learned from runs elsewhere: a step of training on its answers", server)
    if method == "sft":
        return method
    cached = any("dpo_tune_cache" in word for source in reading.sources for word in source.program)  # open-instruct
    if method == "dpo" and (cached or any(_on(reading, name) for name in BEFORE)):
        method, of = "orpo", (*of, *BEFORE)
        reading.assume("log-probabilities of the reference are there before training: pairs without a reference model",
                       *BEFORE)  # fmt: skip
    reading.option("method", method, *of)
    reading.means(f"of the loss of {METHOD_SPECS[method].title}", *AGAINST)
    if method == "reward":
        reading.assume("the head of one score counts as an LM head with its logits, which is more than it has")
    if method == "distill":
        _read_teacher(reading)
    elif reading.stated(*TEACHER):
        reading.assume("the model that is learned from is left out, its memory and its time", *TEACHER)
    if method == "grpo":
        reading.assume("the training step alone is predicted: rollout and rewards are not")
    return method


def _read_teacher(reading: Reading) -> None:
    """Read which model is learned from, unless it is given.

    Raises:
        InputError: no setting names it, or what it names is not known here.
    """
    reading.assume("each step learns from answers that are there, rather than generates some (lmbda)")
    if reading.given.get("teacher"):
        return
    found = reading.get(*TEACHER)
    known = known_model(str(found.value))[0] if found is not None else None
    if known is None:
        named = "it learns from a model that no file names" if found is None else f"{found.value} is not known here"
        reading.refuse(found, named, "add `teacher=NAME`", settles="teacher")
    reading.option("teacher", known, *TEACHER)


def _said(reading: Reading) -> tuple[str, tuple[str, ...]]:
    """Return the method, and the settings that say it: what is given, the tool's settings, the program's name."""
    rows = reading.tool.method
    if "method" in reading.given:
        for row in rows:
            reading.means("replaced by the method that is given", *row.of)
        return str(reading.given["method"]), AGAINST
    method, of = "", tuple[str, ...]()
    for row in rows:
        text = (reading.text(*row.of) or "").lower()
        found = row.words.get(text, row.words.get("*")) if text else ""
        if found is None:
            reading.refuse(
                reading.get(*row.of), f"{text[:40]} trains against other models", OTHERWISE, settles="method"
            )
        method, of = (found, (*of, *row.of)) if found else (method, of)
        if text:
            reading.means("as usual", *row.of)
        if method == "sft":
            break
    own = reading.stated("method") if not method else None
    if own is not None and str(own.value).lower() in reading.tool.started:
        method, of = reading.tool.started[str(own.value).lower()], (*of, own.name)
    method = method or _started(reading)
    other = next((one for name in AGAINST if (one := reading.stated(name)) and str(one.value).lower() not in OFF), None)
    if not method and other is not None:
        reading.refuse(other, "it is of training by pairs, rewards or another model, and no file says by which method",
                       "add `method=dpo`, kto, orpo (SimPO), reward, grpo or distill", settles="method",
                       likely=_likely(reading))  # fmt: skip
    named = "" if method or of else _named(reading, (one.file for one in reading.sources if one.kind in _DOCUMENTS))
    if named not in {"", "other"}:
        reading.refuse(None, f"its name speaks of {named}, and no setting says by which method it trains",
                       "add `method=sft`, or what it is", settles="method", likely=(named,))  # fmt: skip
    return method or "sft", of


def _likely(reading: Reading) -> tuple[str, ...]:
    documents = [one for one in reading.sources if one.kind in _DOCUMENTS]
    if reading.stated(*TEACHER):
        begins = any(re.match(r"sft([^a-z]|$)", PurePosixPath(one.file).name.lower()) for one in documents)
        return ("sft", "distill") if begins else ("distill",)
    marked = [method for method, names in _KNOWN["marks"].items() if reading.stated(*names)]
    tables = [name.partition(".")[0] for one in documents for name in one.settings if "." in name]
    named = "" if marked else _named(reading, [*tables, *(one.file for one in documents)])
    return tuple(dict.fromkeys([*marked, *([named] if named not in {"", "other"} else [])]))


def _started(reading: Reading) -> str:
    """Return the method that the name of a program speaks of: `run_dpo.py`, `trl dpo`; empty where none is.

    Raises:
        InputError: it is one that trains against other models.
    """
    found = _named(reading, (word for source in reading.sources for word in source.program))
    if found == "other":
        program = " ".join(reading.sources[-1].program)[:60]
        reading.refuse(None, f"{program} trains against other models", OTHERWISE, settles="method")
    return found


def _named(reading: Reading, names: Iterable[str]) -> str:
    """Return the method that names of files speak of first, none where one of them says `sft`."""
    words = [part for name in names for part in re.split(r"[^a-z0-9]+", PurePosixPath(name).name.lower())]
    started = reading.tool.started
    found = [started[word] for word in words if word in started]
    return "" if "sft" in words or not found else "other" if "other" in found else found[0]  # `online_dpo.py`


def _on(reading: Reading, name: str) -> bool:
    return reading.get(name) is not None and reading.flag(name)


def spec(reading: Reading) -> MethodSpec:
    """Return the method that was read."""
    return METHOD_SPECS[str(reading.options.get("method") or "sft")]


def check_reference(reading: Reading, *, tuned: bool, beside: bool = False, beta: float = 0.0) -> None:
    """Refuse reference models that are held where none is modelled: beside adapters, and in GRPO.

    Args:
        tuned: adapters are trained.
        beside: the tool holds a reference model beside adapters too.
        beta: the weight of the divergence in GRPO where nothing is said.

    Raises:
        InputError: there is such a one, and no method is given beside the files.
    """
    method = spec(reading)
    said = [one for name in OWN_REFERENCE if (one := reading.stated(name)) and str(one.value).lower() not in OFF]
    own = said[0] if said and method.reference else None
    if own is not None and not tuned:
        reading.means("the reference model counts as one of the same size", own.name)
    elif "method" in reading.given:
        return
    elif method.reference and tuned and (own is not None or beside):
        message = "a reference model of its own beside adapters is not modelled"
        hint = f"`method={reading.options['method']}` beside the file predicts it with the model itself as reference"
        reading.refuse(own, message, hint, settles="method", likely=(str(reading.options["method"]),))
    elif reading.options.get("method") == "grpo" and (reading.number("beta", "trl.beta", "rl_beta") or beta):
        if not tuned:
            message = "GRPO with a weight of the divergence (beta) holds a reference model, which is not modelled"
            reading.refuse(reading.get("beta", "trl.beta", "rl_beta"), message,
                           "`method=grpo` beside the file predicts it without one", settles="method",
                           likely=("grpo",))  # fmt: skip
        reading.assume("without the forward pass of the reference, which is the model without adapters", "beta")
