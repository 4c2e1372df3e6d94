"""Models by their ids on the Hugging Face hub, `org/name`, as far as its cache on this machine holds them; nothing is
ever fetched. The cache is laid out as the hub's own library has it (huggingface_hub, "Understand caching"):
`models--org--name/snapshots/<commit>/config.json`, and in `refs/main` the commit of that branch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from gpuscale.errors import InputError, did_you_mean
from gpuscale.files import is_file, is_folder, printable, read_text
from gpuscale.presets.files import preset_aliases

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_ID = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_COMMIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)

MAX_SNAPSHOTS = 1000

MAX_MODELS = 10_000


def is_id(text: str) -> bool:
    """Whether a text has the form of a model's id, `org/name`."""
    return _ID.fullmatch(text) is not None and "--" not in text and ".." not in text


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the cache, there or not: $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub."""
    stated = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(os.path.expandvars(os.path.expanduser(stated or f"{home}/hub")))  # noqa: PTH111 - never raises


def model_folder(model_id: str) -> Path:
    """Return the folder that the cache has for a model, there or not."""
    return cache_folder() / f"models--{model_id.replace('/', '--')}"


def cached_config(model_id: str) -> Path:
    """Return the config.json of a model in the cache: that of `refs/main`, or, where that has none, that of the
    snapshot whose folder was changed last, of equally old ones the last by name.

    Raises:
        InputError: the cache has none; the message says where it was looked for.
    """
    found, folder = _find(model_folder(model_id)), model_folder(model_id)
    if found is None:
        there = "no config.json below" if is_folder(folder) else "nothing at"
        looked = f"no preset has that name, and the Hugging Face cache has {there} {printable(str(folder))[:300]}"
        similar = did_you_mean(model_id, preset_aliases("models"), count=3)
        fetch = f"`hf download {model_id} config.json` fetches it there, or give a config.json: `model=./config.json`"
        hint = f"{similar}`gpuscale show models` lists the presets; {fetch}"
        raise InputError(f"unknown model {model_id!r}: {looked}", hint=hint)
    return found


def _find(folder: Path) -> Path | None:
    main, commit = folder / "refs" / "main", ""  # the commit of the branch `main`, if it is known
    with suppress(OSError, ValueError, InputError):
        commit = read_text(main, 1024, "a commit").strip() if is_file(main) else ""
    with suppress(OSError, ValueError):
        configs = [folder / "snapshots" / commit / "config.json"] if _COMMIT.fullmatch(commit) else []
        if not any(map(is_file, configs)):
            snapshots = [one for one in islice((folder / "snapshots").iterdir(), MAX_SNAPSHOTS) if one.is_dir()]
            snapshots.sort(key=lambda one: (one.stat().st_mtime_ns, one.name), reverse=True)
            configs = [one / "config.json" for one in snapshots]
        return next(filter(is_file, configs), None)
    return None


def cached_models() -> list[str]:
    """Return the ids of the models in the cache that have a config.json, sorted."""
    found = []
    with suppress(OSError, ValueError):
        for folder in islice(cache_folder().iterdir(), MAX_MODELS):
            model_id = folder.name.removeprefix("models--").replace("--", "/")
            if folder.name.startswith("models--") and is_id(model_id) and _find(folder):
                found.append(model_id)
    return sorted(found)


def source_of(config: Path) -> tuple[str, str] | None:
    """Return the id and the commit of a config.json in a cache, by its path; None of any other."""
    *_, folder, snapshots, commit, _ = ("", "", "", *config.absolute().parts)
    model_id = folder.removeprefix("models--").replace("--", "/")
    known = snapshots == "snapshots" and folder.startswith("models--") and is_id(model_id)
    return (model_id, commit) if known else None
