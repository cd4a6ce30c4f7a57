"""Steps of a rank with the caching allocator: comparison with the memory model, fragmentation, and the time of the peak."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.allocator import AllocatorUse, allocator_use
from scaleproof.simulator.memory.inputs import MemoryInputs
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

GIB = 2**30
SHIPPED = [
    name
    for name in (*catalog.names("what-if"), *catalog.names("systems"))
    if MemoryInputs(one := load(name)).is_gpu and not one.cluster.kinds
]
CHUNKS = {"interleaved_1f1b": 2, "looped_bfs": 2, "interleaved_zero_bubble": 2, "zb_v": 2, "dualpipe_v": 2}


def hybrid(schedule: str = "1f1b", stages: int = 4, microbatches: int = 16, tensor: int = 1, **training: object) -> Scenario:
    pipeline = f"stages: {stages}, schedule: {schedule}, chunks: {CHUNKS.get(schedule, 1)}, microbatches: {microbatches}"
    fields = {"precision": "bf16", "optimizer": "adam"} | training
    return load(
        "llama-2-7b-fsdp-a100",
        [
            f"strategy={{kind: hybrid, tensor: {tensor}, workers: 4, {pipeline}}}",
            f"batch={4 * microbatches}",
            f"training={{{', '.join(f'{name}: {value}' for name, value in fields.items())}}}",
        ],
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_allocated_bytes_agree_with_the_memory_model(name: str) -> None:
    scenario = load(name)
    for expandable in (False, True):
        use = allocator_use(scenario, expandable)
        assert use.allocated_bytes == pytest.approx(memory(scenario).worst.allocated_bytes, rel=0.02)
        assert use.rank == memory(scenario).worst.name
        assert sum(use.served.holders_bytes.values()) == use.allocated_bytes <= use.reserved_bytes


@pytest.mark.full
@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "zb_h1", "zb_h2", *CHUNKS]),
    stages=st.sampled_from([2, 4]),
    microbatches=st.sampled_from([8, 16, 32]),
    tensor=st.sampled_from([1, 2, 4]),
    zero=st.integers(0, 3),
    recompute=st.sampled_from(["none", "selective", "full", "{group: 2}", "{every: 2}", "{products: every_second}"]),
    rank=st.integers(0, 1),
)
def test_random_hybrids_agree_with_the_memory_model(
    schedule: str, stages: int, microbatches: int, tensor: int, zero: int, recompute: str, rank: int
) -> None:
    scenario = hybrid(schedule, stages, microbatches, tensor, zero=zero, recompute=recompute)
    use, expected = allocator_use(scenario, rank=rank), memory(scenario).ranks[rank].allocated_bytes
    assert use.allocated_bytes == pytest.approx(expected, rel=0.02)


def test_the_peak_of_1f1b_is_in_a_backward_pass_of_the_first_stage() -> None:
    use = allocator_use(hybrid())
    assert (use.rank, use.stage, use.phase) == ("stage 0", 0, "backward")
    assert max(use.served.holders_bytes, key=use.served.holders_bytes.__getitem__) == "activations"
    # before the backward pass of the first microbatch ends, four are in flight on the first of four stages
    assert use.layer in {layer.name for layer in job_of(hybrid()).layers[:9]}


def test_expandable_segments_fragment_less() -> None:
    for scenario in (load("megatron-175b-3d-selene"), load("llama-2-7b-zero-bubble-a100"), hybrid("gpipe")):
        fixed, expandable = allocator_use(scenario), allocator_use(scenario, expandable=True)
        assert expandable.fragmentation_bytes < fixed.fragmentation_bytes
        assert expandable.fragmentation_bytes < 0.02 * expandable.reserved_bytes


def on_device(memory_bytes: float) -> AllocatorUse:
    return allocator_use(load("megatron-175b-3d-selene", [f"cluster.device.memory={memory_bytes / GIB:.3f} GiB"]))


def test_a_full_device_frees_cached_memory_before_it_fails() -> None:
    """Reserved memory shrinks to the device's as long as allocated memory fits."""
    whole = allocator_use(load("megatron-175b-3d-selene"))
    needed, margin = whole.total_bytes, whole.fragmentation_bytes
    enough, less, few = (on_device(needed - share * margin) for share in (-0.01, 0.2, 1.5))
    assert (enough.fits, enough.served.retries) == (True, 0)
    assert (less.fits, less.served.retries) == (True, 1)
    assert less.total_bytes <= less.capacity_bytes < needed
    assert not few.fits
    assert few.spare_bytes < 0


def test_devices_without_the_allocator_are_refused(small: Callable[..., Scenario]) -> None:
    with pytest.raises(InputError, match="caching allocator is modelled for GPUs"):
        allocator_use(small())


def test_different_machines_in_one_job_are_refused() -> None:
    with pytest.raises(InputError, match="give one kind of nodes, or leave --memory out"):
        allocator_use(load("gpt2-medium-mixed-machines"))
