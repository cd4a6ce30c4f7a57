"""The calibrated lab at any rate of its links."""

from __future__ import annotations

import pytest

from scaleproof.proof.proving.lab import CalibratedLab
from scaleproof.simulator.cluster.network.links import EndpointLink
from scaleproof.simulator.scenario.read import load_cluster


def test_exceptions_of_probed_links_are_not_applied_to_other_rates() -> None:
    nominal = load_cluster("netlab-200mbit")
    assert nominal.network is not None
    odd = {
        "bandwidth_Bps": 24e6,
        "duplex": "half",
        "exceptions": (EndpointLink.model_validate({"at": [1], "bandwidth": "1 MB/s"}),),
    }
    measured = nominal.model_copy(update={"network": nominal.network.model_copy(update=odd)})
    network = CalibratedLab(nominal, measured).at(12.5e6, "real").network
    assert network is not None
    assert network.bandwidth_Bps == pytest.approx(12e6)  # the same share of the requested rate
    assert (network.duplex, network.exceptions) == ("full", ())
