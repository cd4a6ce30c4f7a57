"""A chain of layers on several ranks trains like one process, one stage at a time."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.model import Mlp
from scaleproof.simulator.predict import predict
from scaleproof.validator.measure import measure
from tests.validator import faults_data_parallel as faults
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

STAGES = {"kind": "model_parallel", "stages": 2}


@pytest.mark.parametrize(("stages", "model", "optimizer"), [(2, TINY_GPT, "adam"), (4, MLP, "momentum"), (1, MLP, "sgd")])
def test_parameters_equal_those_of_one_process(
    stages: int, model: dict[str, Any], optimizer: str, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario({**STAGES, "stages": stages}, model, precision="fp64", optimizer=optimizer)

    assert deviation(scenario) < 1e-9


def test_emulated_stages_train(make_scenario: MakeScenario) -> None:
    assert deviation(paced(make_scenario(STAGES, precision="fp64"))) < 1e-9


def test_verification_detects_a_stage_with_old_weights(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.keeps_old_weights)

    assert deviation(make_scenario(STAGES, MLP, precision="fp64", optimizer="momentum")) > 1e-3


def test_stages_compute_one_at_a_time(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(STAGES, GPT)
    activations_bytes = 4.0 * 16 * GPT["sequence"] * GPT["hidden"]

    spans = measure(scenario).spans

    assert spans is not None
    main = spans.where((spans.stream == Stream.MAIN) & (spans.step == 2))
    passes = main.where((main.phase == Phase.FORWARD) | (main.phase == Phase.BACKWARD))
    order = sorted(zip(passes.start_s.tolist(), passes.rank.tolist(), passes.phase.tolist(), strict=True))
    assert [rank for _, rank, _ in order] == [0, 1, 1, 0]
    messages = main.where(main.size_bytes > 0)
    assert set(messages.size_bytes.tolist()) == {activations_bytes}


SIAMESE = {"kind": "siamese", "tower": MLP}


@pytest.mark.parametrize("compute", ["real", "paced"])
@pytest.mark.parametrize("optimizer", ["sgd", *in_bulk("adam")])
def test_branches_on_two_ranks_train_like_one_process(compute: str, optimizer: str, make_scenario: MakeScenario) -> None:
    scenario = make_scenario(STAGES, SIAMESE, precision="fp64", optimizer=optimizer)

    assert deviation(scenario.model_copy(update={"compute": compute})) < 1e-9


def test_branches_compute_at_the_same_time_and_average_shared_weights(make_scenario: MakeScenario) -> None:
    scenario = paced(make_scenario(STAGES, SIAMESE, precision="fp64"))
    predicted, measured = predict(scenario), measure(scenario)

    for run in (predicted, measured):
        assert run.spans is not None
        own = run.spans.where(run.spans.step == run.spans.step.max())
        sums = own.where((own.phase == Phase.SYNCHRONISE) & (own.stream == Stream.COMMUNICATION))
        assert sums.size_bytes.tolist() == [8.0 * Mlp(**MLP).parameters()] * 2
        messages = own.where((own.phase == Phase.SEND) & (own.stream == Stream.COMMUNICATION))
        assert set(messages.size_bytes.tolist()) == {8.0 * 16 * MLP["outputs"]}
        assert set(messages.rank.tolist()) == {0, 1}
