"""Files of examples/launch have valid syntax, and start ranks of a command that scaleproof accepts."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from scaleproof.commands import main
from scaleproof.validator.launch.rank_environment import RankEnvironment, meeting_point, place_in

FOLDER = Path(__file__).parents[3] / "examples" / "launch"
SCRIPTS = ["torchrun.sh", "accelerate.sh", "mpirun.sh", "slurm.sbatch"]
LAUNCHERS = {"torchrun.sh": "torchrun", "accelerate.sh": "accelerate", "mpirun.sh": "mpirun", "slurm.sbatch": "srun"}


def ray_job() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ray_job", FOLDER / "ray_job.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_command(words: list[str]) -> None:
    """The words after the program's name are a command with a scenario that joins ranks of a launcher."""
    after = words[words.index("scaleproof") + 1 :]
    options = main._options(after)
    assert (after[0], options.on) == ("measure", "cluster")
    assert len(options.scenarios) == 1


def started(script: str, folder: Path) -> list[str]:
    """The words with which a script starts its launcher, for one scenario."""
    launcher = folder / LAUNCHERS[script]
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    launcher.chmod(0o755)
    (folder / "bin").mkdir()
    (folder / "bin" / "activate").write_text("")
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "VENV": str(folder),
        "SLURM_SUBMIT_DIR": str(folder),
        "HOME": str(folder),
    }
    shell = "bash" if script.endswith("sbatch") else "sh"
    ran = subprocess.run([shell, FOLDER / script, "ring.yaml"], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_start_the_command_by_their_launcher(script: str, tmp_path: Path) -> None:
    words = started(script, tmp_path)

    assert Path(words[0]).name == LAUNCHERS[script]
    check_command(words)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_have_valid_syntax(script: str) -> None:
    subprocess.run(["bash", "-n", FOLDER / script], check=True)


def test_torchrun_accepts_the_arguments(tmp_path: Path) -> None:
    run = pytest.importorskip("torch.distributed.run")
    options = run.parse_args(started("torchrun.sh", tmp_path)[1:])

    assert (options.nnodes, options.nproc_per_node, options.module) == ("1", "4", True)
    assert options.training_script == "scaleproof"


def test_slurm_requests_are_options_of_sbatch() -> None:
    lines = [line for line in (FOLDER / "slurm.sbatch").read_text().splitlines() if line.startswith("#SBATCH")]

    assert {shlex.split(line)[1].split("=")[0] for line in lines} >= {
        "--nodes",
        "--ntasks-per-node",
        "--gpus-per-node",
        "--time",
    }


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def test_kubernetes_pods_run_torchrun_on_as_many_nodes_as_there_are_pods() -> None:
    run = pytest.importorskip("torch.distributed.run")
    service, job = kubernetes()
    spec = job["spec"]
    [container] = spec["template"]["spec"]["containers"]
    program, *arguments = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["command"]]
    options = run.parse_args(arguments)

    assert (program, options.node_rank) == ("torchrun", 1)
    assert int(options.nnodes) == spec["completions"] == spec["parallelism"]
    assert int(options.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    check_command(arguments)
    assert service["spec"]["clusterIP"] == "None"
    assert options.master_addr == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        one["name"] for one in spec["template"]["spec"]["volumes"]
    }


def test_ray_ranks_are_numbered_by_host() -> None:
    module = ray_job()
    variables = module.environments(["a", "b", "a"], "10.0.0.1", 4000)

    places = [place_in(one) for one in variables]
    assert places == [RankEnvironment(0, 3, 0, 2), RankEnvironment(1, 3, 0, 1), RankEnvironment(2, 3, 1, 2)]
    assert {meeting_point(one).port for one in variables} == {4000}
    check_command(module.command(["ring.yaml"]))


@pytest.mark.full
def test_ranks_of_mpirun_meet_at_the_given_address_and_train(tmp_path: Path) -> None:
    scenario = tmp_path / "ring.yaml"
    scenario.write_text(
        "model: {kind: mlp, layers: 2, inputs: 4, hidden: 8, outputs: 2}\nstrategy: {kind: data_parallel, workers: 2}\n"
        "cluster: cpu-2core\nbatch: {total: 4}\nsteps: 3\ntraining: {precision: fp32}\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        sys.executable,
        "-m",
        "scaleproof",
        "measure",
        str(scenario),
        "--on",
        "cluster",
        "--verify",
        "--out",
        str(tmp_path),
    ]
    ranks = []
    for rank in range(2):
        own = {"OMPI_COMM_WORLD_RANK": f"{rank}", "OMPI_COMM_WORLD_LOCAL_RANK": f"{rank}"}
        sizes = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = os.environ | own | sizes | meeting
        ranks.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "ring" in outputs[0]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_mpirun_accepts_the_arguments(tmp_path: Path) -> None:
    words = started("mpirun.sh", tmp_path)[1:]
    subprocess.run(["mpirun", "--allow-run-as-root", *words[: words.index("scaleproof")], "true"], check=True)
