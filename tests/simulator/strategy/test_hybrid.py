"""Hybrid parallelism: placement of ranks, shared resources, and waiting between ranks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.engine import events, is_contended, replay
from scaleproof.simulator.parallelism.mesh import ORDER
from scaleproof.simulator.predict import predict
from scaleproof.simulator.program import Kind, Program
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.programs import compiled, only_algorithms, sent_bytes, separate_workers, step_s

Make = Callable[..., Scenario]
few = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
FREE_LINKS = (
    "cluster.network={bandwidth: 1 EB/s, latency: 0}",
    "cluster.node.link={bandwidth: 1 EB/s, latency: 0}",
)
CHUNKED = ("interleaved_1f1b", "looped_bfs", "zb_v", "dualpipe_v")
flags = st.booleans()


def hybrid(small: Make, numbers: dict[str, Any] | str, *more: str) -> Scenario:
    fields = numbers if isinstance(numbers, str) else json.dumps(numbers)[1:-1]
    return small(f"strategy={{kind: hybrid, {fields}}}", *more)


degrees = st.fixed_dictionaries(
    {
        "workers": st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
        "stages": st.integers(1, 4),
        "tensor": st.sampled_from([1, 1, 2, 4]),
        "context": st.sampled_from([1, 1, 2]),
        "microbatches": st.sampled_from([1, 2, 4]),
        "order": st.one_of(st.just(list(ORDER)), st.permutations(ORDER)),
        "schedule": st.sampled_from(["gpipe", "1f1b", "zb_h1"]),
        "overlap": flags,
        "overlap_gather": flags,
        "overlap_sends": flags,
        "split_sends": flags,
        "bucket": st.sampled_from(["25 MiB", "50 KiB"]),
    }
).map(lambda one: one | {"split_sends": one["split_sends"] and one["tensor"] > 1 and one["stages"] > 1})


def with_zero(numbers: dict[str, Any], zero: int, **more: Any) -> dict[str, Any]:
    """The sharding options that `zero` allows."""
    shared = {"overlap_gather": numbers["overlap_gather"] and zero in (1, 2)}
    return numbers | shared | (more if zero else {})


def folded_and_separate(scenario: Scenario) -> tuple[Program, Program]:
    """Programs of a scenario with classes of equivalent workers, and with a class for each worker."""
    folded = compiled(scenario)
    with pytest.MonkeyPatch.context() as patch:
        separate_workers(patch)
        return folded, compiled(scenario)


# messages between stages share links with the sum of the last stage's gradients
CONTENDED: dict[str, Any] = {
    "workers": 12, "stages": 2, "tensor": 4, "context": 1, "microbatches": 1, "order": list(ORDER), "schedule": "gpipe",
    "overlap": False, "overlap_gather": False, "overlap_sends": False, "split_sends": False, "bucket": "50 KiB",
}  # fmt: skip


@pytest.mark.full
@few
@given(
    degrees, st.integers(0, 3), st.sampled_from([None, 1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([None, 0, 1, 5])
)
@example(CONTENDED, 1, None, 1, 0)
def test_folded_workers_take_the_time_of_separate_ones(
    small: Make, numbers: dict[str, Any], zero: int, sharing: int | None, cards: int, slow: int | None
) -> None:
    """The same holds with one slower rank. Rings load all nodes of a group equally, which equivalent workers must do."""
    ranks = numbers["workers"] * numbers["stages"] * numbers["tensor"] * numbers["context"]
    assume(sharing is None or numbers["workers"] % sharing == 0)
    stragglers = [{"ranks": [slow], "slowdown": 1.5}] if slow is not None and slow < ranks else []
    scenario = hybrid(
        small, with_zero(numbers, zero, shard_over=sharing), f"training={{zero: {zero}}}", f"cluster.node.cards={cards}",
        f"unevenness={json.dumps({'stragglers': stragglers})}", "cluster.nodes=128", "batch={per_worker: 4}",
    )  # fmt: skip
    # strategy.algorithm is for all-reduces alone; ZeRO has other collectives
    with only_algorithms("ring"):
        folded, alone = folded_and_separate(scenario)
    assert len(alone.ranks.names) == numbers["workers"] * numbers["stages"]
    assert folded.ranks.multiplicity.sum() == alone.ranks.multiplicity.sum() == scenario.strategy.ranks
    assert step_s(folded) == pytest.approx(step_s(alone), rel=1e-9)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_folded_workers_of_unequal_loads_take_about_the_time_of_separate_ones(small: Make, zero: int) -> None:
    """Halving and doubling among 12 nodes loads them unequally: four send all their data to a partner before the other rounds.
    Where nodes are folded, all have the load of the busiest, also that of the slower rank, which determines the step."""
    scenario = hybrid(
        small, with_zero(CONTENDED, zero), f"training={{zero: {zero}}}", "cluster.nodes=128", "batch={per_worker: 4}",
        "unevenness={stragglers: [{ranks: [0], slowdown: 1.5}]}",
    )  # fmt: skip
    folded, alone = (step_s(program) for program in folded_and_separate(scenario))
    assert alone * (1 + 1e-9) < folded < 1.01 * alone


@few
@given(degrees, st.integers(0, 3), st.sampled_from([None, *CHUNKED]), st.integers(0, 2), flags)
def test_replay_equals_events_without_contention(
    small: Make, numbers: dict[str, Any], zero: int, chunked: str | None, prefetch: int, reshard: bool
) -> None:
    """With contention, the last of the steps is slower."""
    gathers = {"prefetch": prefetch, "reshard": reshard} if zero == 3 else {}
    more = gathers | ({"schedule": chunked, "chunks": 2} if chunked else {})
    try:
        scenario = hybrid(
            small,
            with_zero(numbers, zero) | more,
            f"training={{zero: {zero}}}",
            "cluster.nodes=128",
            "batch={per_worker: 4}",
            "model.layers=8",
        )
    except ScenarioError:
        assume(False)
    program = compiled(scenario)
    alone, shared = replay.simulate(program, 3), events.simulate(program, 3)
    if is_contended(alone):
        assert shared.step_ends_s()[-1] >= alone.step_ends_s()[-1] * (1 - 1e-9)
    else:
        assert shared.end_s == pytest.approx(alone.end_s, rel=1e-9)
        assert shared.start_s == pytest.approx(alone.start_s, rel=1e-9)


@pytest.mark.parametrize(
    ("innermost", "sums", "sends"), [("workers", False, True), ("stages", True, False), ("tensor", True, True)]
)
def test_the_innermost_axis_stays_inside_nodes(small: Make, innermost: str, sums: bool, sends: bool) -> None:
    order = [innermost, *(axis for axis in ORDER if axis != innermost)]
    program = compiled(
        hybrid(small, {"workers": 4, "stages": 4, "tensor": 4, "microbatches": 4, "order": order}, "cluster.nodes=16")
    )
    assert bool(sent_bytes(program, Kind.COLLECTIVE)) == sums
    assert bool(sent_bytes(program, Kind.TRANSFER)) == sends


# each worker's first two stages are on one node and its last two on the next; sums and sends leave the second by one card
TWO_BY_TWO = {
    "workers": 4, "stages": 4, "microbatches": 4, "order": ["stages", "tensor", "context", "workers"], "overlap": True,
    "bucket": "1 GiB",
}  # fmt: skip


def test_sends_share_a_card_with_gradient_synchronisation_of_another_stage(small: Make) -> None:
    """The last stage sums its gradients while the previous one still sends; both share the network card."""
    scenario = hybrid(
        small, TWO_BY_TWO, "cluster.node.devices=2", "cluster.network={bandwidth: 1 Gbit/s, latency: 0}", "batch=64"
    )
    program = compiled(scenario)
    alone, shared = replay.simulate(program, 3), events.simulate(program, 3)
    assert is_contended(alone)
    took = [timeline.end_s[1] - timeline.start_s[1] for timeline in (alone, shared)]
    sums = (program.kind == Kind.COLLECTIVE) & (program.stage == 3)
    assert (took[1][sums] > 1.05 * took[0][sums]).all()
    assert np.diff(shared.step_ends_s())[0] > np.diff(alone.step_ends_s())[0]
    run = predict(scenario)
    assert run.step_time_s == pytest.approx(float(np.diff(events.simulate(program, 2).step_ends_s())[0]))


def test_one_slow_rank_slows_all_that_share_its_layers(small: Make) -> None:
    """A straggler among a worker's four tensor-parallel ranks doubles the time of the worker, and the other one waits."""
    numbers = {"workers": 2, "tensor": 4}
    even = predict(hybrid(small, numbers, *FREE_LINKS))
    for rank in range(8):
        slow = predict(hybrid(small, numbers, *FREE_LINKS, f"unevenness={{stragglers: [{{ranks: [{rank}], slowdown: 2}}]}}"))
        assert slow.step_time_s == pytest.approx(2 * even.step_time_s)
        assert slow.breakdown_s["compute"] == pytest.approx(1.5 * even.breakdown_s["compute"])
        assert slow.breakdown_s["waiting_for_ranks"] == pytest.approx(0.5 * even.breakdown_s["compute"])


def test_with_free_links_step_time_is_inverse_to_the_number_of_ranks(small: Make) -> None:
    """A step with the same samples takes 1 / (t · c · w) of the time; a pipeline takes longer by its bubble."""
    alone = step_s(compiled(hybrid(small, "workers: 1", "batch=64")))
    for workers, tensor, context in itertools.product((1, 2, 4), (1, 2, 4), (1, 2)):
        numbers = {"workers": workers, "tensor": tensor, "context": context, "overlap": True}
        program = compiled(hybrid(small, numbers, *FREE_LINKS, "cluster.device.memory_bandwidth=1 EB/s", "batch=64"))
        assert step_s(program) == pytest.approx(alone / (workers * tensor * context), rel=0.02)
