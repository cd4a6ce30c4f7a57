"""Parts of real runs of scripts: periods of steps, peaks of memory, names of devices, and the time of the host."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from scaleproof.simulator.captured.groups import Replicas  # noqa: E402
from scaleproof.simulator.common.allocations import Allocation, Free  # noqa: E402
from scaleproof.simulator.memory.captured import LiveMemory, replayed  # noqa: E402
from scaleproof.validator.capture.steps import shortest_period  # noqa: E402
from scaleproof.validator.capture.trace import HostClock  # noqa: E402
from scaleproof.validator.script_runs.cuda_on_cpu import on_cpu  # noqa: E402
from scaleproof.validator.script_runs.memory_profile import MemoryChange, own_changes, peaks_between  # noqa: E402
from scaleproof.validator.script_runs.operator_times import on_processor  # noqa: E402


@pytest.mark.parametrize(
    ("optimizers", "period"), [([0], 0), ([0, 0], 1), ([0, 1, 0], 0), ([0, 1, 0, 1], 2), ([0, 0, 1] * 2, 3)]
)
def test_a_step_is_the_shortest_sequence_of_optimizers_that_repeats(optimizers: list[int], period: int) -> None:
    assert shortest_period(optimizers) == period


def test_peaks_are_those_between_marks_with_what_is_live_at_the_begin() -> None:
    changes = [(1, 100), (2, 50), (3, -50), (5, 30), (6, -30), (8, 10)]
    assert peaks_between(changes, [4, 7]) == [150, 130, 110]


@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0, torch.device("cpu")])
def test_names_of_gpus_stand_for_the_processor(device: object) -> None:
    assert torch.device(on_cpu(device)) == torch.device("cpu")


@pytest.mark.parametrize("other", ["meta", "cpu", None, True])
def test_other_devices_stay(other: object) -> None:
    assert on_cpu(other) is other


def test_attention_of_gpus_has_the_results_of_the_processors() -> None:
    query, key, value = (torch.randn(2, 4, 16, 8) for _ in range(3))
    efficient = on_processor("aten::_scaled_dot_product_efficient_attention.default")
    assert efficient is not None
    result = efficient(query, key, value, None, True, 0.0, True)[0]
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(result, expected)
    assert on_processor("aten::no_such_operator.default") is None


def test_processors_allocate_the_bytes_of_tensors() -> None:
    before, step = [Allocation(1, 1000, 0, "parameters", "", "")], [Allocation(2, 700, 0, "working", "", ""), Free(2)]
    assert LiveMemory.from_allocations(before, step).peak.size_bytes == 1700
    # rounded as the caching allocator does
    assert replayed(before, step).allocated_bytes == 1024 + 1024


def test_a_pipeline_without_replicas_has_an_axis_of_one() -> None:
    assert Replicas.from_groups(1, 2, [[0], [0, 1]]) == Replicas(1)


def test_allocations_count_that_outlive_their_operator_until_they_end_on_any_thread() -> None:
    never = sys.maxsize
    changes = [
        MemoryChange(1, 64, 100, 2), MemoryChange(2, 128, 70, never), MemoryChange(3, 128, -70, 0),
        MemoryChange(4, 64, -100, 0),
        # a kernel's own, and an end that was not seen
        MemoryChange(5, 64, 30, 7), MemoryChange(6, 64, -30, 0), MemoryChange(8, 64, 40, 9), MemoryChange(10, 64, 20, 11),
    ]  # fmt: skip
    assert own_changes(changes) == [(1, 100), (4, -100), (8, 40), (10, -40), (10, 20)]


def work(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def test_pytorch_s_time_of_recorded_calls_is_not_the_script_s() -> None:
    clock = HostClock()

    def call(lists: int = 0) -> float:
        work(0.0002 + 0.0001 * lists)
        with clock.recording(((None,) * lists,)):
            return clock.taken_s()

    clock.calibrate(call, lambda: call(2), 2)
    call()
    work(0.001)
    assert 0.0009 <= call() < 0.002
    assert sum(call() for _ in range(20)) < 0.002
    assert sum(call(2) for _ in range(20)) < 0.002


def test_nodes_of_the_backward_pass_take_no_time_of_the_script() -> None:
    clock = HostClock()
    taken_s: list[float] = []

    class Operator(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with clock.recording(args):
                taken_s.append(clock.taken_s())
                return function(*args, **(kwargs or {}))

    weights = [torch.ones(4, 4, requires_grad=True) for _ in range(200)]
    seconds = []
    for _ in range(2):
        value = torch.ones(4, 4)
        for weight in weights:
            value = value @ weight
        taken_s.clear()
        with Operator():  # type: ignore[no-untyped-call]
            value.sum().backward()
        seconds.append(sum(taken_s))
        clock.settle()
    assert seconds[1] < 0.6 * seconds[0]


def test_the_host_s_time_is_what_passes_between_recorded_calls() -> None:
    clock = HostClock()
    with clock.recording():
        work(0.002)
    assert clock.taken_s() == 0
    work(0.003)
    with clock.recording():
        work(0.002)
        with clock.recording():
            pass
    assert 0.003 <= clock.taken_s() < 0.005
