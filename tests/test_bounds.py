"""What binds a plan follows from the shares shown beside it, by one rule, wherever it is said."""

import json
import re

import pytest
from command import gpuscale as command

import gpuscale
from gpuscale.planning.describe import bound_parts
from gpuscale.steptime.components import BOUNDS, COMPONENTS, by_kind

JOBS = {
    "dense": ("llama3-70b", 64, {}),
    "exchange": ("deepseek-v3", 2048, {"cluster": "h800-deepseek"}),
    "experts": ("mixtral-8x7b", 64, {}),
    "bubble": ("llama3.1-405b", 512, {"pins": {"pp": "32"}, "gbs": 64}),
    "one": ("llama3.2-1b", 1, {"gbs": 16}),
    "memory": ("llama3-8b", 64, {"objective": "memory"}),
}


@pytest.fixture(scope="module", params=JOBS)
def found(request):
    model, gpus, options = JOBS[request.param]
    return gpuscale.plan(model, gpus, **options)


def flags(options):
    pins = {**options, **options.get("pins", {})}
    return [part for name, value in pins.items() if name != "pins" for part in (f"--{name}", str(value))]


def test_the_largest_share_binds(found):
    for one in found.estimates:
        kinds = by_kind(one.breakdown)
        assert list(kinds.values()) == sorted(kinds.values(), reverse=True)
        assert sum(kinds.values()) == pytest.approx(one.plan.step_time_s)
        assert (one.plan.bound_by, one.plan.bound_fraction) == (
            next(iter(kinds)), pytest.approx(max(kinds.values()) / one.plan.step_time_s),
        )  # fmt: skip
        assert kinds["communication"] / one.plan.step_time_s == pytest.approx(one.plan.exposed_comm_fraction)


def test_no_share_said_is_larger_than_that_of_what_binds(found):
    for one in found.estimates:
        first, *others = bound_parts(one.breakdown)
        name, share = re.fullmatch(r"([A-Za-z]+) (\d+)%(?: \(.*\))?", first).groups()
        assert name == BOUNDS[one.plan.bound_by]
        assert int(share) == pytest.approx(100 * one.plan.bound_fraction, abs=0.5 + 1e-9)
        assert all(int(part) <= int(share) for text in others for part in re.findall(r"(\d+)%", text))
        assert all(f"{BOUNDS[COMPONENTS[part].limit]} " in f"{first}, {', '.join(others)} " for part, value
                   in one.breakdown.items() if value > 0.01 * one.plan.step_time_s)  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_every_answer_about_a_plan_says_the_same(name, tmp_path):
    model, gpus, options = JOBS[name]
    path = tmp_path / "plan.toml"
    done = command("plan", "--model", model, "--gpus", gpus, *flags(options), "-o", path, columns=300)
    assert done.code == 0, done.err
    estimate = json.loads(command("estimate", path, "--json").out)
    kind, share = estimate["plan"]["bound_by"], estimate["plan"]["bound_fraction"]
    said = f"{BOUNDS[kind]} {share:.0%}"
    assert done.lines[1].startswith(f"bound by {said}")
    row = next(line for line in done.lines if re.match(r"1=? ", line))
    assert f"{'comm' if kind == 'communication' else BOUNDS[kind]} {100 * share:.0f}" in row
    for other in (("estimate", path), ("explain", path), ("advise", path)):
        assert f"bound by {said}" in " ".join(command(*other, columns=300).lines[:4]), other
    both = command("compare", path, path, columns=300).lines
    assert next(line for line in both if line.startswith("bound by")).split()[2:4] == said.split()


def test_the_column_tells_plans_apart():
    for model, gpus, options in (JOBS["dense"], JOBS["exchange"], JOBS["experts"]):
        lines = command("plan", "--model", model, "--gpus", gpus, *flags(options), columns=300).lines
        header = next(line for line in lines if line.startswith("#"))
        start, end = header.index("bound by %"), header.index("comm%")
        rows = [line[start - 12 : end].strip() for line in lines if re.match(r"\d+=? ", line)]
        assert len(set(rows)) > len(rows) / 2
