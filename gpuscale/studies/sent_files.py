"""Files of this machine that questions rest on, taken along to machines that do not see them.

What is taken: the user's own presets, and the model, cluster, calibration and failure study that a question names by
path or by an id in the cache of the Hugging Face hub, with the files that these name in turn. Below a folder elsewhere
they lie as they do here, so that one finds another from where it stands.
"""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuscale.errors import GpuscaleError, InputError
from gpuscale.files import is_file, reading
from gpuscale.presets.files import find_preset, parse_toml, preset_folders, settled
from gpuscale.presets.frameworks import load_framework
from gpuscale.presets.hardware import split_pool
from gpuscale.presets.hub import cached_config, is_id
from gpuscale.presets.models import is_path
from gpuscale.studies.cases import Case, Row
from gpuscale.units import MIB

MAX_FILE_BYTES, MAX_BYTES = 4 * MIB, 64 * MIB
"""Of one file, as large as any that is read, and of all that a study takes along."""

PRESETS = ("gpus", "clusters", "models", "frameworks", "rates", "failures")

ROOT = "\0root"
"""Stands in a question for the folder below which the files lie; no path holds it."""


@dataclass(frozen=True)
class Moved:
    """A question as it is asked elsewhere."""

    case: Case  #: the question.
    texts: Mapping[str, str]  #: options that name files -> the same from below `ROOT`.

    def under(self, root: Path) -> Case:
        """Return the question with its files below a folder."""
        options = {name: text.replace(ROOT, str(root)) for name, text in self.texts.items()}
        return replace(self.case, options={**self.case.options, **options})

    def told(self, rows: Iterator[Row], root: Path) -> list[Row]:
        """Return the rows of that question as those of the question itself."""
        back = {text.replace(ROOT, str(root)): str(self.case.options[name]) for name, text in self.texts.items()}
        return [{**{name: _replaced(value, back) for name, value in row.items()}, "key": self.case.key} for row in rows]


def _replaced(value: Any, back: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for text, original in back.items():
            value = value.replace(text, original)
    return value


class Carried:
    """The files of a study, found as its questions come."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}  #: where one lies below the folder -> what it holds.
        self._known: dict[tuple[str, str], str] = {}
        for kind in PRESETS:
            *own, _ = preset_folders(kind)
            for path in sorted(one for folder in own for one in folder.glob("*.toml")):
                self._take(path, f"presets/{kind}/{path.name}")

    def packed(self) -> bytes:
        """Return all files as `laid_out` takes them."""
        return zlib.compress(pickle.dumps(self.files), 1)

    def moved(self, case: Case) -> Moved:
        """Take along what a question names, and return it as it is asked elsewhere.

        Raises:
            InputError: files that are too large, or one that names another by its absolute path.
        """
        texts = {}
        for option in ("model", "cluster", "set", "calibration", "failure_rate"):
            text = case.options.get(option)
            if isinstance(text, str):
                if (option, text) not in self._known:
                    self._known[option, text] = self._moved(option, text)
                if self._known[option, text] != text:
                    texts[option] = self._known[option, text]
        return Moved(case, texts)

    def _moved(self, option: str, text: str) -> str:
        """Return the text of an option with the path in it, if there is one, from below `ROOT`."""
        if option == "set":
            parts = (part.partition("=") for part in text.split(","))
            return ",".join(
                name + equals + (self._moved("gpu", value) if name.strip() == "gpu" else value)
                for name, equals, value in parts
            )
        path, pool = split_pool(text) if option == "cluster" else (text, None)
        if _is_path(option, path):
            return self._placed(Path(path.strip())) + (f":{pool}" if pool else "")
        if option == "model" and is_id(text) and settled("models", text)[0] == text:
            with suppress(GpuscaleError):  # of an unknown model, which is the answer
                return self._placed(cached_config(text))
        return text

    def _placed(self, path: Path) -> str:
        """Take a file along, and return its path from below `ROOT`."""
        whole = Path(os.path.abspath(path))  # noqa: PTH100 - without links resolved
        place = "/".join(("files", *whole.parts[1:]))  # as it lies here below the root
        file, target = (path, place) if not path.is_dir() else (path / "config.json", f"{place}/config.json")
        if target not in self.files and is_file(file):
            text = self._take(file, target)
            if file.suffix.lower() == ".toml":
                self._follow(file, text)
        return f"{ROOT}/{place}"

    def _take(self, path: Path, place: str) -> bytes:
        with reading(path) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES or len(content) + sum(map(len, self.files.values())) > MAX_BYTES:
            limits = f"at most {MAX_FILE_BYTES // MIB} MiB each and {MAX_BYTES // MIB} MiB together"
            raise InputError(f"too large to be sent to the workers, {limits}", place=str(path)[:300])
        self.files[place] = content
        return content

    def _follow(self, path: Path, content: bytes) -> None:
        try:
            data = parse_toml(path, content.decode("utf-8-sig")).data
        except (GpuscaleError, UnicodeDecodeError):  # which is the answer
            return
        for name in _texts(data):
            if name.lower().endswith(".toml") and is_file(path.parent / name):
                if Path(name).is_absolute():
                    message = f"names {name[:200]}, which workers on other machines do not see"
                    raise InputError(message, place=str(path)[:300], hint="name it relative to this file")
                self._placed(path.parent / name)


def _is_path(option: str, text: str) -> bool:
    """Whether an option is taken as the path of a file rather than as a name."""
    if option == "model":
        return find_preset("models", text) is None and is_path(text)
    return option == "calibration" or "/" in text or os.sep in text or text.lower().endswith(".toml")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(inner)


def laid_out(packed: bytes, root: Path) -> None:
    """Write files below a folder, those that are not there yet."""
    (root / "presets").mkdir(parents=True, exist_ok=True)
    for place, content in pickle.loads(zlib.decompress(packed)).items():
        path = root / place
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@contextmanager
def presets_of(root: Path) -> Iterator[None]:
    """Have the presets below a folder as the user's own; of one thread at a time."""
    before = os.environ.get("GPUSCALE_PRESETS")
    os.environ["GPUSCALE_PRESETS"] = str(root / "presets")
    try:
        yield
    finally:
        del os.environ["GPUSCALE_PRESETS"]
        if before is not None:
            os.environ["GPUSCALE_PRESETS"] = before


def forget_presets() -> None:
    """Forget presets that were read by name: those of other studies may differ."""
    load_framework.cache_clear()
