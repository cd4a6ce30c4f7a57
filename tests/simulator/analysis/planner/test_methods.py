"""Methods of fine-tuning in plans: those that fit where training all parameters does not, and comparisons."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions.plans import describe
from scaleproof.reports.pages.page import build
from scaleproof.simulator.analysis.planner.methods import own_method, trained_by
from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.analysis.planner.sizes import plan_sizes
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.scenario.load import load

# a card for which all parameters are too many, and a framework that does not offload parameters
LARGE = ("cluster=rtx-4090", "batch=8", "model.sequence=2048", "framework=hf-trainer")


def test_where_nothing_fits_methods_that_fit_are_named_with_what_they_train() -> None:
    with pytest.raises(InputError, match="nothing fits: the smallest of") as failed:
        plan(load("llama-3.1-8b", LARGE), 1)
    message = str(failed.value)
    assert "with optimizer on hosts" in message
    named = re.findall(r"--set (training.adapters=\w+) fits with a probability of (\d+) %: ([\d.]+) s a step", message)
    assert [setting for setting, _, _ in named] == ["training.adapters=lora", "training.adapters=qlora"]
    assert "but it trains 41.9 M of 8.07 B parameters" in message
    for setting, _, seconds in named:
        best = plan(load("llama-3.1-8b", (*LARGE, setting)), 1, top=1).best[0]
        assert memory(best.scenario).fits
        assert best.run.step_time_s == pytest.approx(float(seconds), rel=0.01)


def test_methods_are_compared_and_said_to_train_different_things(tmp_path: Path) -> None:
    scenario = load("llama-3.1-8b", LARGE)
    (found,) = plan_sizes(scenario, [1], {"top": 1, "adapters": ["none", "lora", "qlora"]}, tmp_path)
    assert [(one.method, one.best is None) for one in found.methods] == [("none", True), ("lora", False), ("qlora", False)]
    full, lora, qlora = found.methods
    assert full.problem.startswith("nothing fits")
    assert lora.trained_parameters == qlora.trained_parameters < full.trained_parameters == full.parameters
    assert lora.best is not None
    assert qlora.best is not None
    assert qlora.best.memory_bytes < lora.best.memory_bytes
    assert not found.problem, "the first method that has a plan"
    assert found.best[0] == lora.best
    for text in (" ".join(described(describe([found])).split()), build(tmp_path).path.read_text(encoding="utf-8")):
        assert "a faster one does not reach the same result" in text
        assert "all parameters" in text


def test_a_scenarios_own_adapters_are_kept() -> None:
    scenario = load("llama-3.1-8b", (*LARGE, "training.adapters={kind: lora, rank: 64, targets: [q_proj, v_proj]}"))
    assert own_method(scenario) == "lora"
    assert trained_by(scenario, "lora") is scenario
    quantised = trained_by(scenario, "qlora").training
    assert (quantised.adapters, quantised.base_precision) == (scenario.training.adapters, "nf4")
    assert trained_by(scenario, "none").training.adapters is None
    with pytest.raises(InputError, match="give some of none,lora,dora,qlora"):
        trained_by(scenario, "prefix")
