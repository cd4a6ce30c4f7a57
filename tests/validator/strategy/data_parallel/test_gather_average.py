"""A main worker that collects gradients and sends parameters trains like one process."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.predict import predict
from scaleproof.validator.measure import MeasureOptions, measure
from tests.validator import faults_data_parallel as faults
from tests.validator.conftest import GPT, MLP, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, paced

WORKERS = {"kind": "gather_average", "workers": 2}


@pytest.mark.parametrize(("workers", "model", "optimizer"), [(2, TINY_GPT, "adam"), (4, MLP, "momentum"), (1, MLP, "sgd")])
def test_parameters_equal_those_of_one_process(
    workers: int, model: dict[str, Any], optimizer: str, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario({**WORKERS, "workers": workers}, model, precision="fp64", optimizer=optimizer)

    assert deviation(scenario) < 1e-9


def test_parameters_in_16_bits_equal_those_in_64_bits_up_to_rounding(make_scenario: MakeScenario) -> None:
    scenario = make_scenario({**WORKERS, "workers": 3}, batch=12, precision="fp16", optimizer="momentum")

    run = measure(scenario, watch=MeasureOptions(verify=True))

    assert run.verified is not None
    assert run.verified.is_right


def test_emulated_workers_are_averaged(make_scenario: MakeScenario) -> None:
    assert deviation(paced(make_scenario(WORKERS, precision="fp64"))) < 1e-9


def test_verification_detects_an_omitted_worker(make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults.leaves_the_last_worker_out)

    assert deviation(make_scenario(WORKERS, MLP, precision="fp64")) > 1e-3


@pytest.mark.parametrize(("precision", "element_bytes"), [("fp32", 4), ("fp16", 2)])
def test_gradients_are_sent_to_the_main_worker_and_parameters_returned(
    precision: str, element_bytes: int, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario({**WORKERS, "workers": 4}, GPT, precision=precision)
    whole_bytes = float(element_bytes) * sum(layer.parameters for layer in scenario.model.build_layers())
    passes = [Phase.FORWARD, Phase.BACKWARD]

    run = measure(scenario)

    spans = run.spans
    assert spans is not None
    for rank in range(4):
        own = spans.where((spans.rank == rank) & (spans.step == 2) & (spans.stream == Stream.MAIN))
        rest = [Phase.RECEIVE] * 3 + [Phase.OPTIMIZER] + [Phase.SEND] * 3 if rank == 0 else [Phase.SEND, Phase.SYNCHRONISE]
        assert own.phase.tolist() == passes + rest
        assert set(own.size_bytes[own.size_bytes > 0].tolist()) == {whole_bytes}
        assert (own.arrival_s[1:] >= own.end_s[:-1] - 1e-9).all(), "a rank does one thing at a time"
        assert (own.start_s >= own.arrival_s).all()
    expected = predict(scenario).phase_s
    assert {name for name, seconds in run.phase_s.items() if seconds} == {name for name, s in expected.items() if s}
