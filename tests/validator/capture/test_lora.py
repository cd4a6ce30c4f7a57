"""A captured LoRA script of PEFT is predicted as the scenario of the same training is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import pytest

from scaleproof.simulator.memory.allocator import AllocatorUse, allocator_use
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from tests.validator.capture.test_capture import EXAMPLES, captured

RANKS: Final = 4
LAYERS: Final = 6
# The script of transformers' modules without a Trainer, which reads the loss back after each microbatch.
SCENARIO: Final[dict[str, Any]] = {
    "name": "written", "cluster": "dgx-h100", "framework": {"base": "hf-trainer", "host": {"microbatch": "0 s"}},
    "model": {
        "kind": "llama", "layers": LAYERS, "hidden": 2048, "heads": 32, "key_heads": 8, "feedforward": 8192,
        "vocabulary": 32000, "sequence": 2048, "flash": True,
    },
    "strategy": {"kind": "data_parallel", "workers": RANKS}, "batch": {"per_worker": 4},
    "training": {
        "precision": "bf16", "optimizer": "adam", "clip_gradients": True,
        "adapters": {"kind": "lora", "rank": 16, "targets": "all-linear"},
    },
}  # fmt: skip


def summed_bytes(run: Run) -> float:
    """Bytes of gradients that are summed in a step."""
    return sum(part.size_bytes for part in run.communication if part.collective == "all-reduce")


def allocated_bytes(use: AllocatorUse) -> float:
    """Most bytes of tensors and of workspaces of cuBLAS, which the allocator serves or not."""
    return use.allocated_bytes + use.outside_bytes.get("workspace", 0.0)


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_lora_of_peft_is_predicted_as_its_scenario_is(tmp_path: Path) -> None:
    capture = captured(EXAMPLES / "lora_peft.py", "--layers", str(LAYERS), ranks=RANKS)
    capture.write(tmp_path / "lora.zip")
    file, written = load(tmp_path / "lora.zip", {"cluster": "dgx-h100"}), load(SCENARIO)
    runs = [predict(scenario, interval=False) for scenario in (file, written)]
    uses = [allocator_use(scenario) for scenario in (file, written)]
    assert runs[0].model_flops == runs[1].model_flops
    assert runs[0].step_time_s == pytest.approx(runs[1].step_time_s, rel=0.05)
    assert summed_bytes(runs[0]) == summed_bytes(runs[1]) > 0
    assert allocated_bytes(uses[0]) == pytest.approx(allocated_bytes(uses[1]), rel=0.05)
