"""Inputs for `fuzz.py`: real files and options of every command, mutated; input N of a seed is always the same."""

import csv
import io
import json
import math
import random
import re
import string
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import tomli_w
import yaml

from gpuscale.cli.main import named
from gpuscale.presets.files import KINDS, preset_names
from gpuscale.request import JobOptions, Layout, Question, Recovery, Sites, Slow, declared

HERE = Path(__file__).parent
PRESETS = HERE.parent / "presets"
SHARED = HERE.parents[1] / "shared"

FIELDS = {
    name: field
    for kind in (JobOptions, Layout, Question, Recovery, Slow, Sites)
    for name, field in declared(kind).items()
}


@dataclass(frozen=True)
class Case:
    """One input: the arguments of a command, and the files that it finds in its folder."""

    arguments: tuple[str, ...]
    files: dict[str, bytes]


FILE = "FILE"
"""Stands for the mutated file in the commands below."""

LOG = HERE / "data" / "example_all_reduce.log"
TOPOLOGY = HERE / "data" / "topo_matrix.txt"
ERROR = HERE / "data" / "example_error.txt"
TRAINING_LOG = HERE / "data" / "example_training.log"
TRACE = HERE / "data" / "example_trace.json"
SITE = HERE / "data" / "example_site.toml"
STUDY = HERE / "data" / "example_study.toml"
RESULTS = HERE / "data" / "studies" / "results.csv"
RAN = "--model llama3-8b --gpus 16 --tp 4 --gbs 128"
"""What ran where `TRAINING_LOG` was written."""
COMMANDS = {
    "clusters": (
        "show clusters FILE",
        "show clusters FILE --json --gpus 2048",
        "show clusters FILE --toml",
        "show clusters FILE --draw",
        "collective allreduce --bytes 32MB --cluster FILE",
        "collective alltoall --sweep 1KB..1GB --factor 64 --cluster FILE --json",
        "collective allreduce --sweep 1KB..1GB --factor 64 --cluster FILE --html out.html",
        "roofline --cluster FILE",
        "placement --cluster FILE --gpus 32 --tp 4 --pp 2 --json",
        "explain checklist --model llama3-8b --gpus 32 --tp 4 --pp 2 --cluster FILE",
        "explain --traffic --model mixtral-8x7b --gpus 32 --tp 2 --pp 2 --ep 4 --despite-rules --cluster FILE",
        "explain --model mixtral-8x7b --gpus 32 --tp 2 --pp 2 --ep 4 --despite-rules --cluster FILE",
        "placement --cluster FILE --gpus 16 --tp 2 --ranks out.csv --slurm out.txt",
        "estimate --model llama3-8b --gpus 16 --tp 2 --cluster FILE --json",
        "plan --model llama3-8b --gpus 8 --tp 1,8 --pp 1 --cp 1 --zero 1 --cluster FILE",
        "fleet --model llama3-8b --cluster FILE --tp 8 --cp 1 --zero 1 --json",
        "calibrate nccl example_all_reduce.log --cluster FILE -o out.toml",
        "calibrate topology topo_matrix.txt --base FILE -o out.toml",
    ),
    "gpus": (
        "show hardware FILE",
        "show hardware FILE --json",
        "calibrate topology topo_matrix.txt --gpu FILE -o out.toml",
        "estimate --model llama3-8b --gpus 8 --set gpu=FILE",
        "doctor",
    ),
    "models": (
        "show models FILE",
        "show models FILE --json --seq 8k",
        "roofline --model FILE --json",
        "estimate --model FILE --gpus 64 --tp 8 --json",
        "plan --model FILE --gpus 64 --tp 8 --pp 1 --cp 1 --mbs 1 --zero 3",
        "plan --model FILE --gpus 64 --tp 8 --pp 2 --cp 1 --mbs 1 --zero 1 --html out.html",
        "size batch --model FILE --gpus 64 --tokens 1T --gbs 256 --tp 8 --pp 1 --json",
        "size --model FILE --tokens 1T --days 30 --tp 8 --pp 1",
    ),
    "frameworks": (
        "show frameworks own",
        "show frameworks own --json",
        "show frameworks",
        "estimate --model llama3-8b --gpus 8 --framework own",
    ),
    "plans": (
        "estimate FILE",
        "estimate FILE --json",
        "placement FILE",
        "placement FILE --json",
        "estimate FILE --despite-rules --require-fit",
        "explain FILE --despite-rules",
        "compare FILE FILE",
        "train-time FILE --tokens 15T",
        "train-time FILE --days 60 --json --rate pue=1.3",
        "memory FILE --despite-rules",
        "memory FILE --json",
        "memory FILE --timeline",
        "schedule FILE",
        "schedule FILE --json --jitter 0.1",
        "schedule FILE --trace out.json --svg out.svg",
        "explain checklist FILE",
        "explain checklist FILE --markdown",
        "explain FILE --traffic --despite-rules",
        "explain FILE --html out.html",
        "reliability FILE --json --days 20",
        "reliability FILE --checkpoint peer --elastic --spares 1 --failure-rate 3",
        "reliability stragglers FILE",
        "reliability stragglers FILE --slow-rail 0.3 --json",
        "check FILE",
        "check FILE --json",
        "check FILE --tp 16 --max-memory 50% --format github",
        "check --baseline FILE --max-regression 1% --format sarif",
        "check FILE --zero 0 --recompute full --sp off --format junit --min-mfu 30",
    ),
    "trainings": (
        "train-time FILE --tokens 1T",
        "train-time FILE --tokens 1T --json --tp 1 --price-term spot",
        "train-time FILE --tokens 1T --html out.html",
    ),
    "studies": (
        "sweep FILE --task estimate --seq 4k --precision bf16 --json",
        "sweep FILE --tp 1 --mbs 1 --seq 4k --precision bf16 -o out.csv",
        "sweep FILE --gpus 8 --tp 2 --mbs 1 --seq 4k --precision bf16",
    ),
    "results": (
        "sweep show FILE --best-by model,gpus",
        "sweep show FILE --json",
        "sweep show FILE --heat model,gpus,mfu --frontier step_time_s,memory_gib --html out.html",
        "sweep show FILE --csv --sort -gpus --where mfu>0.4",
    ),
    "power": ("train-time --model llama3-8b --gpus 8 --tp 2 --as-given --tokens 1T",),
    "prices": ("train-time --model llama3-8b --gpus 8 --tp 2 --as-given --tokens 1T --json",),
    "huggingface": (
        "show models FILE",
        "show models FILE --json",
        "roofline --model FILE",
        "estimate --model FILE --gpus 64 --tp 4 --pp 2",
        "estimate --model FILE --gpus 64 --zero 3 --recompute full",
    ),
    "hub": ("show models org/name", "estimate --model org/name --gpus 64 --zero 3 --recompute full --json"),
    "measurements": (
        "validate FILE",
        "validate FILE --json",
        "validate FILE --csv",
        "validate FILE --top 3 --plot",
        "validate FILE --html out.html",
    ),
    "logs": (
        "calibrate nccl FILE --cluster aws-p5 -o out.toml",
        "calibrate nccl FILE --cluster aws-p4d --json --holdout",
        "collective allreduce --against FILE --cluster aws-p5",
        "collective alltoall --against FILE --json",
    ),
    "training_logs": (
        "calibrate run FILE --measure",
        "calibrate run FILE --measure --json",
        "calibrate run FILE --measure --run 2",
        f"calibrate run FILE {RAN}",
        f"calibrate run FILE example_training.log {RAN} -o out.toml",
    ),
    "traces": (
        "calibrate run FILE --measure",
        "calibrate run FILE --measure --json",
        f"calibrate run FILE {RAN} --json",
    ),
    "sites": (
        f"estimate {RAN} --calibration FILE",
        f"estimate {RAN} --calibration FILE --json",
        "estimate --model mixtral-8x7b --gpus 64 --cluster aws-p5 --framework torchtitan --calibration FILE",
        "plan --model llama3-8b --gpus 8 --tp 1,8 --pp 1 --cp 1 --zero 1 --calibration FILE",
        f"calibrate run example_training.log {RAN} --calibration FILE -o out.toml",
        "placement --gpus 16 --tp 8 --best --model llama3-8b --calibration FILE",
    ),
    "topologies": (
        "calibrate topology FILE",
        "calibrate topology FILE --gpu h100-sxm -o out.toml",
        "calibrate topology FILE --json --gpu a100-sxm-80gb",
        "calibrate topology FILE --base aws-p5 --nodes 16 --nics 8",
        "calibrate topology topo_matrix.txt FILE --gpu h100-sxm -o out.toml",
    ),
    "protocols": (
        "calibrate gpu --fit-only --protocol FILE",
        "calibrate gpu --fit-only --protocol FILE --json",
        "calibrate gpu --fit-only --protocol FILE --gpu h200 -o out.toml",
    ),
    "launch": (
        "check --from FILE --json",
        "check --from FILE --gpus 64 --model llama3-8b --gbs 256 --format sarif --max-memory 80%",
        "check --from FILE --gpus 16 --cluster aws-p4d --var NNODES=2 --format github",
        "check --from . --gpus 64 --format junit --min-mfu 40",
        "estimate --from FILE",
        "estimate --from FILE --json",
        "estimate --from FILE --gpus 64 --json",
        "estimate --from FILE --gpus 64 --model llama3-8b --seq 4096 --gbs 256 --var 1=4 --var TP=2 -v",
        "estimate --from FILE --gpus 16 --improve",
        "estimate --from . --despite-rules",
        "plan --from FILE --gpus 8 --tp 1,8 --pp 1 --cp 1 --mbs 1 --zero 1",
    ),
    "errors": (
        "check --error FILE",
        "check --error FILE --json",
        "check --error FILE --model llama3-8b --gpus 16 --tp 16",
        "check --error FILE --model mixtral-8x7b --gpus 32 --ep 8 --json",
    ),
    "tools": ("doctor", "doctor --json"),
    "hosts": ("placement --gpus 16 --tp 8 --hosts FILE --hostfile out.txt",),
}
"""Kind of file -> the commands that read it."""

SNAPSHOT = "hub/models--org--name/snapshots/0123abcd"
TOOL = {"bin/nvidia-smi": b"#!/bin/sh\n/bin/cat printed.txt\n"}
PLACES = {
    "tools": "printed.txt", "frameworks": "presets/frameworks/own.toml", "hub": f"{SNAPSHOT}/config.json",
    "power": "presets/rates/power.toml", "prices": "presets/rates/prices.toml",
}  # fmt: skip
"""Kind of file -> where its commands look for it."""

PLANS = (
    "--model llama3-70b --gpus 64",
    "--model mixtral-8x7b --gpus 32 --cluster gb200-nvl72 --framework nemo",
    "--model deepseek-v3 --gpus 1024 --precision fp8-blockwise --tp 1 --cp 1",
)
MAX_SEED_BYTES = 20_000
"""Of a real file; what follows is cut off at a line."""


@cache
def seeds():
    """Kind of file -> name and content of real files."""
    found = {kind: sorted((PRESETS / kind).glob("*.toml")) for kind in KINDS}
    data, formats = HERE / "data", SHARED / "formats"
    found |= {kind: [PRESETS / "rates" / f"{kind}.toml"] for kind in ("power", "prices")}
    found["trainings"] = [data / "example_phases.toml"]
    found["studies"] = [STUDY]
    found["results"] = [RESULTS]
    found["huggingface"] = sorted((formats / "hf_configs").glob("*.json"))
    found["measurements"] = [*sorted(data.glob("*.csv")), *sorted((SHARED / "validation").glob("*.csv"))]
    found["logs"] = [LOG, *sorted((formats / "nccl_tests").iterdir() if formats.is_dir() else ())]
    real = sorted((formats / "training_logs").iterdir()) if formats.is_dir() else []
    found["training_logs"], found["traces"], found["sites"] = [TRAINING_LOG, *real], [TRACE], [SITE]
    found["topologies"] = [TOPOLOGY, *(path for path in sorted((formats / "topo").rglob("*")) if path.is_file())]
    real = sorted((formats / "launch").rglob("*")) if formats.is_dir() else []
    found["launch"] = [*sorted((data / "launch").rglob("*")), *(path for path in real if path.suffix != ".csv")]
    found["launch"] = [path for path in found["launch"] if path.is_file()]
    files = {kind: [(path.name, _beginning(path)) for path in paths] for kind, paths in found.items()}
    files["clusters"] += [(name, (data / name).read_bytes()) for name in ("fleet.toml", "sites.toml")]
    files["huggingface"] += [("config.json", json.dumps(CONFIG, indent=1).encode())]
    files["hub"] = files["huggingface"]
    protocol = data / "made_gpu_protocol.jsonl"
    files["protocols"] = [(protocol.name, protocol.read_bytes())]
    files["tools"] = [(name, (data / "machine" / name).read_bytes()) for name in ("gpus.csv", "topo.txt")]
    files["errors"] = [(ERROR.name, ERROR.read_bytes())]
    files["hosts"] = [("hosts.txt", b"".join(b"node-%03d\n" % number for number in range(8)))]
    return files | {"plans": [("plan.toml", _saved_plan(options)) for options in PLANS]}


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}  # fmt: skip


def _beginning(path):
    raw = path.read_bytes()
    if len(raw) <= MAX_SEED_BYTES:
        return raw
    limit = 4_000 if path.suffix == ".csv" else MAX_SEED_BYTES
    return raw[: raw.rfind(b"\n", 0, limit) + 1]


def _saved_plan(options):
    from command import gpuscale  # noqa: PLC0415 - needs the process that runs commands

    done = gpuscale("plan", *options.split(), "-o", "-")
    assert done.code == 0, done.err
    return done.out.encode()


def case(seed, number):
    """Return input `number` of a seed."""
    rng = random.Random(f"{seed}:{number}")
    return _file_case(rng) if rng.random() < 0.7 else _options_case(rng)


# --- files


def _file_case(rng):
    kind = rng.choice(tuple(COMMANDS))
    name, content = rng.choice(seeds()[kind])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        content = _mutated(rng, kind, name, content)
    stem, _, suffix = re.sub(r"[^A-Za-z0-9.]+", "-", name).rpartition(".")
    place = PLACES.get(kind) or f"{stem[:20] or 'own'}.{suffix[:8]}"
    command = rng.choice(COMMANDS[kind])
    files = {place: content[:2_000_000]}
    files |= {path.name: path.read_bytes() for path in (LOG, TOPOLOGY, TRAINING_LOG) if path.name in command}
    files |= TOOL if kind == "tools" else {}
    made = Case(tuple(place if one == FILE else one.replace(FILE, place) for one in command.split()), files)
    if rng.random() < 0.1:
        path, found = max(
            (one for one in leaves() if command.startswith(" ".join(one[0]))), key=lambda one: len(one[0])
        )
        made = replace(made, arguments=made.arguments + _some_options(rng, found, 1 + (len(path) > 1)))
    return made


def _mutated(rng, kind, name, content):
    structured = _structured(name)
    if structured and rng.random() < 0.6:
        try:
            return structured(rng, content)
        except (ValueError, TypeError, LookupError, RecursionError, csv.Error):  # already mutated beyond its form
            pass
    return rng.choice(BYTES)(rng, content, kind)


def _structured(name):
    yaml_too = {".yaml": _yaml, ".yml": _yaml}
    return {".toml": _toml, ".json": _json, ".csv": _csv, **yaml_too}.get(Path(name).suffix)


def _toml(rng, content):
    data = tomllib.loads(content.decode())
    _change(rng, data)
    return tomli_w.dumps(data).encode("utf-8", "surrogatepass")


def _json(rng, content):
    data = json.loads(content)
    _change(rng, data)
    return json.dumps(data, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _yaml(rng, content):
    try:
        data = yaml.safe_load(content.decode())
        _change(rng, data)
        return yaml.safe_dump(data, allow_unicode=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except yaml.YAMLError as error:
        raise ValueError(error) from None


def _csv(rng, content):
    rows = list(csv.reader(io.StringIO(content.decode())))
    row = rng.choice(rows)
    what = rng.randrange(6)
    if what == 0:
        column = rng.randrange(len(rows[0]))
        rows = [one[:column] + one[column + 1 :] for one in rows]
    elif what == 1:
        column = rng.randrange(len(rows[0]))
        rows = [[*one, *one[column : column + 1]] for one in rows]
    elif what == 2:
        row.append(rng.choice(ODD))
    elif what == 3:
        del row[rng.randrange(len(row)) :]
    else:
        row[rng.randrange(len(row))] = rng.choice((*ODD, *map(str, NUMBERS), *rng.choice(rows)))
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


def _change(rng, data):
    """Change one value somewhere in nested tables and lists."""
    places = list(_places(data))
    holder, key = rng.choice(places)
    what = rng.randrange(7)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[rng.choice(ODD)] = holder[key]
    elif what == 2 and isinstance(holder, list):
        holder.extend([holder[key]] * rng.choice((1, 3, 300)))
    elif what == 3:
        other, theirs = rng.choice(places)
        holder[key] = other[theirs] if not isinstance(other[theirs], dict | list) else str(other[theirs])
    elif isinstance(holder[key], int | float) and what < 6:
        holder[key] = rng.choice(
            (*NUMBERS, -holder[key], holder[key] + 1, holder[key] * 10, holder[key] // 3, str(key))
        )
    else:
        holder[key] = rng.choice((*VALUES, *NUMBERS, *ODD))


def _places(data, depth=0):
    for key in list(data if isinstance(data, dict) else range(len(data))):
        yield data, key
        if isinstance(data[key], dict | list) and depth < 20:
            yield from _places(data[key], depth + 1)


NUMBERS = (
    0, 1, 2, 3, -1, 0.5, 1e-30, 1e-320, 1e30, 1e300, -1e300, float("nan"), float("inf"), float("-inf"), 7, 63, 1000,
    65537, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 10**40,
)  # fmt: skip
VALUES = ("", [], {}, True, False, [[]], [{}], {"a": 1}, [1, 2], ["a"], {"a": {"b": [{}]}}, "1", "x" * 2000)
ODD = (
    "", " ", "\t", "\n", "a\nb", "\r\n", "\x1b[31mred", "\x1b]0;title\x07", "\x00", "\x7f", "\x85", "\u2028", "\u202e",
    "\ufeff", "\u00a0", "é", "日本", "😀", "\u0301" * 40, "٣", "½", "Ⅷ", "\ufffe", "nan", "inf", "-inf", "-0", "1e400",
    "0x10", "1_000", "1,000", "+5", "=1+1", "'", '"', '"""', "\\", "\\x00", "`", "[red]", "[/]", "{}", "%s", "..",
    "~", "a" * 300, "9" * 400, "9" * 5000, "-" * 50, "none", "null", "true", "#", ";", "<", "&amp;", "]]>", "*",
    "\U000e0041",
)  # fmt: skip


def _flip(rng, content, kind):
    raw = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def _cut(rng, content, kind):
    at = rng.randint(0, len(content))
    return content[:at] if rng.random() < 0.7 else content[at:]


def _drop(rng, content, kind):
    at = rng.randint(0, len(content))
    return content[:at] + content[at + rng.choice((1, 5, 50, 500)) :]


def _insert(rng, content, kind):
    at, text = rng.randint(0, len(content)), rng.choice(ODD).encode()
    return content[:at] + text * rng.choice((1, 1, 2, 100)) + content[at:]


def _lines(rng, content, kind):
    """Double, drop, swap or move lines."""
    lines = content.splitlines(keepends=True) or [b""]
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(5)
    if what == 0:
        lines[one:one] = lines[one : one + rng.choice((1, 1, 5))] * rng.choice((1, 1, 2, 200))
    elif what == 1:
        del lines[one : one + rng.choice((1, 1, 3, 10))]
    elif what == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif what == 3:
        lines.insert(one, lines[other])
    else:
        lines[one] = lines[one].rstrip(b"\n") + lines[other]
    return b"".join(lines)


def _token(rng, content, kind):
    """Replace a word by another word of the file, or by an odd one."""
    words = list(re.finditer(rb"[^\s=,:;\"'<>\[\](){}]+", content))
    if not words:
        return content
    word, other = rng.choice(words), rng.choice(words)[0]
    new = rng.choice((other, other, rng.choice(ODD).encode(), b""))
    return content[: word.start()] + new + content[word.end() :]


def _number(rng, content, kind):
    """Replace a number by another."""
    numbers = list(re.finditer(rb"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", content))
    if not numbers:
        return content
    word = rng.choice(numbers)
    new = rng.choice((*map(str, NUMBERS), "9" * 400, "9" * 5000, "1e400", f"-{word[0].decode()}", "", "0x1", "08"))
    every = rng.random() < 0.1
    return (
        re.sub(re.escape(word[0]), new.encode(), content)
        if every
        else (content[: word.start()] + new.encode() + content[word.end() :])
    )


def _nest(rng, content, kind):
    """Nest deeply at some place."""
    opening, closing = rng.choice(
        ((b"[", b"]"), (b"{a=", b"}"), (b'{"a":', b"}"), (b"<system>", b"</system>"), (b"(", b")"))
    )
    depth, at = rng.choice((5, 40, 1000, 20_000)), rng.randint(0, len(content))
    return content[:at] + opening * depth + (closing * depth if rng.random() < 0.7 else b"") + content[at:]


def _whole(rng, content, kind):
    """Change what holds for the whole file: its encoding, ends of lines, spaces, size."""
    text = content.decode("utf-8", "replace")
    return rng.choice((
        lambda: text.encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: content.replace(b"\n", b"\r"),
        lambda: content.replace(b"\n", b""),
        lambda: content.replace(b" ", b"\t"),
        lambda: content.replace(b" ", "\u00a0".encode()),
        lambda: content.replace(b"=", b"=="),
        lambda: content * rng.choice((2, 30)),
        content.upper,
        lambda: text.encode("latin-1", "replace"),
        lambda: bytes(rng.randrange(256) for _ in range(rng.choice((0, 1, 10, 1000)))),
    ))()  # fmt: skip


def _splice(rng, content, kind):
    """Go on with another file of the same kind, or of any."""
    kind = kind if rng.random() < 0.8 else rng.choice(tuple(seeds()))
    _, other = rng.choice(seeds()[kind])
    return content[: rng.randint(0, len(content))] + other[rng.randint(0, len(other)) :]


BYTES = (_flip, _cut, _drop, _insert, _lines, _lines, _token, _token, _token, _number, _number, _nest, _whole, _splice)


# --- options


@cache
def leaves():
    """Path and parameters of every command."""
    return [
        (tuple(name.split()), {one.name: one for one in command.params})
        for name, command in named().items()
        if not hasattr(command, "commands")
    ]


ONE_LAYOUT = "--tp 1 --pp 1 --cp 1"

BASES = {
    ("plan",): ("--model llama3-8b --gpus 8 --pp 1 --cp 1 --zero 1", "--model mixtral-8x7b --gpus 16 --tp 2 --cp 1"),
    ("estimate",): ("--model llama3-8b --gpus 16", "--model mixtral-8x7b --gpus 64 --despite-rules", "plan.toml"),
    ("explain",): ("--model llama3-8b --gpus 16", "--model mixtral-8x7b --gpus 64 --despite-rules", "plan.toml"),
    ("compare",): ("plan.toml plan.toml",),
    ("fleet",): ("--model llama3-8b --cluster fleet.toml --tp 8 --cp 1 --zero 1",),
    ("size", "batch"): (f"--model llama3-8b --gpus 16 --tokens 1T --gbs 128,256 {ONE_LAYOUT}",),
    ("size",): (f"--gpus 8 --days 3 {ONE_LAYOUT}", f"--model llama3-8b --tokens 1T --days 30 {ONE_LAYOUT}"),
    ("sweep",): ("--model llama3-8b --gpus 8,16 --tp 1 --pp 1 --cp 1 --zero 1", "example_study.toml --task estimate"),
    ("placement",): ("--gpus 32", "--gpus 16 --tp 8", "plan.toml"),
    ("bench",): ("--model llama3-8b --gpus 8 --runs 1",),
    ("collective",): ("allreduce --bytes 8MB", "alltoall --sweep 8B..8GB --factor 64", "allgather -b 8 -e 1M"),
    ("roofline",): ("",),
    ("doctor",): ("", "."),
    ("validate",): ("published_runs.csv", "published_kernels.csv", "published_collectives.csv"),
    ("calibrate", "nccl"): ("example_all_reduce.log --cluster aws-p5",),
    ("calibrate", "run"): (
        "example_training.log --measure",
        f"example_training.log {RAN}",
        f"example_trace.json {RAN}",
        f"example_training.log {RAN} --calibration example_site.toml",
    ),
    ("calibrate", "gpu"): ("--protocol missing.jsonl --fit-only",),
    ("show", "models"): ("llama3-8b", "deepseek-v3"),
    ("show", "hardware"): ("h100-sxm",),
    ("show", "clusters"): ("aws-p5", "gb200-nvl72"),
    ("calibrate", "topology"): ("topo_matrix.txt --gpu h100-sxm",),
    ("sweep", "show"): ("results.csv", "results.csv --best-by model --heat model,gpus,mfu"),
    ("show", "frameworks"): ("megatron-lm", "torchtitan"),
}
"""Command -> arguments with which it answers; random options are added to them."""

RARE = {("bench",): 0.1, ("validate",): 0.3}
"""Slow commands -> how often they are run, of the times that they are drawn."""


def _options_case(rng):
    path, parameters = rng.choice(leaves())
    if rng.random() > RARE.get(path, 1):
        path, parameters = next(one for one in leaves() if one[0] == ("estimate",))
    base = rng.choice(BASES.get(path, ("",))).split()
    if rng.random() < 0.1:
        base = [one for one in base if rng.random() < 0.8]
    if rng.random() < 0.1:
        base = [rng.choice((one, value(rng, "", ""))) for one in base]
    arguments = (*path, *base, *_some_options(rng, parameters, rng.choice((0, 1, 1, 2, 2, 3, 4, 8))))
    read = {LOG, TOPOLOGY, TRAINING_LOG, TRACE, SITE, STUDY, RESULTS, *(HERE / "data").glob("published_*s.csv")}
    files = {one.name: _beginning(one) for one in read if one.name in arguments}
    if "plan.toml" in arguments:
        files["plan.toml"] = rng.choice(seeds()["plans"])[1]
    return Case(arguments, files)


def _some_options(rng, parameters, count):
    found = []
    for name in rng.choices(tuple(parameters), k=count):
        one = parameters[name]
        flag = rng.choice(getattr(one, "opts", None) or [""])
        if one.param_type_name == "argument":
            found.append(value(rng, name, one.metavar or ""))
        elif one.is_flag:
            found.append(flag)
        elif rng.random() < 0.1:
            found.append(f"{flag}={value(rng, name, one.metavar or '')}")
        else:
            found += [flag, value(rng, name, one.metavar or "")]
    return tuple(found)


def value(rng, name, metavar):
    """Return a value of an option: mostly a legal one, else one at a limit, one of another option, or nonsense."""
    chance = rng.random()
    if chance < 0.55:
        return _legal(rng, name, metavar)
    if chance < 0.75:
        return _border(rng, name)
    if chance < 0.85:
        return _legal(rng, rng.choice(tuple(FIELDS)), "")
    if chance < 0.95:
        return rng.choice(TEXTS_ODD)
    legal = _legal(rng, name, metavar)
    at = rng.randint(0, len(legal))
    return legal[:at] + rng.choice(("", *TEXTS_ODD, *string.punctuation)) + legal[at + rng.choice((0, 1)) :]


TEXTS_ODD = (
    *(one for one in ODD if "\x00" not in one), "\udcff", "1..8", "8..1", "..", "1..", "1,2,4", "1,,2", ",", "!16", "!",
    "!1,2", "1..1048576", "a=b", "=", "=1", "--", "-x", "-1", "0", "1e308", "1e-308", "1e3", "128k", "15T", "70GiB",
    "@", "llama3-8b", "llama", "nemo@2024-03", "megatron-lm@9999-99", "h100", "missing.toml", "missing.csv", ".", "/",
    "out.toml",
)  # fmt: skip

WORDS = {
    "set": (
        "leaf.link_gb_per_s=40",
        "gpu=b200-sxm",
        "gpu.power_w=500",
        "gpu.memory_gib=40",
        "leaf.size=4",
        "x.y=1",
        "network=x2",
        "domain=16",
        "nics=2,oversubscription=2",
        "gpu.flops=x1.5",
        "leaf.gpus=512",
        "leaf.link=x0.1",
    ),
    "why": ("tp=4,pp=2", "tp=8", "dp=1", "tp=3", "ep=8,etp=2", "zero=3,recompute=full"),
    "recompute": ("none", "full", "full:2", "selective", "selective:layernorm+mlp", "selective:moe"),
    "schedule": ("1f1b", "gpipe", "zb-h1", "zb-2p", "zb-v", "dualpipe"),
    "pareto": ("step_time,memory", "memory,cost", "step_time,memory,cost"),
    "gpu_hour_price": ("2.5", "dgx-h100-superpod=3", "aws-p5=2"),
    "offload": ("none", "optimizer", "optimizer+parameters", "activations:0.5"),
    "overlap": ("none", "tp", "tp+dp", "dp+ep"),
    "axis_order": ("tp-cp-ep-dp-pp", "dp-tp-cp-ep-pp", "pp-dp-ep-cp-tp"),
    "bytes": ("8", "1KB", "32MB", "32MiB", "4GB"),
    "sweep": ("8B..8GB", "1MB..2MB", "8..8"),
    "begin": ("8", "1M"),
    "end": ("1M", "8G"),
    "operation": ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv"),
    "op": ("allreduce", "alltoall"),
    "level": ("leaf", "spine", "nvlink", "node", "rail"),
    "algorithm": ("ring", "tree", "nvls", "nvls-tree", "collnet", "pat", "pairwise", "hierarchical", "deepep"),
    "protocol": ("ll", "ll128", "simple"),
    "nccl": ("2.20", "2.30", "2.4", "2.27.3"),
    "launch": ("processes", "one-process", "graph"),
    "by": ("family", "framework", "gpu", "model", "precision"),
    "family": ("llama3", "qwen3", "deepseek"),
    "calibration": ("example_site.toml", "missing.toml"),
    "plan": ("plan.toml",),
    "against": ("example_all_reduce.log", "missing.log"),
    "hosts": ("hosts.txt", "missing.txt"),
    "sp": ("on", "off"),
    "forward": ("1", "0.5", "1,2,1,1"),
    "backward": ("2", "1.5", "2,2,2,3"),
    "weight": ("1", "0", "0.9"),
    "transfer": ("0", "0.1", "3"),
    "jitter": ("0", "0.1", "11"),
    "train_tokens": ("15T", "1e12", "300B"),
    "rate": ("pue=1.3", "gpu_w=350", "effective_ratio=0.9", "pue=0", "nothing=1"),
    "days": ("60", "0.001", "1e9"),
    "max_memory": ("70GiB", "40", "80GB"),
    "gbs": ("512", "4Mtok", "1024", "64"),
    "seq": ("4096", "8k", "128k", "1"),
    "sharp": ("on", "off"),
    "nvls": ("on", "off"),
    "precision": ("bf16", "fp8", "fp4", "fp32"),
}


def _legal(rng, name, metavar):
    """Return a value that an option takes, whatever the others are."""
    field = FIELDS.get(name)
    choices = WORDS.get(name) or (field.option.choices if field else ())
    kind = {"model": "models", "cluster": "clusters", "base": "clusters", "gpu": "gpus", "framework": "frameworks"}.get(
        name
    )
    if choices:
        return rng.choice(tuple(choices))
    if kind:
        return rng.choice(_names(kind))
    if "FILE" in metavar or "LOG" in metavar:
        return rng.choice(("out.toml", "out.csv", "-", "out", "missing/out.toml"))
    if name == "gpus":
        return str(rng.choice((1, 2, 8, 16, 64, 72, 128, 512)))
    return str(rng.choice((1, 1, 2, 4, 8, 3, 16)))


@cache
def _names(kind):
    return tuple(preset_names(kind))


def _border(rng, name):
    """Return a number at or beside a limit of an option."""
    limits = [one for one in FIELDS[name].limits if math.isfinite(one)] if name in FIELDS else []
    limits = limits or [0, 1, 65536]
    limit = rng.choice(limits)
    return str(rng.choice((limit, limit - 1, limit + 1, -limit, limit * 2, limit / 2)))
