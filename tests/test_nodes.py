"""Trees whose values add up to their root, to the last bit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.explain.steps import Node, branch, difference, settled

VALUES = st.floats(1e-9, 1e3, allow_nan=False)
LEAVES = st.builds(Node, st.sampled_from("abcdefgh"), VALUES)
TREES = st.recursive(
    LEAVES, lambda inner: st.builds(lambda children: branch("parts", children), st.lists(inner, min_size=1, max_size=6))
)


@given(TREES, st.floats(1 - 1e-12, 1 + 1e-12))
def test_every_node_is_the_sum_of_its_children(tree, factor):
    total = tree.value * factor
    done = settled(tree, total)
    assert done.value == total
    for node in done.walk():
        assert not node.children or math.fsum(child.value for child in node.children) == node.value
        assert node.share == node.value / total
    for node, was in zip(done.walk(), tree.walk(), strict=True):
        assert node.value == pytest.approx(was.value, rel=1e-6, abs=1e-9)


def test_a_sum_that_steps_of_the_largest_part_pass_by_is_met():
    parts, total = (0.15280589479510365, 0.0002913038145084673), 0.15309719860961216
    done = settled(branch("step", [Node("gemm", parts[0]), Node("comm", parts[1])]), total)
    assert math.fsum(child.value for child in done.children) == done.value == total


def test_parts_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="add up to"):
        settled(branch("step", [Node("gemm", 1.0)]), 1.001)


def test_a_difference_pairs_parts_by_name_and_adds_up():
    a = branch("step", [Node("gemm", 2.0), branch("comm", [Node("tp", 1.0), Node("dp", 0.5)])])
    b = branch("step", [Node("gemm", 1.5), branch("comm", [Node("tp", 0.25), Node("cp", 0.125)]), Node("bubble", 0.25)])
    off = difference(a, b)
    assert off.share == off.value / a.value
    assert off.value == b.value - a.value
    assert {node.name: node.value for node in off.walk()} == {
        "step": -1.375, "gemm": -0.5, "comm": -1.125, "tp": -0.75, "dp": -0.5, "cp": 0.125, "bubble": 0.25,
    }  # fmt: skip


def test_what_only_one_side_divides_is_a_leaf_of_the_difference():
    a, b = branch("step", [Node("gemm", 2.0)]), branch("step", [branch("gemm", [Node("q", 0.5), Node("k", 0.25)])])
    assert [(node.name, node.value) for node in difference(a, b).walk()] == [("step", -1.25), ("gemm", -1.25)]


@given(TREES, TREES)
def test_differences_add_up_too(a, b):
    for node in difference(a, b).walk():
        assert not node.children or math.fsum(child.value for child in node.children) == node.value


def test_what_says_nothing_is_not_in_the_json():
    said = settled(branch("step", [Node("gemm", 1.0, flops=2.0), Node("none", 0.0)])).to_dict()
    assert said == {
        "name": "step", "value": 1.0, "share": 1.0,
        "children": [{"name": "gemm", "value": 1.0, "share": 1.0, "children": [], "flops": 2.0}],
    }  # fmt: skip
