"""A chain of layers on several ranks trains like one process, one stage at a time."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.run.run import Phase, Stream
from scaleproof.validator.measure import measure
from tests.validator import faults_data_parallel as faults
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, paced

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


def test_models_with_branches_are_rejected_for_measuring(make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match="resnet can be predicted but not measured by model_parallel"):
        measure(make_scenario(STAGES, {"kind": "resnet", "depth": 50, "image": 32, "classes": 10}))
