"""Rounds of each collective algorithm perform its operation and send the bytes of the literature."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster.collectives.algorithms import ALGORITHMS
from scaleproof.simulator.cluster.collectives.groups import NETWORK_SWITCH, NODE_SWITCH, OPS, Group, Op, Round, bus_factor
from scaleproof.simulator.common.errors import InputError

# those for any number of ranks
PAIRS: list[tuple[str, Op]] = [
    (name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.ops if name not in ("in_turns", "torus_axes")
]
# Algorithms that need the same number of ranks on each node.
EVEN_ALONE = {"hierarchical", "in_network", "collnet_direct", "nvls", "symmetric_multimem"}


def groups(algorithm: str) -> Iterator[Group]:
    """One to 17 ranks on nodes of one, three, four and all; where the algorithm allows it, with fewer on the last."""
    for ranks, devices in itertools.product(range(1, 18), (1, 3, 4, 17)):
        group = Group.of(ranks, devices)
        if algorithm in EVEN_ALONE and not group.is_even:
            continue
        yield group


def messages(rounds: list[Round]) -> Iterator[tuple[int, int, float]]:
    """(source, target, share) of all rounds, with their repeats."""
    for step in rounds:
        for _ in range(step.times):
            yield from zip(step.source.tolist(), step.target.tolist(), step.share.tolist(), strict=True)


def switch_of(end: int, other: int, group: Group) -> int | tuple[str, int]:
    """A vertex for each member and for each switch that takes part."""
    if end >= 0:
        return end
    return ("node", int(group.node_of[other])) if end == NODE_SWITCH else ("network", 0)


def known_after(rounds: list[Round], group: Group) -> list[set[int]]:
    """Ranks whose data each member can have at the end, if it forwards all; switches forward in the same round."""
    known: dict[object, set[int]] = defaultdict(set) | {member: {member} for member in range(group.size)}
    for step in rounds:
        ends = list(zip(step.source.tolist(), step.target.tolist(), strict=True))
        for _ in range(step.times):
            heard = [(switch_of(b, a, group), known[a].copy()) for a, b in ends if a >= 0]
            for target, what in heard:
                known[target] = known[target] | what
            for a, b in ends:
                if a < 0:
                    known[b] = known[b] | known[switch_of(a, b, group)]
    return [known[member] for member in range(group.size)]


@pytest.mark.parametrize(("name", "op"), [pair for pair in PAIRS if pair[0] not in ("pairwise", "nvls_tree")])
def test_every_algorithm_delivers_all_required_contributions(name: str, op: Op) -> None:
    for group in groups(name):
        everyone = set(range(group.size))
        known = known_after(ALGORITHMS[name].rounds(op, group), group)
        if op in ("all_reduce", "reduce_scatter", "all_gather"):
            assert known == [everyone] * group.size, group
        elif op in ("reduce", "gather"):
            assert known[0] == everyone, group
        else:
            assert all(0 in what for what in known), group


def test_nvls_tree_delivers_all_contributions_to_all_ranks() -> None:
    for group in groups("nvls_tree"):
        assert known_after(ALGORITHMS["nvls_tree"].rounds("all_reduce", group), group) == [set(range(group.size))] * group.size


def test_an_alltoall_is_one_message_for_each_pair() -> None:
    for group in groups("pairwise"):
        sent = list(messages(ALGORITHMS["pairwise"].rounds("alltoall", group)))
        assert sorted((a, b) for a, b, _ in sent) == sorted(itertools.permutations(range(group.size), 2))
        assert {share for *_, share in sent} <= {1 / group.size}


def test_sendrecv_passes_all_data_to_the_next_rank() -> None:
    for group in groups("pairwise"):
        sent = list(messages(ALGORITHMS["pairwise"].rounds("sendrecv", group)))
        assert sent == [(i, (i + 1) % group.size, 1.0) for i in range(group.size)]


@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_messages_connect_different_members_and_occur_once_per_round(name: str, op: Op) -> None:
    for group in groups(name):
        for step in ALGORITHMS[name].rounds(op, group) if group.size > 1 else []:
            ends = list(zip(step.source.tolist(), step.target.tolist(), strict=True))
            assert step.times >= 1
            assert all(a != b for a, b in ends)
            assert set(itertools.chain(*ends)) <= {NODE_SWITCH, NETWORK_SWITCH, *range(group.size)}
            assert len(set(ends)) == len(ends) or any(min(pair) < 0 for pair in ends)
            assert ((step.share > 0) & (step.share <= 1 + 1 / group.per_node)).all()


def sent_and_got(name: str, op: Op, group: Group) -> tuple[list[float], list[float]]:
    """Shares of the size that each member sends and receives."""
    out, into = [0.0] * group.size, [0.0] * group.size
    for source, target, share in messages(ALGORITHMS[name].rounds(op, group)):
        if source >= 0:
            out[source] += share
        if target >= 0:
            into[target] += share
    return out, into


# Of each member, both ways, for n ranks: Patarasuk & Yuan 2009, Thakur et al. 2005, and by the definition of the operation.
EQUAL_SENDS = {
    ("ring", "all_reduce"): lambda n: 2 * (n - 1) / n,
    ("ring", "reduce_scatter"): lambda n: (n - 1) / n,
    ("ring", "all_gather"): lambda n: (n - 1) / n,
    ("whole_ring", "reduce_scatter"): lambda n: 2 * (n - 1) / n,
    ("returning_ring", "reduce_scatter"): lambda n: 1.0,
    ("pairwise", "alltoall"): lambda n: (n - 1) / n,
    ("pairwise", "sendrecv"): lambda n: 1.0,
}


@pytest.mark.parametrize(("name", "op"), EQUAL_SENDS)
def test_bytes_sent_and_received_equal_theory(name: str, op: Op) -> None:
    for group in groups(name):
        expected = [EQUAL_SENDS[name, op](group.size)] * group.size
        assert sent_and_got(name, op, group) == (pytest.approx(expected), pytest.approx(expected))


@pytest.mark.parametrize("op", OPS)
def test_bus_bandwidth_equals_bytes_over_the_busiest_link(op: Op) -> None:
    """nccl-tests' PERFORMANCE.md: what the best algorithm without a switch that adds must move through one link."""
    for ranks in range(2, 18):
        without_switch = [name for name, of in PAIRS if of == op and name not in ("nvls", "nvls_tree", "symmetric_multimem")]
        least = min(max(*map(max, sent_and_got(name, op, Group.of(ranks, ranks)))) for name in without_switch)
        assert bus_factor(op, ranks) == pytest.approx(least)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_halving_doubling_moves_the_bytes_of_a_ring_in_2_log2_n_steps(ranks: int) -> None:
    group = Group.of(ranks, 4)
    expected = [2 * (1 - 1 / ranks)] * ranks
    assert sent_and_got("halving_doubling", "all_reduce", group) == (pytest.approx(expected), pytest.approx(expected))
    assert len(ALGORITHMS["halving_doubling"].rounds("all_reduce", group)) == 2 * math.log2(ranks)


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 9, 17])
def test_members_beyond_a_power_of_two_add_two_steps_with_all_data(ranks: int) -> None:
    group, core = Group.of(ranks, 4), 2 ** (ranks.bit_length() - 1)
    inner, beyond = 2 * (1 - 1 / core), ranks - core
    expected = [inner + 1] * beyond + [inner] * (core - beyond) + [1.0] * beyond
    assert sent_and_got("halving_doubling", "all_reduce", group) == (pytest.approx(expected), pytest.approx(expected))
    assert len(ALGORITHMS["halving_doubling"].rounds("all_reduce", group)) == 2 * math.log2(core) + 2


@pytest.mark.parametrize("ranks", range(2, 18))
def test_broadcasts_reach_each_rank_once_and_reduces_reverse_them(ranks: int) -> None:
    group = Group.of(ranks, 4)
    for name in ("ring", "binomial"):
        there = ALGORITHMS[name].rounds("broadcast", group)
        back = [step.back() for step in reversed(ALGORITHMS[name].rounds("reduce", group))]
        assert [list(messages([step])) for step in there] == [list(messages([step])) for step in back]
        out, into = sent_and_got(name, "broadcast", group)
        assert into == [0.0] + [1.0] * (ranks - 1)
        assert max(out) == (1 if name == "ring" else math.ceil(math.log2(ranks)))
        assert len(there) == (ranks - 1 if name == "ring" else math.ceil(math.log2(ranks)))


@pytest.mark.parametrize("ranks", range(2, 18))
def test_gather_scatter_and_gloo_reduce_use_the_first_member_as_root(ranks: int) -> None:
    group, part = Group.of(ranks, 4), 1 / ranks
    assert sent_and_got("linear", "gather", group) == (
        [0.0] + [part] * (ranks - 1),
        pytest.approx([1 - part] + [0] * (ranks - 1)),
    )
    assert sent_and_got("linear", "scatter", group) == sent_and_got("linear", "gather", group)[::-1]
    out, into = sent_and_got("ring_gather", "reduce", group)
    assert out == pytest.approx([1 - part] + [1.0] * (ranks - 1))
    assert into == pytest.approx([2 - 2 * part] + [1 - part] * (ranks - 1))


@pytest.mark.parametrize(("nodes", "devices"), [(2, 1), (2, 8), (4, 3)])
def test_hierarchical_reduction_sends_a_part_over_the_network(nodes: int, devices: int) -> None:
    group = Group.of(nodes * devices, devices)
    inside, part = 2 * (devices - 1) / devices, 1 / devices
    for name, between in (
        ("hierarchical", 2 * (nodes - 1) / nodes * part),
        ("in_network", part),
        ("collnet_direct", part),
    ):
        expected = [inside + between] * group.size
        assert sent_and_got(name, "all_reduce", group) == (pytest.approx(expected), pytest.approx(expected))


@pytest.mark.parametrize("name", ["in_network", "collnet_direct", "collnet_chain", "nvls"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("nodes", "devices"), [(2, 8), (4, 3), (16, 1)])
def test_a_node_sends_each_byte_to_reducing_switches_once_and_gets_it_once(name: str, op: Op, nodes: int, devices: int) -> None:
    """But for an all-gather, which sends the node's part, and a reduce-scatter, which returns it."""
    if op not in ALGORITHMS[name].ops:
        return
    group = Group.of(nodes * devices, devices)
    up, down = Counter[int](), Counter[int]()
    for source, target, share in messages(ALGORITHMS[name].rounds(op, group)):
        if target == NETWORK_SWITCH:
            up[source // devices] += share  # type: ignore[assignment]
        if source == NETWORK_SWITCH:
            down[target // devices] += share  # type: ignore[assignment]
    expected = {"all_reduce": (1, 1), "all_gather": (1 / nodes, 1), "reduce_scatter": (1, 1 / nodes)}[op]
    for counted, each in zip((up, down), expected, strict=True):
        assert [counted[node] for node in range(nodes)] == pytest.approx([each] * nodes)


@pytest.mark.parametrize("ranks", range(2, 18))
def test_symmetric_kernels_send_each_part_once_to_whom_it_concerns(ranks: int) -> None:
    """With LL an all-reduce is an all-gather of all buffers, since a part with flags is sent only once."""
    group = Group.of(ranks, ranks)
    others = (ranks - 1) / ranks
    for name, op, moved, rounds in (
        ("symmetric_ll", "all_reduce", ranks - 1, 1),
        ("symmetric_ll", "all_gather", others, 1),
        ("symmetric_direct", "all_reduce", 2 * others, 2),
        ("symmetric_direct", "reduce_scatter", others, 1),
    ):
        expected = pytest.approx([moved] * ranks)
        assert sent_and_got(name, op, group) == (expected, expected)  # type: ignore[arg-type]
        assert len(ALGORITHMS[name].rounds(op, group)) == rounds  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", range(2, 18))
def test_in_switch_reduction_halves_the_bytes_that_devices_send(ranks: int) -> None:
    """Each sends its buffer once and its part of the sum once (NVLS), where a ring sends almost two buffers."""
    group, part = Group.of(ranks, 17), 1 / ranks
    for op, out, into in (("all_reduce", 1 + part, 1 + part), ("reduce_scatter", 1, part), ("all_gather", part, 1)):
        assert sent_and_got("nvls", op, group) == (pytest.approx([out] * ranks), pytest.approx([into] * ranks))


@pytest.mark.parametrize("name", sorted(EVEN_ALONE))
def test_algorithms_that_need_equal_ranks_per_node_reject_others(name: str) -> None:
    for ranks in (5, [0, 1, 2, 4]):
        with pytest.raises(InputError, match="the same number of ranks on each node; use ring"):
            ALGORITHMS[name].rounds("all_reduce", Group.of(ranks, 4))


def upward(rounds: list[Round]) -> list[tuple[int, int]]:
    """The first half of the messages, from the leaves to the roots."""
    return [(a, b) for a, b, _ in messages(rounds[: len(rounds) // 2])]


@pytest.mark.parametrize("ranks", range(2, 40))
def test_binary_trees_have_minimal_depth(ranks: int) -> None:
    rounds = ALGORITHMS["binary_tree"].rounds("all_reduce", Group.of(ranks, 1))
    parents = dict(upward(rounds))
    assert set(parents) == set(range(1, ranks))
    assert max(Counter(parents.values()).values()) <= 2
    assert len(rounds) <= 2 * math.ceil(math.log2(ranks))


@pytest.mark.parametrize("nodes", range(2, 40))
def test_two_trees_span_all_nodes_and_share_the_work(nodes: int) -> None:
    """Sanders et al. 2009: what is an inner vertex of one tree is a leaf of the other (but for a root, of odd numbers)."""
    group = Group.of(nodes, 1)
    rounds = ALGORITHMS["tree"].rounds("all_reduce", group)
    assert set(np.concatenate([step.share for step in rounds])) == {0.5}
    assert len(rounds) <= 2 * math.ceil(math.log2(nodes)) + 2
    children = Counter(b for _, b in upward(rounds))
    above = Counter(a for a, _ in upward(rounds))
    assert sum(above.values()) == 2 * (nodes - 1)
    assert max(children.values()) <= 3 if nodes % 2 else max(children.values()) <= 2
    out, into = sent_and_got("tree", "all_reduce", group)
    assert out == pytest.approx(into)
    assert max(out) <= 2


ranks_lists = st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True)


@given(ranks_lists, st.integers(1, 9))
@settings(max_examples=100)
def test_a_group_has_nodes_and_devices_of_its_members(ranks: list[int], devices: int) -> None:
    group = Group.of(ranks, devices)
    assert list(group.ranks) == sorted(ranks)
    places = [divmod(rank, devices) for rank in sorted(ranks)]
    nodes = sorted({node for node, _ in places})
    assert group.node_numbers[group.node_of].tolist() == [node for node, _ in places]
    assert group.device_of.tolist() == [device for _, device in places]
    counts = Counter(node for node, _ in places)
    assert group.members.tolist() == [counts[node] for node in nodes]
    assert (group.nodes, group.per_node, group.size) == (len(nodes), max(counts.values()), len(ranks))
    assert group.is_even == (len(set(counts.values())) == 1)
    assert [places[first] for first in group.first] == [min(place for place in places if place[0] == node) for node in nodes]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([0, 1, 1], "rank 1 stands more than once in the group; name each rank once"),
        ([], "a group needs ranks"),
        ([-1, 0], "numbered from zero on"),
        (0, "a collective over 0 ranks; give at least one"),
        (-3, "give at least one"),
    ],
)
def test_invalid_ranks_of_a_group_are_rejected(ranks: int | list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Group.of(ranks, 4)
