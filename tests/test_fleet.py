"""Ways to use a cluster of unlike nodes: exact dealing, two routes to a step, and what must hold of any fleet."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from command import gpuscale

from gpuscale import InputError, fleet, plan, train_time
from gpuscale.fleets import batches, comparing, stages
from gpuscale.layouts.arrays import FIELDS, ONE_F_ONE_B, Cases, single
from gpuscale.presets.hardware import load_cluster
from gpuscale.presets.rates import Rate, prices_of
from gpuscale.request import Question
from gpuscale.search.evaluation import evaluate
from gpuscale.steptime.pipeline import Durations, Pipeline, simulate
from gpuscale.steptime.step import evaluate_passes, hop_times, stage_seconds
from gpuscale.training import totals

POOL = """
[[pools]]
name = "{name}"
cluster = "{cluster}"
gpus = {gpus}
sources = {{ gpus = "made for this test" }}
"""
LEVEL = """
[[levels]]
name = "core"
fabric = "infiniband"
gpus = {gpus}
path = "gdr"
nics_per_gpu = 1
nic_gbit_per_s = {gbit}
in_network_reduction = false
[levels.sources]
"*" = "guesstimate: made for this test"
"""
H100, A100 = ("fast", "dgx-h100-superpod", 64), ("slow", "dgx-a100-superpod", 64)


@pytest.fixture
def made(tmp_path):
    """Write a fleet of pools (name, cluster, GPUs), and return its path."""

    def write(*pools, gbit=400, name="own.toml"):
        text = 'title = "A fleet made for this test"\nextendable = false\n'
        text += "".join(POOL.format(name=one, cluster=cluster, gpus=gpus) for one, cluster, gpus in pools)
        path = tmp_path / name
        path.write_text(text + LEVEL.format(gpus=sum(gpus for *_, gpus in pools), gbit=gbit))
        return str(path)

    return write


def ways(result):
    return {way.name: way for way in result.ways}


def of(path, model="llama3-8b", **options):
    """The fleet that ways are made for."""
    return comparing.made_fleet({"model": model, **options}, path, {}, Question())


# --- dealing out


def parts(*pools):
    """Shares of pools, from sequences -> seconds."""
    return [batches.Shares(np.array(list(one)), np.array(list(one.values()), dtype=float), rows=None) for one in pools]


@pytest.mark.parametrize("pools", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_batch_is_dealt_out_as_by_trying_everything(pools, seed):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(pools):
        each, rate = rng.choice([1, 2, 3, 4, 6]), rng.uniform(0.5, 3)
        made.append({int(n * each): float(n * each / rate + rng.uniform(0, 1)) for n in range(1, 25)})
    tried = [
        max(one[count] for one, count in zip(made, counts, strict=True))
        for counts in itertools.product(*made)
        if sum(counts) == 40
    ]
    found = batches.deal(40, parts(*made))
    assert (found is None) == (not tried)
    if found:
        assert found.time_s == min(tried)
        shares = parts(*made)
        assert sum(int(own.sequences[at]) for own, at in zip(shares, found.chosen, strict=True)) == 40


def test_no_parts_that_make_up_the_batch_are_none():
    assert batches.deal(7, parts({2: 1.0, 4: 2.0}, {2: 1.0, 6: 1.0})) is None


def made_costs(seed, counts=(2, 2), layers=9, room=None):
    """Costs of layers of two kinds on two pools."""
    rng = np.random.default_rng(seed)
    pattern = rng.integers(0, 2, layers)
    before = np.zeros((2, layers + 1))
    np.cumsum(pattern == np.arange(2)[:, None], axis=1, out=before[:, 1:])
    stages_, pool_of = sum(counts), np.repeat(np.arange(len(counts)), counts)
    return stages.Costs(
        before,
        rng.uniform(0.5, 2, (len(counts), 2, 1)),
        np.concatenate([[[0.3]], np.zeros((stages_ - 2, 1)), [[0.7]]]),
        rng.uniform(1, 2, (stages_, 2, 1)),
        np.ones((stages_, 1)),
        np.full(stages_, np.inf) if room is None else rng.uniform(*room, stages_),
        pool_of,
    )


def stage_times(costs, layers):
    """Seconds and bytes of each stage."""
    ends = np.cumsum(layers)
    held = [costs.before[:, end] - costs.before[:, end - count] for end, count in zip(ends, layers, strict=True)]
    time_s = [costs.layer_s[costs.pool_of[s], :, 0] @ held[s] + costs.end_s[s, 0] for s in range(len(layers))]
    return np.array(time_s), np.array(
        [costs.layer_bytes[s, :, 0] @ held[s] + costs.fixed_bytes[s, 0] for s in range(len(layers))]
    )


@pytest.mark.parametrize("room", [None, (4.0, 9.0)])
@pytest.mark.parametrize("seed", range(8))
def test_layers_are_dealt_out_as_by_trying_everything(seed, room):
    counts = (1 + seed % 2, 2)
    costs = made_costs(seed, counts, room=room)
    stages_, microbatches = sum(counts), 2 + 3 * (seed % 3)
    tried = []
    for cuts in itertools.combinations(range(1, costs.layers), stages_ - 1):
        layers = np.diff([0, *cuts, costs.layers])
        time_s, size = stage_times(costs, layers)
        if (size <= costs.limit_bytes).all():
            tried.append((microbatches - 1) * time_s.max() + time_s.sum())
    possible, _ = stages.dealt(costs)
    assert bool(possible[0]) == bool(tried)
    if not tried:
        return
    bound_s, _ = stages.least_bound(costs, np.array([microbatches]))
    found = stages.deal_layers(costs, counts, microbatches, float(bound_s[0]))
    assert sum(found) == costs.layers
    time_s, size = stage_times(costs, found)
    assert (size <= costs.limit_bytes * (1 + 1e-9)).all()
    assert (microbatches - 1) * time_s.max() + time_s.sum() == pytest.approx(min(tried), rel=1e-6)


# --- two routes to a step


def test_a_pipeline_over_pools_takes_what_its_slots_take(made):
    found = of(made(H100, A100), gbs=256)
    tried = stages.pipelines(found)[:6]
    assert len(tried) == 6
    for one in tried:
        table, row = stages.table_of(stages._counts(one.jobs[0], one.layers)), np.zeros(1, dtype=np.intp)
        own = [evaluate_passes(one.row, Cases(row), job) for job in one.jobs]
        times = [stage_seconds(one.row, table.layers(row), passes) for passes in own]
        columns, pools = stages.stage_columns(len(one.layers)), one.order.pool_of
        passes = [np.array([[times[pool][way][column, 0] for pool, column in zip(pools, columns, strict=True)]])
                  for way in (0, 1)]  # fmt: skip
        count = int(one.row.num_microbatches[0])
        pipeline = Pipeline(ONE_F_ONE_B, len(one.layers), 1, count)
        timeline = simulate(pipeline, Durations(*passes, np.zeros_like(passes[0]), 0.0, 0.0))
        both = (passes[0] + passes[1])[0]
        closed_s = (count - 1) * both.max() + both.sum()
        assert float(timeline.end_s.max()) == pytest.approx(closed_s, rel=0.01)
        assert stages.evaluated(found, one).step_time_s >= closed_s


def test_pools_that_meet_once_a_step_take_the_longest_step_and_the_exchange(made):
    """Each pool begins its next step when its own update is done; all wait for the exchange."""
    rng = np.random.default_rng(0)
    before, after, sync_s = rng.uniform(1, 3, 3), rng.uniform(0, 1, 3), 0.2
    free, exchanged = np.zeros(3), []
    for _ in range(50):
        exchanged.append((free + before).max() + sync_s)
        free = exchanged[-1] + after
    assert np.diff(exchanged)[1:] == pytest.approx((before + after).max() + sync_s)


# --- alike pools


PINS = {"tp": 8, "cp": 1, "micro_batch_size": 1, "zero": 1, "recompute": "none"}


def test_stages_on_alike_pools_are_the_plain_pipeline(made):
    found = of(made(("one", H100[1], 64), ("other", H100[1], 64)), model="llama3-8b", gbs=256)
    pipeline = next(one for one in stages.pipelines(found) if len(one.layers) == 2)
    pipeline = pipeline._replace(layers=(16, 16))
    plain = evaluate(pipeline.row, pipeline.jobs[0]).step
    mine = stages.evaluated(found, pipeline)
    hop_s = float(hop_times(pipeline.row, pipeline.jobs[0])[0][0])
    hops = 2 * (int(pipeline.row.num_microbatches[0]) + 1)
    assert mine.step_time_s - mine.hops_s == pytest.approx(float(plain.step_time_s[0]) - hops * hop_s, rel=1e-9)


def test_batches_on_alike_pools_are_the_plain_plan_but_for_the_exchange(made):
    path = made(("one", H100[1], 64), ("other", H100[1], 64))
    found = ways(fleet("llama3-8b", path, pins=PINS | {"pp": 1}, gbs=256))
    plain = plan("llama3-8b", 128, pins=PINS | {"pp": 1}, gbs=256, top=1).estimates[0]
    own = found["batches"]
    assert [part.sequences for part in own.parts] == [128, 128]
    assert abs(own.step_time_s - plain.plan.step_time_s) <= own.sync_s + plain.total_dp_comm_s
    assert own.speedup == pytest.approx(2, rel=0.05)


# --- what must hold of any fleet


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """H100 and A100, in both orders of their pools."""
    folder, out = tmp_path_factory.mktemp("fleet"), []
    for pools in ((H100, A100), (A100, H100)):
        path = folder / f"{pools[0][0]}.toml"
        text = 'title = "A fleet made for this test"\nextendable = false\n'
        text += "".join(POOL.format(name=one, cluster=cluster, gpus=gpus) for one, cluster, gpus in pools)
        path.write_text(text + LEVEL.format(gpus=128, gbit=200))
        out.append(fleet("llama2-7b", str(path), gbs=512))
    return out


def test_work_dealt_out_by_speed_beats_idling_and_waiting(found):
    for result in found:
        own = ways(result)
        assert set(own) == {"alike", "batches", "stages", "fast alone", "slow alone"}
        assert own["batches"].tokens_per_s > own["fast alone"].tokens_per_s > own["alike"].tokens_per_s
        both = own["fast alone"].tokens_per_s + own["slow alone"].tokens_per_s
        assert all(own[name].tokens_per_s < 1.02 * both for name in ("batches", "stages"))
        assert [way.rank for way in result.ways] == [1, 2, 3, 4, 5]
        assert sorted((way.tokens_per_s for way in result.ways), reverse=True) == [
            way.tokens_per_s for way in result.ways
        ]


def test_the_order_of_pools_in_the_file_changes_nothing(found):
    one, other = (ways(result) for result in found)
    for name, way in one.items():
        assert other[name].step_time_s == pytest.approx(way.step_time_s, rel=1e-9), name
        assert other[name].parts == way.parts[::-1]


def test_memory_is_that_of_each_pools_own_gpu(made):
    path = made(("big", "h200-hgx", 64), ("small", H100[1], 64))
    for way in fleet("llama3-70b", path, gbs=512).ways:
        limits = [part.memory_limit_gib for part in way.parts]
        assert all(part.memory_gib <= part.memory_limit_gib for part in way.parts)
        if way.kind != "alike":
            assert limits[0] > 1.5 * limits[1]
    layers = {part.pool: sum(part.layers) for part in ways(fleet("llama3-70b", path, gbs=512))["stages"].parts}
    assert sum(layers.values()) == 80


def test_a_pool_that_adds_nothing_costs_no_more_than_the_exchange(made):
    """Eight V100 beside 256 H100: as soon as they are given a microbatch that they end in time, the H100 have less."""
    result = fleet("llama3-8b", made(("fast", H100[1], 256), ("slow", "dgx1-v100", 8)), gbs=512, precision="fp16")
    own = ways(result)
    assert result.ways[0].tokens_per_s >= own["fast alone"].tokens_per_s
    if "batches" in own and own["batches"].parts[1].busy_s <= own["fast alone"].step_time_s:
        assert own["batches"].step_time_s - own["batches"].sync_s <= 1.02 * own["fast alone"].step_time_s


def test_a_slower_join_never_helps(made):
    fast, slow = (fleet("llama3-8b", made(H100, A100, gbit=gbit), pins=PINS, gbs=256) for gbit in (200, 10))
    for name, way in ways(slow).items():
        assert way.step_time_s >= ways(fast)[name].step_time_s * (1 - 1e-9), name
    assert ways(slow)["batches"].sync_s > 5 * ways(fast)["batches"].sync_s


def test_the_exchange_takes_the_bytes_over_the_joining_links(made):
    """Two pools of 64 GPUs: each sends its 64th of the fp32 gradients once, at 25 GB/s less what NICs do not reach."""
    own = ways(fleet("llama2-7b", made(H100, A100, gbit=200), pins={"tp": 1, "pp": 1, "cp": 1}, gbs=512))["batches"]
    least_s = 6.74e9 * 4 / 64 / 25e9
    assert least_s < own.sync_s < 1.4 * least_s
    assert own.step_time_s == max(part.busy_s for part in own.parts) + own.sync_s


def test_pieces_of_unlike_cuts():
    row = {"tp": 4, "pp": 1, "vpp": 1, "cp": 1, "dp": 16, "ep": 1, "etp": 1}
    one = batches_row(row)
    assert batches.messages(one, one) == 1
    assert batches.messages(one, batches_row(row | {"tp": 8, "dp": 8})) == 2 * 2
    assert batches.messages(batches_row(row | {"tp": 8, "dp": 8}), one) == 1 * (2 + 1)
    assert batches.messages(one, batches_row(row | {"pp": 2, "vpp": 4, "dp": 8})) == 8 * 2


def batches_row(values):
    return single(**dict.fromkeys(FIELDS, 1) | values)


def test_money_and_energy_follow_from_parts(found):
    for way in found[0].ways:
        hours = 1e9 / way.tokens_per_s / 3600
        money = sum(part.gpus * part.usd_per_gpu_hour for part in way.parts) * hours
        assert way.usd_per_1e9_tokens == pytest.approx(money)
        assert way.usd_per_1e9_tokens_kept >= way.usd_per_1e9_tokens
        watts = sum(part.gpus * part.gpu_power_w for part in way.parts)
        assert 1.0 < way.kwh_per_1e9_tokens / (watts * hours / 1000) < 2.5


def test_prices_of_pools(made):
    path = made(H100, A100)
    own = ways(fleet("llama3-8b", path, pins=PINS, gbs=256, gpu_hour_price=["fast=4", "slow=1"]))
    assert {part.pool: part.usd_per_gpu_hour for part in own["batches"].parts} == {"fast": 4, "slow": 1}
    assert set(own) == set(ways(fleet("llama3-8b", path, pins=PINS, gbs=256))), "prices make no way impossible"
    with pytest.raises(InputError, match="not one of the pools"):
        fleet("llama3-8b", path, gpu_hour_price=["h999=4"])


def test_ways_of_plain_plans_are_what_plan_and_train_time_say(made):
    path = made(H100, A100)
    own = ways(fleet("llama3-8b", path, gbs=256))
    alone, alike = own["fast alone"], own["alike"]
    job = {"cluster": f"{path}:fast", "gbs": 256}
    spent = train_time("llama3-8b", 64, train_tokens=1e12, price_term="on-demand", rate=["effective_ratio=1"], **job)
    assert spent.plan.step_time_s == alone.step_time_s
    assert spent.cost_usd == pytest.approx(1000 * alone.usd_per_1e9_tokens, rel=1e-5)
    assert spent.energy_mwh == pytest.approx(alone.kwh_per_1e9_tokens, rel=1e-5)
    assert plan("llama3-8b", 64, gbs=256).plans[0].step_time_s == alone.step_time_s
    assert plan("llama3-8b", 128, cluster=path, gbs=256).plans[0].step_time_s == alike.step_time_s


def test_prices_of_a_fleet_are_of_one_term(made):
    """Of the H100 there is a reserved price, of the A100 none: both are on-demand, or what is asked for, or refused."""
    path, published = made(H100, A100), {name: prices_of(name) for name in ("h100-sxm-80gb", "a100-sxm-80gb")}
    assert ("reserved" in published["h100-sxm-80gb"]) > ("reserved" in published["a100-sxm-80gb"])
    for options, term in (
        ({}, "on_demand"),
        ({"price_term": "on-demand"}, "on_demand"),
        ({"price_term": "spot"}, "spot"),
    ):
        found = fleet("llama3-8b", path, pins=PINS, gbs=256, **options)
        for pool, gpu in (("fast", "h100-sxm-80gb"), ("slow", "a100-sxm-80gb")):
            assert found.assumptions[f"gpu_hour_price.{pool}"] == published[gpu][term]
        said = "all prices are on-demand: of slow none here is reserved"
        assert (said in found.notes) == (not options)
    for options, field, hint in (
        ({"price_term": "reserved"}, "price_term", "all have on-demand; or give `gpu_hour_price=slow=USD`"),
        ({"gpu_hour_price": "fast=3"}, "gpu_hour_price", "give one of each, or `price_term=on-demand`"),
    ):
        with pytest.raises(InputError) as caught:
            fleet("llama3-8b", path, pins=PINS, gbs=256, **options)
        assert caught.value.field == field
        assert hint in caught.value.hint
    both = fleet("llama3-8b", path, pins=PINS, gbs=256, gpu_hour_price="fast=3", price_term="on-demand").assumptions
    assert both["gpu_hour_price.fast"].source == "given"
    assert both["gpu_hour_price.slow"] == published["a100-sxm-80gb"]["on_demand"]


def test_without_a_common_term_there_is_no_money_and_old_prices_are_told_apart(made, monkeypatch):
    old, new = Rate(2.0, "a list of old", "2024-01"), Rate(3.0, "a list of now", "2026-09")

    def priced(**terms):
        monkeypatch.setattr(totals, "prices_of", lambda *names: terms["fast" if "h100" in names[-1] else "slow"])
        return fleet("llama3-8b", made(H100, A100), pins=PINS, gbs=256)

    apart = priced(fast={"reserved": new}, slow={"spot": new})
    assert {way.usd_per_1e9_tokens for way in apart.ways} == {None}
    assert any("no term has a published price of all pools" in note for note in apart.notes)
    dated = priced(fast={"reserved": new}, slow={"reserved": old})
    assert "prices are of 2024-01 to 2026-09" in dated.notes


def test_settings_that_a_plan_alone_would_try_are_named(made):
    path = made(H100, A100)
    notes = fleet("mixtral-8x7b", path, framework="megatron-lm").notes
    text = "`overlap`, `cuda_graphs` and `dispatcher` are the framework's own: others are tried where one job is ranked"
    assert any(note.startswith(text) for note in notes)
    assert not any("the framework's own" in note for note in fleet("llama3-8b", path).notes)


def test_no_measured_run_is_of_unlike_nodes(found):
    for way in found[0].ways:
        unlike = any("different GPUs" in text for text in way.unmeasured)
        assert unlike == (way.kind != "alone")
        assert way.runs_with
    own = ways(found[0])
    half = {name: way.step_time_high_s / way.step_time_s for name, way in own.items()}
    assert half["batches"] > half["fast alone"]


# --- the command


@pytest.mark.parametrize("page", ["fleet.md", "hardware.md"])
def test_fleets_of_the_pages_are_clusters(page, tmp_path):
    text = (Path(__file__).parents[1] / "docs" / page).read_text()
    written = [block for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "[[pools]]" in block]
    assert written
    for block in written:
        (path := tmp_path / "own.toml").write_text(block)
        cluster = load_cluster(str(path))
        assert cluster.pools


def test_the_command_says_the_verdict_first(made):
    done = gpuscale("fleet", "--model", "llama2-7b", "--cluster", made(H100, A100), "--gbs", "512")
    assert done.code == 0
    assert done.lines[0].startswith("llama2-7b on own: use all 128 GPUs, batches split by speed")
    assert all(len(line) <= 100 for line in done.lines)


def test_json_has_its_schema(made):
    done = gpuscale("fleet", "--model", "llama2-7b", "--cluster", made(H100, A100), "--gbs", "512", "--json")
    body = json.loads(done.out)
    assert body["schema"] == "gpuscale.fleet/1"
    assert body["ways"][0]["kind"] == "batches"
    again = gpuscale("fleet", "--model", "llama2-7b", "--cluster", made(H100, A100), "--gbs", "512", "--json")
    assert again.out == done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "llama2-7b"), "cluster is missing"),
        (("--model", "llama2-7b", "--cluster", "dgx-h100-superpod"), "has no [[pools]]"),
    ],
)
def test_what_is_no_fleet_is_refused(arguments, said):
    done = gpuscale("fleet", *arguments)
    assert done.code == 2
    assert said in done.err


def test_plan_says_that_there_may_be_a_better_way(made):
    done = gpuscale("plan", "--model", "llama2-7b", "--gpus", "128", "--cluster", made(H100, A100), "--tp", "1")
    assert "gpuscale fleet" in " ".join(done.out.split())


def test_of_three_pools_any_may_be_idle(made):
    path = made(H100, A100, ("tiny", "dgx-a100-superpod", 8), gbit=10)
    result = fleet("llama3.2-1b", path, pins={"tp": 1, "cp": 1, "pp": "..3"}, gbs=256)
    own = ways(result)
    assert {"batches", "batches on fast and slow", "batches on slow and tiny", "tiny alone"} <= {*own, *result.left_out}
    assert own["batches on fast and slow"].gpus == 128
    assert [part.gpus for part in own["batches on fast and slow"].parts] == [64, 64, 0]
    two = ways(fleet("llama3.2-1b", made(H100, A100, gbit=10), pins={"tp": 1, "cp": 1, "pp": "..3"}, gbs=256))
    for name in ("batches", "stages"):
        if name in two:
            assert own[f"{name} on fast and slow"].step_time_s == pytest.approx(two[name].step_time_s, rel=1e-9)
            assert own[f"{name} on fast and slow"].usd_per_1e9_tokens_kept > two[name].usd_per_1e9_tokens_kept
