"""Recurrences in place of attention: published sizes, FLOPs by hand, divisions among ranks, and errors."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model import Llama, RecurrentNetwork
from scaleproof.simulator.model.layers import Shard
from scaleproof.simulator.model.operators import Attention, Scan
from scaleproof.simulator.scenario.read import load_model

MAMBA2 = {"kind": "mamba2", "heads": 8, "value_width": 16, "width": 32, "key_heads": 2, "chunk": 64}
DELTA = {"kind": "gated_deltanet", "heads": 8, "value_width": 16, "width": 32, "key_heads": 4, "chunk": 64}
GLA = {"kind": "gla", "heads": 4, "value_width": 32, "width": 16, "convolution": 0, "chunk": 64}
MAMBA = {"kind": "mamba", "heads": 128, "width": 16}


def model(pattern: str | None = "M-", recurrence: dict[str, Any] | None = None, **others: Any) -> Llama:
    words = len((pattern or "one").split())
    given = {"layers": 2 * words, "hidden": 64, "heads": 4, "vocabulary": 128, "sequence": 256, "pattern": pattern}
    return Llama.model_validate(given | {"recurrence": MAMBA2 if recurrence is None else recurrence} | others)


# Parameters of the weights as transformers 5.24 counts them in models of these configurations; Jamba's norms of time steps and
# keys, and the gates of Qwen3-Next's shared experts, are not counted here.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mamba2-7b", 7_285_403_648),
        ("jamba-v0.1", 51_570_323_328),
        ("qwen3-next-80b-a3b", 79_674_391_296),
        # arXiv 2504.03624 and the name of state-spaces/mamba2-2.7b
        ("nemotron-h-8b", 8.1e9),
        ("mamba2-2.7b", 2.7e9),
    ],
)
def test_models_have_the_published_number_of_parameters(name: str, parameters: float) -> None:
    assert load_model(name).parameters() == pytest.approx(parameters, rel=0.001)


def test_a_scan_has_the_flops_of_its_chunks() -> None:
    scan = Scan("mamba2", heads=8, key_heads=2, tokens=256, width=32, value_width=16, chunk=64)
    scores = 2 * 64 * 32
    # a token's scores within its chunk, their product with values, the update of the state, and its product with the query
    per_token = 2 * scores + 8 * (2 * 64 * 16 + 2 * 32 * 16 + 2 * 32 * 16)
    assert scan.forward_flops == 256 * per_token
    assert scan.backward_flops == 2 * scan.forward_flops


@pytest.mark.parametrize("recurrence", [MAMBA2, DELTA, GLA, MAMBA], ids=lambda one: one["kind"])
def test_work_grows_linearly_with_the_sequence(recurrence: dict[str, Any]) -> None:
    short, long = (
        sum(layer.forward_flops for layer in model("M", recurrence, sequence=tokens).build_layers()) for tokens in (256, 1024)
    )
    assert long == 4 * short
    attended = [sum(layer.forward_flops for layer in model("M *", sequence=tokens).build_layers()) for tokens in (256, 1024)]
    assert attended[1] > 4 * attended[0]


def test_a_pattern_names_the_branches_of_blocks() -> None:
    hybrid = model("M- ME *-", experts={"count": 4, "active": 2, "feedforward": 32})
    blocks = hybrid.build_layers()[1:-1]
    kinds = [{type(one) for one in block.operators} & {Scan, Attention} for block in blocks]
    assert kinds == [{Scan}, {Scan}, {Attention}] * 2
    assert [block.expert_parameters > 0 for block in blocks] == [False, True, False] * 2
    # single branches have one norm, and together the operators of a block with both
    single = model("M -", layers=2).build_layers()
    both = model("M-", layers=1).build_layers()
    assert sum(layer.parameters for layer in single) == sum(layer.parameters for layer in both)


@pytest.mark.parametrize("recurrence", [MAMBA2, DELTA, GLA, MAMBA], ids=lambda one: one["kind"])
def test_tensor_parallel_ranks_divide_the_states(recurrence: dict[str, Any]) -> None:
    whole, share = (
        sum(one.forward_flops for layer in model("M", recurrence).build_layers(shard)[1:-1] for one in layer.operators)
        for shard in (Shard(), Shard(tensor=2))
    )
    # keys that all channels of Mamba share are computed from each rank's channels; a low-rank product is repeated
    assert share == pytest.approx(whole / 2, rel=0.02)
    reduced = [one for layer in model("M", recurrence).build_layers(Shard(tensor=2))[1:-1] for one in layer.exchanges]
    # and the gradients of both are sums of what the ranks' channels have
    assert len(reduced) == 2 * (4 if recurrence is MAMBA else 2)


def test_context_parallel_ranks_exchange_tokens_for_states() -> None:
    shard = Shard(context=2, context_by="ulysses")
    (block, *_) = model("M").build_layers(shard)[1:-1]
    inputs = 2 * 8 * 16 + 2 * 2 * 32 + 8
    assert sorted({one.elements for one in block.exchanges if one.axis == "context"}) == [128 * 8 * 16, 128 * inputs]
    with pytest.raises(FieldError, match="through all ranks"):
        model("M").build_layers(Shard(context=2))


def test_further_predictions_have_a_block_and_logits_each() -> None:
    given = {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 128, "sequence": 256}
    plain, ahead = (Llama.model_validate(given | {"predictions": number}) for number in (0, 2))
    block, head = plain.build_layers()[1], plain.build_layers()[-1]
    joined = 2 * 64 * 64 + 2 * 64
    # the norm before each of the logits
    assert ahead.parameters() - plain.parameters() == 2 * (block.parameters + joined + 64)
    flops = [sum(layer.forward_flops for layer in one.build_layers()) for one in (plain, ahead)]
    assert flops[1] - flops[0] == 2 * (block.forward_flops + head.forward_flops + 256 * 2 * 64 * 128)


def test_recurrent_networks_multiply_their_state_token_by_token() -> None:
    lstm = RecurrentNetwork(layers=1, hidden=8, vocabulary=16, sequence=5)
    cell = lstm.build_layers()[1]
    # torch.nn.LSTM: weights and biases of inputs and of the state, for four gates
    assert cell.parameters == 4 * (2 * 8 * 8 + 2 * 8)
    assert cell.forward_flops == 5 * 2 * (2 * 4 * 8 * 8)
    assert cell.backward_flops == 2 * cell.forward_flops
    step = cell.operators[1]
    assert len(step.forward(3)) == 5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"pattern": "M- X"}, "give words of the letters"),
        ({"pattern": "M- *- M-", "layers": 4}, "3 blocks do not divide layers 4"),
        ({"pattern": "*-"}, "recurrence: not used"),
        ({"pattern": "ME"}, "experts: missing"),
        ({"pattern": None}, "pattern: missing"),
        ({"recurrence": MAMBA2 | {"key_heads": 3}}, "does not divide heads"),
        ({"recurrence": MAMBA | {"value_width": 4}}, "one value each"),
    ],
)
def test_wrong_patterns_are_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        model(**({"pattern": "M-"} | changed))
