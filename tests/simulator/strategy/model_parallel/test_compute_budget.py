"""One budget of compute hides the collectives of a layer: steps are bounded by communication, and faster devices never lengthen
them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.frameworks.scenarios import scenario
from tests.validator.verdicts import in_bulk

# Rounding.
_SAME = 1 + 1e-9
# Factors on the rates of a device; with the last, only communication takes time.
FACTORS = (0.5, 1.0, 1.25, 1.5, 2.0, 4.0, 100.0)
LINKS = {
    "PCIe": "cluster={node: {devices: 8, link: {bandwidth: 12 GB/s, latency: 5 us}}, device: a100-80gb-pcie}",
    "NVLink": "cluster=dgx-h100",
}
GPT = "model={kind: gpt, layers: 4, hidden: 4096, heads: 32, vocabulary: 51200, sequence: 2048}"
MIXTURE = (
    "model={kind: llama, layers: 4, hidden: 1024, heads: 8, vocabulary: 256, sequence: 1024, "
    "experts: {count: 8, active: 2, feedforward: 4096}}"
)
SHARED = MIXTURE.replace("active: 2", "active: 2, shared: 1")
PIECES = "tensor: 4, sequence_parallel: true, overlap_tensor: true"
LAYOUTS = {
    "tensor": (GPT, "tensor: 4"),
    "sequence": (GPT, "tensor: 4, sequence_parallel: true"),
    "pieces": (GPT, PIECES),
    "ring": (GPT, "context: 4"),
    "pieces and ring": (GPT, f"{PIECES}, context: 2"),
    "replicas": (GPT, f"workers: 2, overlap: true, {PIECES}"),
    "experts": (MIXTURE, "workers: 8, expert: 8, overlap_experts: true, microbatches: 2"),
    "shared experts": (SHARED, "workers: 8, expert: 8, overlap_shared_experts: true"),
    "folded experts": (
        MIXTURE, f"workers: 2, {PIECES}, expert: 8, expert_tensor: 1, overlap_experts: true, microbatches: 2",
    ),
}  # fmt: skip


def overlapping(link: str, layout: str, *more: str) -> Scenario:
    model, numbers = LAYOUTS[layout]
    one_node = LINKS[link], "cluster.nodes=1", "batch={per_worker: 4}"
    return scenario(model, f"strategy={{kind: hybrid, {numbers}}}", *one_node, *more)


def faster(one: Scenario, factor: float) -> Scenario:
    """The scenario on a device whose rates are multiplied by a factor."""
    device = one.cluster.device
    rates = {
        "peak_flops": {precision: factor * flops for precision, flops in device.peak_flops.items()},
        "memory_bandwidth_Bps": factor * device.memory_bandwidth_Bps,
    }
    return one.copied(cluster=one.cluster.model_copy(update={"device": device.model_copy(update=rates)}))


def steps_s(one: Scenario) -> list[float]:
    return [timed(faster(one, factor)).step_time_s for factor in FACTORS]


def check(one: Scenario) -> None:
    """No step is shorter than communication alone, and none is longer than that on a slower device."""
    seconds = steps_s(one)
    assert min(seconds) * _SAME >= seconds[-1]
    assert all(fast_s <= slow_s * _SAME for slow_s, fast_s in pairwise(seconds))


def test_exchanges_of_sixteen_blocks_are_hidden_once() -> None:
    """On one link of 12 GB/s each of ten collectives per block moves 3/4 of 64 MiB in 4.2 ms: 671 ms, which products that take
    half of that time cannot shorten."""
    device = "{name: mine, memory: 80 GB, memory_bandwidth: 2 TB/s, peak: {bf16: 312 TFLOP/s}, efficiency: 0.5}"
    link = f"cluster={{node: {{devices: 4, link: {{bandwidth: 12 GB/s, latency: 5 us}}}}, device: {device}}}"
    one = overlapping("PCIe", "pieces", link, "model.layers=16", "framework=megatron-core-0.12")
    seconds = steps_s(one)
    gathered_bytes = 4 * 2048 * 4096 * 2
    moved_s = 3 / 4 * gathered_bytes / 12e9
    assert seconds[-1] >= 16 * 10 * moved_s
    assert min(seconds) == seconds[-1]
    # all but a piece of each collective is hidden where products suffice
    whole_s = timed(one.copied(strategy=one.strategy.model_copy(update={"overlap_tensor": False}))).step_time_s
    assert seconds[1] < 0.95 * whole_s


@pytest.mark.parametrize("link", ["PCIe", *in_bulk("NVLink")])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("recompute", ["none", *in_bulk("selective", "full")])
def test_no_step_is_shorter_than_its_communication(link: str, layout: str, recompute: str) -> None:
    check(overlapping(link, layout, "framework=megatron-core-0.12", f"training.recompute={recompute}"))


@pytest.mark.full
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("framework", names())
def test_no_framework_hides_compute_twice(framework: str, link: str) -> None:
    checked = 0
    for layout in LAYOUTS:
        for precision in ("bf16", "fp8"):
            try:
                one = overlapping(link, layout, f"framework={framework}", f"training.precision={precision}")
            except ScenarioError:
                continue
            check(one)
            checked += 1
    if not checked:
        pytest.skip("trains none of these")
