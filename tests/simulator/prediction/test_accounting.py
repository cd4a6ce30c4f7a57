"""Accounting of runs: FLOPs relative to the peak, bubbles and communication compared with theory, energy and cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.spans import COMMUNICATION_PHASES, Stream
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.predict import predict
from scaleproof.simulator.prediction.accounting import accounted, flops_per_sample
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.read import load_model
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]

# an optimizer that takes no time, and messages that take none
INSTANT = ("cluster.device.memory_bandwidth=1 EB/s",)
WIRELESS = (
    *INSTANT, "cluster.network={bandwidth: 1 EB/s, latency: 0 s}", "cluster.node.link={bandwidth: 1 EB/s, latency: 0 s}",
)  # fmt: skip
# blocks that dwarf what is pinned to the ends to the first and the last
EVEN = "model={kind: gpt, layers: 8, hidden: 512, heads: 8, vocabulary: 1, sequence: 64}"
POWER = "cluster.node.power=6 kW"
PRICE = "cluster.node.price=36 USD/h"
FAMILIES = (
    "{kind: data_parallel, workers: 8, bucket: 100 KiB, first_bucket: 10 KiB}",
    "{kind: parameter_server, workers: 8, servers: 3}",
    "{kind: model_parallel, stages: 2}",
    "{kind: pipeline, stages: 3, microbatches: 6}",
    "{kind: hybrid, workers: 2, stages: 3, microbatches: 6, bucket: 100 KiB}",
    "{kind: hybrid, workers: 2, stages: 3, tensor: 4, microbatches: 6}",
)


@pytest.mark.parametrize("strategy", FAMILIES)
def test_breakdown_adds_up_to_the_step_and_communication_to_transfer_time(small: Make, strategy: str) -> None:
    run = predict(small(f"strategy={strategy}"))
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    assert run.breakdown_s["other"] == pytest.approx(0, abs=1e-9 * run.step_time_s)
    assert run.communication_s["exposed"] == run.breakdown_s["exposed_communication"]
    assert run.communication_s["hidden"] >= 0
    assert sum(run.communication_s.values()) <= run.step_time_s * (1 + 1e-9)


@given(st.floats(0.05, 1.0), st.integers(1, 64))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mfu_of_a_compute_bound_device_is_its_efficiency(small: Make, efficiency: float, samples: int) -> None:
    run = predict(small("strategy.workers=1", f"batch={samples}", f"cluster.device.efficiency={efficiency}", *INSTANT))
    assert run.mfu == pytest.approx(efficiency, rel=1e-6)
    assert run.hfu == run.mfu


def test_full_recomputation_gives_hfu_four_thirds_of_mfu_except_pinned_layers(small: Make) -> None:
    """A backward pass is twice a forward pass F, so of three parts four are done: HFU / MFU = 4/3 − F_pinned / 3F."""
    scenario = small("strategy={kind: hybrid, workers: 2, stages: 3, microbatches: 6}", "training.recompute=full")
    run, layers = predict(scenario), scenario.model.build_layers()
    forward = sum(layer.forward_flops for layer in layers)
    pinned_to_end = sum(layer.forward_flops for layer in layers if layer.pinned_to_end)
    assert sum(layer.backward_flops for layer in layers) == pytest.approx(2 * forward)
    assert pinned_to_end > 0
    assert run.mfu is not None
    assert run.hfu == pytest.approx(run.mfu * (4 / 3 - pinned_to_end / (3 * forward)))


def test_selective_recomputation_recomputes_only_scores() -> None:
    """arXiv 2205.05198, section 5: attention over s tokens has 4·b·s²·h FLOPs in a forward pass, of 24·b·s·h² + 4·b·s²·h."""
    model = load_model("megatron-22b", flash=False)
    layers = model.build_layers()
    block = next(layer for layer in layers if not layer.pinned_to_end)
    sequence, hidden, blocks = 2048, 6144, 48
    assert block.forward_flops == 24 * sequence * hidden**2 + 4 * sequence**2 * hidden
    _, again = flops_per_sample(layers, Recompute(kind="selective"))
    assert again == blocks * 4 * sequence**2 * hidden


def test_model_flops_of_a_gpt_equal_the_published_formula() -> None:
    """arXiv 2104.04473, appendix: 72·B·s·l·h²·(1 + s/6h + V/12lh) without recomputation."""
    layers = load_model("gpt3-175b").build_layers()
    model_flops, again = flops_per_sample(layers, Recompute())
    h, s, blocks = 12288, 2048, 96
    vocabulary = 50257
    assert model_flops == pytest.approx(72 * s * blocks * h**2 * (1 + s / (6 * h) + vocabulary / (12 * blocks * h)), rel=3e-3)
    assert again == 0


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("room", ["imbalance: 2", "capacity: 1.5", "capacity: 4"])
def test_expert_capacity_beyond_need_does_not_count_as_model_flops(small: Make, room: str, recompute: str) -> None:
    """Tokens are sent to as many experts as before: what is computed for room, or for ranks that get more, is of no use."""
    fields = "kind: llama, layers: 4, hidden: 64, heads: 4, vocabulary: 256, sequence: 32"
    even, roomy = (
        predict(small(f"model={{{fields}, experts: {{count: 8, active: 2, feedforward: 512{more}}}}}",
                      f"training.recompute={recompute}"))
        for more in ("", f", {room}")
    )  # fmt: skip
    assert (roomy.model_flops, roomy.hardware_flops) == (even.model_flops, even.hardware_flops)
    assert even.mfu is not None
    assert roomy.mfu is not None
    assert roomy.mfu == pytest.approx(even.mfu * even.step_time_s / roomy.step_time_s)
    assert roomy.mfu < even.mfu


@pytest.mark.parametrize("strategy", FAMILIES)
def test_hidden_and_exposed_communication_add_up(small: Make, strategy: str) -> None:
    """Counted instant by instant for each rank: when a transfer of it is active. Jitter makes ranks different that are not in
    model_parallel_size,
    of which each class here has as many."""
    run = predict(small(f"strategy={strategy}", "unevenness={compute_jitter: 1.0e-9}", "steps=2"))
    assert run.spans is not None
    spans = run.spans
    trains = ~np.array([name.startswith("server") for name in run.rank_names])
    is_main, moves = spans.stream == Stream.MAIN, np.isin(spans.phase, COMMUNICATION_PHASES)
    edges_s = np.unique(np.concatenate([spans.start_s, spans.end_s]))
    middles_s = (edges_s[1:] + edges_s[:-1]) / 2
    total_s = 0.0
    for rank in np.flatnonzero(trains):
        mine = spans.where((spans.rank == rank) & (~is_main | moves))
        moving = np.zeros(len(middles_s), dtype=bool)
        for start_s, end_s in zip(mine.start_s, mine.end_s, strict=True):
            moving[np.searchsorted(middles_s, start_s) : np.searchsorted(middles_s, end_s)] = True
        total_s += np.diff(edges_s)[moving].sum() / (trains.sum() * 2)
    assert sum(run.communication_s.values()) == pytest.approx(total_s, rel=1e-6)


def test_energy_and_cost_are_proportional_to_nodes_and_time(small: Make) -> None:
    run = predict(small("strategy.workers=8", POWER, PRICE))
    assert run.energy_J is not None
    assert run.cost_USD is not None
    # two nodes of four devices each
    assert run.energy_J["per_step"] == pytest.approx(2 * 6000 * run.step_time_s)
    assert run.cost_USD["per_step"] == pytest.approx(2 * 36 / 3600 * run.step_time_s)
    assert run.energy_J["per_million_samples"] == pytest.approx(run.energy_J["per_step"] / 48 * 1e6)
    # 32 tokens a sample
    assert run.cost_USD["per_million_tokens"] == pytest.approx(run.cost_USD["per_million_samples"] / 32)


def test_energy_includes_idle_power_and_site_overhead(small: Make) -> None:
    strategy = "strategy={kind: pipeline, stages: 4, microbatches: 4}"
    full, idle = (predict(small(EVEN, strategy, *WIRELESS, POWER, *more)) for more in ((), ("cluster.node.idle_power=2 kW",)))
    site = predict(small(EVEN, strategy, *WIRELESS, POWER, "cluster.pue=1.25"))
    assert full.energy_J is not None
    assert idle.energy_J is not None
    assert site.energy_J is not None
    busy = 1 - full.bubble_fraction
    assert idle.energy_J["per_step"] == pytest.approx(full.energy_J["per_step"] * (busy + (1 - busy) / 3), rel=1e-3)
    assert site.energy_J["per_step"] == pytest.approx(1.25 * full.energy_J["per_step"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cluster.node.power=500", "has no unit; write a power such as '10.2 kW'"),
        ("cluster.node.price=30 EUR/h", "EUR: prices are in US dollars; convert it, and write a price such as '32.77 USD/h'"),
        ("cluster.node.idle_power=1 kW", "goes with power"),
        ("cluster.node={devices: 4, power: 1 kW, idle_power: 2 kW}", "more than power"),
        ("cluster.pue=0.9", "must be at least 1"),
    ],
)
def test_invalid_power_and_price_are_rejected(small: Make, change: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        small(change)


def test_tokens_include_those_read_and_written() -> None:
    for model, tokens in (("gpt3-175b", 2048), ("t5-base", 512 + 114), ("resnet50", None)):
        assert load(model, ["cluster=dgx-h100", "batch=8"]).tokens_per_sample == tokens


def test_measured_runs_have_the_same_accounting(small: Make) -> None:
    scenario = small("strategy.workers=8", POWER)
    run = predict(scenario)
    bare = replace(run, origin="measured", tokens=None, model_flops=None, hardware_flops=None, peak_flops=None, energy_J=None)
    again = accounted(bare, scenario)
    assert (again.mfu, again.tokens_per_s, again.energy_J) == (run.mfu, run.tokens_per_s, run.energy_J)


def test_emulated_runs_have_no_mfu_energy_or_cost(small: Make) -> None:
    scenario = small(POWER, PRICE)
    bare = replace(
        predict(scenario), compute="paced", model_flops=None, hardware_flops=None, peak_flops=None, energy_J=None, cost_USD=None
    )
    run = accounted(bare, scenario)
    assert run.tokens == scenario.tokens_per_sample * run.samples
    assert (run.mfu, run.hfu, run.energy_J, run.cost_USD) == (None, None, None, None)
    assert accounted(replace(bare, compute="real"), scenario).cost_USD is not None


@pytest.mark.parametrize(("precision", "warns"), [("fp32", True), ("fp16", False)])
def test_an_mfu_above_1_is_explained(precision: str, warns: bool) -> None:
    """Winograd's algorithm multiplies less than the FLOPs that are counted."""
    vgg = ("model=vgg16", "strategy.workers=1", "batch.per_worker=64", f"training.precision={precision}")
    run = predict(load("resnet50-ring-p100", vgg), interval=False)
    assert run.mfu is not None
    assert (run.mfu > 1) == warns
    assert any("Winograd" in warning for warning in run.warnings) == warns
