"""A ring of messages sums like an allreduce, and every message is recorded on both sides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.validator.measure import measure
from tests.validator import faults_data_parallel as faults
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

RING = {"kind": "data_parallel", "algorithm": "ring", "bucket": "4 KiB", "first_bucket": "64 B"}


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ({"workers": 2}, TINY_GPT),
        *in_bulk(({"workers": 4, "overlap": False}, MLP), ({"workers": 4, "shares": [1, 9, 2, 4]}, MLP)),
    ],
)
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario({**RING, **strategy}, model, precision="fp64")) < 1e-9


def test_emulated_workers_run_the_ring(make_scenario: MakeScenario) -> None:
    assert deviation(paced(make_scenario({**RING, "workers": 2}, precision="fp64"))) < 1e-9


def test_verification_detects_a_ring_without_its_last_round(
    make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.leaves_the_last_round_out)

    assert deviation(make_scenario({**RING, "workers": 4}, MLP, precision="fp64")) > 1e-3


@pytest.mark.parametrize("overlap", [True, False])
def test_each_rank_sends_its_part_around_the_ring(overlap: bool, make_scenario: MakeScenario) -> None:
    """2 (n − 1) messages a bucket, of 1 / n of it each, to the next rank: 2 (n − 1) / n of all gradients in all."""
    workers = 4
    scenario = make_scenario({"kind": "data_parallel", "algorithm": "ring", "workers": workers, "overlap": overlap}, GPT)
    whole_bytes = 4.0 * sum(layer.parameters for layer in scenario.model.build_layers())

    spans = measure(scenario).spans

    assert spans is not None
    moved = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.step == 2))
    sums = moved.where(moved.phase == Phase.SYNCHRONISE)
    for rank in range(workers):
        sent = moved.where((moved.phase == Phase.SEND) & (moved.rank == rank))
        received = moved.where((moved.phase == Phase.RECEIVE) & (moved.rank == rank))
        assert len(sent.rank) == len(received.rank) == 2 * (workers - 1) * int((sums.rank == rank).sum())
        assert sent.size_bytes.sum() == pytest.approx(2 * (workers - 1) / workers * whole_bytes, rel=1e-3)
    assert sums.size_bytes.sum() == workers * whole_bytes
    exposed = spans.where((spans.stream == Stream.MAIN) & (spans.step == 2))
    assert Counter(exposed.phase.tolist())[Phase.SEND] == 0, "messages overlap with the passes"
