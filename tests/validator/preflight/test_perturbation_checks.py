"""Perturbations that cannot be imposed on real ranks are refused, with the reason and what to change."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.cluster.network.topology_kinds import LeafSpine
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.preflight.checks import check, check_trainable
from tests.validator.train.test_perturbed import PIPELINE, RING, SERVERS, scenario

SLOW = {"stragglers": [{"ranks": [1], "slowdown": 2}]}
NOISE = {"noise": [{"period": "100 ms", "lasts": "10 ms"}]}
THROTTLED = {"throttled": [{"slowdown": 2}]}
HALF = {"tenants": [{"share": 0.5}]}


@pytest.mark.parametrize("strategy", [RING | {"overlap": False}, PIPELINE, SERVERS])
def test_ranks_that_compute_can_be_slower_and_late(strategy: dict[str, Any]) -> None:
    check_trainable(scenario(SLOW | {"late": [{"ranks": [0], "delay": "1 s"}]}, strategy, compute="real"))


@pytest.mark.parametrize(
    ("unevenness", "more", "message"),
    [
        ({"message_jitter": 0.1}, {}, r"unevenness.message_jitter .* real messages vary by themselves; leave it out"),
        (NOISE, {"compute": "real"}, r"unevenness.noise of real compute .*; set compute=paced"),
        (THROTTLED, {"compute": "real"}, r"unevenness.throttled of real compute .*; set compute=paced"),
        ({"compute_jitter": 0.1}, {"compute": "real"}, r"unevenness.compute_jitter of real compute .*; set compute=paced"),
        (
            {"tail": {"share": 0.1, "slowdown": 2}},
            {"compute": "real"},
            r"unevenness.tail of real compute .*; set compute=paced",
        ),
        (
            {"stragglers": [{"ranks": [1], "slowdown": 0.5}]},
            {"compute": "real"},
            r"unevenness.stragglers.0.slowdown: 0.5 of real compute .*; give at least 1, or set compute=paced",
        ),
        (
            SLOW,
            {"compute": "real"},
            r"stragglers of real compute with strategy.overlap .* sent too early; .* set compute=paced",
        ),
        ({"tenants": [{"flows": 2}]}, {}, r"unevenness.tenants.0.flows .* constant rate.*; give a share"),
        ({"tenants": [{"share": 0.5, "after": "1 s"}]}, {}, r"unevenness.tenants.0: traffic at times .* before the first step"),
    ],
)
def test_what_cannot_be_imposed_is_refused(unevenness: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_trainable(scenario(unevenness, **more))


@pytest.mark.parametrize(
    ("strategy", "field"),
    [
        ({**SERVERS, "overlap": True, "bucket": "1 kB"}, "strategy.overlap"),
        ({"kind": "hybrid", "workers": 1, "stages": 1, "tensor": 2}, "strategy.tensor"),
        ({"kind": "hybrid", "workers": 1, "stages": 1, "context": 2, "overlap": False}, "strategy.context"),
    ],
)
def test_stragglers_that_communicate_within_passes_are_emulated(strategy: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=rf"stragglers of real compute with {field} "):
        check_trainable(scenario(SLOW, strategy, compute="real"))
    check_trainable(scenario(SLOW, strategy))


def test_stragglers_that_shard_gradients_are_emulated() -> None:
    one = scenario(SLOW, RING | {"overlap": False}, training={"zero": 2}, compute="real")
    with pytest.raises(InputError, match=r"stragglers of real compute with training.zero=2 "):
        check_trainable(one)


def test_background_traffic_needs_links_of_our_own() -> None:
    one = scenario(HALF)
    check(one, "netlab", None)
    with pytest.raises(InputError, match=r"paced: unevenness.tenants: .* not ours .*; give --on netlab"):
        check(one, "local", None)


def test_background_traffic_over_several_switches_is_refused() -> None:
    one = scenario(HALF)
    assert one.cluster.network is not None
    network = one.cluster.network.model_copy(update={"topology": LeafSpine(per_leaf=2, oversubscription=2)})
    cluster = one.cluster.model_copy(update={"network": network})
    with pytest.raises(InputError, match=r"unevenness.tenants.0: with several switches .*; give a switch"):
        check_trainable(scenario(HALF, cluster=cluster))
