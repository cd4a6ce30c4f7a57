"""Offloaded parameters and states need no memory in a capture, and their copies and updates take the host's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from scaleproof.simulator.captured.record import EventKind
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.capture.capture import CaptureOptions, capture
from scaleproof.validator.capture.job import CaptureJob, Script
from tests.validator.capture.test_capture import DEVICE

SCRIPT: Final = Path(__file__).parent / "scripts" / "offloaded.py"
WIDTH: Final = 8192
RANKS: Final = 2
SCENARIO: Final[dict[str, Any]] = {
    "name": "written", "cluster": "dgx-h100", "framework": "pytorch-fsdp2", "batch": {"per_worker": 8},
    "model": {"kind": "mlp", "layers": 2, "inputs": WIDTH, "hidden": WIDTH, "outputs": WIDTH},
    "strategy": {"kind": "data_parallel", "workers": RANKS},
    "training": {"precision": "fp32", "optimizer": "adam", "zero": 3, "offload": ["optimizer", "parameters"]},
}  # fmt: skip


def copied_bytes(run: Run, direction: str) -> float:
    """Bytes of a step that are copied to or from hosts."""
    return sum(part.size_bytes for part in run.communication if part.dimension == direction)


@pytest.mark.full
@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_offloaded_shards_are_copied_and_updated_by_the_host(memory: str, tmp_path: Path) -> None:
    job = CaptureJob(Script(str(SCRIPT), (str(WIDTH), memory)), RANKS, RANKS, DEVICE, 3, "balanced")
    recorded, costs = capture(job, CaptureOptions("h100-80gb-sxm"), lambda _: None)
    shard = 2 * WIDTH**2 // RANKS
    # parameters, gradients and two states of a shard would need 16 bytes each
    assert costs.memory_bytes < 16 * shard / 2
    (one,) = recorded.classes
    (update,) = one.rows(EventKind.HOST_UPDATE)
    assert one.columns["size"][update] == shard
    recorded.write(tmp_path / "offloaded.zip")
    file, written = (
        predict(load(one, {"cluster": "dgx-h100"}), interval=False) for one in (tmp_path / "offloaded.zip", SCENARIO)
    )
    assert file.step_time_s == pytest.approx(written.step_time_s, rel=0.05)
    # shards are copied for both passes, and their gradients back; the scenario has biases
    assert (
        copied_bytes(file, "from host")
        == 2 * RANKS * 4 * shard / RANKS
        == pytest.approx(copied_bytes(written, "from host"), 1e-3)
    )
    assert copied_bytes(file, "to host") == 4 * shard == pytest.approx(copied_bytes(written, "to host"), 1e-3)
