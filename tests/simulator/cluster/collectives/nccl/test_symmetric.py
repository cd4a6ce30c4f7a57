"""Registered and symmetric buffers: NVLS without copies, and one-sided kernels on one NVLink domain."""

from __future__ import annotations

import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.cluster.collectives.nccl.tuner import candidates
from scaleproof.simulator.cluster.collectives.settings import Nccl
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.read import load_cluster
from tests.simulator.cluster.collectives.nccl.cases import BLACKWELL, HOPPER, INSIDE_Bps, choice, constants, links, seconds

SHARED: list[Op] = ["all_reduce", "all_gather", "reduce_scatter"]
KERNELS = ["symmetric_ll", "symmetric_direct", "symmetric_multimem"]
LARGE = 2**34


def with_buffers(facts: Nccl, buffers: str, **fields: object) -> Nccl:
    return facts.model_copy(update={"buffers": buffers, **fields})


REGISTERED, SYMMETRIC = (with_buffers(HOPPER, buffers) for buffers in ("registered", "symmetric"))


def cluster(name: str, **nccl: object) -> Cluster:
    known = load_cluster(name)
    return known.rebuilt(collectives={"nccl": nccl}) if nccl else known


@pytest.mark.parametrize("facts", [HOPPER, BLACKWELL])
@pytest.mark.parametrize("ranks", [8, 64])
def test_nvls_on_registered_buffers_is_faster_at_every_size(facts: Nccl, ranks: int) -> None:
    """It copies nothing into buffers of NCCL and back, and sends as much over the links."""
    name = "nvls" if ranks == 8 else "nvls_tree"
    for size in (8, 2**20, 2**28):
        registered_s = seconds("all_reduce", links(ranks), size, with_buffers(facts, "registered"), name)
        assert registered_s < seconds("all_reduce", links(ranks), size, facts, name)


def test_nvls_on_registered_buffers_does_not_exceed_nvlink() -> None:
    """A rank sends its buffer and its part of the sum."""
    assert (1 + 1 / 8) * LARGE / seconds("all_reduce", links(8), LARGE, REGISTERED, "nvls") < INSIDE_Bps


def test_symmetric_kernels_need_windows_one_nvlink_domain_and_a_version_that_has_them() -> None:
    for op in SHARED:
        assert candidates(op, links(8), SYMMETRIC) == KERNELS
        assert candidates(op, links(16), SYMMETRIC) == candidates(op, links(16), REGISTERED)
        assert candidates(op, links(8), with_buffers(HOPPER, "symmetric", version="2.26")) == candidates(op, links(8), HOPPER)
        assert candidates(op, links(8), with_buffers(Nccl(generation="ampere"), "symmetric")) == KERNELS[:2]
        pcie = Nccl(generation="ampere", interconnect="pcie")
        assert candidates(op, links(8), with_buffers(pcie, "symmetric")) == candidates(op, links(8), pcie)
    assert candidates("broadcast", links(8), SYMMETRIC) == ["ring"]
    assert candidates("alltoall", links(8), SYMMETRIC) == ["pairwise"]


@pytest.mark.parametrize("op", SHARED)
def test_a_small_symmetric_collective_has_the_launch_and_one_step(op: Op) -> None:
    """Every rank stores its data with flags in the memory of all others at once, however many there are."""
    known = constants()
    for ranks in (2, 4, 8):
        assert choice(op, links(ranks), 8, SYMMETRIC) == "symmetric_ll"
        assert seconds(op, links(ranks), 0, SYMMETRIC) == pytest.approx(known.launch_s + known.inside_step_s[0])
        assert seconds(op, links(ranks), 0, SYMMETRIC) <= seconds(op, links(ranks), 0)


def test_larger_symmetric_collectives_wait_for_all_ranks_before_and_after() -> None:
    known = constants()
    latency_s = seconds("all_gather", links(8), 0, SYMMETRIC, "symmetric_direct")
    assert latency_s == pytest.approx(known.launch_s + known.inside_step_s[0] + 2 * known.barrier_s)


def test_symmetric_kernels_move_what_theory_says() -> None:
    """Of n parts a rank loads or stores n − 1, twice in an all-reduce; a switch that adds takes 1 + 1/n buffers from it."""
    known, group = constants(), links(8)
    rate_Bps = known.symmetric_share * 20.6 / 25 * INSIDE_Bps
    for op, bus in (("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("all_reduce", 2 * 7 / 8)):
        found = seconds(op, group, LARGE, SYMMETRIC, "symmetric_direct")  # type: ignore[arg-type]
        assert found == pytest.approx(bus * LARGE / rate_Bps, rel=1e-3)
    by_switch, direct = (
        seconds("all_reduce", group, LARGE, SYMMETRIC, name) for name in ("symmetric_multimem", "symmetric_direct")
    )
    assert by_switch < direct
    assert by_switch == pytest.approx(seconds("all_reduce", group, LARGE, REGISTERED, "nvls"), rel=0.01)


def test_flags_make_ll_kernels_slow_and_nccl_leaves_them_for_larger_sizes() -> None:
    for op in SHARED:
        names = [choice(op, links(8), 2**power, SYMMETRIC) for power in range(3, 34)]
        assert names == sorted(names, key=lambda name: name != "symmetric_ll")
        assert names[-1] != "symmetric_ll"
        ll_s, best_s = (seconds(op, links(8), 2**30, SYMMETRIC, name) for name in ("symmetric_ll", None))
        assert ll_s > 2 * best_s


def test_a_cluster_file_needs_no_generation_to_name_buffers() -> None:
    known = cluster("dgx-h100", buffers="symmetric")
    assert known.nccl_facts == SYMMETRIC
    plain_s, symmetric_s = (collective_time("allgather", 2**13, 8, where) for where in (cluster("dgx-h100"), known))
    assert symmetric_s < plain_s
    assert collective_time("allgather", 2**13, 8, known, "symmetric_direct") > symmetric_s
    with pytest.raises(InputError, match=r"symmetric_ll does not work on 8 ranks here.*collectives\.nccl\.buffers: symmetric"):
        collective_time("allgather", 2**13, 8, cluster("dgx-h100"), "symmetric_ll")
