"""Muon's products and what they cost (arXiv 2502.16982)."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.model import Llama
from scaleproof.simulator.model.muon import matrix_elements, newton_schulz
from scaleproof.simulator.predict import timed
from tests.simulator.frameworks.scenarios import scenario


def test_five_iterations_multiply_each_matrix() -> None:
    model = Llama(layers=1, hidden=64, heads=8, feedforward=160, vocabulary=100, sequence=32)
    embedding, block, *_ = model.build_layers()
    # queries, keys and values together, the projection, both halves of a gated MLP together, and its output
    shapes = (64, 192), (64, 64), (64, 320), (64, 160)
    flops = sum(5 * (4 * m * m * n + 2 * m**3) for m, n in shapes)
    assert sum(product.forward_flops for product in newton_schulz(block)) == flops
    assert matrix_elements(block) == sum(m * n for m, n in shapes)
    assert newton_schulz(embedding) == ()


def test_ranks_share_the_products_of_the_matrices_that_they_gather() -> None:
    whole, sharded, momentum = (
        timed(scenario("framework=ideal", f"training.optimizer={optimizer}", f"training.zero={zero}"))
        for optimizer, zero in (("muon", 0), ("muon", 1), ("momentum", 1))
    )
    matrices = sum(map(matrix_elements, scenario().model.build_layers()))
    # the momentum of all matrices in bf16
    gathered, plain = (
        sum(part.size_bytes for part in run.communication if part.collective == "all-gather") for run in (sharded, momentum)
    )
    assert gathered - plain == pytest.approx(2 * matrices)
    products_s = whole.phase_s["optimizer"] - timed(scenario("framework=ideal", "training.optimizer=lion")).phase_s["optimizer"]
    flops = sum(product.forward_flops for layer in scenario().model.build_layers() for product in newton_schulz(layer))
    peak_flops = scenario().cluster.device.peak_flops["bf16"]
    assert 0.3 < flops / peak_flops / products_s < 1
    assert sharded.phase_s["optimizer"] - momentum.phase_s["optimizer"] == pytest.approx(products_s / 8, rel=0.1)


def test_clipping_waits_for_the_norm_over_all_ranks() -> None:
    def reduced(*overrides: str) -> list[str]:
        run = timed(scenario("training.clip_gradients=true", *overrides))
        return [part.dimension for part in run.communication if part.size_bytes == 4]

    assert reduced("training.zero=2") == [Dimension.ZERO.label]
    assert reduced("strategy={kind: hybrid, workers: 1, tensor: 2, stages: 4, microbatches: 4}") == [Dimension.PIPELINE.label]
    assert reduced() == []


def test_clipping_moves_12_bytes_per_parameter_once() -> None:
    """pytorch-ddp's optimizer step counts clipping already; the ideal one's does not."""
    for framework, added in (("pytorch-ddp", (12, 0)), ("ideal", (0, 12))):
        without, usual, clipped = (
            timed(scenario(f"framework={framework}", f"training.clip_gradients={value}")).phase_s["optimizer"]
            for value in ("false", "null", "true")
        )
        parameters, device = scenario().model.parameters(), scenario().cluster.device
        assert device.kernels is not None
        moved_s = parameters / (device.memory_bandwidth_Bps * device.kernels.memory_share)
        assert ((usual - without) / moved_s, (clipped - usual) / moved_s) == pytest.approx(added, rel=0.05, abs=0.05)
