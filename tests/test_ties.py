"""Ties, the order of plans, and families: properties over random plans and what real jobs give."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from jobs import job, legal, sample

from gpuscale.layouts.arrays import concatenate, single
from gpuscale.memory.model import half_width
from gpuscale.planning.layouts import fixed_layout, make_pins
from gpuscale.planning.plans import plan
from gpuscale.search import ties
from gpuscale.search.evaluation import evaluate
from gpuscale.search.loop import COMPARED_FAMILIES, near_leaders, search, shortlist
from gpuscale.search.ordering import FAMILY, SAVES_MEMORY, family_of
from gpuscale.steptime.components import COMPONENTS

COUNT = 60


def random_plans(seed):
    """Step times close to one another, with breakdowns of any kind and traits."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(len(COMPONENTS), 4.0), size=COUNT).T
    switches = rng.integers(0, 2, (4, COUNT))
    chunks, used = rng.integers(1, 4, COUNT), rng.integers(0, 5, COUNT)
    ranges = rng.uniform(1.0, 1.1, (2, COUNT))
    traits = ties.Traits(shares.T, *ranges, *switches, chunks, rng.uniform(0, 0.3, COUNT), used)
    return np.exp(rng.uniform(0, 0.3, COUNT)), shares, traits


def gap(times, shares, one, other):
    """log(step time of one plan / of another) in standard errors of their comparison."""
    unlike = float(np.abs(shares[:, one] - shares[:, other]).sum()) / 2
    error = math.hypot(ties.COMPARISON_FLOOR, ties.COMPARISON_PER_SHARE * unlike)
    return math.log(times[one] / times[other]) / error


def deviations(odds):
    """Standard errors at which a comparison has such odds."""
    return NormalDist().inv_cdf(odds / (1 + odds))


def choice_by_hand(times, shares, traits):
    """The first choice as the rule says it, plan by plan: the safest possible, its ties by wager, then simplicity."""
    rows = range(len(times))
    fastest = min(rows, key=lambda row: times[row])
    possible = [row for row in rows if gap(times, shares, row, fastest) <= deviations(ties.BET_ODDS)]
    safety = {row: tuple(int(getattr(traits, name)[row]) for name in ties.SAFETY) for row in rows}
    cost = times * traits.retry
    best = min(possible, key=lambda row: (int(traits.unproven[row]), cost[row]))
    near = [row for row in possible if traits.unproven[row] == traits.unproven[best]]
    safest = min(
        (row for row in near if cost[row] <= cost[best] * (1 + ties.AS_GOOD)), key=lambda row: (safety[row], cost[row])
    )
    tied = [row for row in possible if safety[row] == safety[safest]]
    tied = [row for row in tied if abs(gap(times, shares, row, safest)) <= deviations(ties.TIE_ODDS)]
    wagers = {row: times[row] * traits.high[row] * traits.retry[row] for row in tied}
    simple = [row for row in tied if wagers[row] <= min(wagers.values()) * (1 + ties.SIMPLICITY_MAY_COST)]
    least = min(traits.exposed[row] for row in simple)

    def simplicity(row):
        exposed = math.floor((traits.exposed[row] - least) / ties.EXPOSED_STEP)
        return int(traits.chunks[row]), exposed, int(traits.features[row]), wagers[row]

    simple = sorted(simple, key=simplicity)
    return simple, sorted((row for row in tied if row not in simple), key=lambda row: wagers[row])


# -- ties --


@pytest.mark.parametrize("seed", range(5))
def test_a_tie_is_mutual_and_a_plan_ties_with_itself(seed):
    times, shares, _ = random_plans(seed)
    gaps = np.abs(np.log(times[:, None] / times))
    windows = [ties.tie_window(ties.unlike(shares, shares[:, [reference]])) for reference in range(COUNT)]
    matrix = gaps <= np.stack(windows)
    assert (matrix == matrix.T).all()
    assert matrix.diagonal().all()
    assert 0 < matrix.sum() < matrix.size


@pytest.mark.parametrize("seed", range(3))
def test_unlikeness_is_a_distance_between_0_and_1(seed):
    _, shares, _ = random_plans(seed)
    between = np.stack([ties.unlike(shares, shares[:, [other]]) for other in range(COUNT)])
    assert between == pytest.approx(between.T)
    assert ((between >= 0) & (between <= 1)).all()
    assert (between.diagonal() == 0).all()
    assert (between[:, None, :] <= between[:, :, None] + between[None, :, :] + 1e-12).all()
    apart = np.eye(len(COMPONENTS))
    assert ties.unlike(apart, apart[:, [0]]).tolist() == [0.0] + [1.0] * (len(COMPONENTS) - 1)


def test_at_the_window_the_odds_are_those_of_a_tie():
    distance = np.linspace(0, 1, 11)
    window = ties.tie_window(distance)
    assert (np.diff(window) > 0).all()
    for far, gap in zip(distance.tolist(), window.tolist(), strict=True):
        chance = NormalDist().cdf(gap / math.hypot(ties.COMPARISON_FLOOR, ties.COMPARISON_PER_SHARE * far))
        assert chance / (1 - chance) == pytest.approx(ties.TIE_ODDS)


def test_what_simplicity_may_cost_is_a_tie_of_any_two_plans():
    assert math.log1p(ties.SIMPLICITY_MAY_COST) < ties.tie_window(np.zeros(1))[0]


# -- order --

CRITERIA = (*ties.SAFETY, *ties.SIMPLICITY)
WORSE = dict(zip(CRITERIA, (1, 1, 1, 1, 1, 0.051, 1), strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_the_rule_plan_by_plan(seed):
    times, shares, traits = random_plans(seed)
    order = ties.arranged(times, traits)
    simple, tied = choice_by_hand(times, shares, traits)
    first = [*simple, *tied]
    assert order[: len(first)].tolist() == first
    assert sorted(order.tolist()) == list(range(COUNT))
    assert (np.diff(times[order[len(first) :]]) >= 0).all()
    shuffle = np.random.default_rng(seed).permutation(COUNT)
    assert (shuffle[ties.arranged(times[shuffle], traits.take(shuffle))] == order).all()


def alike(count, **columns):
    """Traits of plans that differ in the given ones alone."""
    plain = {name: np.zeros(count) for name in ties.Traits._fields}
    plain |= {"shares": np.full((count, len(COMPONENTS)), 1 / len(COMPONENTS))}
    return ties.Traits(**plain | {"high": np.ones(count), "retry": np.ones(count)} | columns)


def test_among_equal_traits_the_faster_and_then_the_earlier_goes_first():
    assert ties.arranged(np.array([1.005, 1.0, 2.0, 1.005]), alike(4)).tolist() == [1, 0, 3, 2]
    assert ties.arranged(np.zeros(0), alike(0)).tolist() == []


@pytest.mark.parametrize(("worse", "criterion"), [*((WORSE[name], name) for name in WORSE), (0.049, None)])
def test_the_criteria_count_in_their_order(worse, criterion):
    columns = {criterion or "exposed": np.array([worse, 0.0])}
    bet = math.exp(deviations(ties.BET_ODDS) * ties.COMPARISON_FLOOR) - 1
    most = ties.AS_GOOD if criterion in ties.SAFETY else ties.SIMPLICITY_MAY_COST
    most = bet if criterion == "unproven" else most
    score = np.array([1.0, 1.0 + most - 0.001])  # the slower by less than the criterion may cost
    traits = alike(2, **columns)
    order = ties.arranged(score, traits)
    assert order.tolist() == ([0, 1] if criterion is None else [1, 0])
    assert ties.deciding(score, traits, int(order[0]), int(order[1])) == (criterion or "wager")
    before = 0 if criterion is None else CRITERIA.index(criterion)
    for name in CRITERIA[:before]:  # what counts for more decides, whatever follows
        earlier = alike(2, **columns | {name: np.array([0.0, WORSE[name]])})
        assert ties.arranged(score, earlier).tolist() == [0, 1]
    far = np.array([1.0, 1.0 + most + 0.001])
    assert ties.arranged(far, traits).tolist() == [0, 1]


def test_a_tie_of_less_risk_goes_before_a_faster_plan_and_a_plan_beyond_the_tie_does_not():
    score = np.array([1.0, 1.008, 1.02])
    wide = alike(3, high=np.array([1.2, 1.1, 1.05]))
    assert ties.arranged(score, wide).tolist() == [1, 0, 2]
    assert ties.deciding(score, wide, 1, 0) == "wager"
    assert ties.arranged(score, alike(3, retry=np.array([1.1, 1.0, 1.0]))).tolist() == [1, 0, 2]


def test_odds_decide_whether_a_plan_of_a_measured_kind_goes_first():
    """The more of the step the two spend on other things, the less is known of their order."""
    unlike = np.linspace(0, 0.5, 6)
    for apart in unlike.tolist():
        shares = np.zeros((2, len(COMPONENTS)))
        shares[0, 0], shares[1, :2] = 1.0, (1 - apart, apart)
        limit = math.exp(
            deviations(ties.BET_ODDS) * math.hypot(ties.COMPARISON_FLOOR, ties.COMPARISON_PER_SHARE * apart)
        )
        for factor, first in ((0.999, 1), (1.001, 0)):
            traits = alike(2, shares=shares, unproven=np.array([1, 0]))
            assert ties.arranged(np.array([1.0, limit * factor]), traits)[0] == first


def test_chunks_that_cannot_be_equal_go_after_those_that_can():
    spec = job("llama3-70b", 64)
    rows = legal("llama3-70b", 64, {"tp": 8, "micro_batch_size": 1, "recompute": "none"})
    found = ties.traits(rows, evaluate(rows, spec), spec)
    slots = rows.pp * rows.vpp
    equal = (80 % slots == 0) | (82 % slots == 0)  # with the embedding and the loss counted as layers
    assert found.chunks[~equal].min() > found.chunks[equal].max() > 1
    assert (found.chunks[equal] == slots[equal]).all()


def test_tp_across_nodes_and_what_no_run_is_like_are_marked():
    spec = job("llama3-70b", 64)
    rows = legal("llama3-70b", 64, {"tp": "8,16", "micro_batch_size": 1, "recompute": "none"})
    found = ties.traits(rows, evaluate(rows, spec), spec)
    assert (found.tp_outside == (rows.tp == 16)).all()
    assert found.unlike_measured[rows.tp == 16].all()
    assert not found.unlike_measured.all()


def test_tp_over_pcie_is_outside_a_domain_of_one():
    spec = job("llama3-8b", 8, cluster="box-l40s")
    rows = concatenate([fixed_layout(spec, {"tp": tp, "recompute": "full"}) for tp in (1, 2, 8)])
    assert ties.traits(rows, evaluate(rows, spec), spec).tp_outside.tolist() == [0, 1, 1]


def test_features_are_counted_one_by_one():
    plain = {"tp": 8, "sp": 1, "pp": 4, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 2, "zero": 2, "shard": 2}
    plain |= {"micro_batch_size": 1, "num_microbatches": 8, "recompute_modules": 0, "recompute_layers": 0}
    assert ties.features(single(**plain)).tolist() == [0]
    more = [
        {"vpp": 2}, {"cp": 2, "shard": 4}, {"zero": 3}, {"shard": 1}, {"recompute_modules": 2}, {"recompute_layers": 3}
    ]  # fmt: skip
    assert [int(ties.features(single(**{**plain, **one}))[0]) for one in more] == [1] * len(more)


def test_traits_are_those_of_the_plan():
    spec = job("mixtral-8x7b", 24)
    rows = sample(legal("mixtral-8x7b", 24), 200)
    evaluation = evaluate(rows, spec)
    found = ties.traits(rows, evaluation, spec)
    upper_bytes = evaluation.memory.peak_bytes * np.exp(half_width(evaluation.memory.at_peaks(), spec))
    tight = upper_bytes > spec.memory_limit_bytes  # beyond the 80 % interval is one case of ten
    assert (found.retry[tight] > 1 + 0.1 * ties.RETRY).all()
    assert (found.retry[~tight] <= 1 + 0.1 * ties.RETRY).all()
    assert 0 < tight.sum() < len(rows)
    assert found.retry.max() <= 1 + ties.RETRY
    seconds = evaluation.step.components
    exposed = sum(seconds[index] for index, name in enumerate(COMPONENTS) if name.endswith("_comm"))
    assert found.exposed == pytest.approx(exposed / evaluation.step.step_time_s)


# -- families --


@pytest.mark.parametrize(("model", "gpus"), [("llama3-8b", 64), ("mixtral-8x7b", 16)])
@pytest.mark.parametrize("objective", ["step_time", "memory"])
def test_a_family_is_folded_under_a_better_one_with_no_more_of_what_saves_memory(model, gpus, objective):
    found = search(job(model, gpus), make_pins({}), objective)
    rows = found.families.rows
    shown = [{name: int(getattr(rows, name)[row]) for name in FAMILY} for row in range(len(rows))]

    def folds(one, other):
        same = all(one[name] == other[name] for name in FAMILY if name not in SAVES_MEMORY)
        return same and all(one[name] <= other[name] for name in SAVES_MEMORY)

    assert found.family_variants.sum() == found.feasible
    assert (np.diff(found.families.score) >= 0).all()
    assert not any(folds(one, other) for at, one in enumerate(shown) for other in shown[at + 1 :])
    plans = search(job(model, gpus), make_pins({}), objective, every=True).leaders
    place, apart = family_of(plans.rows, rows), 0
    for row, family in enumerate(place.tolist()):
        own = {name: int(getattr(plans.rows, name)[row]) for name in FAMILY}
        assert folds(shown[family], own)
        assert not any(folds(one, own) for one in shown[:family])
        assert found.families.score[family] <= plans.score[row]
        apart += shown[family] != own
    assert apart > 0


def test_near_copies_do_not_fill_the_table():
    shown = plan("llama3-70b", 640, pins={"tp": "4,8", "pp": "1..4"}).plans
    pairs = [(row.tp, row.pp, row.zero == 3, "full" in row.recompute) for row in shown]
    assert all(row.cp == 1 for row in shown[:6])
    assert len(set(pairs[:6])) == 6


# -- what is listed --


@pytest.mark.parametrize("unfold", [False, True])
def test_a_listing_holds_the_best_whatever_the_pool(unfold):
    spec = job("llama3-8b", 48)
    found = search(spec, make_pins({}), every=True)
    near = near_leaders(found)
    few, pool = (
        shortlist(spec, found, max(near, 8), COMPARED_FAMILIES),
        shortlist(spec, found, 300, 3 * COMPARED_FAMILIES),
    )
    small, large = (one.order("step_time", 8, unfold=unfold) for one in (few, pool))
    assert few.rows.take(small).row(0) == pool.rows.take(large).row(0)
    assert few.variants[small].tolist() == pool.variants[large].tolist()
    for one, other in zip(few.behind_fastest(small), pool.behind_fastest(large), strict=True):
        assert one == pytest.approx(other)
    assert (pool.behind_fastest(large)[0] >= 0).all()
    times = pool.evaluation.step.step_time_s
    assert times[large[0]] <= times.min() * 1.1
    assert len(set(zip(*(getattr(pool.rows, name).tolist() for name in ("tp", "sp", "pp")), strict=True))) > 1
    assert len({tuple(row) for row in np.stack([getattr(pool.rows, n) for n in pool.rows.row(0)]).T.tolist()}) == len(
        pool.rows
    )


PROMOTED = ("llama3-8b", 8)
"""A job whose fastest plan nearly fills the memory."""


def test_the_first_choice_may_be_safer_than_the_fastest_and_says_so():
    answer = plan(*PROMOTED)
    choice, first = answer.choice, answer.plans[0]
    assert 1 < first.step_time_s / choice.fastest.step_time_s < 1.03
    assert choice.standings[0].behind == pytest.approx(first.step_time_s / choice.fastest.step_time_s - 1)
    assert choice.fastest.fit_probability < 0.9 <= first.fit_probability
    assert choice.reason == (
        f"it is surer to fit ({first.fit_probability:.0%} likely, not {choice.fastest.fit_probability:.0%})"
    )
    every = plan(*PROMOTED, unfold=True, top=100)
    assert every.plans[0].step_time_s == first.step_time_s
    assert min(row.step_time_s for row in every.plans) == choice.fastest.step_time_s
    assert [one.rank for one in every.choice.standings] == [row.rank for row in every.plans]


def test_ranking_by_memory_knows_no_ties():
    answer = plan("llama3-8b", 16, objective="memory", top=20)
    assert answer.choice is None
    assert [row.memory_gib for row in answer.plans] == sorted(row.memory_gib for row in answer.plans)


@pytest.mark.parametrize(("zero", "count"), [(1, 1), (2, 2), (3, 3)])
def test_an_optimizer_sharded_over_a_part_is_no_hybrid(zero, count):
    row = dict.fromkeys(("tp", "sp", "pp", "vpp", "ep", "etp", "micro_batch_size", "num_microbatches"), 1)
    found = single(**row, cp=2, dp=4, zero=zero, shard=4, recompute_modules=0, recompute_layers=0, schedule=0)
    assert ties.features(found).tolist() == [count]


@pytest.mark.parametrize(("shard", "count"), [(8, 2), (4, 3)])
def test_shards_smaller_than_all_ranks_of_a_copy_are_a_feature_of_their_own(shard, count):
    """Context parallelism and ZeRO-3 are two; states sharded over 4 of the 8 ranks that hold a copy are a third."""
    row = dict.fromkeys(("tp", "sp", "pp", "vpp", "ep", "etp", "micro_batch_size", "num_microbatches"), 1)
    found = single(**row, cp=2, dp=4, zero=3, shard=shard, recompute_modules=0, recompute_layers=0, schedule=0)
    assert ties.features(found).tolist() == [count]
