"""Studies on a Dask cluster: the same rows as one process finds, whatever happens to workers, files and connections."""

import importlib.util
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscale.errors import InputError, NoAnswerError
from gpuscale.presets.files import find_preset
from gpuscale.studies import dask_cluster
from gpuscale.studies.answers import answer
from gpuscale.studies.dask_cluster import MAX_FILE_BYTES, Carried, laid_out, on_cluster, presets_of
from gpuscale.studies.run import sweep
from gpuscale.studies.study import Case, read_study

needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="the extra is not installed")

PORT_OF_NOTHING = "tcp://127.0.0.1:9"
STUDY = {"study": {"model": ["llama3-8b", "deepseek-moe-16b"], "gpus": [8, 16, 24], "seq": [2048, 4096], "top": 2,
                   "micro_batch_size": 1}}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    import dask  # noqa: PLC0415
    from distributed import LocalCluster  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("dask")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1, "temporary-directory": str(folder)}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as made,
    ):
        for name in ("distributed", "distributed.nanny"):  # that workers die is meant
            logging.getLogger(name).setLevel(logging.CRITICAL)
        yield made


@pytest.fixture
def workers(cluster):
    """Call a function on each worker."""
    from distributed import Client  # noqa: PLC0415

    with Client(cluster.scheduler_address, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=60)
        yield client.run


def cases(**options):
    return list(read_study({"study": {**STUDY["study"], **options}}).cases())


def rows(found):
    return {one.case.key: one.rows for one in found}


def alone(asked):
    return {case.key: answer(case).rows for case in asked}


@needs_dask
def test_a_cluster_whose_worker_is_killed_finds_the_rows_of_one_process(cluster, tmp_path):
    """Those of a file of results too, which another run on the cluster finds complete."""
    expected = [one.rows for one in sweep(STUDY)]
    output, seen = tmp_path / "results.jsonl", Counter()
    for one in sweep(STUDY, output, scheduler=cluster.scheduler_address):
        seen[one.case.key] += 1
        if len(seen) == 2:
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
    assert set(seen.values()) == {1}
    read = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    wanted = json.loads(json.dumps([row for found in expected for row in found]))
    assert [{name: value for name, value in row.items() if value is not None} for row in read] == [
        {name: value for name, value in row.items() if value is not None} for row in wanted
    ]
    again = list(sweep(STUDY, output, scheduler=PORT_OF_NOTHING))
    assert [one.resumed for one in again] == [True] * len(seen)


@needs_dask
def test_files_reach_workers_that_do_not_see_them(cluster, workers, tmp_path, monkeypatch):
    """Relative paths, a GPU beside its cluster, presets of one's own and the hub's cache; none is left in answers."""
    monkeypatch.chdir(tmp_path)
    asked = own_files(tmp_path, monkeypatch)
    assert not any(workers(os.path.exists, "own/config.json").values())
    expected = alone(asked)
    assert {row["status"] for found in expected.values() for row in found} == {"answered"}
    assert rows(on_cluster(iter(asked), cluster.scheduler_address)) == expected


def own_files(folder, monkeypatch):
    """Make one of each file that a question may name; return questions that name them."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 8192, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    snapshot = folder / "hub" / "models--some--model" / "snapshots" / "abc"
    for place in (folder / "own", snapshot):
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))

    gpu = find_preset("gpus", "h100-sxm-80gb").read_text(encoding="utf-8")
    faster = re.sub(r"(?m)^(memory_bandwidth_gb_per_s = ).*$", r"\g<1>3500", gpu)
    machine = find_preset("clusters", "dgx-h100-superpod").read_text(encoding="utf-8")
    (folder / "site" / "gpus").mkdir(parents=True)
    (folder / "site" / "gpus" / "fast.toml").write_text(faster, encoding="utf-8")
    beside = machine.replace('gpu = "h100-sxm-80gb"', 'gpu = "gpus/fast.toml"')
    (folder / "site" / "machine.toml").write_text(beside, encoding="utf-8")

    for kind, name, text in (("gpus", "mine", faster), ("clusters", "my-machine", machine)):
        (folder / "presets" / kind).mkdir(parents=True)
        named = re.sub(r"(?m)^aliases = .*\n", "", text).replace('gpu = "h100-sxm-80gb"', 'gpu = "mine"')
        (folder / "presets" / kind / f"{name}.toml").write_text(named, encoding="utf-8")
    monkeypatch.setenv("GPUSCALE_PRESETS", str(folder / "presets"))

    given = [
        {"model": "own"}, {"model": "./own/config.json"}, {"model": "some/model"}, {"cluster": "site/machine.toml"},
        {"cluster": "my-machine"}, {"set": "gpu=site/gpus/fast.toml"},
    ]  # fmt: skip
    return [case for options in given for case in cases(**{"model": "llama3-8b", "gpus": 8, "seq": 4096, **options})]


def test_files_lie_elsewhere_as_they_do_here(tmp_path, monkeypatch):
    """Also those that are given by absolute paths: the originals are gone when they are read."""
    monkeypatch.chdir(tmp_path)
    asked = own_files(tmp_path, monkeypatch)
    asked += cases(model=str(tmp_path / "own"), cluster=str(tmp_path / "site" / "machine.toml"), gpus=8, seq=4096)
    expected = alone(asked)
    carried = Carried()
    moved = [carried.moved(case) for case in asked]
    for name in ("own", "site", "hub", "presets"):
        (tmp_path / name).rename(tmp_path / f"was-{name}")
    monkeypatch.delenv("GPUSCALE_PRESETS")
    root = tmp_path / "elsewhere"
    laid_out(carried.packed(), root)
    with presets_of(root):
        found = {one.case.key: tuple(one.told(answer(one.under(root)).rows, root)) for one in moved}
    assert found == expected
    assert "GPUSCALE_PRESETS" not in os.environ


def test_what_needs_no_file_is_asked_as_it_is():
    carried = Carried()
    assert all(not carried.moved(case).texts for case in cases(cluster="dgx-h100-superpod", set="network=x2"))
    assert carried.files == {}


def test_a_refusal_of_a_file_names_it_as_the_user_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = Case("plan", {"model": "./none.toml", "gpus": 8, "cluster": "dgx-h100-superpod"}, {})
    carried = Carried()
    moved, root = carried.moved(case), tmp_path / "root"
    laid_out(carried.packed(), root)
    assert moved.told(answer(moved.under(root)).rows, root) == list(answer(case).rows)


def test_files_that_cannot_be_sent_are_named(tmp_path):
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match=r"large.toml: too large to be sent to the workers, at most 4 MiB each"):
        Carried().moved(Case("plan", {"cluster": str(large)}, {}))
    far = tmp_path / "far.toml"
    far.write_text(f'gpu = "{(tmp_path / "gpu.toml").as_posix()}"', encoding="utf-8")
    (tmp_path / "gpu.toml").touch()
    with pytest.raises(InputError, match=r"far.toml: names .*gpu.toml, which workers on other machines do not see"):
        Carried().moved(Case("plan", {"cluster": str(far)}, {}))


class Deadly:
    """Ends the worker that reads it."""

    def __reduce__(self):
        return os._exit, (1,)

    def __str__(self):
        return "deadly"


@pytest.fixture
def cluster_to_break():
    """A cluster of its own: workers that die as they start are not started again."""
    from distributed import LocalCluster  # noqa: PLC0415

    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as made:
        made.scheduler.allowed_failures = 0
        for name in ("distributed", "distributed.nanny"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        yield made.scheduler_address


@needs_dask
def test_a_question_that_kills_its_worker_fails_alone(cluster_to_break):
    case = Case("plan", {"model": "llama3-8b", "gpus": 8, "cluster": Deadly()}, {})
    (found,) = on_cluster(iter([case]), cluster_to_break)
    assert [row["status"] for row in found.rows] == ["failed"]
    assert "each worker that was asked died" in found.rows[0]["reason"]


@needs_dask
@pytest.mark.full
def test_beside_a_question_that_kills_its_workers_others_are_answered(cluster_to_break, monkeypatch):
    """They are asked one by one when the task that holds them all has died with its worker."""
    monkeypatch.setattr(dask_cluster, "TASKS_PER_THREAD", 0.5)  # so that one task alone is with the cluster
    monkeypatch.setattr(dask_cluster, "TASK_S", 1e9)
    monkeypatch.setattr(dask_cluster, "MAX_PER_TASK", 4)
    asked = cases(model="llama3-8b")
    deadly = Case("plan", {"model": "llama3-8b", "gpus": 8, "cluster": Deadly()}, {})
    found = rows(on_cluster(iter([asked[0], deadly, *asked[1:]]), cluster_to_break))
    assert found.pop(deadly.key)[0]["status"] == "failed"
    assert found == alone(asked)


def set_version(version):
    import gpuscale.version  # noqa: PLC0415

    gpuscale.version.__version__ = version


def hide(hidden):
    for name in ("gpuscale", "gpuscale.version"):
        if hidden:
            sys.modules[f"hidden {name}"], sys.modules[name] = sys.modules.get(name), None
        elif sys.modules.get(f"hidden {name}") is not None:
            sys.modules[name] = sys.modules.pop(f"hidden {name}")
        else:
            del sys.modules[name]


@needs_dask
@pytest.mark.parametrize("late", [False, True])
def test_another_version_on_a_worker_is_refused(cluster, workers, late, monkeypatch):
    """Also on one that joins after the others were asked for theirs."""
    if late:
        monkeypatch.setattr(dask_cluster, "_check_versions", lambda client, address: None)
    try:
        workers(set_version, "9.9")
        with pytest.raises(InputError, match=r"worker .*127.0.0.1.* has gpuscale 9.9, this machine 0") as caught:
            list(on_cluster(iter(cases()), cluster.scheduler_address))
    finally:
        workers(set_version, dask_cluster.__version__)
    assert caught.value.field == "scheduler"
    assert "pip install gpuscale==" in caught.value.hint


@needs_dask
@pytest.mark.parametrize("late", [False, True])
def test_a_worker_without_gpuscale_is_refused(cluster, workers, late, monkeypatch):
    if late:
        monkeypatch.setattr(dask_cluster, "_check_versions", lambda client, address: None)
    workers(by_value(hide), True)
    try:
        with pytest.raises(InputError, match=r"worker .*127.0.0.1.* has no gpuscale, this machine 0"):
            list(on_cluster(iter(cases()), cluster.scheduler_address))
    finally:
        workers(by_value(hide), False)


def by_value(function):
    """Return a function as workers without this module can read it."""
    import cloudpickle  # noqa: PLC0415

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return function


@needs_dask
def test_other_presets_on_a_worker_are_refused(cluster, workers):
    (case,) = cases(model="llama3-8b", gpus=8, seq=4096)
    other = Case(case.task, case.options, case.labels, "another digest")
    with pytest.raises(InputError, match=r"a worker of tcp://.* has other presets: model llama3-8b, cluster dgx-h100"):
        list(on_cluster(iter([other]), cluster.scheduler_address))


def test_another_dask_is_refused():
    def said(distributed, python):
        return {"packages": {"distributed": distributed, "python": python}}

    versions = {"client": said("2026.1", "3.12.1.final.0"), "scheduler": said("2026.1", "3.12.4.final.0")}
    here = "this machine Dask 2026.1 on Python 3.12"
    others = {
        "Dask 2025.1 on Python 3.12": said("2025.1", "3.12.1"),
        "Dask 2026.1 on Python 3.11": said("2026.1", "3.11.1"),
    }
    for name, there in others.items():
        client = SimpleNamespace(
            get_versions=lambda there=there: {**versions, "workers": {"tcp://w:1": there}},
            run=lambda *_, **__: {"tcp://w:1": dask_cluster.__version__},
        )
        with pytest.raises(InputError, match=f"worker tcp://w:1 of tcp://s:1 has {name}, {here}"):
            dask_cluster._check_versions(client, "tcp://s:1")


@pytest.mark.parametrize(
    "address", ["", "x", "tcp://", "tcp://host", "udp://host:1", "tcp://h:1/x", "tcp://h:1\n", "inproc://a:1"]
)
def test_what_is_no_address_is_refused_before_anything_is_written(address, tmp_path):
    with pytest.raises(InputError, match="is not the address of a Dask scheduler"):
        sweep(STUDY, tmp_path / "r.csv", scheduler=address)
    assert not list(tmp_path.iterdir())


@needs_dask
def test_without_an_answer_the_results_stay_as_they_were(monkeypatch, tmp_path):
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.3)
    output = tmp_path / "r.csv"
    output.write_text("old")
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        list(sweep(STUDY, output, scheduler=PORT_OF_NOTHING, force=True))
    assert output.read_text() == "old"


@needs_dask
def test_nobody_at_the_address_is_an_error_in_time(monkeypatch):
    """Neither where nothing listens nor where what listens says nothing."""
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.3)
    with pytest.raises(InputError, match=f"no Dask scheduler answers at {PORT_OF_NOTHING}"):
        list(on_cluster(iter(cases()), PORT_OF_NOTHING))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Dask scheduler answers at {address}: no answer within 0.3 s"):
            list(on_cluster(iter(cases()), address))


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="needs Dask, which is not installed") as caught:
        list(on_cluster(iter(cases()), PORT_OF_NOTHING))
    assert "gpuscale[dask]" in caught.value.hint


@needs_dask
def test_a_scheduler_that_is_lost_ends_the_study_with_what_it_has(tmp_path):
    """And a cluster without workers is one, too."""
    from distributed import LocalCluster  # noqa: PLC0415

    output = tmp_path / "results.jsonl"
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=":0"
    ) as made:
        found = sweep(STUDY, output, scheduler=made.scheduler_address)
        first = next(found)
        made.close()
        with pytest.raises(
            NoAnswerError, match=r"the Dask cluster at tcp://.* was lost: its scheduler closed"
        ) as caught:
            list(found)
    assert "start the study again" in caught.value.hint
    stored = [one.case.key for one in sweep(STUDY, output) if one.resumed]
    assert first.case.key in stored


@needs_dask
def test_a_cluster_without_workers_is_an_error_in_time(monkeypatch):
    from distributed import LocalCluster  # noqa: PLC0415

    monkeypatch.setattr(dask_cluster, "WORKERS_S", 0.2)
    monkeypatch.setattr(dask_cluster, "LOOK_S", 0.1)
    with (
        LocalCluster(n_workers=0, processes=False, protocol="tcp", dashboard_address=":0") as made,
        pytest.raises(NoAnswerError, match=r"has had no workers for 0.2 s"),
    ):
        list(on_cluster(iter(cases()), made.scheduler_address))


def answer_with_stub(stubbed):
    """Have a worker answer at once, or as ever."""
    from gpuscale.studies import answers, dask_cluster  # noqa: PLC0415

    row = {f"column_{index}": index * 1.5 for index in range(60)}
    stub = lambda case: answers.Answered(case, ({"key": case.key, "status": "answered", **row},))  # noqa: E731
    dask_cluster.answer = stub if stubbed else answers.answer


def many(count, taken=()):
    for index in range(count):
        taken.append(index) if isinstance(taken, list) else None
        yield Case("plan", {"model": "llama3-8b", "cluster": "dgx-h100-superpod", "gpus": index + 1, "seq": 4096}, {})


@needs_dask
def test_a_bounded_number_of_questions_is_with_the_cluster(cluster, workers):
    """And nothing of what is answered stays there."""
    taken, ahead, seen = [], 0, set()
    workers(by_value(answer_with_stub), True)
    try:
        for done, one in enumerate(on_cluster(many(2000, taken), cluster.scheduler_address)):
            seen.add(one.case.key)
            ahead = max(ahead, len(taken) - done)
    finally:
        workers(by_value(answer_with_stub), False)
    assert len(seen) == 2000
    assert 3 <= ahead <= dask_cluster.TASKS_PER_THREAD * 2 * dask_cluster.MAX_PER_TASK
    assert not [name for name in cluster.scheduler.tasks if str(name).startswith("gpuscale")]


@needs_dask
@pytest.mark.full
def test_the_memory_of_100_000_questions_is_bounded(cluster, workers):
    workers(by_value(answer_with_stub), True)
    code = f"""
import resource
from tests.test_studies_dask import many
from gpuscale.studies.dask_cluster import on_cluster
print(sum(1 for _ in on_cluster(many(100_000), {cluster.scheduler_address!r})))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    try:
        root = Path(__file__).parents[1]
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    finally:
        workers(by_value(answer_with_stub), False)
    count, peak_mib = map(int, done.stdout.split())
    assert count == 100_000
    assert peak_mib < 400
