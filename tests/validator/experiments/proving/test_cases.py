"""Random draws of scenarios for the proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.experiments.proving import cases as cases_module
from scaleproof.validator.experiments.proving.cases import Draw, ProvingCase
from scaleproof.validator.experiments.proving.families import FAMILIES_A_GROUP, LEAST_EXPOSED, Compute
from scaleproof.validator.launch.job import needed_nodes
from scaleproof.validator.netlab.compatibility import check


def _at(rate_Bps: float, compute: Compute) -> Cluster:
    base = load_cluster(catalog.find_part("cluster", "netlab-200mbit", Path()))
    assert base.network is not None
    return base.model_copy(update={"network": base.network.model_copy(update={"bandwidth_Bps": rate_Bps})})


# One with which not many draws are needed.
SEED = 2


@pytest.fixture(scope="module")
def cases() -> list[ProvingCase]:
    return list(Draw(SEED, {"paced": 1, "real": 1}, 6, 0.6, _at).cases())


def test_cases_of_a_group_differ_only_in_strategy(cases: list[ProvingCase]) -> None:
    groups: dict[str, list[ProvingCase]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    assert list(groups) == ["paced-1", "real-1"]
    for group in groups.values():
        assert len(group) == FAMILIES_A_GROUP
        assert len({case.family for case in group}) == FAMILIES_A_GROUP
        plain = [case.scenario.model_dump(exclude={"name", "strategy"}) for case in group]
        assert all(one == plain[0] for one in plain)


def test_emulated_cases_communicate_enough_and_fit_a_lab(cases: list[ProvingCase]) -> None:
    for case in cases:
        check(case.scenario)
        assert needed_nodes(case.scenario) <= 6
        exposed = case.predicted.breakdown_s["exposed_communication"] / case.predicted.step_time_s
        assert exposed >= LEAST_EXPOSED or case.scenario.compute == "real"
        assert case.predicted.prediction_interval_s is not None


def test_a_seed_gives_reproducible_cases(cases: list[ProvingCase]) -> None:
    again = next(Draw(SEED, {"paced": 1}, 6, 0.6, _at).cases())
    assert again.scenario == cases[0].scenario


def test_an_error_is_raised_if_no_case_is_suitable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases_module, "_ATTEMPTS", 3)
    with pytest.raises(InputError, match="no drawn strategies communicate enough to be scored; give another --seed"):
        list(Draw(1, {"paced": 1}, 2, 0.0, _at).cases())
