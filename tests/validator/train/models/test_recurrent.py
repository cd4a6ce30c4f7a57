"""Recurrences that train for real: tensors as predicted, outputs as theory has them, equal parameters on several ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import Llama, RecurrentNetwork
from scaleproof.simulator.model.transformer.recurrent import Recurrence
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.train.models import models
from scaleproof.validator.train.models.recurrent import Mixer, recurrent_outputs
from tests.validator.conftest import TINY_GPT, MakeScenario
from tests.validator.verdicts import collectives, deviation, deviation_of, in_bulk

RECURRENCES: dict[str, dict[str, Any]] = {
    "mamba2": {"heads": 4, "value_width": 8, "width": 8, "key_heads": 2, "chunk": 4},
    "mamba": {"heads": 32, "width": 4},
    "gla": {"heads": 2, "value_width": 8, "width": 4, "convolution": 0, "chunk": 4},
    "gated_deltanet": {"heads": 4, "value_width": 8, "width": 8, "key_heads": 2, "chunk": 4},
}


def spec(kind: str, pattern: str = "M- *-", **others: Any) -> dict[str, Any]:
    own = {
        "kind": "llama",
        "layers": len(pattern.split()),
        "pattern": pattern,
        "recurrence": {"kind": kind, **RECURRENCES[kind]},
    }
    return TINY_GPT | own | others


MIXED = spec("mamba", "ME *-", experts={"count": 2, "active": 1, "feedforward": 8})


@pytest.mark.parametrize("kind", RECURRENCES)
def test_modules_have_the_tensors_of_the_predicted_layers(kind: str) -> None:
    for pattern in ("M", "M- *-", "M * -"):
        model = Llama.model_validate(spec(kind, pattern, gated=True))
        layers = model.build_layers()
        modules = models.build(model, range(len(layers)), seed=0)
        assert [tuple(one.numel() for one in module.parameters()) for module in modules] == [one.tensors for one in layers]


def test_a_scan_without_decay_is_linear_attention() -> None:
    query, key, value = (torch.randn(2, 6, 3, 4, dtype=torch.float64) for _ in range(3))
    scores = torch.einsum("bqhk,bshk->bhqs", query, key).tril()
    expected = torch.einsum("bhqs,bshv->bqhv", scores, value)
    torch.testing.assert_close(recurrent_outputs(query, key, value, torch.ones_like(key)), expected)


def test_the_delta_rule_replaces_what_a_state_has_for_a_key() -> None:
    key = torch.eye(4, dtype=torch.float64)[[0, 0]].reshape(1, 2, 1, 4)
    value = torch.tensor([1.0, 5.0], dtype=torch.float64).reshape(1, 2, 1, 1)
    whole = torch.ones(1, 2, 1, dtype=torch.float64)
    outputs = recurrent_outputs(key, key, value, torch.ones_like(key), whole)
    assert outputs.flatten().tolist() == [1.0, 5.0]


@pytest.mark.parametrize("kind", RECURRENCES)
def test_outputs_depend_on_earlier_tokens_alone(kind: str) -> None:
    torch.manual_seed(0)
    mixer = Mixer(16, Recurrence(kind=kind, **RECURRENCES[kind]))
    x = torch.randn(1, 6, 16)
    changed = x.clone()
    changed[:, 3] += 1
    before, after = mixer(x), mixer(changed)
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 5], after[:, 5])


@pytest.mark.parametrize(
    ("strategy", "model", "zero"),
    [
        ({"kind": "data_parallel", "workers": 2}, spec("mamba2"), 0),
        ({"kind": "pipeline", "stages": 2, "microbatches": 2}, spec("gated_deltanet"), 0),
        *in_bulk(
            ({"kind": "data_parallel", "workers": 2}, MIXED, 0),
            ({"kind": "data_parallel", "workers": 2}, spec("gla"), 3),
            ({"kind": "pipeline", "stages": 2, "microbatches": 2}, spec("mamba2", "M * -", layers=6), 0),
        ),
        (
            {"kind": "data_parallel", "workers": 2},
            {"kind": "rnn", "layers": 2, "hidden": 8, "vocabulary": 16, "sequence": 5},
            0,
        ),
    ],
)  # fmt: skip
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], zero: int, make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model, precision="fp64", zero=zero)) < 1e-9


@pytest.mark.parametrize(
    ("kind", "ranks", "others"),
    [
        ("mamba2", 2, {}),
        *in_bulk(
            ("mamba", 2, {}), ("gla", 2, {}), ("gated_deltanet", 2, {}),
            ("mamba2", 2, {"sequence_parallel": True}), ("mamba", 4, {"sequence_parallel": True}),
            ("gated_deltanet", 2, {"sequence_parallel": True, "workers": 2}),
            ("gla", 2, {"stages": 2, "microbatches": 2}),
        ),
    ],
)  # fmt: skip
def test_divided_states_equal_one_process_and_exchange_the_predicted_bytes(
    kind: str, ranks: int, others: dict[str, Any], make_scenario: MakeScenario
) -> None:
    strategy = {"kind": "hybrid", "tensor": ranks, **others}
    scenario = make_scenario(strategy, spec(kind, heads=4, key_heads=4), precision="fp64", batch=8)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert deviation_of(run) < 1e-9
    if not others:
        # activations of blocks: losses exchange largest logits too
        layers = scenario.layers(scenario.strategy.plan.shard)[1:-1]
        predicted = Counter(8 * 8 * float(one.elements) for layer in layers for one in layer.exchanges)
        found = collectives(run)
        assert {size: min(found[size], count) for size, count in predicted.items()} == predicted


@pytest.mark.parametrize(
    ("strategy", "words"),
    [({"tensor": 4}, "key_heads"), ({"context": 2, "context_by": "ulysses"}, "exchange tokens")],
)
def test_states_that_are_not_divided_are_refused(strategy: dict[str, Any], words: str, make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match=words):
        check_trainable(make_scenario({"kind": "hybrid", **strategy}, spec("mamba2", heads=4, key_heads=4)))


def test_recurrent_networks_have_torchs_tensors() -> None:
    for cell in ("lstm", "gru", "rnn"):
        model = RecurrentNetwork.model_validate({"cell": cell, "layers": 2, "hidden": 8, "vocabulary": 16, "sequence": 5})
        layers = model.build_layers()
        modules = models.build(model, range(len(layers)), seed=0)
        assert [tuple(one.numel() for one in module.parameters()) for module in modules] == [one.tensors for one in layers]
