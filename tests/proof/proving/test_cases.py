"""Random draws of scenarios for the proof."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from scaleproof.proof.proving import cases as cases_module
from scaleproof.proof.proving.cases import Draw, ProvingCase
from scaleproof.proof.proving.families import FAMILIES_A_GROUP, LEAST_EXPOSED, check_measurable, described
from scaleproof.proof.proving.models import Compute, drawn_model
from scaleproof.proof.proving.networks import drawn_network
from scaleproof.proof.proving.prove import limited_cluster
from scaleproof.proof.proving.strategies import families_on
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.network.links import EndpointLink
from scaleproof.simulator.cluster.network.topology import Switch
from scaleproof.simulator.cluster.perturbations import EVEN
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.job import needed_nodes


def _at(rate_Bps: float, compute: Compute) -> Cluster:
    base = load_cluster("netlab-200mbit")
    assert base.network is not None
    return base.model_copy(update={"network": base.network.model_copy(update={"bandwidth_Bps": rate_Bps})})


MIXTURE = {"kind": "gpt", "layers": 8, "hidden": 64, "heads": 4, "vocabulary": 128, "sequence": 128}
MIXTURE |= {"experts": {"count": 4, "active": 2, "feedforward": 64}}
# One with which not many draws are needed.
SEED = 2


@pytest.fixture(scope="module")
def cases() -> list[ProvingCase]:
    return list(Draw(SEED, {"paced": 1, "real": 1}, 6, 1.5, _at).cases())


def test_cases_of_a_group_differ_only_in_what_their_family_changes(cases: list[ProvingCase]) -> None:
    groups: dict[str, list[ProvingCase]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    assert list(groups) == ["paced-1", "real-1"]
    for group in groups.values():
        assert len(group) == FAMILIES_A_GROUP
        assert len({case.family for case in group}) == FAMILIES_A_GROUP
        own = {"name": True, "strategy": True, "steps": True, "training": {"zero", "recompute"}}
        plain = [case.scenario.model_dump(exclude=own) for case in group]
        assert all(one == plain[0] for one in plain)


def test_emulated_cases_communicate_enough_and_fit_a_lab(cases: list[ProvingCase]) -> None:
    for case in cases:
        check_measurable(case.scenario)
        assert needed_nodes(case.scenario) <= 6
        exposed = case.predicted.breakdown_s["exposed_communication"] / case.predicted.step_time_s
        assert exposed >= LEAST_EXPOSED or case.scenario.compute == "real"
        assert case.predicted.prediction_interval_s is not None


def test_an_error_is_raised_if_no_case_is_suitable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases_module, "_ATTEMPTS", 3)
    with pytest.raises(InputError, match="no drawn strategies communicate enough to be scored; give another --seed"):
        list(Draw(1, {"paced": 1}, 2, 0.0, _at).cases())


@pytest.mark.parametrize("hosts", [2, 4])
def test_every_family_can_be_measured_and_verified(hosts: int) -> None:
    """Each with emulated compute."""
    random, refused = Random(1), dict[Compute, set[str]](paced=set(), real=set())
    common = {"batch": {"total": 4 * hosts}, "steps": 2, "training": {"optimizer": "sgd"}}
    common["model"] = MIXTURE
    for compute, names in refused.items():
        cluster = _at(25e6, compute)
        for family in families_on(random, hosts, 4 * hosts):
            fields = described(common | {"compute": compute, "cluster": cluster}, family)
            try:
                check_measurable(Scenario.model_validate(fields))
            except InputError:
                names.add(family.name)
    assert not refused["paced"]


@pytest.mark.parametrize("compute", ["paced", "real"])
def test_all_models_and_networks_are_drawn_and_can_be_measured(compute: Compute) -> None:
    random, hosts, models, networks = Random(1), 4, set[str](), set[str]()
    for _ in range(60):
        name, model = drawn_model(random, hosts, Counter(models))
        network = drawn_network(random, hosts, compute, Counter(networks))
        models.add(name)
        if network.name in networks:
            continue
        networks.add(network.name)
        strategy = {"kind": "data_parallel", "workers": hosts}
        fields = {"model": model, "cluster": network.shaped(_at(12.5e6, compute)), "strategy": strategy, "compute": compute}
        scenario = Scenario.model_validate(fields | {"batch": {"total": hosts}, "unevenness": network.unevenness})
        check_measurable(scenario)
        assert network.name in ("star", "tree") or timed(scenario).step_time_s > timed(evened(scenario)).step_time_s
    emulated = {"traffic", "straggler"} if compute == "paced" else set()
    assert networks == {"star", "tree", "unequal links"} | emulated
    assert len(models) == 7


def evened(scenario: Scenario) -> Scenario:
    """The scenario on a star of equal links, with nobody else's traffic and no stragglers."""
    network = scenario.cluster.network
    assert network is not None
    equal = network.model_copy(update={"topology": Switch(), "exceptions": ()})
    cluster = scenario.cluster.model_copy(update={"network": equal})
    return scenario.model_copy(update={"cluster": cluster, "unevenness": EVEN})


def test_links_of_a_lab_are_limited_to_their_rates_not_to_their_payload(cases: list[ProvingCase]) -> None:
    case = cases[0]
    network = case.scenario.cluster.network
    assert network is not None
    slower = EndpointLink.model_validate({"at": [1], "bandwidth": f"{0.5 * network.bandwidth_Bps} B/s"})
    cluster = case.scenario.cluster.model_copy(update={"network": network.model_copy(update={"exceptions": (slower,)})})
    scenario = case.scenario.model_copy(update={"cluster": cluster})
    limited = limited_cluster(replace(case, scenario=scenario, rate_Bps=1.02 * network.bandwidth_Bps)).network
    assert limited is not None
    rates = limited.bandwidth_Bps, limited.exceptions[0].bandwidth_Bps
    assert rates == pytest.approx((1.02 * network.bandwidth_Bps, 0.51 * network.bandwidth_Bps))
