"""Ranks that share a model's layers, tokens and experts train like one process, and record their exchanges."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.parallelism.mesh import ORDER, DeviceMesh
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.record.assemble import rank_names
from scaleproof.validator.strategy.layout.mesh import mesh_sizes
from scaleproof.validator.strategy.model_parallel.context import own_positions
from tests.validator import conftest, faults_hybrid
from tests.validator.conftest import TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation_of as deviation
from tests.validator.verdicts import in_bulk

EXPERTS = {"count": 4, "active": 2, "feedforward": 24}
MIXED = TINY_GPT | {"experts": EXPERTS}
# experts that drop tokens
FEW = TINY_GPT | {"experts": {**EXPERTS, "capacity": 0.75}}
TENSOR = {"tensor": 2}
SEQUENCE = {**TENSOR, "sequence_parallel": True}
ASYNCHRONOUS = {**SEQUENCE, "overlap_tensor": True}
GATHERED = {"context": 2, "context_by": "all_gather"}
ULYSSES = {"context": 2, "context_by": "ulysses"}
EXPERT = {"workers": 2, "expert": 2}
STAGED = {"stages": 2, "microbatches": 2}
FOLDED = {**SEQUENCE, "expert_tensor": 1}
Case = tuple[dict[str, Any], dict[str, Any], str]
CASES: list[Case] = [
    (EXPERT, MIXED, "adam"),
    (EXPERT, TINY_GPT | {"experts": {**EXPERTS, "capacity": 1.25}}, "sgd"),
    ({**FOLDED, "expert": 2}, TINY_GPT | {"experts": {**EXPERTS, "shared": 1}}, "sgd"),
    ({**STAGED, **SEQUENCE, **GATHERED, "order": ["stages", "context", "workers", "tensor"]}, TINY_GPT, "sgd"),
]
MORE_CASES: list[Case] = [
    ({**FOLDED, "workers": 2, "expert": 4}, MIXED, "adam"),
    ({**EXPERT, "microbatches": 2}, FEW, "adam"),
    ({**STAGED, **EXPERT, "context": 2, "schedule": "zb_h1", "overlap": False, "overlap_sends": True}, MIXED, "sgd"),
    # the last rank has fewer words
    ({"tensor": 4}, TINY_GPT | {"heads": 4, "vocabulary": 30}, "momentum"),
    ({"context": 4}, TINY_GPT, "adam"),
    ({**STAGED, **ASYNCHRONOUS, "tensor": 4}, TINY_GPT | {"heads": 4, "vocabulary": 30}, "adam"),
    ({**SEQUENCE, "workers": 2, "microbatches": 2, "overlap": True, "bucket": "4 KiB"}, TINY_GPT, "sgd"),
    ({**EXPERT, **TENSOR}, TINY_GPT | {"experts": {**EXPERTS, "shared": 1}}, "adam"),
    ({**STAGED, **TENSOR, "split_sends": True}, TINY_GPT, "adam"),
    (
        {**STAGED, **TENSOR, "chunks": 2, "microbatches": 4, "schedule": "interleaved_1f1b", "overlap_sends": True},
        TINY_GPT,
        "sgd",
    ),
]


def run_of(make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any] | None = None, **training: Any) -> Run:
    return measure(
        make_scenario({"kind": "hybrid", **strategy}, model, precision="fp64", **training), watch=MeasureOptions(verify=True)
    )


def shared_run(strategy: dict[str, Any], model: dict[str, Any]) -> Run:
    """The verified run of a strategy, measured once for all its tests."""
    return _measured_once(json.dumps([strategy, model]))


@cache
def _measured_once(strategy_and_model: str) -> Run:
    strategy, model = json.loads(strategy_and_model)
    return run_of(conftest.make, strategy, model)


@pytest.mark.parametrize(
    "strategy",
    in_bulk(
        {**STAGED, "workers": 2, "compression": {"kind": "power_sgd", "rank": 1}},
        {**TENSOR, "workers": 2, "compression": {"kind": "fp16"}, "algorithm": "ring"},
    ),
)
def test_compressed_gradients_equal_those_of_one_process(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    assert deviation(run_of(make_scenario, strategy)) < 1e-9


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy",
    [
        {**EXPERT, "dispatch_precision": "bf16"},
        {**EXPERT, "dispatch_precision": "fp32", "combine_precision": "bf16", "microbatches": 2},
    ],
)
def test_tokens_are_rounded_on_their_way_to_experts(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    rounded, whole = run_of(make_scenario, strategy, MIXED), shared_run(EXPERT, MIXED)

    assert deviation(rounded) < 1e-9
    assert rounded.losses != pytest.approx(whole.losses, rel=1e-9)
    if "microbatches" not in strategy:
        narrow, wide = exchanged_bytes(rounded), exchanged_bytes(whole)
        # dispatched tokens have a quarter of their bytes, and those that are combined all of them
        dispatched = Counter({size / 4: count for size, count in (wide - narrow).items()})
        assert dispatched == narrow - wide


def test_compression_of_parts_cannot_be_verified(make_scenario: MakeScenario) -> None:
    compressed = {**TENSOR, "workers": 2, "compression": {"kind": "top_k", "share": 0.1}}

    with pytest.raises(InputError, match="--verify: one process cannot compress the parts of gradients"):
        run_of(make_scenario, compressed)


@pytest.fixture
def cluster_with_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are on nodes of their own."""
    network = {"bandwidth": "10 Gbit/s", "latency": "20 us"}
    monkeypatch.setattr(conftest, "CLUSTER", conftest.CLUSTER | {"nodes": 3, "network": network})


@pytest.mark.parametrize(("strategy", "model", "optimizer"), [*CASES, *in_bulk(*MORE_CASES)])
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], optimizer: str, make_scenario: MakeScenario
) -> None:
    assert deviation(run_of(make_scenario, strategy, model, optimizer=optimizer)) < 1e-9


@pytest.mark.parametrize(
    ("fault", "strategy", "model"),
    [
        (faults_hybrid.average_nothing, {**STAGED, "workers": 2, "tensor": 2}, TINY_GPT),
        *in_bulk(
            (faults_hybrid.average_different_experts, EXPERT, MIXED),
            (faults_hybrid.keep_experts_separate, {**FOLDED, "workers": 2, "expert": 2}, MIXED),
            (faults_hybrid.keep_a_stage, {**STAGED, **TENSOR}, TINY_GPT),
            (faults_hybrid.keep_parts_separate, SEQUENCE, TINY_GPT),
            (faults_hybrid.sum_no_other_parts, ASYNCHRONOUS, TINY_GPT),
            (faults_hybrid.keep_gradients_of_own_summand, TENSOR, TINY_GPT),
            (faults_hybrid.drop_gradients_of_others, GATHERED, TINY_GPT),
            (faults_hybrid.attend_to_own_tokens, ULYSSES, TINY_GPT),
            (faults_hybrid.lose_a_block, {"context": 2}, TINY_GPT),
            (faults_hybrid.mix_up_tokens, EXPERT, MIXED),
        ),
    ],
)
def test_verification_detects_wrong_sharing(
    fault: Any, strategy: dict[str, Any], model: dict[str, Any], make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    assert deviation(run_of(make_scenario, strategy, model)) > 1e-3


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        *in_bulk(({"workers": 2, "servers": 1}, "momentum"), ({**STAGED, "workers": 2, "servers": 2}, "adam")),
        ({**STAGED, **TENSOR, "context": 2, "servers": 1, "order": ["stages", "tensor", "context", "workers"]}, "sgd"),
    ],
)
def test_servers_update_shared_parameters(
    strategy: dict[str, Any], optimizer: str, make_scenario: MakeScenario, cluster_with_servers: None
) -> None:
    run = run_of(make_scenario, strategy, optimizer=optimizer)

    assert deviation(run) < 1e-9
    spans = run.spans
    assert spans is not None
    served = spans.where((spans.rank == run.ranks - 1) & (spans.step == 1))
    assert {Phase.WAIT, Phase.OPTIMIZER, Phase.SEND, Phase.RECEIVE} == set(map(Phase, served.phase.tolist()))
    own = spans.where((spans.rank == 0) & (spans.step == 1) & (spans.stream == Stream.MAIN))
    assert (own.arrival_s[1:] >= own.end_s[:-1] - 1e-9).all(), "a rank does one thing at a time"
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.SEND, Phase.RECEIVE} <= set(map(Phase, own.phase.tolist()))


@pytest.mark.parametrize("strategy", [{**TENSOR, "servers": 2}, *in_bulk({**STAGED, "workers": 2, "servers": 2})])
def test_servers_keep_more_bits_than_ranks_compute_with(
    strategy: dict[str, Any], make_scenario: MakeScenario, cluster_with_servers: None
) -> None:
    scenario = make_scenario({"kind": "hybrid", **strategy}, precision="fp16", optimizer="momentum")

    run = measure(scenario, watch=MeasureOptions(verify=True))

    assert run.verified is not None
    assert run.verified.is_right


@pytest.mark.full
def test_verification_detects_an_omitted_push(
    make_scenario: MakeScenario, cluster_with_servers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", faults_hybrid.forget_a_push)

    assert deviation(run_of(make_scenario, {"workers": 2, "servers": 1})) > 1e-3


def test_gradient_synchronisation_overlaps_with_the_last_pass(make_scenario: MakeScenario) -> None:
    spans = run_of(make_scenario, {"workers": 2, "overlap": True, "bucket": "4 KiB", "microbatches": 2}).spans

    assert spans is not None
    own = spans.where((spans.rank == 0) & (spans.step == 1))
    backward = own.where(own.phase == Phase.BACKWARD)
    sums = own.where(own.stream == Stream.COMMUNICATION)
    # the passes of both microbatches
    assert len(backward.end_s) == 2
    assert backward.arrival_s[1] < sums.arrival_s.min() < backward.end_s[1]


@pytest.mark.parametrize(
    "strategy",
    [
        *in_bulk({**STAGED, "workers": 2, "overlap": True, "order": ["stages", "tensor", "context", "workers"]}),
        {**STAGED, **TENSOR, "schedule": "zb_h1", "overlap_sends": True, "overlap": False},
    ],
)
def test_emulated_ranks_pass_verification(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    assert deviation(paced_run(make_scenario, strategy)) < 1e-9


def paced_run(make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any] | None = None) -> Run:
    scenario = make_scenario({"kind": "hybrid", **strategy}, model, precision="fp64").model_copy(update={"compute": "paced"})
    return measure(scenario, watch=MeasureOptions(verify=True))


def exchanged_bytes(run: Run, rank: int = 0) -> Counter[float]:
    """How often each size moves in a collective of a rank's, in a step."""
    spans = run.spans
    assert spans is not None
    own = spans.where((spans.stream == Stream.COMMUNICATION) & (spans.rank == rank) & (spans.step == 2))
    assert (own.phase == Phase.SYNCHRONISE).all()
    return Counter(own.size_bytes.tolist())


def predicted_bytes(
    make_scenario: MakeScenario, strategy: dict[str, Any], model: dict[str, Any], hidden: bool = False
) -> Counter[float]:
    """The same by the simulator's model for exposed exchanges. hidden: also for those overlapped with passes."""
    scenario = make_scenario({"kind": "hybrid", **strategy}, model)
    layers = scenario.model.build_layers(scenario.strategy.plan.shard)
    samples = scenario.samples_per_worker
    exchanges = [one for layer in layers for one in layer.exchanges if hidden or not one.hidden]
    return Counter(8.0 * one.elements * samples for one in exchanges)


@pytest.mark.parametrize("strategy", [*in_bulk(SEQUENCE, {"context": 2}, ULYSSES), {**GATHERED, **TENSOR}])
def test_emulated_exchanges_equal_the_simulators(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    measured = exchanged_bytes(paced_run(make_scenario, strategy))
    predicted = predicted_bytes(make_scenario, strategy, TINY_GPT, hidden=True)

    assert predicted - measured == Counter()
    # of all gradients
    assert (measured - predicted).total() == ("context" in strategy)


@pytest.mark.parametrize(
    ("strategy", "model", "sums"),
    [
        (TENSOR, TINY_GPT, 0),
        # of what each rank has a part of the gradients
        (SEQUENCE, TINY_GPT, 1),
        # of the gradients of routers; then of all gradients
        *in_bulk((ASYNCHRONOUS, TINY_GPT, 1), (TENSOR, MIXED, 1), (GATHERED, TINY_GPT, 1), (ULYSSES, TINY_GPT, 1)),
    ],
)
def test_exchanges_equal_the_simulators(
    strategy: dict[str, Any], model: dict[str, Any], sums: int, make_scenario: MakeScenario
) -> None:
    run = shared_run(strategy, model)
    measured, predicted = exchanged_bytes(run), predicted_bytes(make_scenario, strategy, model)

    assert deviation(run) < 1e-9
    assert predicted - measured == Counter()
    assert (measured - predicted).total() == sums


@pytest.mark.full
def test_products_overlap_with_tokens_in_transit() -> None:
    spans = shared_run(ASYNCHRONOUS, TINY_GPT).spans

    assert spans is not None
    own = spans.where((spans.rank == 0) & (spans.step == 2))
    passes = own.where((own.phase == Phase.FORWARD) | (own.phase == Phase.BACKWARD))
    moved = own.where((own.stream == Stream.COMMUNICATION) & (own.size_bytes == own.size_bytes.max()))
    overlapped = [
        ((passes.arrival_s < end_s) & (passes.end_s > begin_s)).any()
        for begin_s, end_s in zip(moved.arrival_s, moved.end_s, strict=True)
    ]
    # all but those of the embedding, which has no product
    assert sum(overlapped) == len(overlapped) - 2


@given(
    sizes=st.tuples(*[st.integers(1, 3)] * 3, st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2)])),
    order=st.permutations(ORDER),
)
def test_the_mesh_numbers_ranks_like_the_simulator(sizes: tuple[int, int, int, tuple[int, int]], order: list[Any]) -> None:
    tensor, context, stages, (workers, expert) = sizes
    plan = Plan(workers=workers, stages=stages, tensor=tensor, context=context, expert=expert, order=tuple(order))
    grid = DeviceMesh(workers, stages, tensor, context, devices=8, order=tuple(order))

    axes = mesh_sizes(plan)
    numbers = np.arange(plan.ranks).reshape(tuple(axes.values()))
    names = ("replica", "expert", "stage", "context", "tensor")
    numbers = numbers.transpose([list(axes).index(name) for name in names]).reshape(workers, stages, context * tensor)

    assert all(numbers[w, s].tolist() == grid.members(w, s) for w in range(workers) for s in range(stages))


def test_ranks_are_named_by_their_mesh_coordinates(make_scenario: MakeScenario) -> None:
    strategy = make_scenario({"kind": "hybrid", "tensor": 2, "stages": 2, "order": ["stages", "tensor", "context", "workers"]})

    assert rank_names(strategy.strategy) == ("stage 0 tensor 0", "stage 1 tensor 0", "stage 0 tensor 1", "stage 1 tensor 1")


@given(ranks=st.integers(1, 6), part=st.integers(1, 4))
def test_context_ranks_partition_tokens_with_equal_attention_work(ranks: int, part: int) -> None:
    own = [own_positions(place, ranks, 2 * ranks * part).tolist() for place in range(ranks)]

    assert sorted(chain(*own)) == list(range(2 * ranks * part))
    assert len({sum(positions) for positions in own}) == 1


@pytest.mark.parametrize(
    ("strategy", "model", "message"),
    [
        ({"context": 2}, TINY_GPT | {"sequence": 6}, "strategy.context: 2 ranks have two parts each of 6 tokens"),
        ({**SEQUENCE, "tensor": 4, "expert_tensor": 2}, MIXED | {"heads": 4}, "strategy.expert_tensor: 2 is predicted"),
        ({**SEQUENCE, **EXPERT}, MIXED, "strategy.sequence_parallel of workers that share experts"),
        ({**STAGED, "workers": 2, "overlap": True, "schedule": "zb_h1", "overlap_sends": True}, TINY_GPT, "strategy.overlap: "),
        (
            {**STAGED, **TENSOR, "split_sends": True},
            TINY_GPT | {"hidden": 15, "heads": 2, "head_width": 8},
            "strategy.split_sends: 2 ranks",
        ),
        (ASYNCHRONOUS, MIXED, "strategy.overlap_tensor with experts is predicted but not measured"),
        ({**EXPERT, "dispatch_precision": "fp8"}, MIXED, "strategy.dispatch_precision: fp8 is predicted but not measured"),
        ({**EXPERT, "servers": 1}, MIXED, "strategy.servers"),
        ({**SEQUENCE, "servers": 1}, TINY_GPT, "strategy.servers"),
        ({**TENSOR, "servers": 1}, MIXED, "strategy.servers"),
    ],
)
def test_unsupported_sharding_is_rejected(
    strategy: dict[str, Any], model: dict[str, Any], message: str, make_scenario: MakeScenario, cluster_with_servers: None
) -> None:
    with pytest.raises(InputError, match=message):
        measure(make_scenario({"kind": "hybrid", **strategy}, model))


def test_tensor_parallel_ranks_send_shards_of_activations(make_scenario: MakeScenario) -> None:
    def sent_bytes(**fields: Any) -> list[float]:
        spans = measure(make_scenario({"kind": "hybrid", **STAGED, **TENSOR, **fields}, TINY_GPT)).spans
        assert spans is not None
        return spans.where((spans.phase == Phase.SEND) & (spans.step == 2) & (spans.rank == 0)).size_bytes.tolist()

    assert [2 * size for size in sent_bytes(split_sends=True)] == sent_bytes() != []


def test_emulated_ranks_do_not_shard_parameters_of_shared_experts(make_scenario: MakeScenario) -> None:
    scenario = make_scenario({"kind": "hybrid", **EXPERT}, MIXED, zero=3)

    with pytest.raises(InputError, match=r"training\.zero: 3 of emulated ranks that share experts"):
        measure(scenario.model_copy(update={"compute": "paced"}))


@pytest.mark.parametrize(
    "strategy",
    [
        {**SEQUENCE, **EXPERT, "dispatch_precision": "bf16"},
        *in_bulk(EXPERT, {**FOLDED, "expert": 2}, {**EXPERT, "workers": 4, "microbatches": 2}),
    ],
)
def test_emulated_experts_exchange_predicted_bytes(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    run = paced_run(make_scenario, strategy, MIXED)

    assert deviation(run) < 1e-9
    scenario = make_scenario({"kind": "hybrid", **strategy}, MIXED, precision="fp64")
    plan, job = scenario.strategy.plan, job_of(scenario)
    collectives = with_collectives(plan, job).exchange
    assert isinstance(collectives, LayerCollectives)
    exchanges = [one for layer in job.layers for one in layer.exchanges]
    sizes = [collectives.message_bytes(one, scenario.samples_per_worker / plan.microbatches, job) for one in exchanges]
    expected, sent = Counter(sizes * plan.microbatches), exchanged_bytes(run)
    assert all(sent[size] >= count for size, count in expected.items()), "sums of gradients may have the same size"
