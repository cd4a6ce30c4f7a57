"""Published fine-tuning runs: how rows are read, and bounds of the errors."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from scaleproof.proof.published.fine_tuning import predict_among
from scaleproof.proof.published.prediction import Prediction
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.published.clusters import device_named
from scaleproof.simulator.published.fine_tuning import fine_tuning_run, model_named
from scaleproof.simulator.published.tables import Row, folder, read_table
from scaleproof.simulator.scenario.load import load


@functools.cache
def rows() -> list[Row]:
    return list(read_table(folder() / "fine_tuning.csv")[1])


def row(name: str, **changes: str) -> dict[str, str]:
    return dict(next(row for row in rows() if row["id"] == name)) | changes


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Llama 2 7 B", "llama-2-7b"), ("phi-1.5 1.3 B", "phi-1.5"), ("Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("stablelm-base-alpha-3b", "stablelm-alpha-3b"), ("tiny-llama", "tinyllama-1.1b"), ("mistral-7b-v0.2", "mistral-7b"),
    ],
)  # fmt: skip
def test_models_are_found_by_what_tables_call_them(words: str, name: str) -> None:
    assert model_named(words) == name
    with pytest.raises(InputError, match="no model that ships is called"):
        model_named("Llama-like 0.3B")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("A100-SXM-40GB", "a100-40gb-sxm"), ("A100-SXM4-80GB", "a100-80gb-sxm"), ("A10G 24GB", "a10g"),
        ("RTX 3090", "rtx-3090"),
        ("NVIDIA RTX 6000 Ada", "rtx-6000-ada"),
    ],
)  # fmt: skip
def test_devices_are_found_by_what_tables_call_them(words: str, name: str) -> None:
    assert device_named(words) == name
    with pytest.raises(InputError, match="no device that ships"):
        device_named("Voodoo 2")


def test_a_row_is_a_scenario_that_says_what_is_trained() -> None:
    run = fine_tuning_run(row("ft-litgpt-013"))
    training: Any = run.scenario.training
    assert training.adapters.targets == ("q", "v")
    assert (training.base_precision, training.double_quantization, training.autocast) == ("nf4", True, False)
    assert (run.passes, run.reported, run.lengths) == (128, "allocated_bytes", True)
    # Qwen's script has autocast, where the row's software does not go through DeepSpeed
    assert fine_tuning_run(row("ft-qwen-001")).scenario.training.autocast
    assert not fine_tuning_run(row("ft-qwen-019")).scenario.training.autocast
    assert load("published:ft-litgpt-013").training == training


def test_a_micro_batch_is_a_part_of_a_step() -> None:
    whole, part = row("ft-qwen-003"), row("ft-qwen-003", step_is="iteration = one micro-batch")
    (step, *_), (iteration, *_) = (predict_among(one, []) for one in (whole, part))
    assert iteration.predicted == pytest.approx(step.predicted / 8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "oft"}, "oft is not modelled"),
        ({"optimizer": "lora-fa"}, "optimizer lora-fa is not modelled"),
        ({"seq_len": "variable (Alpaca)"}, "samples of unknown length"),
        ({"gpu": "Voodoo 2"}, "no device that ships is called Voodoo 2"),
    ],
)
def test_what_is_not_modelled_is_skipped(changes: dict[str, str], reason: str) -> None:
    (found,) = predict_among(row("ft-qwen-003", **changes), [])
    assert reason in found.skipped


@functools.cache
def scored(part: str) -> list[Prediction]:
    found = [one for own in rows() if re.search(part, own["id"]) for one in predict_among(own, rows())]
    return [one for one in found if not one.skipped]


def test_memory_of_adapters_is_within_its_bounds() -> None:
    """LitGPT's pages; nothing is fitted to them."""
    errors = [abs(one.error) for one in scored("litgpt-") if one.of == "memory"]
    assert len(errors) == 14
    assert sum(errors) / len(errors) < 0.06


def test_methods_compare_as_measured() -> None:
    """LoRA with and without trained embeddings or quantised weights, at lengths where GPUs and not hosts limit the step."""
    errors = [abs(one.error) for one in scored("qwen-01[0-26-8]") if one.of == "ratio"]
    assert sorted(errors)[len(errors) // 2] < 0.12
