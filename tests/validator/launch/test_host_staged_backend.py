"""Collectives staged through the host give the same results as direct ones."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.proof.gpu_check.scenarios import SAMPLES, families
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.results import is_right
from tests.validator import staged
from tests.validator.conftest import TINY_GPT, MakeScenario

pytestmark = pytest.mark.full

RANKS = 3
# what ranks do that share GPUs, and what else has collectives of its own
CASES = families([4]) | {
    "zero-2": {"strategy": {"kind": "data_parallel", "workers": 2}, "training": {"zero": 2}},
    "two-level": {"strategy": {"kind": "parameter_server", "workers": 2, "servers": 1, "two_level": True}},
}
# One of each way to exchange.
ENOUGH = ("fsdp-4", "ring-4", "asynchronous-4", "pipeline-4", "tensor-4", "experts-4")


def test_staged_collectives_and_messages_equal_those_on_the_host() -> None:
    for rank, left in enumerate(run_on_ranks(staged.exchange_all, RANKS)):
        assert left["summed"] == left["in place"] == [float(sum(range(RANKS)))] * 3
        assert left["broadcast"] == [1.0] * 3
        assert left["gathered"] == [float(other) for other in range(RANKS)]
        assert left["received"] == [float((rank - 1) % RANKS)] * 3
        assert rank != 1 or left["reduced"] == [float(sum(range(RANKS)))] * 3
        assert left["single"] == [float(other) for other in range(RANKS)]
        assert left["scattered"] == [float(RANKS * rank)]
        assert left["exchanged"] == [float(rank + 10 * other) for other in range(RANKS)]
        assert left["backend"] == "staged"


@pytest.mark.parametrize(
    "fields", [pytest.param(CASES[name], id=name, marks=[] if name in ENOUGH else [pytest.mark.nightly]) for name in CASES]
)
def test_staged_training_gives_the_parameters_of_one_process(
    fields: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", staged.train_staged)
    training = {"precision": "fp64", **fields.get("training", {})}

    model = {**TINY_GPT, **fields.get("model", {})}
    run = measure(make_scenario(fields["strategy"], model, batch=SAMPLES, **training), "local", MeasureOptions(verify=True))

    assert run.provenance["backend"] == "staged"
    assert "ranks share GPUs" in run.warnings[0]
    assert is_right(run)
