"""The skill for coding agents: every example runs, and every key that it tells of is there."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from command import gpuscale
from test_cli_general import WALKED

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "SKILL.md").read_text()


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A folder in which every example was run, in their order: (line, exit code that it tells, what came of it)."""
    folder, done = tmp_path_factory.mktemp("skill"), []
    shutil.copy(ROOT / "tests" / "data" / "example_training.log", folder / "train.log")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                command, _, told = line.partition(" # exit ")
                words = shlex.split(command)
                if words[0] != "gpuscale":
                    subprocess.run(command, shell=True, check=True)
                    continue
                target = words[words.index(">") + 1] if ">" in words else None
                result = gpuscale(*words[1 : words.index(">") if target else None])
                if target:
                    Path(target).write_text(result.out)
                done.append((line, int(told or 0), result))
    return folder, done


def test_every_example_ends_as_it_says(answered):
    _, done = answered
    assert len(done) >= 8
    for line, told, result in done:
        assert line.startswith("gpuscale ")
        assert result.code == told, f"{line}: {result.err}"


def test_every_key_that_is_told_of_is_there(answered):
    folder, _ = answered
    told = re.findall(r"^In `(\S+\.json)`:\n\n\| key .*\n\|---.*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert len(told) >= 6
    for name, rows in told:
        document = json.loads((folder / name).read_text())
        for key in re.findall(r"^\| `([^`]+)`", rows, re.MULTILINE):
            found = document
            for part in re.findall(r"\w+", key):
                found = found[int(part) if part.isdigit() else part]
        for key in re.findall(r"`([a-z_]+)`", rows):  # further keys, in words
            places = [document, document.get("plan"), *document.get("plans", ())[:1]]
            places += [document.get("factors", {}).get("compute")]
            places += [one for part in ("understood", "findings") for one in document.get(part, ())[:1]]
            known = {name for place in places if isinstance(place, dict) for name in place}
            assert key in known | {"plan", "error", "warning", "note"}, f"{name}: {key}"


def test_commands_and_options_named_in_words_are_there():
    named = [words.split() for words in re.findall(r"`gpuscale ([a-z][^`]*)`", TEXT)]
    assert len(named) >= 15
    for words in named:
        name = next(one for one in (" ".join(words[:2]), words[0]) if one in WALKED)
        options = {flag for param in WALKED[name].params for flag in param.opts}
        assert {word for word in words if word.startswith("--")} <= options, words


def test_it_is_printed_as_it_stands_with_its_front_matter():
    done = gpuscale("skill")
    assert (done.code, done.out, done.err) == (0, TEXT, "")
    assert TEXT.startswith("---\nname: gpuscale\ndescription: ")
    head = TEXT.split("---\n")[1]
    assert len(head.splitlines()) == 2
    assert len(head) < 1024  # what agents read of it before they need it
    found = json.loads(gpuscale("skill", "--json").out)
    assert (found["name"], found["markdown"].splitlines()[0]) == ("gpuscale", "# gpuscale for coding agents")
    assert found["description"] in TEXT
