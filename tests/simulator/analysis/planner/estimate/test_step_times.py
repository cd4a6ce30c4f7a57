"""Estimates are near predictions, and no prediction is below the lower bound."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate import Configurations, every, step_times
from scaleproof.simulator.analysis.planner.estimate.pipeline_times import FOLLOWED
from scaleproof.simulator.analysis.planner.estimate.step_times import one_rank_s
from scaleproof.simulator.analysis.planner.space import space
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.recompute import Recompute
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from tests.simulator.analysis.planner.estimate.predicted import check_against_predictions
from tests.validator.verdicts import in_bulk

# Five models on three kinds of clusters: NVLink and InfiniBand, 10 Gbit/s between nodes, PCIe.
SCENARIOS = {
    "megatron-175b on selene": ("megatron-175b-3d-selene", ("batch=512",), 256),
    "llama-2-7b on a100": ("llama-2-7b-fsdp-a100", ("strategy={kind: hybrid, workers: 8, overlap: true}",), 32),
    "mixtral-8x7b on h100": ("mixtral-8x7b-experts-h100", ("batch=512",), 64),
    "resnet50 on p100": ("resnet50-ring-p100", ("strategy={kind: hybrid, workers: 8, overlap: true}", "batch=512"), 16),
    "bert-large on 10gbe": (
        "bert-large-power-sgd-10gbe", ("strategy={kind: hybrid, workers: 8, overlap_gather: false}", "batch=256"), 16,
    ),
    "bert-large on 10gbe, gathers overlapped": (
        "bert-large-power-sgd-10gbe", ("strategy={kind: hybrid, workers: 8}", "batch=256"), 16,
    ),
    "llama-2-7b by whole tensors": (
        "llama-2-7b-fsdp-a100", ("strategy={kind: hybrid, workers: 8}", "framework=internevo", "training.zero=1"), 64,
    ),
    "resnet50 in one process per node": (
        "resnet50-ring-p100", ("strategy={kind: hybrid, workers: 8}", "framework=tensorflow-2-mirrored", "batch=512"), 16,
    ),
}  # fmt: skip
# Limits of the median and of the largest error where they are not 3 and 10 %: parameters that ZeRO 1 gathers next to the first
# forward passes of interleaved stages delay passes of other microbatches where the network is slow and microbatches are few,
# which estimates count twice in part. Pipelines on slow cards, which messages in both directions share, lose up to a quarter by
# delays that follow from one another.
BOUNDS = {
    "bert-large on 10gbe": (0.08, 0.26),
    "bert-large on 10gbe, gathers overlapped": (0.08, 0.26),
    # broadcasts of single tensors by stages that end at different times overlap, which estimates do not know
    "resnet50 on p100": (0.04, 0.14),
}
# Passes of programs that are predicted here, so that each takes well under a second.
_MOST_PASSES = 6_000


@lru_cache
def spaces(name: str) -> Configurations:
    reference, overrides, ranks = SCENARIOS[name]
    return every(space(load(reference, overrides), ranks))


def drawn(found: Configurations, count: int, seed: int) -> list[int]:
    """Rows whose programs are small."""
    pieces = np.where(found.zero >= 2, 60, found.stages) * found.microbatches * found.chunks
    return np.random.default_rng(seed).choice(np.flatnonzero(pieces < _MOST_PASSES), count, replace=False).tolist()


def errors(found: Configurations, rows: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Those of expected times and of lower bounds, relative to predictions."""
    times = step_times(found.take(np.array(rows)))
    predicted_s = np.array([timed(found.scenario(row)).step_time_s for row in rows])
    return times.expected_s / predicted_s - 1, times.least_s / predicted_s - 1


QUICK = list(SCENARIOS)[:8:2]


@pytest.mark.parametrize("name", [*QUICK, *in_bulk(*(name for name in SCENARIOS if name not in QUICK))])
def test_predicted_times_are_above_the_bound_and_near_estimates(name: str) -> None:
    expected, least = errors(spaces(name), drawn(spaces(name), 16, seed=1))
    assert (least <= 1e-9).all()
    median, largest = BOUNDS.get(name, (0.03, 0.10))
    assert np.median(np.abs(expected)) <= median
    assert np.abs(expected).max() <= largest
    assert (expected >= least).all()


@pytest.mark.full
@pytest.mark.parametrize("name", [list(SCENARIOS)[2], *in_bulk(*list(SCENARIOS)[:2])])
def test_steps_with_every_form_of_recomputation_are_estimated(name: str) -> None:
    reference, overrides, ranks = SCENARIOS[name]
    forms = (
        {"every": 2}, {"layers": 1}, {"group": 2}, {"products": "every_second"}, {"modules": ["core_attn", "layernorm", "mlp"]},
    )  # fmt: skip
    whole = space(load(reference, overrides), ranks)
    found = every(replace(whole, recompute=tuple(map(Recompute.model_validate, forms))))
    check_against_predictions(found, np.array(drawn(found, 24, seed=4)))


@pytest.mark.full
@pytest.mark.parametrize("name", [list(SCENARIOS)[2], *in_bulk(*list(SCENARIOS)[:2])])
def test_schedules_without_a_closed_form_are_estimated_too(name: str) -> None:
    reference, overrides, ranks = SCENARIOS[name]
    scenario = load(reference, overrides)
    each = [every(replace(space(scenario, ranks), schedules=(schedule,))) for schedule in FOLLOWED]
    expected, least = np.hstack([errors(found, drawn(found, 3, seed=8)) for found in each])
    assert (least <= 1e-9).all()
    assert np.median(np.abs(expected)) <= 0.03
    # the largest is of zb_h2
    assert np.abs(expected).max() <= 0.12


def test_schedules_found_by_search_are_rejected() -> None:
    found = every(replace(space(load("llama-2-7b-fsdp-a100"), 8), schedules=("zb_1p",)))
    with pytest.raises(FieldError, match="zb_1p is not estimated, as its order is searched for; choose from 1f1b"):
        step_times(found)


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_estimates_of_many_random_configurations_are_near_predictions(name: str) -> None:
    expected, least = errors(spaces(name), drawn(spaces(name), 2000, seed=2))
    assert (least <= 1e-9).all()
    median, largest = BOUNDS.get(name, (0.03, 0.10))
    assert np.median(np.abs(expected)) <= median
    assert np.quantile(np.abs(expected), 0.95) <= (largest if name in BOUNDS else 0.05)
    assert np.quantile(np.abs(expected), 0.99) <= (2 * largest if name in BOUNDS else 0.10)


def test_the_estimate_of_a_single_rank_equals_the_prediction() -> None:
    found = every(space(load("megatron-175b-3d-selene", ("batch=8", "strategy={kind: hybrid}")), 1))
    times = step_times(found)
    for row in drawn(found, 5, seed=3):
        assert times.expected_s[row] == pytest.approx(timed(found.scenario(row)).step_time_s, rel=1e-9)


def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(FieldError, match=r"ranks for \d+ devices; give at most"):
        space(load("llama-2-7b-fsdp-a100"), 1_000_000)


@pytest.mark.full
def test_split_sends_of_tensor_parallel_ranks_are_estimated() -> None:
    overrides = ("batch=512", "strategy.split_sends=true", "strategy.sequence_parallel=false")
    found = every(space(load("megatron-175b-3d-selene", overrides), 256))
    times = step_times(found)
    split = np.flatnonzero((found.tensor > 1) & (found.stages > 1) & (found.sequence_parallel == 0) & (found.zero == 0))
    rows = [
        row for row in np.random.default_rng(6).permutation(split).tolist() if found.microbatches[row] * found.chunks[row] < 60
    ]
    for row in rows[:6]:
        predicted_s = timed(found.scenario(row)).step_time_s
        assert times.least_s[row] <= predicted_s
        assert times.expected_s[row] == pytest.approx(predicted_s, rel=0.05)


def test_groups_closer_than_the_first_are_not_below_the_bound() -> None:
    """On a DGX-1 some GPUs are joined by two links and some by one: sums of later stages may take less than rank 0's."""
    strategy = "strategy={kind: hybrid, workers: 8, overlap_sends: true}"
    overrides = (strategy, "batch=512", "cluster=dgx1-v100", "framework=torchtitan")
    found = every(space(load("resnet50-ring-p100", overrides), 8))
    full = found.space.recompute.index(Recompute(kind="full"))
    selected = (found.stages == 4) & (found.samples == 2) & (found.zero == 3) & (found.chunks == 1) & (found.recompute == full)
    rows = np.flatnonzero(selected)

    least_s = step_times(found.take(rows)).least_s

    predicted_s = [timed(found.scenario(row)).step_time_s for row in rows.tolist()]
    assert len(rows)
    assert (least_s <= predicted_s).all()


@pytest.mark.parametrize(("moved_s", "step_s"), [(0.0, 3 * 12.0), (1.0, 1.0 + 3 * 12.0 + 1.0), (100.0, 3 * 12 * 100.0)])
def test_a_rank_alone_takes_as_long_as_the_longer_of_passes_and_collectives(moved_s: float, step_s: float) -> None:
    """Three microbatches through four layers: passes of 1 and 2 s, and as long for each of two gathers and a sum."""
    layers = np.full((4, 1), 1.0)
    collectives_s = moved_s * layers, moved_s * layers, moved_s * layers
    found = one_rank_s((layers, 2 * layers), collectives_s, np.array([3]))
    assert found[0] == pytest.approx(step_s, rel=0.06)
    assert found[0] >= max(36.0, 36 * moved_s)


@pytest.mark.parametrize(("waits", "step_s"), [(False, 4 * 1 + 4 * 2 + 1), (True, 4 * 1 + 4 * (2 + 1))])
def test_a_rank_that_waits_for_sums_hides_none_of_them(waits: bool, step_s: float) -> None:
    """Four layers with passes of 1 and 2 s and sums of 1 s; only the last sum is exposed without waiting."""
    layers, none = np.full((4, 1), 1.0), np.zeros((4, 1))
    found = one_rank_s((layers, 2 * layers), (none, none, layers), np.array([1]), waits)
    assert found[0] == pytest.approx(step_s)
