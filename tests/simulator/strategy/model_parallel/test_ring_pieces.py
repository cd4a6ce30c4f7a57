"""Ring attention as software runs it: a kernel for each rank's keys, merges between them, and what goes around the ring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from scaleproof.simulator.frameworks import Execution, Framework, TrainingWork
from scaleproof.simulator.frameworks.framework import PerPass, RingAttention
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.model_parallel.layer_collectives import LayerCollectives
from scaleproof.simulator.strategy.plan_costs import with_collectives
from scaleproof.simulator.strategy.scenario_job import job_of
from tests.simulator.programs import hybrid

Make = Callable[..., Scenario]

TOKENS, HIDDEN, HEADS, KEY_HEADS, RANKS = 8192, 1024, 16, 4, 4
MODEL = (
    f"model={{kind: llama, layers: 4, hidden: {HIDDEN}, heads: {HEADS}, key_heads: {KEY_HEADS}, vocabulary: 1024, "
    f"sequence: {TOKENS}, flash: true}}"
)
ON = (MODEL, "cluster=selene-a100", "batch=16", "training.precision=bf16", "training.optimizer=adam", "training.zero=3")


def scenario(small: Make, framework: str, way: str = "ring") -> Scenario:
    return small(*ON, f"framework={framework}", hybrid(context=RANKS, workers=2, context_by=way))


def block(one: Scenario) -> Layer:
    return next(layer for layer in job_of(one).layers if not layer.pinned_to_end)


def attention_s(one: Scenario, ring: RingAttention) -> tuple[float, float]:
    """Seconds of a block's passes with nothing but attention and its merges."""
    layer = block(one)
    attention = next(operator for operator in layer.operators if isinstance(operator, Attention))
    framework = Framework(name="bare", ring=ring)
    work = TrainingWork("bf16", "adam", one.training.recompute)
    return Execution(one.cluster.device, framework, work).layer_s(replace(layer, operators=(attention,), kept=()), 1)


def test_merges_take_the_time_of_their_bytes(small: Make) -> None:
    one = scenario(small, "pytorch-fsdp2")
    kernels = one.cluster.device.kernels
    assert kernels is not None
    reached_Bps = one.cluster.device.memory_bandwidth_Bps * kernels.memory_share
    own, width = TOKENS // RANKS, HIDDEN // HEADS
    output, keys = own * HIDDEN, RANKS * own * 2 * KEY_HEADS * width
    ring = RingAttention(merged=PerPass(forward=32, backward=4), keys=PerPass(forward=4, backward=25))
    bare_s, merged_s = attention_s(one, RingAttention()), attention_s(one, ring)
    expected = [(RANKS - 1) * 32 * output + 4 * keys, (RANKS - 1) * 4 * output + 25 * keys]
    assert [b - a for a, b in zip(bare_s, merged_s, strict=True)] == pytest.approx([e / reached_Bps for e in expected])


def test_keys_that_are_gathered_before_attention_are_not_merged(small: Make) -> None:
    one = scenario(small, "pytorch-fsdp2", "all_gather")
    more = RingAttention(merged=PerPass(forward=32, backward=4), kernels=PerPass(forward=9, backward=9))
    assert attention_s(one, more) == attention_s(one, RingAttention())


def test_repeated_keys_are_sent_for_each_head_of_queries(small: Make) -> None:
    plain, repeated = (block(scenario(small, name)) for name in ("pytorch-fsdp2", "torchtitan"))
    assert [b.elements / a.elements for a, b in zip(plain.exchanges, repeated.exchanges, strict=True)] == [
        HEADS / KEY_HEADS
    ] * len(plain.exchanges)
    # without context parallelism each rank has its own keys, which are repeated in its memory alone
    alone = block(small(*ON, "framework=torchtitan"))
    assert next(one for one in alone.operators if isinstance(one, Attention)).key_heads == KEY_HEADS


def test_gradients_of_keys_go_around_in_32_bits(small: Make) -> None:
    one = scenario(small, "pytorch-fsdp2")
    job = with_collectives(one.strategy.plan, job_of(one))
    assert job.exchange is not None
    bytes_of = {each.op: job.exchange.message_bytes(each, 1, job) / each.elements for each in block(one).exchanges}
    assert bytes_of == {"all_gather": 2, "reduce_scatter": 4}


def test_a_compiled_ring_waits_for_its_messages(small: Make) -> None:
    one = scenario(small, "torchtitan-compiled")
    assert one.framework.ring.waits
    exposed_s = []
    for waits in (True, False):
        ring = one.framework.ring.model_copy(update={"waits": waits})
        job = job_of(one.model_copy(update={"framework": one.framework.model_copy(update={"ring": ring})}))
        job = with_collectives(one.strategy.plan, job)
        assert isinstance(job.exchange, LayerCollectives)
        exposed_s.append(sum(seconds for _, _, seconds in job.exchange.exposed_s(block(one), 1, job)))
    assert exposed_s[0] > exposed_s[1]
