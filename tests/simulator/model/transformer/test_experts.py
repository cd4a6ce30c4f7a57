"""Expert parallelism: folding into tensor-parallel ranks, and what the all-to-alls send."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.analysis.planner.estimate import Space, every, memory_bytes, step_times
from scaleproof.simulator.cluster.collectives.cost import direct_costing, processors_taken
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.frameworks.framework import expected_maximum
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Routed
from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.simulator.parallelism.mesh import ORDER, Axis, DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.model_parallel.expert import dispatches, unpaired
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import compiled, exchange_s, freeing_ends

Make = Callable[..., Scenario]
FIELDS = "kind: llama, layers: 4, hidden: 64, heads: 8, vocabulary: 256, sequence: 32"
MIXTURE = f"model={{{FIELDS}, experts: {{count: 8, active: 2, feedforward: 128}}}}"
SHARING = f"model={{{FIELDS}, experts: {{count: 8, active: 2, feedforward: 128, shared: 1}}}}"
LINKS = ("cluster.node.link={bandwidth: 10 GB/s, latency: 0}", "cluster.node.devices=8", "cluster.nodes=8")
FOLDED = "tensor: 4, sequence_parallel: true"


def hybrid(small: Make, numbers: str, *more: str, model: str = MIXTURE) -> Scenario:
    return small(model, f"strategy={{kind: hybrid, {numbers}}}", "batch={per_worker: 4}", *LINKS, *more)


def mixtures(scenario: Scenario) -> list[Layer]:
    return [layer for layer in job_of(scenario).layers if layer.expert_parameters]


def delays_s(scenario: Scenario) -> tuple[float, float]:
    """Seconds by which exchanges delay the forward and the backward pass."""
    program = compiled(scenario)
    return float(exchange_s(program, Phase.FORWARD)[0]), float(exchange_s(program, Phase.BACKWARD)[0])


@pytest.mark.parametrize(("expert", "expert_tensor"), [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (4, 4), (2, 2)])
def test_every_expert_is_stored_equally_often(small: Make, expert: int, expert_tensor: int) -> None:
    """Parameters of a rank × ranks = all parameters × replicas of each part."""
    scenario = hybrid(small, f"workers: 4, {FOLDED}, expert: {expert}, expert_tensor: {expert_tensor}")
    plan = scenario.strategy.plan
    whole = sum(layer.expert_parameters for layer in small(MIXTURE).model.build_layers())
    own = sum(layer.expert_parameters for layer in mixtures(scenario))
    assert own * plan.ranks == whole * plan.expert_replicas(plan.workers)
    assert own * expert * expert_tensor == whole
    rest = sum(layer.parameters for layer in job_of(scenario).layers) - own
    unfolded = hybrid(small, f"workers: 4, {FOLDED}")
    assert rest == sum(layer.parameters - layer.expert_parameters for layer in job_of(unfolded).layers)


@pytest.mark.parametrize("expert_tensor", [1, 2, 4])
def test_folded_ranks_compute_what_unfolded_ranks_compute(small: Make, expert_tensor: int) -> None:
    """Experts' FLOPs of a rank stay: fewer tokens, as many times wider matrices."""
    unfolded, folded = (
        hybrid(small, f"workers: 4, expert: 4, {FOLDED}{more}") for more in ("", f", expert_tensor: {expert_tensor}")
    )
    for one, other in zip(mixtures(unfolded), mixtures(folded), strict=True):
        flops = [sum(o.forward_flops for o in layer.operators if o.name.startswith("expert")) for layer in (one, other)]
        assert flops[0] == flops[1]


def test_folding_gathers_tokens_among_fewer_ranks(small: Make) -> None:
    """Each rank sends its own tokens in any case; with a rank for each expert's matrices none are gathered around experts."""
    tokens, hidden, active = 32, 64, 2
    for expert_tensor in (1, 2, 4):
        (layer, *_) = mixtures(hybrid(small, f"{FOLDED}, workers: 2, expert: 2, expert_tensor: {expert_tensor}"))
        sent = [one.elements for one in layer.exchanges if one.axis == "expert"]
        assert sent == [tokens * active * hidden // 4] * 4
        gathered = [one.elements for one in layer.exchanges if one.axis in ("tensor", "expert_tensor")]
        around_attention, around_experts = gathered[:5], gathered[5:]
        assert around_attention == [tokens * hidden] * 5
        assert around_experts == ([tokens * hidden * expert_tensor // 4] * 5 if expert_tensor > 1 else [])


def test_shared_experts_gather_tokens_among_all_tensor_parallel_ranks(small: Make) -> None:
    (layer, *_) = mixtures(hybrid(small, f"{FOLDED}, workers: 2, expert: 8, expert_tensor: 1", model=SHARING))
    assert len([one for one in layer.exchanges if one.axis == "tensor"]) == 10
    assert next(o for o in layer.operators if o.name == "up").columns == 2 * 128 // 4  # type: ignore[union-attr]


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.permutations(ORDER), st.data())
def test_ranks_of_a_stage_are_divided_into_expert_groups(
    tensor: int, context: int, workers: int, order: list[Axis], data: st.DataObject
) -> None:
    """Every rank of a stage has one place; those that share an expert's matrices have the same tokens: they differ in nothing
    but their place on the tensor axis; expert groups follow the ranks' numbers."""
    expert_tensor = data.draw(st.sampled_from([ranks for ranks in (1, 2, 4) if tensor % ranks == 0]))
    others = tensor // expert_tensor * context * workers
    expert = data.draw(st.sampled_from([ranks for ranks in range(1, others + 1) if others % ranks == 0]))
    grid = DeviceMesh(workers, 2, tensor, context, 8, tuple(order), expert, expert_tensor)
    found = grid.experts()
    assert found.shape == (2, expert_tensor, others // expert, expert)
    assert sorted(found.ravel().tolist()) == list(range(2 * tensor * context * workers))
    assert (np.diff(found, axis=3) > 0).all()
    assert (np.diff(found, axis=1) == grid.stride("tensor")).all()
    assert (found // grid.stride("stages") % 2 == np.arange(2)[:, None, None, None]).all()


def test_folded_expert_groups_stay_inside_a_node(small: Make) -> None:
    """Eight experts on the eight ranks of a node, where they would be spread over the workers of four nodes otherwise."""
    numbers = "workers: 8, tensor: 4, sequence_parallel: true, expert: 8"
    slow = "cluster.network.bandwidth=100 Mbit/s"
    unfolded, folded = (hybrid(small, f"{numbers}{more}", slow) for more in ("", ", expert_tensor: 1"))
    assert delays_s(folded)[0] < delays_s(unfolded)[0] / 10
    assert with_collectives(folded.strategy.plan, job_of(folded)).exchange.mesh.passing("expert").nodes == 1  # type: ignore[union-attr]
    assert with_collectives(unfolded.strategy.plan, job_of(unfolded)).exchange.mesh.passing("expert").nodes == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("workers", "expert", "expert_tensor"), [(4, 8, 1), (4, 4, 2), (2, 1, 1), (1, 2, 1), (1, 4, 1)])
def test_folded_gradients_are_summed_over_the_remaining_ranks(
    small: Make, zero: int, workers: int, expert: int, expert_tensor: int
) -> None:
    """tensor · context · workers / (expert · expert_tensor) ranks have the same experts, `workers` the same of all else."""
    scenario = hybrid(
        small, f"workers: {workers}, {FOLDED}, expert: {expert}, expert_tensor: {expert_tensor}",
        f"training={{zero: {zero}}}", "cluster.collectives.library=gloo", *freeing_ends(zero),
    )  # fmt: skip
    layers, program = job_of(scenario).layers, compiled(scenario)
    expert_bytes = 4 * sum(layer.expert_parameters for layer in layers)
    dense_bytes = 4 * sum(layer.parameters for layer in layers) - expert_bytes
    replicas = 4 * workers // (expert * expert_tensor)
    ways = 3 if zero == 3 else 2
    theory = ways * ((workers - 1) / workers * dense_bytes + (replicas - 1) / replicas * expert_bytes)
    collectives = program.phase == Phase.SYNCHRONISE
    assert program.amount[collectives].sum() == pytest.approx(theory)


def test_memory_of_folded_experts_is_shared_among_their_replicas(small: Make) -> None:
    for (expert, expert_tensor), zero in itertools.product([(8, 1), (2, 1), (4, 2), (4, 4)], [0, 1]):
        scenario = hybrid(
            small, f"workers: 4, {FOLDED}, expert: {expert}, expert_tensor: {expert_tensor}",
            f"training={{zero: {zero}, optimizer: adam}}",
        )  # fmt: skip
        own = job_of(scenario).layers
        experts = sum(layer.expert_parameters for layer in own)
        dense = sum(layer.parameters for layer in own) - experts
        allocated = memory(scenario).worst.holders_bytes
        assert allocated["parameters"] == 4 * (dense + experts)
        assert allocated["gradients"] == pytest.approx(4 * (dense + experts))
        replicas = 16 // (expert * expert_tensor)
        states = dense / 4 + experts / replicas if zero else dense + experts
        assert allocated["optimizer_states"] == pytest.approx(8 * states)


REFUSED = {
    "tensor: 4, expert_tensor: 1, workers: 4, expert: 4": (
        "expert_tensor: 1 of 4 tensor-parallel ranks, which all have the same tokens; set strategy.sequence_parallel=true"
    ),
    f"{FOLDED}, expert_tensor: 3, workers: 4, expert: 4": "expert_tensor: 3 ranks do not divide tensor 4; give a divisor",
    f"{FOLDED}, expert_tensor: 8, workers: 4, expert: 4": "expert_tensor: 8 ranks do not divide tensor 4; give a divisor",
    f"{FOLDED}, expert_tensor: 2, workers: 2, expert: 8": (
        "expert: 8 does not divide 4 ranks (tensor · context · workers / expert_tensor); give 4"
    ),
    "workers: 4, node_limit: 2": "node_limit: has no effect without expert parallelism; set strategy.expert",
    "workers: 4, expert: 4, node_limit: 2": "node_limit: all 4 ranks are on one node; set more ranks",
    "workers: 4, dispatcher: deepep": "dispatcher: has no effect without expert parallelism; set strategy.expert",
    "workers: 4, dispatch_precision: fp8": "dispatch_precision: has no effect without expert parallelism",
    "workers: 4, expert: 4, combine_precision: fp4": "combine_precision: 'fp4' is not known; give 'fp8', 'bf16'",
    "workers: 4, overlap_experts: true": "overlap_experts: has no effect without expert parallelism",
    "workers: 4, expert: 4, microbatches: 2, overlap_experts: true, overlap_shared_experts: true": (
        "overlap_shared_experts: another microbatch's compute overlaps with the all-to-alls already; leave one of them out"
    ),
    "workers: 4, expert: 4, overlap_experts: true": (
        "overlap_experts: needs another microbatch to compute meanwhile; set strategy.microbatches, or leave it out"
    ),
}


@pytest.mark.parametrize("numbers", REFUSED)
def test_incompatible_fields_are_rejected(small: Make, numbers: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(f"strategy.{REFUSED[numbers]}")):
        hybrid(small, numbers)


def test_matrices_that_expert_tensor_ranks_cannot_share_are_refused(small: Make) -> None:
    narrow = f"model={{{FIELDS}, experts: {{count: 8, active: 2, feedforward: 66}}}}"
    message = "strategy.expert_tensor: 4 ranks do not divide experts.feedforward 66; give a divisor of it, such as 3"
    with pytest.raises(ScenarioError, match=re.escape(message)):
        hybrid(small, "tensor: 8, sequence_parallel: true, expert_tensor: 4, workers: 4, expert: 4", model=narrow)
    with pytest.raises(ScenarioError, match=re.escape("strategy.expert_tensor: there are no experts to divide; leave")):
        hybrid(small, f"{FOLDED}, expert_tensor: 1", model=f"model={{{FIELDS}}}")


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 12), st.integers(0, 10_000))
def test_expected_nodes_per_token_equal_random_draws(bins: int, each: int, active: int, seed: int) -> None:
    """Of `bins` nodes with `each` experts, `active` different experts drawn evenly."""
    active = min(active, bins * each)
    expected = Routed(bins * each, active, False).visited(bins)
    drawn = np.random.default_rng(seed).permuted(np.tile(np.arange(bins * each), (4000, 1)), axis=1)[:, :active] // each
    visited = np.mean([len(set(row)) for row in drawn.tolist()])
    assert expected == pytest.approx(visited, abs=0.08)
    assert 1 - 1e-9 <= expected <= min(bins, active) + 1e-9


def test_deepseek_v3_sends_a_token_to_less_than_four_of_eight_nodes() -> None:
    """8 of 256 experts, on at most 4 of 8 nodes: 4 · (1 − C(96, 8) / C(128, 8)); without the limit 8 · (1 − C(224, 8) / …)."""
    assert Routed(256, 8, False, groups=8, active_groups=4).visited(8) == pytest.approx(3.6290, abs=1e-4)
    assert Routed(256, 8, False).visited(8) == pytest.approx(5.2947, abs=1e-4)
    # the module of its configuration file: 64 ranks, of which a node has eight
    assert Experts.model_validate(load_model("deepseek-v3").model_dump()["experts"]).routed(False).visited(8) == pytest.approx(
        3.6290, abs=1e-4
    )


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([(1, 4), (2, 4), (3, 6), (4, 8), (5, 8)]),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 8),
    st.integers(0, 10_000),
)
def test_expected_nodes_with_groups_of_experts_equal_random_draws(
    limit: tuple[int, int], each: int, active: int, seed: int
) -> None:
    """A token's groups are drawn first, then its experts from these: nodes contain groups, or groups nodes."""
    (chosen, groups), random = limit, np.random.default_rng(seed)
    count = 12 * groups * each
    active = min(active, count * chosen // groups)
    routed = Routed(count, active, False, groups, chosen)
    own = random.permuted(np.tile(np.arange(groups), (4000, 1)), axis=1)[:, :chosen]
    within = count // groups
    drawn = random.permuted(np.tile(np.arange(chosen * within), (4000, 1)), axis=1)[:, :active]
    experts = np.take_along_axis(own, drawn // within, axis=1) * within + drawn % within
    for bins in (groups // 2, groups, 2 * groups, 3 * groups):
        if groups % bins == 0 or bins % groups == 0:
            visited = np.mean([len(set(row)) for row in (experts // (count // bins)).tolist()])
            assert routed.visited(bins) == pytest.approx(visited, abs=0.1)


MANY = "workers: 16, expert: 8, order: [tensor, context, workers, stages]"
SPREAD = ("cluster.node.devices=2", "cluster.nodes=16", "cluster.network={bandwidth: 1 GB/s, latency: 0}")


def test_deduplicated_tokens_cross_the_network_once_to_each_node(small: Make) -> None:
    """Bytes between nodes: tokens · hidden · expected nodes other than its own, which forwarding inside nodes hides."""
    plain, once, limited = (
        hybrid(small, f"{MANY}{more}", *SPREAD) for more in ("", ", dispatcher: deepep", ", dispatcher: deepep, node_limit: 2")
    )
    # four samples of 32 tokens, 64 elements of four bytes; four nodes of two experts' ranks, and so of four experts
    token_bytes, layers = 4 * 32 * 64 * 4, 4
    for scenario, limit in ((once, 4), (limited, 2)):
        nodes = Routed(2 * limit, 2, False).visited(limit)
        # both ranks of a node send at the same time
        assert delays_s(scenario)[0] == pytest.approx(2 * layers * 2 * token_bytes * nodes * 3 / 4 / 1e9)
    assert Routed(8, 2, False).visited(4) == pytest.approx(4 * (1 - 6 * 5 / (8 * 7)))
    assert delays_s(limited)[0] < delays_s(once)[0] < delays_s(plain)[0]


def test_deduplicated_tokens_are_sent_once_to_each_rank_of_a_node(small: Make) -> None:
    """Inside one node: eight ranks of an expert each, or four of two, where a token's two experts may be on the same."""
    for expert in (4, 8):
        scenario = hybrid(small, f"workers: 8, expert: {expert}, dispatcher: hybridep")
        ranks = Routed(8, 2, False).visited(expert)
        cost = direct_costing("alltoall", scenario.strategy.plan.grid(8).expert_group(), scenario.cluster)
        assert delays_s(scenario)[0] == pytest.approx(2 * 4 * cost(4 * 32 * 64 * 4 * ranks).seconds)


@pytest.mark.parametrize(
    ("dispatcher", "bandwidth_GBps", "reached_GBps"),
    [("deepep", 200, 0.68 * 200), ("deepep", 900, 20 * 17), ("hybridep", 900, 0.66 * 900)],
)
def test_dispatchers_reach_a_share_of_nvlink_as_far_as_their_processors_do(
    small: Make, dispatcher: str, bandwidth_GBps: float, reached_GBps: float
) -> None:
    link = f"cluster.node.link={{bandwidth: {bandwidth_GBps} GB/s, latency: 0}}"
    scenario = small(WIDE, f"strategy={{kind: hybrid, workers: 8, expert: 8, dispatcher: {dispatcher}}}", *GPU, link)
    moved_bytes = 8 * 1024 * 1024 * 2 * Routed(8, 2, False).visited(8) * 7 / 8
    assert delays_s(scenario)[0] == pytest.approx(4 * 2 * moved_bytes / (reached_GBps * 1e9), rel=1e-3)
    assert dispatches()[dispatcher].processors < 132


def test_received_tokens_are_permuted_once(small: Make) -> None:
    """A dispatcher that sends a token once to each rank permutes what comes: 2 copies become 2 rows, of those in 8/7 ranks."""
    for dispatcher, names in (("alltoall", 2), ("deepep", 1)):
        layer = mixtures(hybrid(small, f"workers: 8, expert: 4, dispatcher: {dispatcher}"))[0]
        passes = [o for o in layer.operators if o.name in ("permute", "sort chunks")]
        assert len(passes) == names
        assert passes[0].read / (32 * 64) == pytest.approx(1 if names == 2 else Routed(8, 2, False).visited(4), rel=1e-3)
        assert all(one.written == 2 * 32 * 64 for one in passes)


@pytest.mark.parametrize(
    ("numbers", "share"),
    [
        ("microbatches: 8", 1 / 8),
        ("microbatches: 1", 1.0),
        ("stages: 4, microbatches: 8", 2.5 / 8),
        ("stages: 4, chunks: 3, microbatches: 8", (1 + 3 + 2 * 4) / 24),
    ],
)
def test_all_to_alls_of_filling_passes_have_no_other_microbatch(numbers: str, share: float) -> None:
    """1F1B lets stage s of p run p − s − 1 passes first, interleaved 2 (p − s − 1) + (v − 1) p; pairs need one more."""
    plan = Plan.model_validate(dict(one.split(": ") for one in numbers.split(", ")))
    assert unpaired(plan) == pytest.approx(share)


def test_dispatch_precision_sets_the_bytes_sent(small: Make) -> None:
    """In fp32 training: 8 bits to the experts and 16 back take 1/4 and 1/2 of the time."""
    plain = delays_s(hybrid(small, "workers: 8, expert: 8"))[0]
    narrow = delays_s(hybrid(small, "workers: 8, expert: 8, dispatch_precision: fp8, combine_precision: bf16"))
    assert narrow == pytest.approx((plain * 3 / 8, plain * 3 / 8))
    assert delays_s(hybrid(small, "workers: 8, expert: 8, dispatch_precision: fp32"))[0] == plain


GPU = ("cluster=dgx-h100", "cluster.nodes=8", "training.precision=bf16", "batch={per_worker: 8}")
WIDE = (
    "model={kind: llama, layers: 4, hidden: 1024, heads: 8, vocabulary: 256, sequence: 1024, "
    "experts: {count: 8, active: 2, feedforward: 4096}}"
)


def test_only_what_exceeds_the_compute_of_another_microbatch_is_exposed(small: Make) -> None:
    """While it is hidden it takes the processors that move it."""
    numbers = "workers: 8, expert: 8, microbatches: 4"
    overlaps = ("", ", overlap_experts: true")
    plain, hidden = (small(WIDE, f"strategy={{kind: hybrid, {numbers}{more}}}", *GPU) for more in overlaps)
    share = processors_taken(hidden.cluster)
    assert 0 < share < 1
    for one, other in zip(delays_s(hidden), delays_s(plain), strict=True):
        assert one == pytest.approx((1 / 4 + 3 / 4 * share) * other)
    slow = ("cluster.node.link={bandwidth: 1 GB/s, latency: 0}",)
    plain, hidden = (small(WIDE, f"strategy={{kind: hybrid, {numbers}{more}}}", *GPU, *slow) for more in overlaps)
    layer = mixtures(hidden)[0]
    compute_s = 4 * sum(job_of(hidden).layer_passes_s(layer, 2))
    for one, other in zip(delays_s(hidden), delays_s(plain), strict=True):
        # three of four microbatches have another one
        assert one == pytest.approx(other - 3 / 4 * 4 * compute_s / 2, rel=1e-6)


def test_shared_experts_hide_the_all_to_alls_next_to_them(small: Make) -> None:
    """The first product and the activation hide tokens on their way, the last product those on their way back, and in the
    backward pass the reverse; a slow link exposes the rest, but for what the issuing of kernels hides."""
    model = WIDE.replace("active: 2", "active: 2, shared: 1")
    overlaps = ("", ", overlap_shared_experts: true")

    def delays(more: str, *cluster: str) -> tuple[Scenario, list[float]]:
        one = small(model, f"strategy={{kind: hybrid, workers: 8, expert: 8{more}}}", *GPU, *cluster)
        return one, delays_s(one)

    (one, hidden), (_, plain) = (delays(more) for more in reversed(overlaps))
    share = processors_taken(one.cluster)
    assert hidden == pytest.approx([share * delay_s for delay_s in plain])
    slow = ("cluster.node.link={bandwidth: 1 GB/s, latency: 0}",)
    (one, hidden), (_, plain) = (delays(more, *slow) for more in reversed(overlaps))
    layer, job = mixtures(one)[0], job_of(one)
    places = next(module.operators for module in layer.modules if module.name == "shared_experts")
    shared_s = [sum(job.operators_s(layer, [layer.operators[place]], 8)[number] for place in places) for number in (0, 1)]
    assert hidden == pytest.approx([delay_s - 4 * spent_s for delay_s, spent_s in zip(plain, shared_s, strict=True)], rel=0.005)


def test_frameworks_decide_how_tokens_are_dispatched(small: Make) -> None:
    """By the version, where a scenario leaves it out and ranks have different experts."""
    numbers = "workers: 8, expert: 8, microbatches: 4"

    def plan(framework: str, numbers: str = numbers) -> Plan:
        return small(WIDE, f"strategy={{kind: hybrid, {numbers}}}", *GPU, f"framework={framework}").strategy.plan

    assert plan("megatron-core-0.12").dispatcher == "alltoall"
    assert plan("megatron-core-2026").dispatcher == "hybridep"
    assert plan("megatron-core-2026", f"{numbers}, dispatcher: alltoall").dispatcher == "alltoall"
    assert plan("megatron-core-2026", "workers: 8").dispatcher == "alltoall"
    own = plan("deepseek-v3")
    assert (own.dispatcher, own.dispatch_precision, own.overlap_experts) == ("deepep", "fp8", True)
    assert not plan("deepseek-v3", "workers: 8, expert: 8").overlap_experts


def test_ranks_wait_for_the_slowest_of_those_that_exchange_tokens(small: Make) -> None:
    """Passes of 8 ranks vary by 1 %: the slowest takes 1.4 % longer."""
    plans = [small(WIDE, f"strategy={{kind: hybrid, workers: 8, expert: {expert}}}", *GPU) for expert in (1, 8)]
    alone, exchanging = (job_of(one).slowest for one in plans)
    assert exchanging - alone == pytest.approx(0.01 * expected_maximum(8))
    assert [one.strategy.plan.waiting_within for one in plans] == [1, 8]


@pytest.mark.full
@pytest.mark.parametrize("option", ["strategy.node_limit=4", "strategy.overlap_experts=true"])
def test_estimates_of_folded_experts_agree_with_replay_and_memory(option: str) -> None:
    overrides = ("batch=256", "framework=ideal", "strategy.dispatcher=deepep", option)
    scenario = load("mixtral-8x7b-experts-h100", overrides)
    found = every(
        Space(scenario, (64,), tensor=(2, 4, 8), expert=(1, 4, 8), expert_tensor=(None, 1, 2), stages=(1, 2, 4),
              sequence_parallel=(False, True), zero=(0, 1, 3), samples=(1, 2), buckets_bytes=(25 * 2.0**20,))
    )  # fmt: skip
    folded = np.flatnonzero(
        (found.expert_tensor > 0) & (found.stages * found.microbatches * np.where(found.zero == 3, 60, 1) < 6000)
    )
    rows = np.random.default_rng(7).choice(folded, 16, replace=False)
    times, allocated = step_times(found.take(rows)), memory_bytes(found.take(rows))
    for row, expected_s, least_s, bytes_ in zip(rows.tolist(), times.expected_s, times.least_s, allocated, strict=True):
        own = found.scenario(row)
        replayed_s = predict(own).step_time_s
        assert least_s <= replayed_s * (1 + 1e-9)
        assert expected_s == pytest.approx(replayed_s, rel=0.10)
        assert bytes_ == pytest.approx(memory(own).worst.total_bytes)
