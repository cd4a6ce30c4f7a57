"""Verification distinguishes wrong training from training that amplifies rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.verify.reference import rule_of
from scaleproof.validator.verify.reference.single_process import rounded
from scaleproof.validator.verify.verify import verify_here
from tests.validator.conftest import MLP, MakeScenario

ALONE = {"kind": "data_parallel", "workers": 1}


def verdict(scenario: Scenario, folder: Path, factor: float = 1.0) -> Verification:
    """Of parameters that one process trained from rounded ones. factor: on the trained parameters."""
    with rounded():
        trained = rule_of(scenario).train(scenario, [])
    torch.save({name: factor * value for name, value in trained.items()}, folder / "rank0.pt")
    return Verification(**verify_here(scenario, folder, []))


@pytest.mark.full
def test_training_that_amplifies_rounding_is_undecided(make_scenario: MakeScenario, tmp_path: Path) -> None:
    # Adam's steps are as large as the learning rate, however small gradients are
    found = verdict(make_scenario(ALONE, steps=40, precision="fp64", learning_rate=0.3, optimizer="adam"), tmp_path)

    assert found.deviation > found.tolerance
    assert not found.is_decided


def test_wrong_parameters_are_wrong(make_scenario: MakeScenario, tmp_path: Path) -> None:
    scenario = make_scenario(ALONE, MLP, precision="fp64")

    assert verdict(scenario, tmp_path).is_right
    wrong = verdict(scenario, tmp_path, factor=1.01)
    assert wrong.is_decided
    assert not wrong.is_right


def test_parameters_of_gpus_are_read_on_the_processor(
    make_scenario: MakeScenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that still run may hold the GPUs for themselves."""
    load, places = torch.load, list[str]()

    def recorded(path: Path, map_location: str, weights_only: bool) -> dict[str, torch.Tensor]:
        places.append(map_location)
        return load(path, map_location=map_location, weights_only=weights_only)  # type: ignore[no-any-return]

    monkeypatch.setattr(torch, "load", recorded)
    assert verdict(make_scenario(ALONE, MLP, precision="fp64"), tmp_path).is_right
    assert set(places) == {"cpu"}
