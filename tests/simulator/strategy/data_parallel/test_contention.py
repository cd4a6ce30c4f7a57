"""Collectives of replicas and those within passes share links: together they take no less than the links are busy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.data_parallel.contention import delays_s, together_s
from tests.simulator.frameworks.scenarios import scenario
from tests.simulator.strategy.model_parallel.test_compute_budget import GPT, LINKS, MIXTURE, faster, steps_s
from tests.validator.verdicts import in_bulk

# Rounding.
_SAME = 1 + 1e-9
# On a device this much faster only communication takes time.
_MUCH = 1e4
LAYOUTS = {
    "tensor": (GPT, "workers: 2, tensor: 4"),
    "ring": (GPT, "workers: 2, context: 4"),
    "pieces": (GPT, "workers: 2, tensor: 4, sequence_parallel: true, overlap_tensor: true"),
    "microbatches": (GPT, "workers: 2, tensor: 4, microbatches: 4"),
    "stages": (GPT, "workers: 2, tensor: 2, stages: 2, microbatches: 4"),
    "experts": (MIXTURE, "workers: 8, expert: 4"),
}


def replicas(link: str, layout: str, overlap: bool, *more: str) -> Scenario:
    model, numbers = LAYOUTS[layout]
    strategy = f"strategy={{kind: hybrid, {numbers}, overlap: {str(overlap).lower()}}}"
    return scenario(model, strategy, LINKS[link], "cluster.nodes=1", "batch={per_worker: 4}", *more)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("link", ["PCIe", *in_bulk("NVLink")])
def test_no_step_is_shorter_than_its_communication(link: str, layout: str) -> None:
    """All collectives of these layouts use the links inside one node, and without software nothing else takes time."""
    overlapped, separate = (replicas(link, layout, overlap, "framework=ideal") for overlap in (True, False))
    assert min(steps_s(overlapped)) >= 0.97 * timed(faster(separate, _MUCH)).step_time_s


@pytest.mark.parametrize("framework", ["ideal", *in_bulk("megatron-core-0.12")])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("link", ["PCIe", *in_bulk("NVLink")])
def test_a_faster_device_never_lengthens_a_step(link: str, layout: str, framework: str) -> None:
    seconds = steps_s(replicas(link, layout, True, f"framework={framework}"))
    assert all(fast_s <= slow_s * _SAME for slow_s, fast_s in pairwise(seconds))


def test_sums_between_nodes_do_not_slow_exchanges_inside_them() -> None:
    model = scenario(
        GPT, "strategy={kind: hybrid, workers: 2, tensor: 8, overlap: true}", "cluster=dgx-h100", "cluster.nodes=2",
        "batch={per_worker: 4}",
    )  # fmt: skip
    alone = model.copied(framework=model.framework.ablated("link contention"))
    assert timed(model).step_time_s == pytest.approx(timed(alone).step_time_s, rel=1e-12)


def test_sums_next_to_exchanges_on_one_link_take_longer() -> None:
    one = replicas("PCIe", "tensor", True)
    alone = one.copied(framework=one.framework.ablated("link contention"))
    assert timed(one).step_time_s > 1.1 * timed(alone).step_time_s


def test_collectives_overlap_with_the_passes_that_are_left() -> None:
    """Layers are passed from the last to the first, a second each; nothing is left to pass after the first."""
    passes_s = np.ones(4)
    assert together_s(np.full(4, 0.5), passes_s).tolist() == [0.0, 0.5, 0.5, 0.5]
    # of three sums that take longer, the second is half done when the passes end
    assert together_s(np.array([2.0, 2.0, 2.0, 2.0]), passes_s).tolist() == [0.0, 0.0, 1.0, 2.0]
    assert together_s(np.array([0.0, 0.0, 0.0, 9.0]), passes_s).tolist() == [0.0, 0.0, 0.0, 3.0]


@pytest.mark.parametrize("together", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("within", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("exposed", [0.0, 0.5, 1.0])
def test_links_move_one_thing_at_a_time(together: float, within: float, exposed: float) -> None:
    """Passes of a second with collectives for `within` seconds, and sums next to them of `together` seconds."""
    longer_s, delayed_s = delays_s(*map(np.array, (together, within, within * exposed, 1.0)))
    busy_s = within + together
    assert max(1 + longer_s, together + delayed_s) >= busy_s - 1e-12
    assert longer_s <= together + 1e-12
    assert delayed_s <= within + 1e-12


@pytest.mark.parametrize("shard", ["table", "row"])
def test_gradients_of_one_bucket_slow_no_passes(shard: str) -> None:
    """One bucket is complete when the passes are, so that its sum shares links with nothing and takes as long as after them."""
    fields = {
        "model": {"kind": "dlrm", "tables": [{"rows": 1000, "dim": 64, "count": 8}], "dense": 4, "bottom": [64],
                  "top": [64, 1]},
        "cluster": "netlab-100mbit", "strategy": {"kind": "data_parallel", "workers": 4, "tables": {"shard": shard}},
        "batch": 2048,
    }  # fmt: skip
    overlapped, after = (
        timed(load(fields, {"strategy.overlap": overlap, "strategy.bucket": "25 MiB"})) for overlap in (True, False)
    )
    assert overlapped.step_time_s == pytest.approx(after.step_time_s, rel=1e-6)
