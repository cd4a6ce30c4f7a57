"""Published runs of vision models: how rows are read, and bounds of the errors."""

from __future__ import annotations

from typing import Any

import pytest

from scaleproof.proof.published.score import TABLES
from scaleproof.proof.published.vision import predict, set_of
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.published.tables import Cells
from scaleproof.simulator.published.vision import vision_run

ROW = {
    "id": "one", "model": "timm resnet50", "image_size": "224", "gpu": "RTX 3090", "gpus": "1", "nodes": "1",
    "interconnect": "",
    "precision": "fp16 AMP", "batch_per_gpu": "512.0", "grad_accum": "", "optimizer": "SGD (benchmark.py default)",
    "software": "timm benchmark.py, PyTorch 1.12, CUDA 11.3, NCHW", "samples_per_s": "800", "step_time_s": "0.64",
    "memory_GiB": "", "measured_as": "", "note": "", "source": "org/repository@abc results/table.csv",
}  # fmt: skip


def run(**changes: str) -> Any:
    return vision_run(Cells(ROW | changes)).scenario


def test_a_row_is_a_scenario_that_a_user_could_write() -> None:
    scenario = run()
    assert (scenario.model.source, scenario.model.image, scenario.model.flash) == ("timm:resnet50", 224, False)
    assert (scenario.total_samples, scenario.training.precision, scenario.framework.name) == (
        512,
        "fp16",
        "pytorch-ddp, changed",
    )
    assert run(software="timm benchmark.py, PyTorch 2.1, NHWC").framework.channels_first == ("tf32",)


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({"precision": "FP32"}, "fp32"), ({"precision": "fp16 mixed (AMP)"}, "fp16"),
        ({"precision": "BF16", "gpu": "A100-80GB"}, "bf16"),
        ({"precision": "FP32", "gpu": "A100-80GB"}, "tf32"), ({"precision": "", "software": "PyTorch AMP"}, "fp16"),
    ],
)  # fmt: skip
def test_precisions(changes: dict[str, str], precision: str) -> None:
    usual = {"gpu": "V100-SXM-16GB"}
    assert run(**usual | changes).training.precision == precision


def test_what_cannot_be_read_is_skipped_with_the_reason() -> None:
    with pytest.raises(InputError, match="no model is known for Segment Everything"):
        run(model="Segment Everything")
    assert predict(Cells(ROW | {"batch_per_gpu": ""})).skipped == "the batch is not stated"
    assert predict(Cells(ROW | {"note": "SUSPECT: too fast"})).skipped.startswith("marked as suspect")


def test_the_table_is_known_by_its_columns() -> None:
    assert [table.name for table in TABLES if table.columns <= ROW.keys()] == ["vision"]
    assert set_of(Cells(ROW)) == "repository results/table.csv"
    assert predict(Cells(ROW)).interval is not None


def test_loader_workers_share_the_cores_of_a_node() -> None:
    trained = {"software": "PyTorch 21.03 (NGC), channels-last", "gpu": "V100-SXM-16GB", "model": "efficientnet-b0"}
    assert run(**trained).input.cores == 8
    assert run(**trained, gpus="8").input.cores == 40
    assert run().input is None


def test_attention_is_products_where_the_code_of_the_model_has_them() -> None:
    usual = {"gpu": "V100", "software": "PyTorch AMP"}
    assert not run(**usual, model="ViT-B/16 fine-tuning (MAE recipe)").model.flash
    assert run(**usual, model="ViT-B/16").model.flash
