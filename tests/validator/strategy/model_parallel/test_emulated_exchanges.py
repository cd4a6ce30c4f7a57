"""Emulated exchanges within passes are executed and transfer the data of other ranks."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.errors import InputError, RankError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import MeasureOptions, measure
from tests.validator import faults_paced
from tests.validator.conftest import TINY_GPT, MakeScenario

pytestmark = pytest.mark.full

TENSOR = {"tensor": 2}
SEQUENCE = {**TENSOR, "sequence_parallel": True}
GATHERED = {"context": 2, "context_by": "all_gather"}
MIXED = TINY_GPT | {"experts": {"count": 4, "active": 2, "feedforward": 24}}
STAGED = {"stages": 2, "microbatches": 2}


def paced(make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any] = TINY_GPT, **training: Any) -> Scenario:
    scenario = make_scenario({"kind": "hybrid", **strategy}, model, steps=2, **training)
    return scenario.model_copy(update={"compute": "paced"})


@pytest.mark.parametrize(
    "strategy",
    [
        {**TENSOR, "microbatches": 2},
        {**SEQUENCE, **STAGED},
        {**GATHERED, "microbatches": 2},
        {**TENSOR, "context": 2},
        {**STAGED, **SEQUENCE, "schedule": "zb_h1", "overlap": False, "overlap_sends": True},
        {**STAGED, **TENSOR, "split_sends": True},
        {**SEQUENCE, "overlap_tensor": True, "microbatches": 2},
    ],
)
def test_emulated_exchanges_pass_verification(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    verified = measure(paced(make_scenario, strategy, precision="fp64"), watch=MeasureOptions(verify=True)).verified

    assert verified is not None
    assert verified.deviation <= verified.tolerance


def test_tokens_travel_while_emulated_ranks_compute(make_scenario: MakeScenario) -> None:
    """All-to-alls that overlap with another microbatch's compute are waited for after the emulated compute."""
    shared = {"kind": "hybrid", "workers": 2, "expert": 2, "microbatches": 2}
    overlapped = paced(make_scenario, {**shared, "overlap_experts": True}, MIXED, precision="fp64")

    run = measure(overlapped, watch=MeasureOptions(verify=True))

    assert run.verified is not None
    assert run.verified.deviation <= run.verified.tolerance
    with pytest.raises(InputError, match=r"strategy\.overlap_experts is predicted but not measured.*compute=paced"):
        measure(overlapped.model_copy(update={"compute": "real"}))


@pytest.mark.parametrize(
    ("fault", "strategy", "message"),
    [
        (faults_paced.attach_nothing, TENSOR, r"ranks that share layers made 0 of a step's \d+ exchanges"),
        (faults_paced.attach_nothing, {**STAGED, "context": 2}, r"ranks that share layers made 0 of a step's \d+ exchanges"),
        (faults_paced.forget_the_backward_pass, SEQUENCE, r"ranks that share layers made \d+ of a step's \d+ exchanges"),
        (faults_paced.sum_nothing, TENSOR, r"all_reduce returned \[([12].0), \1\] instead of \[3.0, 3.0\]"),
        (faults_paced.gather_nothing, SEQUENCE, r"all_gather returned \[0.0, 0.0\] instead of \[1.0, 2.0\]"),
        (faults_paced.scatter_nothing, SEQUENCE, r"reduce_scatter returned \[0.0\] instead of \[3.0\]"),
    ],
)
def test_verification_detects_omitted_exchanges(
    fault: Any, strategy: dict[str, Any], message: str, make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    with pytest.raises(RankError, match=message):
        measure(paced(make_scenario, strategy))
