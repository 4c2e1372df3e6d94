"""Reading of preset files: what is refused, and that the place of a mistake is right."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import tomli_w
from command import assert_one_message, gpuscale
from pydantic import Field, ValidationError

from gpuscale.calibration.site_file import EvidenceRun, FactorValue
from gpuscale.errors import InputError
from gpuscale.presets import frameworks, hardware, models, settings
from gpuscale.presets.files import KINDS, find_preset, preset_folders, preset_names, read_toml, resolve_preset
from gpuscale.presets.frameworks import framework_file, load_framework
from gpuscale.presets.hardware import load_cluster, load_gpu
from gpuscale.presets.models import load_model
from gpuscale.presets.tables import UNKNOWN, Table, what_is_wrong
from gpuscale.units import KIB, MIB, US

PRESETS = Path(__file__).parents[1] / "presets"


Time = Annotated[float, Field(gt=0, le=10 * US)]


@dataclass(frozen=True)
class Part:
    power_w: Annotated[float, Field(gt=0, le=5000)]
    latency_s: Annotated[float, Field(alias="hop_latency_us", ge=0.05 * US, le=1000 * US)] = 2 * US
    cache_bytes: Annotated[int, Field(alias="cache_kib", ge=0, le=64 * MIB)] = 0
    times_s: Annotated[tuple[Time, ...], Field(alias="times_us", max_length=2)] = ()


PART = Table(Part)
OUTER = Table(
    inner={"levels": PART, "table": PART},
    unless={"size": ("levels", "table")},
    size=(int, None),
    name=(str, ...),
    levels=(tuple[dict[str, Any], ...], ()),
    table=(dict[str, Any], None),
)


def tables_of(module: Any) -> list[Table]:
    """The kinds of tables that a module declares, on their own or by key."""
    found = [one for value in vars(module).values() for one in (value.values() if isinstance(value, dict) else [value])]
    return [one for one in found if isinstance(one, Table)]


def read(path: Path) -> tuple[dict[str, Any], Part | None]:
    """What a file states, and its table."""
    document = read_toml(path)
    stated = OUTER.read(document)
    for index in range(len(stated["levels"])):
        PART.read(document, ("levels", index))
    return stated, Part(**PART.read(document, ("table",))) if "table" in stated else None


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "x.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 1000
    return caught.value


def test_finds_the_line_of_every_key(tmp_path: Path) -> None:
    text = (
        "name = 1\n"
        "[table]  # comment\n"
        'text = """\n'
        "fake = 1\n"
        '"""\n'
        '"quoted key" = 2\n'
        "a.b = 3\n"
        "\n"
        "[[levels]]\n"
        "gpus = 8\n"
        "[levels.sources]\n"
        '"x, y" = "z"\n'
        "[[levels]]\n"
        "gpus = 16\n"
    )
    document = read_toml(write(tmp_path, text))
    assert document.line_of(("name",)) == 1
    assert document.line_of(("table",)) == 2
    assert document.line_of(("table", "text")) == 3
    assert document.line_of(("table", "quoted key")) == 6
    assert document.line_of(("table", "a", "b")) == 7
    assert document.line_of(("levels", 0, "gpus")) == 10
    assert document.line_of(("levels", 0, "sources", "x, y")) == 12
    assert document.line_of(("levels", 1, "gpus")) == 14
    assert document.line_of(("levels", 1, "missing")) == 13  # the table around it
    assert document.line_of(("fake",)) is None
    assert document.error(("nothing",), "").place == str(tmp_path / "x.toml")


def test_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, 'name = "a"\n[[levels]]\npower_w = 1\n[[levels]]\npower_W = 2\npower_w = 1\n'))
    assert error.place == f"{tmp_path / 'x.toml'}:5"
    assert "unknown key 'levels[1].power_W'" in error.message
    assert error.hint is not None
    assert error.hint.startswith("did you mean power_w?")


def test_unknown_key_goes_before_what_it_leaves_missing(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, "nam = 1\n"))
    assert error.message == "unknown key 'nam'; keys 'name', 'size' (or levels or table) are missing"


def test_all_unknown_and_missing_keys_are_named_at_once(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, "nam = 1\n[table]\npower = 1\n[[levels]]\n[[levels]]\ncores = 1\n"))
    unknown = "unknown keys 'nam', 'levels[1].cores', 'table.power'"
    missing = "keys 'name', 'levels[0].power_w', 'levels[1].power_w', 'table.power_w' are missing"
    assert error.message == f"{unknown}; {missing}"
    assert error.place == f"{tmp_path / 'x.toml'}:1"


REQUIRED = {
    "gpus": ("h100-sxm-80gb", load_gpu, ("vendor", "memory_bandwidth_gb_per_s", "kernels.gemm_fraction")),
    "clusters": ("aws-p5", load_cluster, ("title", "gpu", "levels[1].gpus", "levels[1].link_efficiency", "host.gpus")),
    "models": ("deepseek-v3", load_model, ("hidden", "source", "latent.value_dim", "moe.top_k")),
    "frameworks": ("generic", load_framework, ("title", "memory.loss_bytes", "memory.context_gib")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_missing_keys_of_all_tables_of_a_file_are_named_at_once(kind, tmp_path, monkeypatch):
    name, load, keys = REQUIRED[kind]
    data = tomllib.loads((PRESETS / kind / f"{name}.toml").read_text())
    for key in keys:
        *tables, last = re.findall(r"[a-z_]+|[0-9]+", key) if "[" in key else key.split(".")
        table: Any = data
        for part in tables:
            table = table[int(part) if part.isdigit() else part]
        del table[last]
    (tmp_path / kind).mkdir()
    (tmp_path / kind / "mine.toml").write_text(tomli_w.dumps(data))
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    with pytest.raises(InputError, match="are missing") as caught:
        load("mine")
    assert set(re.findall(r"'([^']+)'", caught.value.message)) == set(keys)


def test_value_and_limit_are_named(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, 'name = "a"\n\n[table]\npower_w = 7000\n'))
    assert error.place == f"{tmp_path / 'x.toml'}:4"
    assert "table.power_w = 7000" in error.message
    assert "should be at most 5000" in error.message


MODELS = [
    *(one.model for module in (frameworks, hardware, models, settings) for one in tables_of(module)),
    FactorValue,
    EvidenceRun,
]
WRONG = [-1, 0.5, 1e30, math.nan, 10**30, "", "\0", "x" * 2000, True, None, [], [-1], ["a"] * 5000, {"x": [1]}]


@pytest.mark.parametrize("model", MODELS)
def test_what_is_wrong_is_said_in_words_of_our_own(model) -> None:
    """Of whatever kind: pydantic's words change with its version."""
    said = set()
    for name, field in model.model_fields.items():
        for value in WRONG:
            try:
                model.model_validate({field.alias or name: value})
            except ValidationError as error:
                said |= {what_is_wrong(one) for one in error.errors(include_url=False)}
    assert said
    assert not {one for one in said if one == UNKNOWN or one.startswith("Input should")}


def test_numbers_come_in_si_and_their_limits_are_shown_in_the_unit_of_the_file(tmp_path: Path) -> None:
    text = 'name = "a"\n[table]\npower_w = 7\nhop_latency_us = 0.05\ncache_kib = 1.5\ntimes_us = [1, 10]\n'
    assert read(write(tmp_path, text))[1] == Part(7.0, 0.05e-6, 1.5 * KIB, (1 * US, 10 * US))
    for old, new, line, message in (
        ("0.05", "0.04", 4, "table.hop_latency_us = 0.04: should be at least 0.05"),
        ("0.05", "1e3", 4, None),
        ("0.05", "1001", 4, "table.hop_latency_us = 1001: should be at most 1000"),
        ("1.5", "65537", 5, "table.cache_kib = 65537: should be at most 65536"),
        ("[1, 10]", "[1, 10.5]", 6, "table.times_us[1] = 10.5: should be at most 10"),
        ("[1, 10]", "[1, 2, 3]", 6, "table.times_us: should have at most 2 items"),
        ("hop_latency_us", "latency_s", 4, "unknown key 'table.latency_s'"),
    ):
        path = write(tmp_path, text.replace(old, new))
        if message is None:
            assert read(path)[1].latency_s == 1e-3
        else:
            error = refusal(path)
            assert error.message.startswith(message)
            assert error.place == f"{path}:{line}"


def test_limits_of_every_key_are_short_numbers_in_its_unit() -> None:
    found = [*vars(hardware).values(), *vars(frameworks).values(), *models.TABLES.values()]
    tables = [one for one in [*found, models.MODEL] if isinstance(one, Table)]
    assert len(tables) > 15
    for table in tables:
        for key, info in table.model.model_fields.items():
            bounds = [getattr(mark, name, 0) for mark in info.metadata for name in ("gt", "ge", "lt", "le")]
            assert all(bound % 1 == 0 or len(f"{bound:.15g}") <= 6 for bound in bounds), (key, bounds)


def test_missing_key_names_its_table(tmp_path: Path) -> None:
    error = refusal(write(tmp_path, 'name = "a"\n[table]\n'))
    assert error.place == f"{tmp_path / 'x.toml'}:2"
    assert "'table.power_w' is missing" in error.message


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-inf", "0", "true", '"300"', "9" * 1000, "0x" + "f" * 9000, "[1]", "1979-05-27"]
)
def test_numbers_that_are_none_are_refused(tmp_path: Path, value: str) -> None:
    error = refusal(write(tmp_path, f'name = "a"\n[table]\npower_w = {value}\n'))
    assert error.place == f"{tmp_path / 'x.toml'}:3"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = [1,\n", "end of the file"),
        (b"name = \n", "not valid TOML"),
        (b"a = 1\na = 2\n", "not valid TOML"),
        (b"name = " + b"9" * 10000, "too long"),
        (b"\xff\xfe", "not UTF-8"),
        (b"a\x00 = 1", "not valid TOML"),
        (b"a = '\x00'", "not valid TOML"),
        (b"a = " + b"[" * 8000 + b"]" * 8000, "nested deeper"),
        (b"a = " + b"{b=" * 3000 + b"1" + b"}" * 3000, "nested deeper"),
        (b"a = " + b"[" * 40 + b"]" * 40, "nested deeper"),
        (b".".join([b"a"] * 8000) + b" = 1", "nested deeper"),
        (b"[" + b".".join([b"a"] * 20) + b"]", "nested deeper"),
        (b"# " + b"x" * 20000, "characters, at most"),
        (b"\n" * (2**20 + 1), "larger than 1 MiB"),
    ],
)
def test_broken_and_hostile_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refusal(write(tmp_path, content)).message


@pytest.mark.parametrize("sign", [b"x", "\u00e9".encode(), "\U0001f600".encode()])
def test_a_file_holds_a_mebibyte_and_not_a_byte_more(tmp_path: Path, sign: bytes) -> None:
    text = b'name = "a"\n[table]\npower_w = 3\n'
    line = b"# " + sign * 1000 + b"\n"
    lines, rest = divmod(2**20 - len(text), len(line))
    full = text + line * lines + b"\n" * rest
    assert len(full) == 2**20
    assert read(write(tmp_path, full))[1] == Part(power_w=3)
    error = refusal(write(tmp_path, full + b"\n"))
    assert (error.message, error.place) == ("larger than 1 MiB, the limit for a preset", str(tmp_path / "x.toml"))


@pytest.mark.parametrize(
    "command", [("hardware", "show"), ("clusters", "show"), ("models", "show"), ("plan", "--gpus", "8", "--model")]
)
def test_commands_refuse_a_file_that_is_too_large_and_read_no_more_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    path = tmp_path / "large.toml"
    with path.open("wb") as stream:
        stream.truncate(2**34)  # sparse: 16 GiB that take no room
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda _: pytest.fail("read whole"))
        assert_one_message(gpuscale(*command, path), "large.toml: larger than 1 MiB, the limit for a preset", "")


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path).message
    assert "no such file" in refusal(tmp_path / "none.toml").message
    refusal(Path("a\0b.toml"))
    refusal(tmp_path / ("x" * 5000 + ".toml"))
    assert "not a regular file" in refusal(Path("/dev/zero")).message


def test_windows_line_ends_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfname = 'a'\r\n[table]\r\npower_w = 3\r\n")
    document = read_toml(path)
    assert read(path)[1] == Part(power_w=3)
    assert document.line_of(("table", "power_w")) == 3


@pytest.mark.parametrize("name", ["../gpus/h100", "", ".", "..", "a/b", "a\0b", "x" * 300, "h100*", "H100 SXM"])
def test_names_never_leave_the_preset_folders(name: str) -> None:
    assert find_preset("gpus", name) is None


def test_every_kind_has_presets() -> None:
    for kind in KINDS:
        assert preset_names(kind) == sorted(preset_names(kind))
    assert "h100-sxm-80gb" in preset_names("gpus")
    assert find_preset("gpus", "H100-SXM-80GB") == find_preset("gpus", "h100-sxm-80gb")


def test_the_users_folder_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = preset_folders("gpus")
    own = tmp_path / "gpus"
    own.mkdir()
    (own / "h100-sxm-80gb.toml").write_text("title = 'mine'\n")
    (own / "mine.toml").write_text("aliases = ['My-GPU']\n")
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path))
    assert preset_folders("gpus") == [own, shipped[-1]]
    assert find_preset("gpus", "h100-sxm-80gb") == own / "h100-sxm-80gb.toml"
    assert resolve_preset("gpus", "my-gpu") == own / "mine.toml"
    assert resolve_preset("gpus", "b200-sxm-180gb").stem == "b200"


def test_the_users_folder_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSCALE_PRESETS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = tmp_path / "gpuscale" / "presets" / "clusters"
    own.mkdir(parents=True)
    assert preset_folders("clusters")[0] == own


def test_a_preset_folder_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCALE_PRESETS", str(tmp_path / "none"))
    with pytest.raises(InputError, match="GPUSCALE_PRESETS"):
        preset_names("gpus")


def test_unknown_names_suggest_names_and_aliases() -> None:
    with pytest.raises(InputError) as caught:
        resolve_preset("gpus", "h100-smx-80gb")
    assert caught.value.message == "unknown GPU 'h100-smx-80gb'"
    assert "did you mean h100-sxm-80gb" in str(caught.value.hint)
    assert "gpuscale show hardware" in str(caught.value.hint)


@pytest.mark.parametrize("name", preset_names("frameworks"))
def test_every_setting_of_a_framework_has_a_source(name):
    profile = framework_file(name)
    sourced = {key.strip() for entry in profile["sources"] if ":" not in entry for key in entry.split(",")}
    settings = set(tomllib.loads((PRESETS / "frameworks" / f"{name}.toml").read_text())) - {
        "title",
        "as",
        "before",
        "launch",
        "space",
        "aliases",
        "rule_set",  # each rule has its own source
        "memory",
        "sources",
    }
    assert settings <= sourced
    assert sourced <= set(profile)
