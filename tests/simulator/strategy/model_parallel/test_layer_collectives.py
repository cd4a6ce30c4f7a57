"""Collectives among ranks that share layers, and their exposed time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

import pytest

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Exchange
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import compiled, exchange_s, step_s, work_s

Make = Callable[..., Scenario]
BLOCKS = 6
WIDE = f"model={{kind: gpt, layers: {BLOCKS}, hidden: 1024, heads: 8, vocabulary: 4096, sequence: 64}}"
LONG = f"model={{kind: gpt, layers: {BLOCKS}, hidden: 64, heads: 4, vocabulary: 256, sequence: 4096}}"
PLAIN_LINKS = ("cluster.node.link={bandwidth: 10 GB/s, latency: 0}", "cluster.node.devices=8")
FREE_LINKS = ("cluster.node.link={bandwidth: 1 EB/s, latency: 0}", "cluster.node.devices=8")


# Without overlap of input gradients, so that every collective of a pass is exposed.
EXPOSED = "framework={base: ideal, overlap_input_gradients: false}"


def shared(small: Make, numbers: str, *more: str) -> Scenario:
    return small(EXPOSED, f"strategy={{kind: hybrid, {numbers}}}", "batch={per_worker: 4}", *more)


def blocks(scenario: Scenario) -> list[Layer]:
    return [layer for layer in job_of(scenario).layers if not layer.pinned_to_end]


def seconds(program_of: Scenario) -> tuple[float, float]:
    """Exposed seconds of collectives in the forward and the backward pass."""
    program = compiled(program_of)
    return float(exchange_s(program, Phase.FORWARD)[0]), float(exchange_s(program, Phase.BACKWARD)[0])


def computing(program_of: Scenario) -> tuple[float, float]:
    program = compiled(program_of)
    return float(work_s(program, Phase.FORWARD)[0]), float(work_s(program, Phase.BACKWARD)[0])


@pytest.mark.parametrize("tensor", [2, 4, 8])
@pytest.mark.parametrize("sequence_parallel", ["false", "true"])
def test_tensor_parallel_ranks_compute_an_equal_part_each(small: Make, tensor: int, sequence_parallel: str) -> None:
    """FLOPs are divided; with free links the step time is too."""
    numbers = f"tensor: {tensor}, sequence_parallel: {sequence_parallel}"
    alone, together = shared(small, "tensor: 1", WIDE), shared(small, numbers, WIDE, *FREE_LINKS)
    assert computing(together) == pytest.approx([part / tensor for part in computing(alone)])
    assert step_s(compiled(together)) == pytest.approx(step_s(compiled(alone)) / tensor, rel=0.01)


@pytest.mark.parametrize("tensor", [2, 4])
def test_every_block_has_two_allreduces_in_each_pass(small: Make, tensor: int) -> None:
    """One sum each for attention and MLP: arXiv 1909.08053, section 3; one for the embedding, three for the loss."""
    scenario = shared(small, f"tensor: {tensor}", WIDE, *PLAIN_LINKS)
    for block in blocks(scenario):
        assert Counter((one.op, one.backward) for one in block.exchanges) == {("all_reduce", False): 2, ("all_reduce", True): 2}
    size_bytes = 4 * 64 * 1024 * 4
    sum_s = collective_time("all_reduce", size_bytes, tensor, scenario.cluster)
    loss_s = 3 * collective_time("all_reduce", 4 * 64 * 4, tensor, scenario.cluster)
    assert seconds(scenario) == pytest.approx(((2 * BLOCKS + 1) * sum_s + loss_s, (2 * BLOCKS + 1) * sum_s))


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_sequence_parallelism_moves_the_same_bytes_in_two_collectives(small: Make, tensor: int) -> None:
    """An all-gather and a reduce-scatter replace an all-reduce; repeated gathers are hidden: arXiv 2205.05198, 4.2.2."""
    whole = shared(small, f"tensor: {tensor}", WIDE, *PLAIN_LINKS)
    halves = shared(small, f"tensor: {tensor}, sequence_parallel: true", WIDE, *PLAIN_LINKS)
    for block in blocks(halves):
        shown = Counter((one.op, one.backward) for one in block.exchanges if not one.hidden)
        assert shown == {(op, backward): 2 for op in ("all_gather", "reduce_scatter") for backward in (False, True)}
        assert Counter((one.op, one.backward) for one in block.exchanges if one.hidden) == {("all_gather", True): 2}
    assert seconds(halves) == pytest.approx(seconds(whole), rel=1e-3)


@pytest.mark.parametrize("numbers", ["tensor: 4", "tensor: 2, sequence_parallel: true", "context: 4, context_by: all_gather"])
def test_full_recomputation_repeats_collectives(small: Make, numbers: str) -> None:
    """Full recomputation repeats the collectives of a block's forward pass in its backward pass."""
    kept, again = (
        seconds(shared(small, numbers, WIDE, *PLAIN_LINKS, f"training={{recompute: {kind}}}")) for kind in ("none", "full")
    )
    (block, *_) = blocks(shared(small, numbers, WIDE, *PLAIN_LINKS))
    assert any(not one.backward for one in block.exchanges)
    ends_s = end_seconds(shared(small, numbers, WIDE, *PLAIN_LINKS))
    assert again[0] == pytest.approx(kept[0])
    assert again[1] - kept[1] == pytest.approx(kept[0] - ends_s)


def end_seconds(scenario: Scenario) -> float:
    """Collectives of the embedding and the head in the forward pass."""
    total_s = 0.0
    for layer in job_of(scenario).layers:
        for one in layer.exchanges if layer.pinned_to_end else ():
            if not one.backward:
                size_bytes = one.elements * 4 * 4
                total_s += collective_time(one.op, size_bytes, scenario.strategy.plan.tensor, scenario.cluster)
    return total_s


@pytest.mark.parametrize("tensor", [2, 4, 8])
@pytest.mark.parametrize("bandwidth", ["100 MB/s", "10 GB/s", "1 TB/s"])
def test_collectives_in_pieces_never_take_longer(small: Make, tensor: int, bandwidth: str) -> None:
    link = f"cluster.node.link={{bandwidth: {bandwidth}, latency: 0}}"
    numbers = f"tensor: {tensor}, sequence_parallel: true"
    whole, pieces = (
        seconds(shared(small, f"{numbers}, overlap_tensor: {flag}", WIDE, "cluster.node.devices=8", link))
        for flag in ("false", "true")
    )
    assert all(shown <= all_s for shown, all_s in zip(pieces, whole, strict=True))
    assert sum(pieces) >= sum(whole) / tensor


@pytest.mark.parametrize("sequence_parallel", ["false", "true"])
@pytest.mark.parametrize("tensor", [2, 4])
def test_input_gradients_are_summed_next_to_weight_gradients(small: Make, tensor: int, sequence_parallel: str) -> None:
    """Each sum overlaps with at most half of the backward pass over the products that read the input."""
    numbers = f"tensor: {tensor}, sequence_parallel: {sequence_parallel}"
    exposed = shared(small, numbers, WIDE, *PLAIN_LINKS)
    hidden = shared(small, numbers, WIDE, *PLAIN_LINKS, "framework.overlap_input_gradients=true")
    (exposed_forward_s, exposed_backward_s), (forward_s, backward_s) = map(seconds, (exposed, hidden))
    assert forward_s == pytest.approx(exposed_forward_s)
    job = job_of(exposed)
    overlapped_s = sum(
        job.operators_s(block, [one for one in block.operators if one.name in ("qkv", "up")], 4)[1] / 2
        for block in blocks(exposed)
    )
    assert 0 < exposed_backward_s - backward_s <= overlapped_s * (1 + 1e-9)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_one_piece_of_a_divided_collective_is_exposed_if_products_take_longer(small: Make, tensor: int) -> None:
    """The first piece of a gather, or the last of a scatter, has nothing to overlap with: arXiv 2305.06942."""
    scenario = shared(small, f"tensor: {tensor}, sequence_parallel: true", WIDE, *PLAIN_LINKS)
    job, (block, *_) = job_of(scenario), blocks(scenario)
    whole, shown = (exposed_s(scenario, flag, block, 400, job) for flag in (False, True))
    for exchange, whole_s in whole.items():
        if not exchange.hidden:
            assert shown[exchange] == pytest.approx(whole_s / tensor)


def exposed_s(scenario: Scenario, overlap_tensor: bool, layer: Layer, samples: float, job: Job) -> dict[Exchange, float]:
    """Exposed seconds of each kind of a layer's collectives."""
    plan = scenario.strategy.plan.model_copy(update={"overlap_tensor": overlap_tensor})
    collectives = LayerCollectives(plan, plan.grid(8))
    return {one: seconds for _, one, seconds in collectives.exposed_s(layer, samples, job)}


def test_only_collectives_with_products_are_overlapped(small: Make) -> None:
    """The head's gather overlaps with the product alone, not with the loss: all but a piece is hidden."""
    numbers, many = "tensor: 4, sequence_parallel: true", 400
    (*_, head) = job_of(shared(small, numbers, WIDE)).layers
    product_s, _ = small().cluster.device.operators_s(head, head.operators[-2:-1], many, "fp32")
    moved_bytes = 3 / 4 * 64 * 1024 * 4 * many
    link = f"cluster.node.link={{bandwidth: {moved_bytes / product_s} B/s, latency: 0}}"
    scenario = shared(small, numbers, WIDE, link, "cluster.node.devices=8")
    (gather, *_) = (one for one in head.exchanges if one.op == "all_gather" and not one.backward)
    assert exposed_s(scenario, True, head, many, job_of(scenario))[gather] == pytest.approx(product_s / 4)


@pytest.mark.parametrize("context", [2, 4, 8])
def test_context_parallel_ranks_compute_an_equal_part_each(small: Make, context: int) -> None:
    """Each rank has beginnings and ends of samples, which balances the work under a causal mask."""
    alone, together = shared(small, "context: 1", LONG), shared(small, f"context: {context}", LONG, *FREE_LINKS)
    flops = [sum(layer.forward_flops + layer.backward_flops for layer in job_of(one).layers) for one in (alone, together)]
    assert flops[1] == pytest.approx(flops[0] / context)
    assert computing(together) == pytest.approx([part / context for part in computing(alone)])


def attention_s(scenario: Scenario) -> tuple[float, float]:
    """Seconds of attention alone in both passes over a block, for four samples."""
    (block, *_) = blocks(scenario)
    operators = [operator for operator in block.operators if operator.name == "attention"]
    return scenario.cluster.device.operators_s(block, operators, 4, "fp32")


@pytest.mark.parametrize("context", [2, 4])
@pytest.mark.parametrize("bandwidth", ["30 MB/s", "80 MB/s", "160 MB/s", "300 MB/s", "10 GB/s"])
def test_ring_attention_exchange_is_hidden_up_to_the_attention_time(small: Make, context: int, bandwidth: str) -> None:
    """Keys and values move during attention, in the backward pass again with their gradients: arXiv 2310.01889.

    Gathered instead, before attention, all of it shows.
    """
    link = (f"cluster.node.link={{bandwidth: {bandwidth}, latency: 0}}", "cluster.node.devices=8")
    ring, gathered = (shared(small, f"context: {context}, context_by: {by}", LONG, *link) for by in ("ring", "all_gather"))
    keys_bytes = 2 * 4096 * 64 * 4 * 4
    moved_s = collective_time("all_gather", keys_bytes, context, ring.cluster)
    assert moved_s == pytest.approx((context - 1) / context * keys_bytes / ring.cluster.node.link.bandwidth_Bps)  # type: ignore[union-attr]
    forward_s, backward_s = attention_s(ring)
    shown = max(0.0, moved_s - forward_s), max(0.0, 2 * moved_s - backward_s)
    assert seconds(ring) == pytest.approx([BLOCKS * one for one in shown])
    assert seconds(gathered) == pytest.approx((BLOCKS * moved_s, BLOCKS * 2 * moved_s))


@pytest.mark.parametrize("context", [2, 4])
def test_over_gloo_ring_attention_moves_messages_and_no_collectives(small: Make, context: int) -> None:
    """Each rank's keys and values pass all others in both passes, and their gradients then return to it. In gloo's
    collectives ranks would take turns and copy buffers."""
    link = ("cluster.node.link={bandwidth: 10 MB/s, latency: 0}", "cluster.node.devices=8", "cluster.node.cores=8")
    plan = f"context: {context}, context_by: ring"
    ring = shared(small, plan, LONG, *link, "cluster.collectives.library=gloo")
    assert ring.cluster.node.link is not None
    share_s = 2 * 4096 * 64 * 4 * 4 / context / ring.cluster.node.link.bandwidth_Bps
    forward_s, backward_s = attention_s(ring)
    expected_s = (context - 1) * share_s - forward_s, (2 * context - 1) * share_s - backward_s
    assert seconds(ring) == pytest.approx([BLOCKS * one for one in expected_s], rel=1e-3)


def mixture(small: Make, expert: int, *more: str, experts: str = "count: 8, active: 2, feedforward: 128") -> Scenario:
    model = f"{{kind: llama, layers: {BLOCKS}, hidden: 64, heads: 4, vocabulary: 256, sequence: 32, experts: {{{experts}}}}}"
    return shared(small, f"workers: 8, expert: {expert}", f"model={model}", *PLAIN_LINKS, *more)


@pytest.mark.parametrize("expert", [2, 4, 8])
def test_expert_parallel_workers_have_a_part_of_the_experts_and_send_tokens(small: Make, expert: int) -> None:
    """Dispatch and combine in both passes: arXiv 2006.16668, section 3.2."""
    alone, together = mixture(small, 1), mixture(small, expert)
    for one, own in zip(blocks(alone), blocks(together), strict=True):
        assert own.expert_parameters * expert == one.expert_parameters
        assert own.parameters - own.expert_parameters == one.parameters - one.expert_parameters
        assert own.forward_flops == pytest.approx(one.forward_flops)
        assert Counter((each.op, each.backward) for each in own.exchanges) == {("alltoall", False): 2, ("alltoall", True): 2}
    # every token goes to two experts
    sent_s = collective_time("alltoall", 4 * 32 * 2 * 64 * 4, expert, together.cluster)
    assert seconds(together) == pytest.approx((2 * BLOCKS * sent_s, 2 * BLOCKS * sent_s))
    assert seconds(alone) == (0.0, 0.0)


@pytest.mark.parametrize("field", ["capacity", "imbalance"])
@pytest.mark.parametrize("room", [1.5, 2.0, 4.0])
def test_expert_capacity_is_computed_and_sent(small: Make, field: Literal["capacity", "imbalance"], room: float) -> None:
    even = mixture(small, 4)
    roomy = mixture(small, 4, experts=f"count: 8, active: 2, feedforward: 128, {field}: {room}")
    assert seconds(roomy) == pytest.approx([room * one for one in seconds(even)])
    (one, *_), (own, *_) = blocks(even), blocks(roomy)
    routed = 2 * 32 * 2 * (64 * 128 * 2 + 64 * 128)
    assert own.forward_flops - one.forward_flops == pytest.approx((room - 1) * routed)


def test_links_between_nodes_carry_what_groups_across_them_exchange(small: Make) -> None:
    """With the tensor-parallel ranks next to one another they exchange inside a node, with the workers there between nodes."""
    slow, fast = "cluster.network.bandwidth=100 Mbit/s", "cluster.network.bandwidth=400 Gbit/s"
    inside, between = "order: [tensor, context, workers, stages]", "order: [workers, tensor, context, stages]"

    def times(order: str) -> list[float]:
        numbers = f"workers: 4, tensor: 4, {order}"
        return [seconds(shared(small, numbers, network, "cluster.network.latency=0"))[0] for network in (slow, fast)]

    slow_s, fast_s = times(inside)
    assert slow_s == fast_s
    slow_s, fast_s = times(between)
    assert slow_s > 100 * fast_s


def test_all_groups_of_a_node_share_its_cards(small: Make) -> None:
    """Four tensor-parallel groups across the same two nodes take four times as long as one."""
    one, four = (
        seconds(shared(small, f"workers: {workers}, tensor: 2, order: {order}", WIDE, "cluster.network.latency=0", devices))[0]
        for workers, order, devices in (
            (1, "[workers, tensor, context, stages]", "cluster.node.devices=1"),
            (4, "[workers, tensor, context, stages]", "cluster.node.devices=4"),
        )
    )
    assert four == pytest.approx(4 * one, rel=1e-6)
