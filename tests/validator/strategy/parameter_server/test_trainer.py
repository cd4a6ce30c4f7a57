"""Servers train what they say they train.

Theory: servers that wait for all train what one process does that sees the whole batch. Others apply gradients of parameters
that have changed since; their result follows from the order of pushes and replies at each server alone, and one process
that replays it comes to the same. In fp64 the order of sums leaves differences of about 1e-15.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.run.files import load_run
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.parameter_server.shards import buckets
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.strategy.parameter_server.worker import Worker
from tests.validator import faults_servers, processes
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import at_night, in_bulk
from tests.validator.verdicts import deviation_of as deviation

TOLERANCE = 1e-9
BASE = {"kind": "parameter_server", "workers": 3, "servers": 2}
ASYNCHRONOUS = {**BASE, "mode": "asynchronous"}
STALE = {**BASE, "mode": "stale_synchronous", "bound": 1}
BACKUPS = {**BASE, "backups": 1}
OVERLAPPED = {"overlap": True, "bucket": "4 KiB"}
SHARED = {"units": 20, "assignment": "dynamic"}

CASES = [
    ({**BASE, "shard": "tensor"}, "gpt", "sgd"),
    ({**BASE, "shard": "round_robin", **OVERLAPPED}, "gpt", "adam"),
    ({**BASE, **OVERLAPPED, "rollout": "1 ms"}, "mlp", "momentum"),
    ({**BASE, "two_level": True}, "gpt", "adam"),
    ({**BASE, **OVERLAPPED, "two_level": True}, "gpt", "momentum"),
    (ASYNCHRONOUS, "gpt", "adam"),
    ({**ASYNCHRONOUS, "shard": "tensor", "rollout": "1 ms", "placement": "colocated"}, "mlp", "sgd"),
    ({**ASYNCHRONOUS, **OVERLAPPED}, "gpt", "momentum"),
    ({**ASYNCHRONOUS, "two_level": True}, "mlp", "momentum"),
    ({**ASYNCHRONOUS, **OVERLAPPED, "two_level": True, "shard": "tensor", "rollout": "1 ms"}, "mlp", "adam"),
    (STALE, "gpt", "momentum"),
    ({**STALE, "bound": 0, "shard": "round_robin"}, "mlp", "adam"),
    ({**STALE, **OVERLAPPED, "shard": "tensor"}, "gpt", "sgd"),
    (BACKUPS, "gpt", "momentum"),
    ({**BACKUPS, "backups": 2, "shard": "tensor"}, "mlp", "adam"),
    ({**BACKUPS, **OVERLAPPED}, "gpt", "sgd"),
    ({**ASYNCHRONOUS, **SHARED}, "gpt", "momentum"),
    ({**STALE, "units": 14}, "mlp", "adam"),
    ({**STALE, **OVERLAPPED, **SHARED}, "gpt", "sgd"),
    ({**ASYNCHRONOUS, **OVERLAPPED, "units": 13, "shard": "tensor"}, "mlp", "adam"),
]
SPARSE = {**BASE, "shard": "tensor", "sparse": {"rows": 0.25}}
SPARSE_CASES = [
    SPARSE,
    {**SPARSE, **OVERLAPPED},
    {**SPARSE, "servers": 1, "shard": "bytes", "backups": 1},
    {**SPARSE, "mode": "asynchronous", **SHARED},
    {**SPARSE, "mode": "stale_synchronous", "bound": 1, **OVERLAPPED},
]


def in_nodes(scenario: Scenario, devices: int = 2) -> Scenario:
    """The same on nodes of few devices."""
    cluster: Cluster = scenario.cluster
    node = cluster.node.model_copy(update={"installed": devices})
    nodes = {"node": node, "nodes": -(-scenario.strategy.ranks // devices), "network": node.link}
    return scenario.model_copy(update={"cluster": cluster.model_copy(update=nodes)})


def verified(scenario: Scenario) -> Run:
    return measure(scenario, watch=MeasureOptions(verify=True))


@pytest.mark.parametrize(
    ("strategy", "kind", "optimizer", "compute"),
    [
        *((*case, "real") for case in CASES[::4]),
        (*CASES[1], "paced"),
        *in_bulk(
            *((*case, "real") for number, case in enumerate(CASES) if number % 4), *((*case, "paced") for case in CASES[6::5])
        ),
        *at_night(*((*case, "paced") for number, case in enumerate(CASES) if number % 5 != 1)),
    ],
)
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], kind: str, optimizer: str, compute: str, make_scenario: MakeScenario, models: dict[str, Any]
) -> None:
    scenario = make_scenario(strategy, models[kind], batch=12, precision="fp64", optimizer=optimizer)

    run = verified(in_nodes(scenario.model_copy(update={"compute": compute})))

    assert deviation(run) < TOLERANCE


@pytest.mark.parametrize(
    ("strategy", "kind", "optimizer", "compute"),
    [
        *((*case, "real") for case in CASES[4:9:4]),
        *in_bulk(*((*case, "real") for case in CASES[1::5]), *((one, "gpt", "sgd", "real") for one in SPARSE_CASES[::2])),
        *at_night(*((*case, "real") for case in CASES), *((*case, "paced") for case in CASES[::5])),
    ],
)
def test_parameters_in_16_bits_equal_those_in_64_bits_up_to_rounding(
    strategy: dict[str, Any], kind: str, optimizer: str, compute: str, make_scenario: MakeScenario, models: dict[str, Any]
) -> None:
    scenario = make_scenario(strategy, models[kind], batch=12, precision="fp16", optimizer=optimizer)

    run = verified(in_nodes(scenario.model_copy(update={"compute": compute})))

    assert run.verified is not None
    assert run.verified.is_right


@pytest.mark.parametrize("strategy", [{**BASE, **OVERLAPPED}, *in_bulk(ASYNCHRONOUS, BACKUPS)])
def test_updates_with_infinite_gradients_are_left_out(
    strategy: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.push_infinity)

    run = verified(make_scenario(strategy, batch=12, steps=8, precision="fp16", optimizer="momentum"))

    assert run.verified is not None
    assert run.verified.is_right
    assert np.isfinite(run.losses).all()


def test_updates_that_only_one_server_leaves_out_are_not_verified(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.push_infinity_to_one_server)

    with pytest.raises(RankError, match=r"gradients were not finite in other steps on some ranks than on others"):
        verified(make_scenario(BASE, batch=12, precision="fp16"))


@pytest.mark.parametrize("strategy", [BACKUPS, *in_bulk({**ASYNCHRONOUS, **OVERLAPPED})])
def test_separate_groups_per_direction_train_correctly(
    strategy: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.own_groups)

    assert deviation(verified(make_scenario(strategy, batch=12, precision="fp64"))) < TOLERANCE


@pytest.mark.parametrize(
    ("fault", "strategy"),
    [
        (faults_servers.keep_old_shard, STALE),
        (faults_servers.count_dropped, BACKUPS),
        (faults_servers.skip_node_reduction, {**BASE, "two_level": True}),
        *in_bulk(
            (faults_servers.push_twice, ASYNCHRONOUS),
            (faults_servers.keep_old_shard, ASYNCHRONOUS),
            (faults_servers.keep_old_shard, BASE),
            (faults_servers.forget_a_push, BASE),
            (faults_servers.skip_node_reduction, {**ASYNCHRONOUS, "two_level": True}),
            (faults_servers.skip_node_reduction, {**BASE, **OVERLAPPED, "two_level": True}),
        ),
    ],
)
def test_verification_detects_wrong_training(
    fault: Any, strategy: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    run = verified(in_nodes(make_scenario(strategy, batch=12, precision="fp64")))

    assert deviation(run) > 1e-4


@pytest.mark.parametrize(
    ("fault", "strategy", "message"),
    [
        (faults_servers.reply_at_once, STALE, r"server \d replied to worker \d 2 steps ahead; the bound is 1"),
        (faults_servers.take_everybody, BACKUPS, r"server 0 updated with the pushes of \[\d, \d, \d\], but an update takes 2"),
    ],
)
def test_verification_detects_servers_that_violate_their_consistency_model(
    fault: Any, strategy: dict[str, Any], message: str, make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    with pytest.raises(RankError, match=message):
        verified(make_scenario(strategy, batch=12, precision="fp64"))


@pytest.mark.parametrize("bound", [2, *in_bulk(0)])
def test_no_worker_is_further_ahead_than_the_staleness_bound(
    bound: int, make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.slow_worker)

    run = measure(make_scenario({**STALE, "bound": bound}, batch=12, steps=8))

    assert run.servers is not None
    gap = run.servers.clock_gap.max
    assert gap <= bound, "a slow worker is waited for"
    assert (gap > 0) == (bound > 0), "and for no longer than that"
    assert run.breakdown_s["waiting_for_server"] > 0


def test_asynchronous_workers_run_ahead_of_a_slow_one(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.slow_worker)

    run = measure(make_scenario(ASYNCHRONOUS, batch=12, steps=12))

    assert run.servers is not None
    assert run.servers.clock_gap.max > 1


@pytest.mark.full
def test_backup_mode_drops_pushes_of_the_slow_worker(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.slow_worker)

    run = verified(make_scenario(BACKUPS, batch=12, steps=20, precision="fp64"))

    assert deviation(run) < TOLERANCE
    assert run.servers is not None
    assert run.servers.dropped > 0
    assert run.servers.version_staleness.max == 0
    assert run.samples == 8, "of a step's three pushes two count"


@pytest.mark.full
def test_training_reduces_the_loss(make_scenario: MakeScenario, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"to be or not to be, that is the question. " * 10)
    training = {"data": str(tmp_path / "text"), "precision": "fp64", "optimizer": "adam", "learning_rate": 0.01}

    run = measure(make_scenario(STALE, batch=12, steps=60, **training))

    # by chance 3.5; workers that wait for nobody may already be ahead of it
    assert run.losses[0] > 2
    assert np.mean(run.losses[-5:]) < 1.2


@pytest.mark.full
@pytest.mark.parametrize("strategy", [ASYNCHRONOUS, *in_bulk(BASE)])
def test_steps_measured_before_a_worker_died_are_kept(
    strategy: dict[str, Any], make_scenario: MakeScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.die_in_step_6)
    killed = r"rank 1 \(worker 1\) was killed by signal 9 in forward of step 6"

    with pytest.raises(RankError, match=rf"{killed}; measurements up to step [1-5] are kept"):
        measure(make_scenario(strategy, batch=12, steps=8), watch=MeasureOptions(folder=tmp_path))

    assert load_run(tmp_path).step_time_s > 0
    assert processes.own_ranks() == []


def test_spans_of_asynchronous_workers_are_consistent(make_scenario: MakeScenario) -> None:
    run = measure(make_scenario(ASYNCHRONOUS, batch=12))

    spans = run.spans
    assert spans is not None
    assert {name for name, seconds in run.phase_s.items() if seconds > 0} == {"forward", "backward", "send", "wait", "receive"}
    assert 0 < len(run.step_times_s) <= 5
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    assert (spans.step >= 1).all()
    for rank in range(run.ranks):
        own = spans.where((spans.rank == rank) & (spans.stream == Stream.MAIN))
        assert (own.arrival_s[1:] >= own.end_s[:-1] - 1e-9).all(), "a rank does one thing at a time"
    overlapped = spans.where(spans.stream == Stream.COMMUNICATION)
    assert set(np.unique(overlapped.phase)) == {Phase.SEND, Phase.RECEIVE}, "servers' messages, overlapped with their work"
    assert (overlapped.rank >= 3).all()
    assert run.servers is not None
    assert 0 < run.servers.utilisation.max <= 1


@pytest.mark.parametrize(("precision", "element_bytes"), [("fp32", 4), ("fp16", 2)])
def test_overlapped_pushes_have_the_simulators_sizes(precision: str, element_bytes: int, make_scenario: MakeScenario) -> None:
    scenario = make_scenario({**BASE, **OVERLAPPED}, batch=12, precision=precision)
    expected = buckets(scenario.model.build_layers(), 2, "bytes", element_bytes, 4 * 2**10, None, 3, 1)

    spans = measure(scenario).spans

    assert spans is not None
    pushes = spans.where((spans.rank == 1) & (spans.step == 2) & (spans.stream == Stream.COMMUNICATION))
    assert pushes.size_bytes.tolist() == [bucket.pushed_bytes.sum() for bucket in reversed(expected)]
    assert (pushes.end_s > pushes.start_s).all()
    main = spans.where((spans.rank == 1) & (spans.step == 2) & (spans.stream == Stream.MAIN))
    assert (main.phase == Phase.FORWARD).sum() > 1, "the forward pass waits for what it needs, bit by bit"
    assert (main.arrival_s[1:] >= main.end_s[:-1] - 1e-9).all()


@pytest.mark.full
def test_a_node_sums_and_pushes_each_bucket_during_the_backward_pass(make_scenario: MakeScenario) -> None:
    scenario = in_nodes(make_scenario({**BASE, **OVERLAPPED, "two_level": True}, batch=12))
    spans = measure(scenario).spans
    assert spans is not None

    first = spans.where(spans.rank == 0)
    backward = first.where((first.phase == Phase.BACKWARD) & (first.stream == Stream.MAIN))
    sums = first.where((first.phase == Phase.SYNCHRONISE) & (first.stream == Stream.COMMUNICATION))
    pushed = first.where((first.phase == Phase.SEND) & (first.stream == Stream.COMMUNICATION))
    assert len(sums) == 2 * len(pushed), "each bucket is summed and its reply broadcast"
    ends_s = dict(zip(backward.step.tolist(), backward.end_s.tolist(), strict=True))
    assert any(begin_s < ends_s[step] for step, begin_s in zip(sums.step.tolist(), sums.arrival_s.tolist(), strict=True))
    talking = spans.where((spans.phase == Phase.SEND) & (spans.rank < 3))
    assert set(talking.rank.tolist()) == {0, 2}


def steps_taken(run: Run) -> list[int]:
    """Number of steps of each worker after the two of the warm-up."""
    assert run.spans is not None
    passes = run.spans.where((run.spans.rank < BASE["workers"]) & (run.spans.phase == Phase.FORWARD))
    return [int(passes.step[passes.rank == worker].max()) - 2 for worker in range(3)]


def test_workers_take_units_when_they_are_free(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_servers.slow_worker)

    shared = measure(make_scenario({**ASYNCHRONOUS, **SHARED}, batch=12))
    fixed = measure(make_scenario({**ASYNCHRONOUS, "units": 20}, batch=12))

    assert sum(steps_taken(shared)) == sum(steps_taken(fixed)) == 20
    assert sorted(steps_taken(fixed)) == [6, 7, 7]
    assert min(steps_taken(shared)) < 6, "others take the steps of the slow one"
    assert shared.step_time_s < fixed.step_time_s
    assert sum(fixed.breakdown_s.values()) == pytest.approx(fixed.step_time_s)
    assert fixed.phase_s["synchronise"] > shared.phase_s.get("synchronise", 0.0), "who has no unit left waits for the others"


def test_profiles_of_units_of_work_are_refused(make_scenario: MakeScenario, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="units: profiles are of further steps"):
        measure(make_scenario({**ASYNCHRONOUS, **SHARED}, batch=12), watch=MeasureOptions(folder=tmp_path, profile=True))


@pytest.mark.parametrize(
    ("strategy", "compute"),
    [(SPARSE, "real"), *in_bulk((SPARSE, "paced"), *((one, "real") for one in SPARSE_CASES[1:]))],
)
def test_touched_rows_train_like_whole_tables(
    strategy: dict[str, Any], compute: str, make_scenario: MakeScenario, models: dict[str, Any]
) -> None:
    scenario = make_scenario(strategy, models["gpt"], batch=12, precision="fp64").model_copy(update={"compute": compute})

    run = verified(scenario)

    assert deviation(run) < TOLERANCE
    assert run.spans is not None
    pushed = run.spans.where((run.spans.rank == 1) & (run.spans.phase == Phase.SEND) & (run.spans.size_bytes > 0))
    whole = 8 * sum(sum(layer.tensors) for layer in scenario.model.build_layers())
    assert 0 < pushed.size_bytes.max() < whole


def test_sparse_messages_have_the_predicted_sizes(make_scenario: MakeScenario, models: dict[str, Any]) -> None:
    scenario = make_scenario({**SPARSE, **OVERLAPPED}, models["gpt"], batch=12)
    strategy = scenario.strategy
    assert isinstance(strategy, ParameterServer)
    expected = buckets(scenario.model.build_layers(), 2, "tensor", 4, 4 * 2**10, strategy.sparse, 3, 1)

    spans = measure(scenario).spans

    assert spans is not None
    pushes = spans.where((spans.rank == 1) & (spans.step == 2) & (spans.stream == Stream.COMMUNICATION))
    predicted = [bucket.pushed_bytes.sum() for bucket in reversed(expected)]
    assert pushes.size_bytes[:-1].tolist() == predicted[:-1]
    assert pushes.size_bytes[-1] == pytest.approx(predicted[-1], rel=0.05), "a whole number of rows"


@pytest.mark.parametrize(
    ("strategy", "model", "training", "message"),
    [
        (SPARSE, {}, {"optimizer": "adam"}, "training.optimizer: adam with strategy.sparse .* give sgd"),
        (SPARSE, {"tied": True}, {}, "model with strategy.sparse .* not tied"),
        ({**SPARSE, "shard": "bytes"}, {}, {}, "strategy.shard: bytes .* one server"),
        ({**SPARSE, "two_level": True}, {}, {}, "strategy.two_level .* leave either out"),
    ],
)
def test_sparse_gradients_that_are_only_predicted_are_refused(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario,
    models: dict[str, Any],
) -> None:  # fmt: skip
    with pytest.raises(InputError, match=message):
        measure(make_scenario(strategy, models["gpt"] | model, batch=12, **training))


def test_samples_that_touch_more_rows_than_given_are_refused(make_scenario: MakeScenario, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"to be or not to be, that is the question. " * 10)

    with pytest.raises((InputError, RankError), match=r"strategy.sparse.rows: .* touch \d+ of \d+ rows, .* give at least 0"):
        measure(make_scenario({**SPARSE, "sparse": {"rows": 0.01}}, batch=12, data=str(tmp_path / "text")))


def test_a_worker_takes_a_unit_once_its_gpu_is_ready(monkeypatch: pytest.MonkeyPatch, make_scenario: MakeScenario) -> None:
    """The host is steps ahead of the GPU: it would take units that another worker could begin at once."""
    done: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: done.append("ready"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    requests = SimpleNamespace(take=lambda: done.append("take") or done.count("take") < 3)
    strategy = {"kind": "parameter_server", "workers": 2, "servers": 1, "mode": "asynchronous", **SHARED}
    worker: Any = object.__new__(Worker)
    worker.context = SimpleNamespace(scenario=make_scenario(strategy), rank=0, begin_run=lambda: done.clear())
    worker.strategy, worker.requests = worker.context.scenario.strategy, requests
    worker.values = SimpleNamespace(is_cuda=True)
    assert list(worker.steps())
    assert done[:6] == ["ready", "take"] * 3
