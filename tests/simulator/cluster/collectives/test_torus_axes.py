"""Collectives along all axes of a torus, as on TPUs: closed forms of time, and messages one by one."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.collective.messages import message_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import collective_cost
from scaleproof.simulator.cluster.collectives.groups import Group
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_device
from tests.simulator.clusters import plain
from tests.validator.verdicts import in_bulk

BPS, ALPHA_S = 600e9, 1e-6


def torus(*dimensions: int) -> Cluster:
    """One slice of a TPU v5p pod: 600 GB/s of each chip, an equal part over each link."""
    devices = 1
    for size in dimensions:
        devices *= size
    link = {"bandwidth": "600 GB/s", "latency": "1 us", "topology": {"kind": "torus", "dimensions": list(dimensions)}}
    return Cluster.model_validate({"node": {"devices": devices, "link": link}, "device": load_device("tpu-v5p")})


@pytest.mark.parametrize(
    ("ranks", "axes", "size"),
    [
        (range(4), 1, 4),
        (range(0, 64, 4), 2, 16),
        (range(16), 2, 16),
        (range(0, 64, 16), 1, 4),
        (range(64), 3, 64),
    ],
)
def test_every_axis_of_a_group_adds_its_two_links(ranks: range, axes: int, size: int) -> None:
    """An all-gather of V over n chips on k of three axes takes V (1 − 1/n) / (k/3 of a chip's bandwidth), and 3 steps for each
    axis of four."""
    cluster, group = torus(4, 4, 4), Group.of(ranks, 64)
    for op, passes in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        found = collective_cost(op, 1e9, group, cluster)  # type: ignore[arg-type]
        assert found.algorithm == "torus_axes"
        assert found.latency_s == pytest.approx(passes * axes * 3 * ALPHA_S)
        assert found.seconds - found.latency_s == pytest.approx(passes * 1e9 * (1 - 1 / size) / (axes / 3 * BPS))


def test_part_of_an_axis_has_no_ring_and_half_the_bandwidth() -> None:
    """Four of eight chips in a row: what goes from the last to the first goes back over the links of the others."""
    found = collective_cost("all_gather", 1e9, Group.of(4, 32), torus(4, 8), "torus_axes")
    assert found.seconds - found.latency_s == pytest.approx(1e9 * 3 / 4 / (BPS / 4))


@pytest.mark.parametrize("op", ["all_reduce", *in_bulk("all_gather", "reduce_scatter")])
def test_messages_one_by_one_take_the_time_of_the_closed_form(op: str) -> None:
    cluster, group = torus(4, 4), Group.of(16, 16)
    cost = collective_cost(op, 2**30, group, cluster)  # type: ignore[arg-type]
    assert cost.algorithm == "torus_axes"
    found = message_time(op, 2**30, group, cluster, "torus_axes")  # type: ignore[arg-type]
    assert found == pytest.approx(cost.seconds, rel=0.1)


def test_groups_that_fill_no_box_and_other_links_are_refused() -> None:
    with pytest.raises(InputError, match="torus_axes needs ranks that fill a box of one torus; use ring"):
        collective_cost("all_gather", 1e9, Group.of([0, 1, 6, 11], 16), torus(4, 4), "torus_axes")
    with pytest.raises(InputError, match="torus_axes needs ranks that fill a box of one torus; use ring"):
        collective_cost("all_gather", 1e9, Group.of(4, 4), plain(1, 4), "torus_axes")
    assert collective_cost("all_gather", 1e9, Group.of([0, 1, 6, 11], 16), torus(4, 4)).algorithm != "torus_axes"
