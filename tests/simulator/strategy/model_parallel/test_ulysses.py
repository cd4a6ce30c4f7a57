"""DeepSpeed-Ulysses (arXiv 2309.14509): tokens are exchanged for heads before attention, and back after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scaleproof.simulator.analysis.planner.estimate import Space, every, memory_bytes, step_times
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.engine import replay
from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Exchange
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import hybrid

Make = Callable[..., Scenario]

TOKENS, HIDDEN, HEADS = 8192, 1024, 16
ON = ("cluster=selene-a100", "batch=16", "training.precision=bf16", "training.optimizer=adam")


def llama(key_heads: int = HEADS, flash: str = "true") -> str:
    return (
        f"model={{kind: llama, layers: 4, hidden: {HIDDEN}, heads: {HEADS}, key_heads: {key_heads}, vocabulary: 1024, "
        f"sequence: {TOKENS}, flash: {flash}}}"
    )


def block(scenario: Scenario) -> Layer:
    return next(layer for layer in job_of(scenario).layers if not layer.pinned_to_end)


def attention_of(layer: Layer) -> Attention:
    return next(one for one in layer.operators if isinstance(one, Attention))


@pytest.mark.parametrize("context", [2, 4, 8])
def test_each_rank_attends_to_all_tokens_with_a_share_of_the_heads(small: Make, context: int) -> None:
    whole, ours = (
        small(llama(), *ON, hybrid(context=n, **more)) for n, more in ((1, {}), (context, {"context_by": "ulysses"}))
    )
    attention = attention_of(block(ours))
    assert (attention.heads, attention.key_heads) == (HEADS // context, HEADS // context)
    assert (attention.queries, attention.keys) == (TOKENS, TOKENS)
    assert block(ours).forward_flops * context == block(whole).forward_flops


@pytest.mark.parametrize(("key_heads", "sent_heads"), [(16, 16), (8, 8), (4, 4), (2, 4)])
def test_ranks_send_the_expected_bytes(small: Make, key_heads: int, sent_heads: int) -> None:
    """Of N tokens and P ranks each sends N/P of queries, keys and values, and N/P of the output: 4·N·h/P in all where there are
    as many key heads. Of fewer key heads than ranks each is sent to several."""
    layer = block(small(llama(key_heads), *ON, hybrid(context=4, context_by="ulysses")))
    width, own = HIDDEN // HEADS, TOKENS // 4
    sent = {
        Exchange("alltoall", own * (HEADS + 2 * sent_heads) * width, backward, axis="context") for backward in (False, True)
    } | {Exchange("alltoall", own * HIDDEN, backward, axis="context") for backward in (False, True)}
    assert set(layer.exchanges) == sent
    assert len(layer.exchanges) == 4
    if key_heads == HEADS:
        assert sum(one.elements for one in layer.exchanges if not one.backward) == 4 * TOKENS * HIDDEN // 4


@pytest.mark.parametrize("flash", ["true", "false"])
@pytest.mark.parametrize("context", [2, 8])
def test_activations_are_divided_among_ranks(small: Make, context: int, flash: str) -> None:
    """Queries, keys, values and scores as a share 1/P; what attention writes and what the projection reads are both kept."""

    def kept(**fields: object) -> dict[str, int]:
        return {one.name: one.elements for one in block(small(llama(flash=flash), *ON, hybrid(**fields))).kept}

    whole, ours = kept(), kept(context=context, context_by="ulysses")
    assert ours.pop("projection input") == TOKENS * HIDDEN // context
    assert {name: elements * context for name, elements in ours.items()} == whole


def test_recomputed_attention_does_not_repeat_exchanges(small: Make) -> None:
    strategy = hybrid(context=4, context_by="ulysses")
    plain, again = (small(llama(), *ON, strategy, f"training.recompute={kind}") for kind in ("none", "{modules: [core_attn]}"))
    plan = plain.strategy.plan
    found = [with_collectives(plan, job_of(one)).costs().backward_exchange_s for one in (plain, again)]
    assert found[0] == pytest.approx(found[1])
    assert memory(again).worst.total_bytes < memory(plain).worst.total_bytes


def test_estimates_of_ulysses_agree_with_replay(small: Make) -> None:
    base = small(llama(8), *ON, "framework=torchtitan", hybrid(context=4, context_by="ulysses", overlap="true"))
    space = Space(
        base, (8, 16), tensor=(1, 2), context=(1, 2, 4, 8), stages=(1, 2), samples=(1, 2), zero=(0, 1, 3),
        sequence_parallel=(False, True),
    )  # fmt: skip
    found = every(space)
    rows = np.random.default_rng(5).choice(np.flatnonzero(found.context > 1), 30, replace=False)
    times, estimated_bytes = step_times(found.take(rows)), memory_bytes(found.take(rows))
    replayed_s = np.array([timed(found.scenario(row), simulate=replay.simulate).step_time_s for row in rows])
    assert (times.least_s <= replayed_s * (1 + 1e-9)).all()
    assert np.abs(times.expected_s / replayed_s - 1).max() <= 0.05
    assert estimated_bytes == pytest.approx([memory(found.scenario(row)).worst.total_bytes for row in rows])


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (hybrid(context=32, context_by="ulysses"), "strategy.context: 32 ranks do not divide heads 16; give a divisor of it"),
        (hybrid(context=8, tensor=4, context_by="ulysses"), "strategy.context: 8 ranks do not divide heads 4"),
        (hybrid(context_by="ulysses"), "strategy.context_by: has no effect without context parallelism"),
    ],
)
def test_impossible_values_are_rejected(small: Make, strategy: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(llama(), *ON, strategy)
    assert message in str(caught.value)
