"""Plans of probes, and continuation after a failed probe."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.model import Mlp
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration import gpu_sizes
from scaleproof.validator.calibration.calibrate import _ProbeRecord, calibrate, probe
from scaleproof.validator.calibration.cluster_file.from_points import cluster_from_points
from scaleproof.validator.calibration.fit import device
from scaleproof.validator.calibration.plan import DEVICE, NAMES, ProbePlan, Task, groups_of, tasks
from scaleproof.validator.calibration.sites import Site
from scaleproof.validator.calibration.sites import site as placed
from scaleproof.validator.launch import rank
from scaleproof.validator.launch.launch import JobOptions, RankResult
from scaleproof.validator.launch.rank_environment import ContactLostError
from scaleproof.validator.measure import MeasureOptions
from scaleproof.validator.probe.points import Point
from scaleproof.validator.record.cpu_usage import Usage
from scaleproof.validator.record.provenance import disturbance
from scaleproof.validator.record.status_board import Board, Status
from tests.validator.calibration.made import BASE, all_pairs, facts, sends, sums

TINY = Mlp(name="tiny", layers=3, inputs=32, hidden=64, outputs=16)
LAB = Cluster.model_validate(BASE)
PLAIN = [point.plain() for point in sums(2, 2, 1e-3, 1e7)]


class PretendedRanks:
    """Runs functions here and now, as ranks of another launcher do: what is recorded before an error is lost."""

    def first(self, count: int) -> PretendedRanks:
        return self

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], options: JobOptions) -> list[RankResult]:
        recorded: list[bytes] = []
        rank._here[:] = [rank.Rank(0, 1, torch.device("cpu"), Status(Board.private(), 0), recorded.append)]
        try:
            return [RankResult(function(*args), b"".join(recorded))]
        finally:
            rank._here.clear()

    def once(self, function: Callable[[], Any], patience_s: float) -> Any:
        return function()


def site(*nodes: int) -> Site:
    return Site("netlab", PretendedRanks(), nodes, (0,) * len(nodes))


def succeeding(budget_s: float) -> Any:
    return PLAIN


def failing(budget_s: float) -> Any:
    raise RankError("rank 1 failed in work between phases: RuntimeError: no")


def lose_contact(budget_s: float) -> Any:
    raise ContactLostError("rank 1 does not answer any more")


def run_probes(*functions: Callable[[float], Any]) -> Any:
    reported: list[str] = []
    found = probe([Task("collective", f.__name__, f, (), 0.1) for f in functions], site(0, 1), 10.0, reported.append)
    return found, reported


def test_a_failed_probe_is_reported_and_the_others_run() -> None:
    found, reported = run_probes(failing, succeeding)
    assert reported == ["failing", "succeeding"]
    failed, *points = found.points
    assert [point.plain() for point in points] == PLAIN
    assert failed.stopped == "failed: rank 1 failed in work between phases: RuntimeError: no"
    assert found.took_s.keys() == {"collective"}


def pid(budget_s: float) -> Any:
    """A point with the number of the process that measures it."""
    return [Point("launch", "pid", "", (), "", float(os.getpid()), "", (1e-6,), "time").plain()]


def end_process(budget_s: float) -> Any:
    os._exit(3)


@pytest.mark.full
def test_tasks_on_the_same_number_of_ranks_share_processes() -> None:
    """A context of a GPU is created once for all of them, and after a failure."""
    reported: list[str] = []
    of_ranks = [(pid, 1), (pid, 2), (pid, 1), (fail_once_more, 1), (pid, 1), (end_process, None), (pid, None)]
    planned = [Task("launch", f"{f.__name__} {ranks}", f, (), 0.1, ranks) for f, ranks in of_ranks]
    with placed("local", None, 2, MeasureOptions()) as where:
        found = probe(planned, where, 60.0, reported.append)
    pids = [point.size for point in found.points if point.seconds]
    failed = [point for point in found.points if not point.seconds]
    assert len(pids) == 5
    assert pids[0] == pids[1] != pids[2], "a new process after the failure, for the task that was left"
    assert len(set(pids)) == 4
    assert [point.what for point in failed] == ["fail_once_more 1", "end_process None"]
    assert failed[0].stopped == "failed: rank 0 failed in work between phases: ValueError: no"
    assert failed[1].stopped.startswith("failed: rank ")
    assert "exited with code 3" in failed[1].stopped
    assert [what for what in reported if "fail" in what or "end" in what] == ["fail_once_more 1", "end_process None"]
    assert reported[0] == "pid 1"


def fail_once_more(budget_s: float) -> Any:
    raise ValueError("no")


def test_a_line_that_is_cut_off_is_not_a_result() -> None:
    whole = json.dumps([[], "here", {"elapsed_s": 1.0}]).encode() + b"\n"
    assert [one.machine for one in _ProbeRecord.all_of(whole + whole[:7])] == ["here"]
    assert _ProbeRecord.all_of(b"") == []


def test_no_probe_runs_after_the_ranks_lost_contact() -> None:
    found, reported = run_probes(lose_contact, succeeding)
    assert reported == ["lose_contact"]
    assert len(found.points) == 1


def test_the_load_by_other_work_is_that_of_the_whole_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([{"here": 0.9}, {}, {"here": 0.1}])
    elapsed_s = iter([1.0, 5.0, 3.0])
    monkeypatch.setattr("scaleproof.validator.calibration.calibrate.foreign_loads", lambda machines, usages: next(loads))
    monkeypatch.setattr(Usage, "since", lambda now, earlier: {"elapsed_s": next(elapsed_s)})
    found, _ = run_probes(succeeding, succeeding, succeeding)
    # what is too short to be known does not count
    assert found.load == pytest.approx((0.9 * 1.0 + 0.1 * 3.0) / 4.0)
    assert len(found.points) == 3 * len(PLAIN)


def test_a_disturbed_calibration_says_so_in_its_notes_its_file_and_predictions_from_it(small: Callable[..., Scenario]) -> None:
    origin = disturbance(0.61, "calibration", "calibrate")
    quiet, busy = (replace(facts(), provenance=entries) for entries in (disturbance(0.1), origin))
    points = [*sends(all_pairs(4)), *sums(4, 4, 1e-3, 30e6)]
    (cluster, notes), (_, others) = cluster_from_points(points, busy), cluster_from_points(points, quiet)
    text = "other work used 61 % of the cores during the calibration; calibrate on a quiet machine"
    assert (notes[0], cluster["provenance"]["disturbed"]) == (text, text)
    assert text not in others
    scenario = small()
    calibrated = scenario.cluster.model_copy(update={"provenance": origin})
    run = predict(scenario.model_copy(update={"cluster": calibrated}), interval=False)
    assert any(text in warning for warning in run.warnings)


def test_the_budget_is_divided_among_selected_probes() -> None:
    planned = tasks(ProbePlan([TINY], budget_s=30.0), site(0, 0, 0, 0), None)
    assert planned[0].ranks == 1
    assert sum(task.budget_s for task in planned) == pytest.approx(30.0)
    some = tasks(ProbePlan([TINY], names=["message", "loading"], budget_s=30.0), site(0, 0, 0, 0), None)
    assert {task.name for task in some} == {"message", "loading"}
    assert sum(task.budget_s for task in some) == pytest.approx(30.0)


def test_groups_are_one_node_one_rank_per_node_and_all_ranks() -> None:
    plan = ProbePlan([TINY])
    assert groups_of(plan, site(0, 0, 0, 0)) == [[0, 1], [0, 1, 2, 3]]
    assert groups_of(plan, site(0, 1, 2, 3)) == [[0, 1], [0, 1, 2, 3]]
    assert groups_of(plan, site(0, 0, 1, 1, 2, 2)) == [[0, 2], [0, 2, 4], [0, 1], [0, 1, 2, 3, 4, 5]]
    assert groups_of(ProbePlan([TINY], groups=[3]), site(0, 0, 0, 0)) == [[0, 1, 2]]


def test_each_probe_can_be_run_separately() -> None:
    for name in NAMES:
        assert {task.name for task in tasks(ProbePlan([TINY], names=[name]), site(0, 0, 1, 1), LAB)} == {name}


def test_probes_of_gpus_include_communication_and_overlap() -> None:
    planned = tasks(ProbePlan([], budget_s=30.0, gpu=gpu_sizes.FULL), site(0, 0, 0, 0), None)
    assert {task.name for task in planned} == DEVICE | {"message", "collective", "overlap", "host_copy", "host_adam"}
    [overlapped] = (task for task in planned if task.name == "overlap")
    assert overlapped.arguments == ([[0, 1, 2, 3]], 2**28, 4096, "bf16")
    assert sum(task.budget_s for task in planned) == pytest.approx(30.0)


def test_the_layer_probe_includes_probes_fitted_with_it() -> None:
    alone, *_ = tasks(ProbePlan([TINY], names=["layer"]), site(0, 0), None)
    both = tasks(ProbePlan([TINY], names=["layer", "matmul"]), site(0, 0), None)
    assert alone.function is both[0].function is device.probe
    assert {task.name for task in both} == {"layer"}


def test_missing_device_information_is_rejected_before_measuring() -> None:
    with pytest.raises(InputError, match=r"--probe message: .*; add --probe layer, or give --cluster"):
        calibrate(ProbePlan([TINY], names=["message"]), "local")


def test_files_take_the_place_of_random_batches(tmp_path: Path) -> None:
    (tmp_path / "0.jpeg").write_bytes(b"0")
    (planned,) = tasks(ProbePlan([TINY], names=["loading"], files=tmp_path), site(0, 0), None)
    assert planned.arguments == (tmp_path,)
    with pytest.raises(InputError, match="--files: only the probe loading reads files; add --probe loading"):
        ProbePlan([TINY], names=["message"], files=tmp_path)
    with pytest.raises(InputError, match=r"--files .*/nothing: there are no files; give a folder of samples"):
        tasks(ProbePlan([TINY], files=tmp_path / "nothing"), site(0, 0), None)


def test_pairs_of_a_lab_are_classified_by_their_switch() -> None:
    tree = BASE | {"network": BASE["network"] | {"topology": {"kind": "leaf_spine", "per_leaf": 2}}}
    planned = tasks(ProbePlan([TINY], names=["message"]), site(0, 1, 2, 3), Cluster.model_validate(tree))
    classes = {pair.group for pair in planned[0].arguments[0]}
    assert classes == {"same leaf", "across"}


@pytest.mark.parametrize("cluster", [None, LAB])
def test_undescribed_machines_are_rejected(cluster: Cluster | None) -> None:
    with pytest.raises(InputError, match=r"on 5 machines, but .* with --cluster"):
        tasks(ProbePlan([TINY]), site(0, 1, 2, 3, 4), cluster)


def test_communication_probes_of_one_rank_are_rejected() -> None:
    assert not {"message", "collective", "overlap"} & {task.name for task in tasks(ProbePlan([TINY]), site(0), None)}


def test_unknown_probes_and_groups_are_refused() -> None:
    with pytest.raises(InputError, match=f"--probe matmull: no such probe; give one of {', '.join(NAMES)}"):
        ProbePlan([TINY], names=["matmull"])
    with pytest.raises(InputError, match="at least 2 ranks"):
        ProbePlan([TINY], groups=[1])
