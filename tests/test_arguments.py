"""Arguments of the Python functions: NumPy's numbers, paths of either kind, and what is refused by its name."""

from pathlib import Path

import numpy as np
import pytest

import gpuscale
from gpuscale import InputError

H100 = gpuscale.load_cluster("h100")
PRESETS = Path(__file__).parents[1] / "presets"


def test_all_names_are_there():
    assert all(getattr(gpuscale, name) is not None for name in gpuscale.__all__)
    assert set(gpuscale.__all__) <= set(dir(gpuscale))
    with pytest.raises(AttributeError, match="no attribute 'plans'"):
        _ = gpuscale.plans


def test_numbers_of_numpy_and_paths_of_either_kind(tmp_path):
    whole = gpuscale.plan("llama3-8b", 8, pins={"tp": 2}, seq=2048, gbs=64, top=2)
    same = gpuscale.plan(
        "llama3-8b", np.int64(8), pins={"tp": np.int32(2)}, seq=np.int32(2048), gbs=np.int64(64), top=np.int64(2)
    )
    assert (same.plans, same.job) == (whole.plans, whole.job)
    assert len(gpuscale.plan("llama3-8b", np.array([8, 16])).compared.variants) == 2
    cluster = PRESETS / "clusters" / "gh200.toml"
    assert gpuscale.load_cluster(cluster) == gpuscale.load_cluster(str(cluster))
    assert gpuscale.plan("llama3-8b", 8, cluster=cluster).cluster == "gh200"
    assert gpuscale.load_gpu(PRESETS / "gpus" / "h100-sxm-80gb.toml").name == "h100-sxm-80gb"
    assert gpuscale.price_collective(H100, "allreduce", np.float64(1e6), gpus=np.int64(16)).gpus == 16
    assert gpuscale.estimate("llama3-8b", np.int64(8), {"tp": np.int8(2)}).plan.tp == 2
    assert gpuscale.place_ranks(np.int64(16), {"tp": np.int64(2)}) == gpuscale.place_ranks(16, {"tp": 2})
    assert gpuscale.roofline(gpuscale.load_model("llama3-8b"), [H100]).clusters[0].cluster == H100.name


@pytest.mark.parametrize(
    ("call", "field", "message"),
    [
        (lambda: gpuscale.plan(3, 8), "model", "3 is not text"),
        (lambda: gpuscale.plan("llama3-8b", 8.0), "gpus", "8.0 is not a whole number"),
        (lambda: gpuscale.plan("llama3-8b", 8, pins="tp=2"), "pins", "'tp=2' is not a mapping"),
        (lambda: gpuscale.estimate("llama3-8b", "8"), "gpus", "'8' is not a whole number"),
        (lambda: gpuscale.estimate("llama3-8b", True), "gpus", "True is not a whole number"),
        (lambda: gpuscale.estimate("llama3-8b", float("inf")), "gpus", "inf is not a whole number"),
        (lambda: gpuscale.estimate_file(3), "path", "3 is not text"),
        (lambda: gpuscale.validate(5), "path", "5 is not text"),
        (lambda: gpuscale.validate("x.csv", by=3), "by", "3 is not text"),
        (lambda: gpuscale.load_cluster(None), "name_or_path", "None is not text"),
        (lambda: gpuscale.load_model(["llama3-8b"]), "name_or_path", "is not text"),
        (lambda: gpuscale.place_ranks(16, 3), "layout", "3 is not a mapping"),
        (lambda: gpuscale.price_collective("h100", "allreduce", 1e6), "cluster", "'h100' is not a ClusterSpec"),
        (lambda: gpuscale.price_collective(H100, 3, 1e6), "operation", "3 is not text"),
        (lambda: gpuscale.price_collective(H100, "allreduce", "1MB"), "bytes", "'1MB' is not a whole number"),
        (lambda: gpuscale.price_collective(H100, "allreduce", 1e6, gpus="16"), "gpus", "'16' is not a whole number"),
        (lambda: gpuscale.import_cluster("topo.xml"), "paths", "'topo.xml' is not a list"),
        (lambda: gpuscale.calibrate(H100, [3]), "paths", "[3] is not a path"),
        (lambda: gpuscale.roofline("llama3-8b", [H100]), "model", "'llama3-8b' is not a ModelSpec"),
        (lambda: gpuscale.roofline(gpuscale.load_model("llama3-8b"), ["h100"]), "clusters", "is not a ClusterSpec"),
        (lambda: gpuscale.bench(runs="3"), "runs", "'3' is not a whole number"),
    ],
)
def test_a_wrong_type_is_named(call, field, message):
    with pytest.raises(InputError) as caught:
        call()
    assert (caught.value.field, message in caught.value.message) == (field, True), caught.value


def test_a_name_in_place_of_a_cluster_gets_the_way_to_it():
    with pytest.raises(InputError, match="load_cluster"):
        gpuscale.price_collective("h100", "allreduce", 1e6)


def test_no_files_at_all():
    for call in (gpuscale.import_cluster, lambda none: gpuscale.calibrate(H100, none)):
        with pytest.raises(InputError, match="give 1 to"):
            call([])


def test_files_that_are_not_there(tmp_path):
    for kind in (str, Path):
        missing = kind(tmp_path / "x.xml")
        for call, arguments in (
            (gpuscale.import_cluster, ([missing],)),
            (gpuscale.calibrate, (H100, [missing])),
            (gpuscale.validate, (missing,)),
            (gpuscale.load_model, (missing,)),
            (gpuscale.estimate_file, (missing,)),
        ):
            with pytest.raises(InputError, match=r"[Nn]o such file"):
                call(*arguments)
        with pytest.raises(InputError, match=": cannot be read: "):
            gpuscale.place_ranks(16, hosts=missing)
