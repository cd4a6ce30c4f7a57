"""What can be predicted but not measured is rejected before any rank is started."""

from __future__ import annotations

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.preflight.checks import check_trainable

GPT = "model={kind: gpt, layers: 2, hidden: 64, heads: 4, vocabulary: 256, sequence: 32}"
FIELDS = (GPT, "batch=8", "strategy={kind: data_parallel, workers: 2}", "training.precision=fp16", "framework=pytorch-ddp")


def test_training_by_autocast_is_not_measured() -> None:
    """Ranks here train models whose parameters have 16 bits: half of the predicted bytes would be sent."""
    message = "training.autocast of pytorch-ddp is predicted but not measured: .*; set training.autocast=false"
    with pytest.raises(InputError, match=message):
        check_trainable(load("resnet50-ring-p100", FIELDS))
    check_trainable(load("resnet50-ring-p100", (*FIELDS, "training.autocast=false", "training.optimizer=sgd")))


@pytest.mark.parametrize("part", ["adapters={rank: 8}", "freeze=embedding"])
@pytest.mark.parametrize("compute", ["real", "paced"])
def test_a_part_of_a_model_is_not_trained(part: str, compute: str) -> None:
    message = f"training.{part.partition('=')[0]} is predicted but not measured: .*; give a python: model whose requires_grad"
    with pytest.raises(InputError, match=message):
        check_trainable(
            load("resnet50-ring-p100", (*FIELDS, "training.autocast=false", f"training.{part}", f"compute={compute}"))
        )
