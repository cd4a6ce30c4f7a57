"""A measured Run has a breakdown of its time; a failed run names the rank, its phase and the kept steps."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase, Stream
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.data_parallel.buckets import Gradients
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.preflight.checks import check_number
from tests.validator import faults, processes
from tests.validator.conftest import CLUSTER, GPT, MakeScenario
from tests.validator.verdicts import in_bulk, in_turn, main_of

PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 4}
RING = {"kind": "data_parallel", "workers": 2, "bucket": "100 KiB", "first_bucket": "20 KiB"}
COMPUTE = {"forward", "backward", "optimizer"}
PHASES_BY_STRATEGY = [
    ({"kind": "data_parallel", "workers": 1}, COMPUTE),
    (RING, COMPUTE | {"synchronise"}),
    ({**RING, "overlap": False}, COMPUTE | {"synchronise"}),
    ({"kind": "parameter_server", "workers": 2, "servers": 2}, {"forward", "backward", "send", "wait", "receive"}),
    (PIPELINE, COMPUTE | {"send", "receive"}),
    ({**PIPELINE, "schedule": "gpipe"}, COMPUTE | {"send", "receive"}),
    ({"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}, COMPUTE | {"send", "receive", "synchronise"}),
]


@pytest.mark.parametrize(("strategy", "phases"), [*PHASES_BY_STRATEGY[1::2], *in_bulk(*PHASES_BY_STRATEGY[::2])])
def test_spans_cover_the_step(strategy: dict[str, Any], phases: set[str], make_scenario: MakeScenario) -> None:
    scenario = make_scenario(strategy, GPT)

    run = measure(scenario)

    assert run.spans is not None
    assert {name for name, seconds in run.phase_s.items() if seconds > 0} == phases
    assert len(run.step_times_s) == scenario.steps
    assert set(run.spans.step.tolist()) == set(range(1, scenario.steps + 1))
    assert (run.ranks, len(run.rank_names)) == (scenario.strategy.ranks,) * 2
    assert (run.spans.arrival_s <= run.spans.start_s).all()
    assert (run.spans.start_s <= run.spans.end_s).all()
    assert all(in_turn(main_of(run, rank)) for rank in range(run.ranks))
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    # what no span explains is Python between them: small next to a step in which the machine did nothing else
    assert max(accounted_share(run, rank, step) for rank in range(run.ranks) for step in range(1, scenario.steps + 1)) > 0.5


def accounted_share(run: Run, rank: int, step: int) -> float:
    """The share of a rank's step that its spans are."""
    spans = main_of(run, rank)
    own = spans.where(spans.step == step)
    return float((own.end_s - own.arrival_s).sum() / (own.end_s.max() - own.arrival_s.min()))


def test_a_run_names_its_scenario_origin_and_ranks(make_scenario: MakeScenario) -> None:
    run = measure(make_scenario({"kind": "parameter_server", "workers": 2}))

    assert (run.origin, run.scenario, run.strategy, run.samples) == ("measured", "small", "parameter_server", 16)
    assert run.compute_ranks == 2
    assert run.rank_names == ("worker 0", "worker 1", "server 0")
    assert run.provenance["backend"] == "gloo"


@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_equal_the_simulators(overlap: bool, make_scenario: MakeScenario) -> None:
    scenario = make_scenario({**RING, "overlap": overlap}, GPT)
    layers = scenario.model.build_layers()
    gradients = Gradients(layers)
    bounds, _ = gradients.buckets(range(len(layers)), 4, 20 * 1024, 100 * 1024)
    expected = [4 * (gradients.filled[end] - gradients.filled[begin]) for begin, end in itertools.pairwise(bounds)]

    spans = measure(scenario).spans

    assert spans is not None
    of_step = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.rank == 1) & (spans.step == 3))
    assert of_step.size_bytes.tolist() == expected


def test_compute_of_every_microbatch_is_recorded(make_scenario: MakeScenario) -> None:
    run = measure(make_scenario(PIPELINE, GPT))

    for stage in range(2):
        own = main_of(run, stage)
        for phase in COMPUTE_PHASES[:2]:
            done = own.where((own.phase == phase) & (own.step == 2))
            assert sorted(done.microbatch.tolist()) == [0, 1, 2, 3]
            assert set(done.stage.tolist()) == {stage}


def test_a_workers_wait_lasts_until_its_server_sends(make_scenario: MakeScenario) -> None:
    run = measure(make_scenario({"kind": "parameter_server", "workers": 1}, GPT))

    worker, server = main_of(run, 0), main_of(run, 1)
    waits, sends = worker.where(worker.phase == Phase.WAIT), server.where(server.phase == Phase.SEND)
    assert np.allclose(waits.end_s, np.clip(sends.start_s, waits.arrival_s, None))


def test_training_works_in_bf16(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(RING, GPT, steps=2)
    cluster = CLUSTER | {"device": CLUSTER["device"] | {"peak": {"bf16": "50 GFLOP/s"}}}  # type: ignore[operator]
    plain = scenario.model_dump(exclude={"framework"}) | {"cluster": cluster, "training": {"precision": "bf16"}}
    plain |= {"model": GPT, "strategy": RING}

    run = measure(type(scenario).model_validate(plain))

    assert run.step_time_s > 0


@pytest.mark.full
def test_progress_counts_steps(make_scenario: MakeScenario) -> None:
    seen: list[int] = []

    measure(make_scenario(RING, GPT, steps=60), watch=MeasureOptions(progress=seen.append))

    assert seen == sorted(seen)
    assert seen[-1] == 60


def test_a_killed_rank_is_named_with_its_phase_and_measured_steps_are_kept(
    make_scenario: MakeScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.die_in_backward_of_step_4)
    folder = tmp_path / "x"

    with pytest.raises(RankError) as caught:
        measure(
            make_scenario({"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}), watch=MeasureOptions(folder=folder)
        )

    killed = "rank 3 (worker 1 stage 1) was killed by signal 9 in backward of step 4"
    assert str(caught.value) == f"{killed}; measurements up to step 3 are kept in {folder}"
    kept = load_run(folder)
    assert len(kept.step_times_s) == 3
    assert kept.provenance["partial"] == "3 of 5 steps"
    assert kept.spans is not None
    assert kept.spans.step.max() == 3
    assert processes.own_ranks() == []


@pytest.mark.full
def test_only_the_hung_rank_is_named_not_the_waiting_ones(
    make_scenario: MakeScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.hang_in_forward_of_step_2)

    with pytest.raises(RankError, match=r"rank 1 \(worker 1\) made no progress for 6 s in forward of step 2; .* up to step 1 "):
        measure(
            make_scenario({"kind": "parameter_server", "workers": 3, "servers": 2}, batch=18),
            watch=MeasureOptions(timeout_s=6.0, folder=tmp_path),
        )

    assert processes.own_ranks() == []


def test_a_folder_that_cannot_be_written_does_not_hide_the_cause(
    make_scenario: MakeScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.die_in_backward_of_step_4)
    (tmp_path / "file").touch()

    with pytest.raises(RankError, match=r"killed by signal 9 in backward of step 4; what was measured could not be kept"):
        measure(make_scenario(PIPELINE), watch=MeasureOptions(folder=tmp_path / "file" / "x"))


def test_training_reads_text_from_a_file_next_to_the_scenario(
    make_scenario: MakeScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_bytes(b"to be or not to be, that is the question. " * 10)
    monkeypatch.chdir(tmp_path)

    assert measure(make_scenario(RING, data="text.txt", steps=2)).step_time_s > 0


@pytest.mark.parametrize(("place", "message"), [("", "no such file"), ("short", "has 5 bytes; give at least 9")])
def test_missing_or_short_data_files_are_rejected(
    place: str, message: str, make_scenario: MakeScenario, tmp_path: Path
) -> None:
    (tmp_path / "short").write_bytes(b"short")
    path = tmp_path / (place or "missing")

    with pytest.raises(InputError, match=f"training.data: {path}.*{message}"):
        measure(make_scenario(RING, data=str(path)))


def test_unsupported_precisions_and_data_are_rejected(
    make_scenario: MakeScenario, models: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(b"text" * 100)
    cluster = CLUSTER | {"device": CLUSTER["device"] | {"peak": {"fp8": "50 GFLOP/s"}}}  # type: ignore[operator]
    plain = make_scenario(RING).model_dump(exclude={"framework", "training"}) | {"cluster": cluster, "strategy": RING}
    with pytest.raises(InputError, match=r"training\.precision: fp8"):
        measure(Scenario.model_validate(plain | {"model": GPT, "training": {"precision": "fp8"}}))
    with pytest.raises(InputError, match="a model of kind mlp cannot read"):
        measure(make_scenario(RING, models["mlp"], data=str(tmp_path / "text")))


@pytest.mark.full
def test_ranks_started_by_torchrun_join_and_all_get_the_run(tmp_path: Path) -> None:
    training = {"warmup_steps": 2}
    plain = {"model": GPT, "cluster": CLUSTER, "strategy": RING, "batch": 16, "steps": 3, "training": training}
    scenario_file = tmp_path / "joined.yaml"
    scenario_file.write_text(yaml.safe_dump(plain))
    script = Path(__file__).with_name("join.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GLOO_SOCKET_IFNAME": "lo"}
    environment["OMP_NUM_THREADS"] = "1"

    done = subprocess.run(
        [*command, str(scenario_file), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=250, check=False
    )

    assert done.returncode == 0, done.stderr
    first, second = load_run(tmp_path / "0"), load_run(tmp_path / "1")
    assert first.to_dict() == second.to_dict()
    assert (first.ranks, len(first.step_times_s)) == (2, 3)


def test_the_number_of_started_ranks_must_fit(make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match="small: started as 4 ranks, but the strategy has 2; start 2 processes"):
        check_number(make_scenario(RING), 4)
