"""Findings from logs of ranks, and of retries of the memory allocator, in the formats of their tools."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.analysis.diagnosis import Diagnosis
from scaleproof.validator.diagnosis.diagnose import diagnose
from tests.validator.diagnosis.jobs import megatron_log


def _found(*paths: Path) -> Diagnosis:
    return diagnose(paths, lambda _: None)[0]


def _steps(rank: int, slow: int, count: int = 40) -> list[float]:
    noise = np.random.default_rng(rank).standard_normal(count)
    return list((0.75 if rank == slow else 0.6) * np.exp(0.005 * noise))


@pytest.mark.parametrize("name", ["rank{}.log", "{}/stdout.log", "gpu{:03}.out"])
def test_the_rank_whose_log_has_longer_steps_is_named(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / name.format(rank) for rank in range(8)]
    for rank, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        megatron_log(path, _steps(rank, 5))
    found = _found(*paths)
    place = "gpu005" if name.startswith("gpu") else "rank 5"
    assert found.headline.startswith(f"{place}: steps take 7")
    (fault,) = found.faults
    assert (fault.cause, fault.where) == ("slow rank", place)
    assert fault.loss_s == pytest.approx(0.15, rel=0.1)


def test_logs_of_ranks_are_one_job_that_became_slower_once(tmp_path: Path) -> None:
    for rank in range(4):
        megatron_log(tmp_path / f"rank{rank}.log", [0.6 if number < 60 else 0.75 for number in range(120)])
    found = _found(tmp_path)
    (fault,) = found.faults
    assert fault.words.startswith("since iteration 61 ")
    assert len(found.iterations) == 1


def test_a_rank_whose_clock_is_off_is_compared(tmp_path: Path) -> None:
    for rank in range(4):
        log = megatron_log(tmp_path / f"rank{rank}.log", _steps(rank, 2))
        log.write_text(log.read_text().replace("2026-01-05 1", "2026-01-05 0" if rank == 2 else "2026-01-05 1"))
    found = _found(tmp_path)
    assert found.headline.startswith("rank 2: steps take 7")
    assert len(found.iterations) == 1


def test_logs_of_other_days_are_other_jobs(tmp_path: Path) -> None:
    megatron_log(tmp_path / "run1.log", [0.6] * 40)
    later = megatron_log(tmp_path / "run2.log", [0.9] * 40)
    later.write_text(later.read_text().replace("2026-01-05", "2026-01-06"))
    found = _found(tmp_path)
    assert not found.faults
    assert len(found.iterations) == 2


def _timers(slow: int, ranks: int = 8, count: int = 12) -> Iterator[str]:
    """Tables of Megatron-LM's timers, `--timing-log-level 2 --timing-log-option all`."""
    for number in range(count):
        yield "times across ranks (ms):"
        for name, usual in (("forward-compute", 180.0), ("backward-compute", 360.0), ("grads-reduce-scatter", 60.0)):
            yield f"  {name}:"
            for rank in range(ranks):
                is_slow = rank == slow
                late = 120.0 if "scatter" in name and not is_slow else 0.0
                yield f"     rank {rank:2d}: {usual * (1.22 if is_slow and not late else 1) + late + 0.1 * (number % 3):.2f}"


def test_timers_of_megatron_name_the_rank_that_computes_longer(tmp_path: Path) -> None:
    path = megatron_log(tmp_path / "train.log", [0.74] * 12)
    path.write_text(path.read_text() + "\n".join(_timers(3)) + "\n")
    (fault,) = _found(path).faults
    assert fault.words.startswith("rank 3: forward-compute and backward-compute take 659 ms, on the other ranks 540 ms (+2")
    assert (fault.cause, fault.ranks) == ("slow rank", (3,))
    path.write_text(path.read_text().replace("lm loss", "x", 1) + " pipeline_model_parallel_size .......... 4\n")
    # stages have different work
    assert not _found(path).faults


def _with_warnings(folder: Path, warning: str) -> Path:
    path = megatron_log(folder / "train.log", [0.6 + (0.4 if number in (20, 27, 33) else 0.0) for number in range(50)])
    lines = path.read_text().splitlines()
    for count, number in enumerate((20, 27, 33), start=1):
        lines.insert(number + count - 1, warning.format(total=2 * count, new=2))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "warning",
    [
        "[rank0]:[titan] 2026-01-05 10:00:20,000 - root - WARNING - {total} CUDA memory allocation retries.",
        "[2026-01-05 10:00:20,236] [WARNING] [stage3.py:2236:step] {new} pytorch allocator cache flushes since last step. this "
        "happens when there is high memory pressure and is detrimental to performance.",
        "memory: {{'num_alloc_retries': {total}, 'num_ooms': 0}}",
    ],
)
def test_retries_of_the_allocator_are_named_with_their_cost(warning: str, tmp_path: Path) -> None:
    (fault,) = _found(_with_warnings(tmp_path, warning)).faults
    assert fault.cause == "memory retries"
    assert "retried 6 times, in 3 of 49 steps (iteration 21 to 34)" in fault.words
    assert fault.loss_s == pytest.approx(3 * 0.4 / 49, rel=0.01)


def test_history_of_wandb_as_json_lines_has_retries(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = [
        {"_step": number, "_timestamp": 1767607200.0 + number, "iteration-time": 1.0 + 0.5 * (number in (9, 19)),
         "memory/num_alloc_retries": 3 * ((number > 8) + (number > 18)), "loss": None}
        for number in range(30)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = _found(path)
    assert found.files == ("1 W&B log",)
    assert "retried 6 times, in 2 of 29 steps" in found.headline


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _event(step: int, wall_s: float, scalars: Mapping[str, float]) -> bytes:
    """A record of an event file; readers need not check its checksums."""
    values = b"".join(_field(1, _field(1, name.encode()) + b"\x15" + struct.pack("<f", one)) for name, one in scalars.items())
    event = b"\x09" + struct.pack("<d", wall_s) + b"\x10" + bytes([step]) + _field(5, values)
    return struct.pack("<QI", len(event), 0) + event + bytes(4)


def test_event_files_of_tensorboard_are_logs(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1767607200.gpu001.9.0"
    version = b"\x09" + struct.pack("<d", 1767607200.0) + _field(3, b"brain.Event:2")
    head = struct.pack("<QI", len(version), 0) + version + bytes(4)
    steps = [(number, 0.6 if number < 60 else 0.75) for number in range(1, 120)]
    events = [_event(number, 1767607200.0 + number, {"iteration-time": step_s, "lm loss": 6.1}) for number, step_s in steps]
    path.write_bytes(head + b"".join(events) + b"\x08\x00\x00")
    found = _found(path)
    assert found.files == ("1 TensorBoard log",)
    assert found.headline == "since iteration 60 (10:01:00) steps take 750 ms, before 600 ms (+25.0 %)"
    # without a metric of time, the clock of the events has it
    path.write_bytes(head + b"".join(_event(number, 1767607200.0 + 2 * number, {"loss": 6.1}) for number in range(1, 40)))
    assert _found(path).step_s == pytest.approx(2.0)
