"""The GPU check on a machine whose two GPUs do not exist: its branches for GPUs run in every process, its files are complete.

Theory: kernels and copies on these GPUs take known times, so that the cluster file must have their rates, and parameters that
are trained on them are those of one process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from scaleproof.proof.gpu_check import plan
from scaleproof.simulator.cluster.host import required_host
from scaleproof.validator.probe.points import FAILED, Point
from tests.proof.gpu_check.unpacked import Unpacked, unpacked
from tests.validator.gpus import fake_machine

CHECK = "scaleproof.proof.gpu_check"
STEPS = [
    plan.CALIBRATE, "kernels", plan.DEVICE, "device figures", plan.FIRST, plan.FAMILIES, plan.SHARED, plan.REST, plan.PAGE,
    "functional page",
]  # fmt: skip
SOME = ("ddp", "fsdp", "servers")


def run(*arguments: str | Path, families: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a module in a process that finds fake GPUs. families: that are trained, all if empty."""
    environment = fake_machine.environment(families)
    return subprocess.run([sys.executable, "-m", *map(str, arguments)], env=environment, capture_output=True, text=True)


def of_probe(points: list[Point]) -> dict[str, dict[tuple[str, float], float]]:
    """Median seconds by what is timed and its size, by probe."""
    found: dict[str, dict[tuple[str, float], float]] = defaultdict(dict)
    for point in points:
        assert not point.stopped.startswith(FAILED), point
        if point.seconds:
            found[point.probe][point.what, point.size] = point.median_s
    return found


def check_own_times(points: dict[str, dict[tuple[str, float], float]]) -> None:
    assert points["launch"]["graph", 1.0] == pytest.approx(fake_machine.SHORTEST_S)
    # of the host, which waits for nothing
    assert points["launch"]["issue", 1.0] != pytest.approx(fake_machine.SHORTEST_S, rel=0.01)
    copies = points["host_copy"]
    for what, rate_Bps in (
        ("host to device", fake_machine.HOST_Bps),
        ("device to host", fake_machine.HOST_Bps),
        # reads and writes
        ("device 0 to 1", fake_machine.MEMORY_Bps / 2),
    ):
        assert copies[what, 2.0**28] == pytest.approx(2**28 / rate_Bps, rel=0.01)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a check over some families."""
    out = tmp_path_factory.mktemp("gpu-check")
    done = run(CHECK, "--out", out, "--limit", "3000", families=" ".join(SOME))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("plan for 2 × NVIDIA H100 80GB HBM3, most valuable first")
    assert f"  {plan.FAMILIES} " in done.stdout
    return out


@pytest.fixture(scope="module")
def found(checked: Path, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    """What its archive has."""
    (archive,) = checked.glob("gpu-check-2x-nvidia-h100-80gb-hbm3-*.tar.gz")
    return unpacked(archive, tmp_path_factory.mktemp("archive"))


@pytest.mark.nightly
def test_each_step_comes_to_its_end(found: Unpacked) -> None:
    assert list(found.steps) == STEPS
    assert set(found.steps.values()) == {"done"}


@pytest.mark.nightly
def test_the_cluster_has_what_the_gpus_have(found: Unpacked) -> None:
    cluster, points = found.cluster, of_probe(found.points)
    check_own_times(points)
    assert set(points) >= {
        "matmul", "attention", "memory", "launch", "host_copy", "layer", "optimizer", "message", "collective", "overlap",
        "host_adam",
    }  # fmt: skip
    host = required_host(cluster)
    assert host.link_Bps == pytest.approx(fake_machine.HOST_Bps, rel=0.01)
    # to the host and on to the other GPU, whose rank waits
    assert cluster.node.link.bandwidth_Bps < fake_machine.HOST_Bps
    assert cluster.node.devices == fake_machine.DEVICES
    assert cluster.device.name == "H100-80GB-SXM"
    assert {layer.precision for layer in cluster.device.measured_layers} == {"fp32", "bf16"}
    assert {what for what, _ in points["collective"]} == {
        "all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "alltoall uneven", "reduce",
    }  # fmt: skip


@pytest.mark.nightly
def test_the_device_is_fitted_to_its_kernels(found: Unpacked) -> None:
    assert found.device is not None
    assert found.device.kernels is not None
    assert {"bf16", "fp32"} <= set(found.device.kernels.products)
    largest = of_probe(found.points)["matmul"]["bf16 8192x8192x8192", 2.0 * 8192**3]
    assert largest == pytest.approx(2.0 * 8192**3 / fake_machine.PEAK_FLOPS["bfloat16"], rel=0.01)
    assert len(found.kernels) > 50


@pytest.mark.nightly
def test_ranks_with_a_gpu_each_use_nccl_and_those_that_share_do_not(found: Unpacked) -> None:
    assert {run.provenance["backend"] for run in found.reconciled.values()} == {"nccl"}
    assert {run.provenance["backend"] for run in found.shared.values()} == {"staged"}
    assert {run.provenance["device"] for run in (*found.reconciled.values(), *found.shared.values())} == {fake_machine.NAME}
    assert found.provenance["nccl"] == "2.27.5"
    assert found.provenance["devices"] == "2 × NVIDIA H100 80GB HBM3, 79.1 GiB each"


@pytest.mark.nightly
def test_parameters_are_those_of_one_process(found: Unpacked) -> None:
    assert {name.partition(" ")[0] for name in found.shared} == {f"{name}-4" for name in SOME}
    assert all(run.verified is not None and run.verified.is_right for run in found.shared.values())


@pytest.mark.nightly
def test_runs_have_memory_and_spans(found: Unpacked) -> None:
    assert {f"gpt-tiny-{name}-2" for name in SOME} < set(found.reconciled)
    for run in found.reconciled.values():
        assert run.memory_bytes_per_rank
        assert run.spans is not None


@pytest.mark.nightly
def test_a_finished_check_measures_nothing_again(checked: Path) -> None:
    done = run(CHECK, "--out", checked, families=" ".join(SOME))
    assert done.returncode == 2
    assert done.stderr == (f"{checked} has the results of a finished check; give another --out, or replace them with --again\n")


@pytest.mark.nightly
def test_an_interrupted_check_continues_with_what_it_has_measured(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", CHECK, "--out", str(out)]
    with subprocess.Popen(command, env=fake_machine.environment("ddp"), stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not any(out.glob("runs/*/measured/run.json")):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors.splitlines()[-1]) == (
        130, f"interrupted; run it again to continue with the results in {out}",
    )  # fmt: skip
    before = {file: file.read_bytes() for file in (out / "cluster.yaml", *out.glob("runs/*/measured/run.json"))}
    assert len(before) > 1
    done = run(CHECK, "--out", out, families="ddp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert next(line for line in done.stdout.splitlines() if line.startswith("  calibrate ")).endswith("done")
    assert {file: file.read_bytes() for file in before} == before
    (archive,) = out.glob("gpu-check-*.tar.gz")
    found = unpacked(archive, tmp_path / "archive")
    assert list(found.steps) == STEPS
    assert set(found.steps.values()) == {"done"}


@pytest.mark.nightly
def test_all_families_train_on_gpus(tmp_path: Path) -> None:
    done = run(CHECK, "--out", tmp_path / "out", "--limit", "3000")
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (tmp_path / "out").glob("gpu-check-*.tar.gz")
    found = unpacked(archive, tmp_path / "archive")
    assert list(found.steps) == STEPS
    assert len(found.shared) == 18
