"""Scripts of many kinds are captured without a changed line, as small and as large jobs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import pytest

from scaleproof.simulator.captured.record import EventKind
from scaleproof.validator.capture.capture import CaptureOptions, capture
from scaleproof.validator.capture.job import CaptureJob, DeviceProperties, Script
from tests.validator.verdicts import at_night

EXAMPLES: Final = Path(__file__).parents[3] / "examples" / "captured"
DEVICE: Final = DeviceProperties("NVIDIA H100", 80 << 30, 132, 50 << 20, (9, 0))
NEEDS: Final = {"hugging_face_trainer": "transformers", "lightning_fabric": "lightning", "lora_peft": "peft"}
# Number of rank classes: a rank that prints, and stages of a pipeline, are classes of their own.
CLASSES: Final = {
    "convnet_amp": 1, "gan": 1, "gpt_ddp": 2, "gradient_accumulation": 1, "hugging_face_trainer": 1, "lightning_fabric": 1,
    "llama_fsdp2": 1, "lora_peft": 1, "mixture_of_experts": 1, "pipeline_1f1b": 4, "tensor_parallel": 1, "triton_flash": 1,
}  # fmt: skip
# Kinds of scripts that are captured in tests of scripts, too.
AT_NIGHT: Final = ("gan", "gradient_accumulation", "tensor_parallel")
# What a capture says that it did not do, or otherwise.
WARNINGS: Final = {
    "convnet_amp": ("convnet_amp.py:50 saves a checkpoint, which a capture does not write",),
    "gradient_accumulation": (
        "gradient_accumulation.py:44 compiles: products are AOTAutograd's, and what is between them is fused by a rule like "
        "TorchInductor's",
    ),
}


def test_each_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CLASSES)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [8, pytest.param(1024, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", [*(name for name in CLASSES if name not in AT_NIGHT), *at_night(*AT_NIGHT)])
def test_a_script_is_captured(name: str, ranks: int) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    job = CaptureJob(Script(str(EXAMPLES / f"{name}.py")), ranks, 8, DEVICE, 3, "balanced")
    captured, costs = capture(job, CaptureOptions("h100-80gb-sxm"), lambda _: None)
    assert len(captured.classes) == CLASSES[name]
    assert sum(map(len, captured.classes)) == ranks
    assert captured.warnings == WARNINGS.get(name, ())
    assert costs.memory_bytes < 1 << 30
    for one in captured.classes:
        assert one.columns["flops"][one.rows(EventKind.OPERATOR)].sum() > 0
        assert one.peak_bytes[1] > 0
        assert len(one.rows(EventKind.COLLECTIVE))
        assert len(one.rows(EventKind.WORK_WAIT))
