"""What the algorithms send, against the messages of their definitions, and what they cost on plain links."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scaleproof
from simulator import collective_time
from simulator.cluster import Cluster
from simulator.cluster.traffic import (
    OPS,
    Group,
    Op,
    bus_factor,
    halving_doubling,
    hierarchical,
    nvls,
    pairwise,
    ring,
    tree,
)
from simulator.collective import describe_times, parse_op, sweep_sizes
from simulator.errors import FieldError, InputError

DEVICE = {"name": "any", "peak": {"fp32": "1 TFLOP/s"}, "memory": "1 GiB", "memory_bandwidth": "100 GB/s"}


def plain(nodes: int = 1, devices: int = 1, cards: int = 1, **changes: object) -> Cluster:
    """Alike nodes of no GPU that NCCL knows: links of 100 GB/s and 1 us inside, 10 GB/s and 10 us between."""
    fields = {
        "nodes": nodes,
        "node": {"devices": devices, "cards": cards, "link": {"bandwidth": "100 GB/s", "latency": "1 us"}},
        "network": {"bandwidth": "10 GB/s", "latency": "10 us"},
        "device": DEVICE,
    }
    return Cluster.model_validate(fields | changes)


def sent(group: Group, messages: list[tuple[int, int, float]]) -> tuple[float, float]:
    """Most bytes out of one rank's port or a node's cards, from (source, target, bytes)."""
    ports, nodes = [0.0] * group.ranks, [0.0] * group.nodes
    for source, target, size in messages:
        if source // group.per_node == target // group.per_node:
            ports[source] += size
        else:
            ports[source] += size
            nodes[source // group.per_node] += size
    return max(ports), max(nodes)


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 2), (8, 8), (8, 4), (12, 4), (5, 5), (6, 1)])
def test_a_ring_sends_what_its_messages_add_up_to(ranks: int, per_node: int) -> None:
    group, steps = Group.of(ranks, per_node), 2 * (ranks - 1)
    messages = [(rank, (rank + 1) % ranks, 1e6 / ranks) for _ in range(steps) for rank in range(ranks)]
    port, node = sent(group, messages)
    traffic = ring("all_reduce", group, 1e6)
    assert traffic.inside_steps + traffic.between_steps == steps
    assert traffic.port_bytes == pytest.approx(port if per_node > 1 else 0)
    assert traffic.node_bytes == pytest.approx(node)


@pytest.mark.parametrize(("ranks", "per_node"), [(2, 2), (8, 8), (8, 4), (16, 2), (8, 1)])
def test_halving_and_doubling_send_what_their_messages_add_up_to(ranks: int, per_node: int) -> None:
    group, messages, size, distance, steps = Group.of(ranks, per_node), [], 5e5, 1, 0
    while distance < ranks:
        messages += [(rank, rank ^ distance, size) for rank in range(ranks) for _ in ("halve", "double")]
        size, distance, steps = size / 2, distance * 2, steps + 2
    port, node = sent(group, messages)
    traffic = halving_doubling("all_reduce", group, 1e6)
    assert traffic.inside_steps + traffic.between_steps == steps
    assert traffic.port_bytes == pytest.approx(port if per_node > 1 else 0)
    assert traffic.node_bytes == pytest.approx(node)


@pytest.mark.parametrize(("ranks", "per_node"), [(8, 8), (16, 8), (4, 1)])
def test_an_alltoall_sends_what_its_messages_add_up_to(ranks: int, per_node: int) -> None:
    group = Group.of(ranks, per_node)
    messages = [(a, b, 1e6 / ranks) for a in range(ranks) for b in range(ranks) if a != b]
    inside = [m for m in messages if m[0] // per_node == m[1] // per_node]
    traffic = pairwise("alltoall", group, 1e6)
    assert traffic.port_bytes == pytest.approx(sent(group, inside)[0])
    assert traffic.node_bytes == pytest.approx(sent(group, messages)[1])
    assert traffic.remote == ranks - group.per_node


def test_a_tree_is_as_deep_as_the_logarithm_and_a_node_carries_both_its_parts() -> None:
    two, many = tree("all_reduce", Group(16, 8), 1e6), tree("all_reduce", Group(512, 8), 1e6)
    assert (two.between_steps, many.between_steps) == (2, 12)
    assert two.node_bytes == 1e6  # half the buffer up and half down
    assert many.node_bytes == 2e6  # an inner node receives from two children and from its parent; in the other tree, once


def test_reducing_inside_first_sends_least_between_nodes_and_a_switch_that_reduces_sends_half() -> None:
    group = Group(32, 8)
    assert hierarchical("all_reduce", group, 1e6).between_steps < ring("all_reduce", group, 1e6).inside_steps
    assert hierarchical("all_reduce", group, 1e6).node_bytes == pytest.approx(1.5e6)
    assert nvls("all_reduce", Group(8, 8), 8e6).port_bytes == pytest.approx(9e6)


@pytest.mark.parametrize("op", OPS)
def test_one_rank_takes_no_time(op: Op) -> None:
    assert collective_time(op, 2**30, 1, plain()) == 0


def test_plain_links_cost_their_steps_and_bytes() -> None:
    seconds = collective_time("allreduce", 1e9, 4, plain(4), "ring")
    assert seconds == pytest.approx(6 * 10e-6 + 1.5e9 / 10e9)
    inside = collective_time("all-gather", 1e9, 4, plain(1, 4), "ring")
    assert inside == pytest.approx(3 * 1e-6 + 0.75e9 / 100e9)
    assert collective_time("sendrecv", 1e6, 2, plain(2)) == pytest.approx(10e-6 + 1e6 / 10e9)


def test_a_device_alone_in_using_a_node_has_one_of_its_cards() -> None:
    both, one = (collective_time(op, 1e9, 4, plain(2, 2, cards=2)) for op in ("all_gather", "sendrecv"))
    assert both == pytest.approx(0.75e9 / 10e9, rel=1e-2)
    assert one == pytest.approx(1e9 / 5e9, rel=1e-2)


def test_the_choice_is_the_fastest() -> None:
    cluster = plain(16)
    for size in (8, 2**20, 2**30):
        named = [collective_time("allreduce", size, 16, cluster, name) for name in ("ring", "halving_doubling")]
        assert collective_time("allreduce", size, 16, cluster) <= min(named)


def test_what_was_measured_counts() -> None:
    measured = {"allreduce": [{"ranks": 2, "latency": "1 ms", "bandwidth": "1 GB/s"}]}
    cluster = plain(1, 2, collectives=measured)
    assert collective_time("allreduce", 1e6, 2, cluster) == pytest.approx(2e-3)
    assert collective_time("allreduce", 1e6, 2, cluster, "ring") < 1e-4


@given(st.sampled_from(OPS), st.integers(0, 2**63), st.integers(2, 64), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_any_size_takes_a_positive_time_that_grows(op: Op, size: int, ranks: int, devices: int) -> None:
    cluster = plain(64, devices)
    seconds = collective_time(op, size, ranks, cluster)
    assert 0 < seconds < float("inf")
    assert collective_time(op, size // 2, ranks, cluster) <= seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allsum", 8, 2), "no collective is called 'allsum'; use one of all_reduce"),
        (("allreduce", -1, 2), "zero or more"),
        (("allreduce", float("nan"), 2), "zero or more"),
        (("allreduce", 8, 0), "at least one"),
        (("allreduce", 8, 5), "5 ranks for 4 devices"),
        (("allreduce", 8, 2, "star"), "no algorithm 'star' for all_reduce; use one of ring"),
        (("alltoall", 8, 2, "ring"), "no algorithm 'ring' for alltoall; use one of pairwise"),
        (("allreduce", 8, 2, "nvls"), "needs NVSwitch"),
    ],
)
def test_bad_input_says_what_to_do(arguments: tuple[str, float, int], message: str) -> None:
    op, size, ranks, *algorithm = arguments
    with pytest.raises(InputError, match=message):
        collective_time(op, size, ranks, plain(4), *algorithm)


def test_a_missing_link_is_named() -> None:
    with pytest.raises(FieldError, match=r"cluster\.network: several nodes"):
        collective_time("allreduce", 8, 2, plain(2, network=None))
    with pytest.raises(FieldError, match=r"cluster\.node\.link: several devices"):
        collective_time("allreduce", 8, 2, plain(1, node={"devices": 2}))


def test_spellings_and_sweeps() -> None:
    assert {parse_op(text) for text in ("allreduce", "AllReduce", "all-reduce", "all_reduce")} == {"all_reduce"}
    assert sweep_sizes(64) == [8, 16, 32, 64]
    assert sweep_sizes(100, 4) == [8, 32]
    assert sweep_sizes(1) == [8]


def test_the_table_is_aligned_and_its_columns_agree() -> None:
    head, names, units, *rows = describe_times("all_reduce", [8, 2**30], 4, plain(4)).splitlines()
    assert "all_reduce on 4 ranks" in head
    assert {len(line) for line in (names, units, *rows)} == {len(names)}
    size, count, time_us, alg, bus = map(float, rows[1].split())
    assert (size, count) == (2**30, 2**28)
    assert alg == pytest.approx(size / time_us / 1e3, rel=1e-2)
    assert bus == pytest.approx(alg * bus_factor("all_reduce", 4), rel=1e-2)


def test_the_command_prints_one_size_or_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["collective", "allreduce", "--ranks", "16", "--cluster", "dgx-h100"]
    assert scaleproof.main([*command, "--size", "64MiB"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert scaleproof.main([*command, "--size", "1 KiB", "--sweep", "--factor", "4"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:]] == ["8", "32", "128", "512"]
    assert scaleproof.main([*command, "--size", "64"]) == 2
    assert "has no unit" in capsys.readouterr().err


def test_the_package_stays_light() -> None:
    code = "import sys, simulator; sys.exit(any(name in sys.modules for name in ('pydantic', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
