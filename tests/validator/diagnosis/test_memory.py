"""Findings from snapshots of PyTorch's memory, as torch.cuda.memory._dump_snapshot writes them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.analysis.diagnosis import Diagnosis
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.diagnosis.diagnose import diagnose
from tests.validator.diagnosis.jobs import megatron_log

GiB = 2**30
WEIGHTS, LAYER, LOSS = 1 << 40, 2 << 40, 3 << 40


def _found(*paths: Path) -> Diagnosis:
    return diagnose(paths, lambda _: None)[0]


def _frames(line: int) -> list[dict[str, Any]]:
    library = "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py"
    inner = [{"filename": "??", "line": 0, "name": "c10::alloc"}, {"filename": library, "line": 125, "name": "forward"}]
    return [*inner, {"filename": "/job/model.py", "line": line, "name": "forward"}]


def _events(retries: int, emptied: int, short: int) -> Iterator[dict[str, Any]]:
    """Ten steps, each 100 ms, with a layer's and the loss's activations. emptied: steps that end with empty_cache()."""
    for step in range(10):
        at_us = 1_767_607_200_000_000 + 100_000 * step
        yield {"action": "alloc", "addr": LAYER, "size": 20 * GiB, "frames": _frames(40), "time_us": at_us}
        if step < retries:
            for number, late_us in enumerate((10, 2_010)):
                yield {"action": "segment_free", "addr": number, "size": GiB, "frames": _frames(88), "time_us": at_us + late_us}
            yield {"action": "segment_alloc", "addr": 9, "size": 8 * GiB, "frames": _frames(88), "time_us": at_us + 8_010}
        yield {"action": "alloc", "addr": LOSS, "size": 8 * GiB, "frames": _frames(88), "time_us": at_us + 20_000}
        for address, size in ((LOSS, 8 * GiB), (LAYER, 20 * GiB)):
            for action in ("free_requested", "free_completed"):
                yield {"action": action, "addr": address, "size": size, "frames": _frames(99), "time_us": at_us + 80_000}
        if step < emptied:
            yield {"action": "segment_free", "addr": 3, "size": GiB, "frames": _frames(120), "time_us": at_us + 90_000}
            yield {"action": "segment_alloc", "addr": 3, "size": GiB, "frames": _frames(40), "time_us": at_us + 99_000}
    if short:
        yield {"action": "oom", "size": short, "device_free": GiB // 2, "frames": _frames(88), "time_us": at_us + 99_000}


def _snapshot(retries: int = 0, emptied: int = 0, short: int = 0) -> dict[str, Any]:
    weights = {"address": WEIGHTS, "size": 30 * GiB, "requested_size": 30 * GiB, "state": "active_allocated"}
    idle = {"address": WEIGHTS + 30 * GiB, "size": 32 * GiB, "requested_size": 0, "state": "inactive"}
    segment = {"address": WEIGHTS, "total_size": 62 * GiB, "device": 0, "blocks": [{**weights, "frames": _frames(12)}, idle]}
    return {"segments": [segment], "device_traces": [list(_events(retries, emptied, short))]}


def _dump(path: Path, **changes: int) -> Path:
    path.write_bytes(pickle.dumps(_snapshot(**changes)))
    return path


def test_retries_are_named_with_rank_line_and_cost(tmp_path: Path) -> None:
    for rank in range(4):
        _dump(tmp_path / f"snapshot_rank{rank}.pickle", retries=5 if rank == 2 else 0, emptied=3)
    found = _found(tmp_path)
    (fault,) = found.faults
    assert fault.words == (
        "rank 2 frees its cache and retries 5 requests at model.py:88, since the device is full; it costs 40.0 ms, 4.1 % of "
        "the recorded time"
    )
    assert (fault.cause, fault.ranks) == ("memory retries", (2,))
    assert fault.share == pytest.approx(5 * 8e-3 / 0.98, rel=1e-3)


def test_the_lines_that_hold_the_peak_are_listed(tmp_path: Path) -> None:
    found = _found(_dump(tmp_path / "rank0.pickle"))
    assert not found.findings
    (memory,) = found.memory
    sizes = (memory.peak_bytes, memory.reserved_bytes, memory.allocated_bytes)
    assert [size / GiB for size in sizes] == [58.0, 62.0, 30.0]
    assert memory.holders == ("model.py:12 30.0 GiB", "model.py:40 20.0 GiB", "model.py:88 8.00 GiB")


def test_a_rank_out_of_memory_is_named_with_what_is_free(tmp_path: Path) -> None:
    _dump(tmp_path / "rank0.pickle")
    _dump(tmp_path / "rank1.pickle", short=4 * GiB)
    assert _found(tmp_path).headline == (
        "rank 1 ran out of memory at model.py:88: 4.00 GiB requested, 32.0 of 62.0 GiB reserved are not allocated (fragmented: "
        "try expandable_segments:True); model.py:12 30.0 GiB, model.py:40 20.0 GiB and model.py:88 8.00 GiB are live at the "
        "peak of 58.0 GiB"
    )


def test_a_snapshot_that_is_cut_off_is_named_and_the_rest_is_diagnosed(tmp_path: Path) -> None:
    content = _dump(tmp_path / "rank0.pickle").read_bytes()
    (tmp_path / "rank0.pickle").write_bytes(content[:-9])
    megatron_log(tmp_path / "train.log", [0.6] * 60 + [0.75] * 60)
    found = _found(tmp_path)
    assert found.headline.startswith("since iteration 61 ")
    assert found.notes == (f"left out: {tmp_path}/rank0.pickle: cut off after {len(content) - 9:,} bytes; copy it again",)


DAMAGED = (
    (), ("segments",), ("segments", 0, "device"), ("segments", 0, "blocks"), ("segments", 0, "blocks", 0, "address"),
    ("device_traces",), ("device_traces", 0), ("device_traces", 0, 0, "addr"), ("device_traces", 0, 0, "frames"),
)  # fmt: skip


@pytest.mark.parametrize("path", DAMAGED)
def test_damaged_snapshots_are_refused_or_read_in_part(path: tuple[str | int, ...], tmp_path: Path) -> None:
    for damage in (None, -7, "x", [None], {"size": "x"}):
        document: Any = {"root": _snapshot()}
        at: Any = document
        key: str | int = "root"
        for step in path:
            at, key = at[key], step
        at[key] = damage
        (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(document["root"]))
        with suppress(InputError):
            assert not _found(tmp_path / "rank0.pickle").findings
