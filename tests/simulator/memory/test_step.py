"""The step of a rank: its running sum, its list of allocations and what the allocator serves are the same."""

from __future__ import annotations

import numpy as np
import pytest

from scaleproof.simulator.common.allocations import Allocation
from scaleproof.simulator.memory import HOLDERS, memory
from scaleproof.simulator.memory.allocator.requests import allocations, rank_passes, rank_tensors
from scaleproof.simulator.memory.captured import LiveMemory
from scaleproof.simulator.memory.cuda_libraries import libraries_bytes
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.memory.layers import LayerBytes
from scaleproof.simulator.memory.peak import pass_bytes
from scaleproof.simulator.memory.ranks import PipelineRank, rank_kinds
from scaleproof.simulator.memory.step import RankBytes, RankPass
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.pipeline.schedules import SCHEDULES, Pass
from scaleproof.simulator.strategy.plan_costs import pass_times

CHUNKS = {"interleaved_1f1b": 3, "looped_bfs": 3, "interleaved_zero_bubble": 2, "zb_v": 2, "dualpipe_v": 2}
SHARES = dict(zip(HOLDERS, np.eye(len(HOLDERS)), strict=True))


def hybrid(schedule: str, stages: int = 2, microbatches: int = 4, **training: object) -> Scenario:
    pipeline = f"stages: {stages}, schedule: {schedule}, chunks: {CHUNKS.get(schedule, 1)}, microbatches: {microbatches}"
    fields = {"precision": "bf16", "optimizer": "adam"} | training
    return load(
        "llama-2-7b-fsdp-a100",
        [
            f"strategy={{kind: hybrid, workers: 4, {pipeline}}}",
            f"batch={4 * microbatches}",
            f"training={{{', '.join(f'{name}: {value}' for name, value in fields.items())}}}",
        ],
    )


def ranks_of(inputs: MemoryInputs) -> dict[int, PipelineRank]:
    """The ranks of a scenario by number."""
    return {number: PipelineRank(inputs, kind) for kind in rank_kinds(inputs) for number in kind.numbers}


def chunks_of(rank: PipelineRank) -> list[list[LayerBytes]]:
    """The layers of all chunks, one by one."""
    return [
        [
            layer._replace(name=f"{number}.{index}", times=1)
            for number, layer in enumerate(rank.layer_bytes(place))
            for index in range(layer.times)
        ]
        for place in range(len(rank.chunks))
    ]


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("training", [{"zero": 0}, {"zero": 3, "recompute": "full"}, {"zero": 1, "recompute": "{group: 3}"}])
def test_the_peak_is_that_of_the_whole_list_of_allocations(schedule: ScheduleName, training: dict[str, object]) -> None:
    """Groups of equal layers and the fullest passes have the peak of all passes over all layers."""
    scenario = hybrid(schedule, **training)
    setting = MemoryInputs(scenario)
    plan, weights = setting.plan, setting.weights
    for number, kind in ranks_of(setting).items():
        order = SCHEDULES[schedule](plan.stages, number, plan.microbatches, plan.chunks, pass_times(plan, setting.job))
        passes = [RankPass(Pass(one), chunk, microbatch) for one, chunk, microbatch in order.tolist()]
        stay = {} if setting.makes else {"gradients": (kind.static.gradients_bytes,)}
        events = allocations(RankBytes(stay, (), chunks_of(kind), kind.static.update_bytes(), setting.makes), passes, 1)
        before = [event for event in events if isinstance(event, Allocation) and event.phase == "start"]
        weighted = [
            event._replace(size_bytes=weights[event.holder] * event.size_bytes) if isinstance(event, Allocation) else event
            for event in events
        ]
        live = LiveMemory.from_allocations(weighted[: len(before)], weighted[len(before) :])
        peak = memory(scenario).ranks[number]
        constant = dict.fromkeys(HOLDERS, 0.0) | kind.constant_bytes(
            kind.fullest_passes(number, plan.microbatches).most.tolist()
        )
        constant |= libraries_bytes(setting, copies=False)
        temporary = {holder: size - constant[holder] for holder, size in peak.holders_bytes.items()}
        expected = sum(weights[holder] * size for holder, size in temporary.items() if holder != "fragmentation")
        assert live.peak.size_bytes == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("recompute", ["none", "full", "{group: 3}", "{every: 2}", "{layers: 3}"])
@pytest.mark.parametrize("zero", [0, 3])
def test_equal_layers_are_passed_as_one_by_one(recompute: str, zero: int) -> None:
    setting = MemoryInputs(hybrid("1f1b", recompute=recompute, zero=zero))
    for rank in ranks_of(setting).values():
        (layers,) = chunks_of(rank)
        one_by_one, grouped = (pass_bytes(setting, some, SHARES, setting.weights) for some in (layers, rank.layer_bytes(0)))
        assert np.array(grouped) == pytest.approx(np.array(one_by_one))


def test_a_step_frees_what_it_allocates() -> None:
    """What stays was there before the step, or is of the optimizer."""
    setting = MemoryInputs(hybrid("dualpipe_v", recompute="full"))
    kind = ranks_of(setting)[0]
    order = SCHEDULES["dualpipe_v"](2, 0, 4, 2, pass_times(setting.plan, setting.job)).tolist()
    passes = [RankPass(Pass(one), chunk, microbatch) for one, chunk, microbatch in order]
    events = allocations(RankBytes({}, (4,), chunks_of(kind), kind.static.update_bytes(), setting.makes), passes, 2)
    live = LiveMemory.from_allocations([], events)
    assert live.live_bytes[:, -1].sum() == 4
    assert live.live_bytes.min() >= 0


def test_gradients_that_are_scattered_are_on_a_stream_of_their_own() -> None:
    """What is freed on a stream serves no other one, so that activations do not use the memory of shards of gradients."""
    for zero in (1, 3):
        inputs = MemoryInputs(hybrid("1f1b", stages=1, zero=zero))
        rank = rank_tensors(ranks_of(inputs)[0], 0)
        made = allocations(rank, rank_passes(inputs, 0), 1)
        streams = {event.stream for event in made if isinstance(event, Allocation) and event.holder == "gradients"}
        # products of weights are on that of the passes
        assert streams == ({0} if zero == 1 else {0, 1})
