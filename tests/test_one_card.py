"""A card is one GPU unless something says otherwise; what does not fit is told of the offloading that lets it."""

import pytest
from command import gpuscale as run

import gpuscale
from gpuscale.cli.options import _is_card
from gpuscale.errors import NoAnswerError

QLORA = ("--model", "llama3-8b", "--tune", "qlora", "--seq", "1024")


@pytest.mark.parametrize("command", ["plan", "estimate", "memory"])
def test_a_card_is_one_gpu(command):
    found = run(command, *QLORA, "--gpu", "rtx-4090")
    assert "1 GPU of box-rtx-4090" in found.out


@pytest.mark.parametrize("more", [(), ("--cluster", "box-rtx-4090"), ("--cluster", "dgx-h100-superpod")])
def test_anything_else_says_how_many(more):
    found = run("plan", *QLORA, *more)
    assert found.code == 2
    assert "--gpus" in found.err


@pytest.mark.parametrize(("cluster", "card"), [("rtx-4090", True), (["l4"], True), (["l4", "t4"], False)])
def test_what_names_a_card(cluster, card):
    assert _is_card(cluster) is card


def test_offloading_of_all_is_among_what_would_fit():
    with pytest.raises(NoAnswerError) as caught:
        gpuscale.plan(model="llama3-70b", framework="accelerate", gbs=64, gpus=8)
    assert "`offload=optimizer+parameters`" in caught.value.hint
