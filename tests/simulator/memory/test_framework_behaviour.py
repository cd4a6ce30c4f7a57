"""Memory that frameworks keep in ways of their own: whose figure they log, buckets, and gathered inputs of products."""

from __future__ import annotations

import pytest

from scaleproof.simulator.memory import memory
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.memory.test_strategies import ON, Make, hybrid, trained_by, training

# Blocks of 512 x 256 elements between them.
LLAMA = "model={kind: llama, layers: 8, hidden: 512, heads: 8, vocabulary: 8192, sequence: 256}"
BF16 = training(precision="bf16")


def scenario(small: Make, degrees: dict[str, object], **behaviour: object) -> Scenario:
    return small(LLAMA, *ON, BF16, "batch.total=32", hybrid(**degrees), trained_by("nanotron", **behaviour))


def first_bytes(small: Make, degrees: dict[str, object], holder: str, **behaviour: object) -> float:
    return memory(scenario(small, degrees, **behaviour)).ranks[0].holders_bytes[holder]


def test_a_figure_of_the_first_rank_or_of_the_fullest(small: Make) -> None:
    one = scenario(small, {"workers": 1, "stages": 4, "microbatches": 32}, reports="allocated_bytes")
    use, behaviour = memory(one), one.framework.memory
    of_ranks = [rank.allocated_bytes for rank in use.ranks]
    assert use.reported_bytes(behaviour) == of_ranks[0]
    assert use.reported_bytes(behaviour.model_copy(update={"reported_rank": "fullest"})) == max(of_ranks)
    # microbatches in flight make the first stage, or logits the last one, the fullest
    assert len(set(of_ranks)) > 1


def test_buckets_of_16_bits_exist_without_zero_only(small: Make) -> None:
    degrees = {"workers": 4, "microbatches": 4}
    parameters = memory(scenario(small, degrees)).ranks[0].holders_bytes["parameters"] / 2
    zero_1 = small(LLAMA, *ON, training(precision="bf16", zero=1), "batch.total=32", hybrid(**degrees), trained_by("nanotron"))
    more = first_bytes(small, degrees, "communication") - memory(zero_1).ranks[0].holders_bytes["communication"]
    assert more == pytest.approx(2 * parameters)


def test_gathered_inputs_stay_whole_where_they_are_kept(small: Make) -> None:
    tensor, samples, blocks = 4, 2, 8
    degrees = {"workers": 1, "tensor": tensor, "sequence_parallel": "true", "microbatches": 16}
    kept, not_kept = (first_bytes(small, degrees, "activations", keeps_gathered=value) for value in ("always", "never"))
    whole_bytes = 2 * 512 * 256 * samples
    # inputs of queries, keys and values, of the MLP, and of the output head, in place of a quarter of them
    assert kept - not_kept == pytest.approx((2 * blocks + 1) * whole_bytes * (1 - 1 / tensor))


def test_pipelines_gather_inputs_again(small: Make) -> None:
    degrees = {"workers": 1, "tensor": 2, "stages": 2, "sequence_parallel": "true", "microbatches": 16}
    kept, not_kept = (first_bytes(small, degrees, "activations", keeps_gathered=value) for value in ("without stages", "never"))
    assert kept == not_kept


def test_norms_with_frozen_weights_keep_what_gradients_of_inputs_read(small: Make) -> None:
    behaviour = {"kept_bytes": {"rms norm": 4}, "frozen_kept_bytes": {"rms norm": 2}}
    adapters = training(precision="bf16", adapters={"kind": "lora", "rank": 8})
    degrees = {"workers": 4, "microbatches": 4}
    full, tuned = (
        small(LLAMA, *ON, trained, "batch.total=32", hybrid(**degrees), trained_by("nanotron", **behaviour))
        for trained in (BF16, adapters)
    )
    kept = [sum(one.framework.memory.copies_bytes(layer, 2) for layer in one.layers(WHOLE)) for one in (full, tuned)]
    norms = 8 * 2 + 1
    assert kept[0] - kept[1] == pytest.approx(2 * norms * 512 * 256)


def test_deepspeed_allocates_whole_reduction_buffers_on_one_device_too(small: Make) -> None:
    adapters = {"kind": "lora", "rank": 8}
    allocated = []
    for zero in (0, 1, 2):
        fields = training(precision="bf16", zero=zero, adapters=adapters)
        one = small(
            LLAMA, *ON, fields, "batch.total=4", hybrid(workers=1), trained_by("hf-trainer-deepspeed", reduce_elements=1e6)
        )
        allocated.append(memory(one).worst.holders_bytes["communication"])
    # stage 2 fills one while the other is reduced
    assert allocated == [0.0, 2e6, 4e6]


def test_autocast_casts_what_products_read_alone(small: Make) -> None:
    working = []
    for vocabulary in (8192, 16384):
        model = LLAMA.replace("8192", str(vocabulary))
        one = small(model, *ON, training(precision="bf16", autocast=True, recompute="full"), "batch.total=1", hybrid(workers=1))
        working.append(memory(one).worst.holders_bytes["working"])
    # of the head's weights, and not of the embedding's table
    assert working[1] - working[0] == 2 * 8192 * 512
