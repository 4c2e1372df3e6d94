"""Slurm script, JobSet, hostfile and environment of an export: valid, and as the plan and the cluster have it."""

import re
import subprocess

import pytest

from gpuscale.launch.cluster_files import GPU_RESOURCE, cluster_files, environment, machines
from gpuscale.launch.export import run_script
from gpuscale.launch.quoting import Expansion
from gpuscale.launch.writing import Program, Writing
from gpuscale.planning.jobs import build_job
from gpuscale.planning.plans import estimate_layout
from gpuscale.presets.hardware import all_clusters
from gpuscale.request import JobOptions, read

yaml = pytest.importorskip("yaml")

CLUSTERS = {one.name: one for one in all_clusters()}


def writing_for(cluster, gpus=None, layout=None, **options):
    """A plan of a small model, on two machines or racks where the cluster has a network."""
    spec = CLUSTERS[cluster]
    domain = spec.levels[spec.domain_index].gpus
    gpus = gpus or (2 * domain if spec.extendable or spec.gpus > domain else domain)
    options = {"model": "llama3.2-1b", "cluster": cluster, "gpus": gpus, "gbs": gpus, "precision": "bf16", **options}
    if spec.gpu.architecture == "volta":
        options["precision"] = "fp16"
    job = build_job(read(JobOptions, options))
    return Writing(job, estimate_layout(job, layout or {"tp": 1}).plan)


def files_for(writing):
    program = Program("train.py", (("--size", "8"),), environment=environment(writing))
    made = (*cluster_files(writing, program), run_script(program, writing))
    return {one.path: one.text for one in made}


def pod_of(files):
    (job,) = yaml.safe_load(files["jobset.yaml"])["spec"]["replicatedJobs"]
    return job["template"]["spec"], job["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("cluster", [name for name, one in CLUSTERS.items() if one.gpu.vendor in GPU_RESOURCE])
def test_files_are_valid_for_every_cluster(cluster):
    writing = writing_for(cluster)
    files, (nodes, per_host) = files_for(writing), machines(writing)
    assert set(files) == {"job.sbatch", "jobset.yaml", "hostfile", "run.sh"}
    for name in ("job.sbatch", "run.sh"):
        done = subprocess.run(["bash", "-n"], input=files[name], text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert files[name].startswith("#!/bin/bash\n")
    assert f"--nodes={nodes}\n" in files["job.sbatch"]
    assert nodes * per_host == writing.spec.gpus
    job, pod = pod_of(files)
    assert job["parallelism"] == job["completions"] == nodes
    (container,) = pod["containers"]
    assert container["resources"]["limits"][GPU_RESOURCE[writing.spec.cluster.gpu.vendor]] == str(per_host)
    seen = {one["name"]: one.get("value") for one in container["env"]}
    assert seen | {name: value for name, (value, _) in environment(writing).items()} == seen
    assert {one["name"] for one in pod["volumes"]} == {one["name"] for one in container["volumeMounts"]}
    assert files["hostfile"].splitlines() == [f"node{node:04d} slots={per_host}" for node in range(1, nodes + 1)]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_variable_has_a_reason(cluster):
    for name, (value, why) in environment(writing_for(cluster)).items():
        assert re.fullmatch("[A-Z][A-Z0-9_]*", name)
        assert value
        assert len(why) > 15
        assert "\n" not in value + why


def test_what_a_script_needs_is_asked_for_in_the_pod():
    writing = writing_for("aws-p5", 16)
    program = Program("run_clm.py", (("--train_file", Expansion("${TRAIN_FILE:?a text file}")),))
    (text,) = [one.text for one in cluster_files(writing, program) if one.path == "jobset.yaml"]
    assert "# a text file: to be filled in" in text
    assert {"name": "TRAIN_FILE", "value": ""} in pod_of({"jobset.yaml": text})[1]["containers"][0]["env"]


@pytest.mark.parametrize("inside", [True, False])
def test_the_script_of_a_framework_is_found_where_its_repository_is(tmp_path, inside):
    """With a stand-in for torchrun that fails where the script is not there."""
    launch, code = tmp_path / "launch", tmp_path / ("launch" if inside else "code of mine")
    for folder in (launch, code, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
    (code / "train.py").touch()
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.write_text(
        '#!/bin/bash\nfor word in "$@"; do [[ $word == *train.py ]] && test -f "$word" && exit 0; done; exit 9'
    )
    torchrun.chmod(0o755)
    files = files_for(writing_for("aws-p5", 8))
    variables = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **({} if inside else {"CODE_DIR": str(code)})}
    ran = subprocess.run(["bash", "-c", files["run.sh"]], cwd=launch, env=variables, check=False)
    assert ran.returncode == 0
    assert {"name": "CODE_DIR", "value": ""} in pod_of(files)[1]["containers"][0]["env"]


def test_a_single_machine_needs_no_network():
    assert environment(writing_for("aws-p5", 8)) == {}
    assert "FI_PROVIDER" in environment(writing_for("aws-p5", 16))


@pytest.mark.parametrize(
    ("cluster", "options", "devices"),
    [
        ("aws-p5", {}, "32"), ("aws-p5en", {}, "16"), ("aws-p4d", {}, "4"), ("aws-p4d", {"gpus_per_node": 4}, "4"),
        ("aws-p4d", {"gpus_per_node": 1}, "1"), ("aws-p5", {"gpus_per_node": 4}, "16"),
    ],
)  # fmt: skip
def test_pods_take_the_efa_devices_of_their_gpus(cluster, options, devices):
    _, pod = pod_of(files_for(writing_for(cluster, 16, **options)))
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits["vpc.amazonaws.com/efa"] == devices
    assert limits["hugepages-2Mi"] == "5120Mi"
    assert pod["nodeSelector"]["node.kubernetes.io/instance-type"].startswith(f"{cluster.removeprefix('aws-')}.")
    assert {one["key"] for one in pod["tolerations"]} == {"nvidia.com/gpu", "vpc.amazonaws.com/efa"}
    (shared,) = [one for one in pod["volumes"] if one["name"] == "shm"]
    assert shared["emptyDir"]["medium"] == "Memory"


def test_other_networks_take_rdma_devices_and_sockets_none():
    _, pod = pod_of(files_for(writing_for("dgx-h100-superpod")))
    assert any(name.startswith("rdma/") for name in pod["containers"][0]["resources"]["limits"])
    _, pod = pod_of(files_for(writing_for("aws-p5-eni")))
    assert not any("/" in name and "gpu" not in name for name in pod["containers"][0]["resources"]["limits"])


def test_switches_add_up_as_the_plan_says():
    usual = environment(writing_for("dgx-h100-superpod"))
    assert not {"NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE"} & set(usual)
    other = environment(writing_for("dgx-h100-superpod", sharp="on", nvls="off"))
    assert (other["NCCL_COLLNET_ENABLE"][0], other["NCCL_NVLS_ENABLE"][0]) == ("1", "0")


def test_full_memory_is_kept_in_one_piece():
    usual = writing_for("dgx-h100-superpod")
    limit = usual.plan.memory_gib * 1.1
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment(usual)
    assert "PYTORCH_CUDA_ALLOC_CONF" in environment(writing_for("dgx-h100-superpod", memory_limit_gib=limit))


def test_racks_are_booked_whole_and_started_host_by_host():
    writing = writing_for("gb200-nvl72", 128)
    files = files_for(writing)
    assert machines(writing) == (32, 4)
    assert "#SBATCH --segment=16 " in files["job.sbatch"]
    assert "--nnodes=32 --nproc-per-node=4" in files["run.sh"]
    assert any("IMEX" in one for one in writing.warnings)


def test_machines_that_a_job_does_not_fill_are_said():
    writing = writing_for("dgx-h100-superpod", 12)
    assert machines(writing) == (2, 6)
    assert writing.warnings == ["12 GPUs do not fill machines of 8: 6 of each are used"]


def test_names_of_jobs_are_names_for_kubernetes():
    shape = "hidden=4096,layers=32,heads=32,kv_heads=8,ffn=14336,vocab=128256"
    text = files_for(writing_for("aws-p5", 16, model=shape))["jobset.yaml"]
    assert re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", yaml.safe_load(text)["metadata"]["name"])
