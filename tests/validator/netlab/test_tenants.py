"""Tenants of a scenario occupy their shares of a lab's links."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.cluster.perturbations import Perturbations
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.netlab.tenants import shares_of_links, with_neighbour
from tests.validator.netlabs import lab_cluster, needs_netlab


def tenants(*rules: dict[str, Any]) -> Perturbations:
    return Perturbations.model_validate({"tenants": rules})


def test_a_later_tenant_takes_its_share_of_what_is_left() -> None:
    both = tenants({"share": 0.5}, {"nodes": [1, 7], "share": 0.2})
    assert shares_of_links(both, 3) == pytest.approx({0: 0.5, 1: 0.6, 2: 0.5})
    assert shares_of_links(Perturbations(), 3) == {}


def test_traffic_comes_from_a_host_whose_link_carries_all_of_it() -> None:
    cluster = lab_cluster(4, "40 Mbit/s", exceptions=[{"at": [1], "bandwidth": "20 Mbit/s"}])
    assert with_neighbour(cluster, Perturbations()) is cluster
    one, all_ = (
        with_neighbour(cluster, each).network for each in (tenants({"nodes": [0], "share": 0.5}), tenants({"share": 0.8}))
    )
    assert one is not None
    assert all_ is not None
    assert one.exceptions[-1].at == all_.exceptions[-1].at == (4,)
    assert one.exceptions[-1].bandwidth_Bps == pytest.approx(5e6)
    assert all_.exceptions[-1].bandwidth_Bps == pytest.approx(1.25 * 0.8 * (3 * 5e6 + 2.5e6))
    assert with_neighbour(cluster, tenants({"share": 0.8})).nodes == 5


@needs_netlab
@pytest.mark.alone
@pytest.mark.parametrize("rule", [{"share": 0.5}, {"nodes": [1], "share": 0.5}])
def test_messages_take_as_long_as_predicted_next_to_traffic(rule: dict[str, Any]) -> None:
    fields = {
        "name": "traffic",
        "model": {"kind": "mlp", "layers": 3, "inputs": 256, "hidden": 512, "outputs": 256},
        "cluster": lab_cluster(2, "40 Mbit/s"),
        "strategy": {"kind": "data_parallel", "workers": 2, "overlap": False},
        "batch": {"total": 4},
        "steps": 3,
        "compute": "paced",
        "unevenness": {"tenants": [rule]},
    }
    one = Scenario.model_validate(fields)
    even_s, predicted_s = (
        predict(each, interval=False).step_time_s for each in (one.model_copy(update={"unevenness": Perturbations()}), one)
    )
    assert predicted_s > 1.8 * even_s
    assert measure(one, "netlab").step_time_s == pytest.approx(predicted_s, rel=0.25)
