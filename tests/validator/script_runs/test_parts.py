"""Parts of real runs of scripts: periods of steps, peaks of memory, names of devices, and the time of the host."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from scaleproof.simulator.captured.groups import Replicas  # noqa: E402
from scaleproof.simulator.common.allocations import Allocation, Free  # noqa: E402
from scaleproof.simulator.memory.captured import LiveMemory, replayed  # noqa: E402
from scaleproof.validator.capture.steps import shortest_period  # noqa: E402
from scaleproof.validator.capture.trace import HostClock  # noqa: E402
from scaleproof.validator.script_runs.cuda_on_cpu import on_cpu  # noqa: E402
from scaleproof.validator.script_runs.memory_profile import peaks_between  # noqa: E402
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


def test_the_host_s_time_is_what_passes_between_recorded_calls() -> None:
    clock = HostClock()

    def work(seconds: float) -> None:
        end_s = time.thread_time() + seconds
        while time.thread_time() < end_s:
            pass

    with clock.recording():
        work(0.002)
    assert clock.taken_s() == 0
    work(0.003)
    with clock.recording():
        work(0.002)
        with clock.recording():
            pass
    assert 0.003 <= clock.taken_s() < 0.005
