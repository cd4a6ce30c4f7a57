"""Contrastive losses compare the features of all workers: bytes on the network, FLOPs and memory."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.simulator.model.contrastive import Logits
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

WIDTH, SAMPLES, WORKERS = 768, 32, 16


def scenario(contrast: str, workers: int = WORKERS, **strategy: Any) -> Scenario:
    words = [f"strategy.{name}={value}" for name, value in {"workers": workers, **strategy}.items()]
    cluster = ("cluster=dgx-h100", "cluster.nodes=2", f"batch={workers * SAMPLES}", "training.precision=bf16")
    return load("clip-vit-l-14", [*cluster, *words, f"model.contrast={contrast}"])


def features_bytes(one: Scenario) -> dict[str, tuple[float, float]]:
    parts = predict(one).communication
    return {part.collective: (part.size_bytes, part.calls) for part in parts if part.dimension == "feature"}


def test_both_kinds_of_features_are_gathered_and_their_gradients_scattered() -> None:
    whole_bytes = 2 * WORKERS * SAMPLES * WIDTH * 2
    assert features_bytes(scenario("gathered")) == {"all-gather": (whole_bytes, 2), "reduce-scatter": (whole_bytes, 2)}


def test_words_alone_pass_around_a_ring() -> None:
    whole_bytes = WORKERS * SAMPLES * WIDTH * 2
    assert features_bytes(scenario("ring")) == {"all-gather": (whole_bytes, 1), "reduce-scatter": (whole_bytes, 1)}


def test_microbatches_gather_a_part_of_the_samples_each() -> None:
    whole_bytes = 2 * WORKERS * SAMPLES * WIDTH * 2
    assert features_bytes(scenario("gathered", microbatches=4))["all-gather"] == (whole_bytes, 8)


@pytest.mark.parametrize("one", [scenario("local"), scenario("gathered", workers=1)])
def test_features_of_one_worker_are_not_exchanged(one: Scenario) -> None:
    assert not features_bytes(one)


@pytest.mark.parametrize(("contrast", "products", "pairs"), [("gathered", 2, 512), ("ring", 1, 512), ("local", 2, 32)])
def test_products_compare_each_sample_with_those_of_all_workers(contrast: str, products: int, pairs: int) -> None:
    one = scenario(contrast)
    last = one.layers(one.strategy.plan.shard)[-1]
    found = [operator for operator in last.operators if isinstance(operator, Logits)]
    assert [operator.forward_flops for operator in found] == [2 * pairs * WIDTH] * products
    # gradients of own features and of those of others
    assert [operator.backward_flops for operator in found] == [4 * pairs * WIDTH] * products


def test_memory_grows_by_the_gathered_features_and_the_pairs_of_all_workers() -> None:
    kept = {}
    for contrast in ("gathered", "local"):
        one = scenario(contrast)
        last = one.layers(one.strategy.plan.shard)[-1]
        kept[contrast] = sum(SAMPLES * part.elements * (part.element_bytes or 2) for part in last.kept)
    workers = WORKERS - 1
    softmax_bytes, gathered_bytes = 2 * 4 * SAMPLES * SAMPLES * workers, 2 * 2 * SAMPLES * WIDTH * workers
    assert kept["gathered"] - kept["local"] == softmax_bytes + gathered_bytes


def test_losses_have_no_weights() -> None:
    one = scenario("gathered")
    layers = one.layers(one.strategy.plan.shard)
    assert sum(layer.parameters for layer in layers) == sum(layer.parameters for layer in one.model.build_layers())
    assert not any(operator.trained_weights for operator in layers[-1].operators if isinstance(operator, Logits))


def test_parameter_servers_compare_samples_of_each_worker() -> None:
    one = load("clip-vit-l-14", ["cluster=dgx-h100", "strategy={kind: parameter_server, workers: 4}", "batch=64"])
    assert not one.layers(one.strategy.plan.shard)[-1].exchanges
