"""Ranks train adapters, or the layers that are not frozen, like one process, and leave the rest as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model.layers import WHOLE
from scaleproof.simulator.predict import predict
from scaleproof.validator.measure import measure
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.train.models.fine_tuning import trained_parameters
from scaleproof.validator.train.trained_model import TrainedModel
from scaleproof.validator.verify.reference import full_batch
from scaleproof.validator.verify.reference.single_process import SingleProcess
from tests.validator.conftest import MLP, TINY_GPT, MakeScenario
from tests.validator.train.models.test_families import BERT, COMPRESSED, GEMMA, LLAMA, NEOX, PHI, T5, TIED
from tests.validator.verdicts import collectives, deviation, in_bulk, paced

LORA = {"rank": 2, "alpha": 4}
DORA = LORA | {"kind": "dora", "targets": ["q_proj", "v_proj", "down_proj"]}
ATTENTION = LORA | {"targets": ["qkv", "o_proj"]}
WORKERS = {"kind": "data_parallel", "workers": 2}
PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 2}
HYBRID = {"kind": "hybrid", "workers": 1, "stages": 2, "microbatches": 2}


@pytest.mark.parametrize("model", [LLAMA, GEMMA, COMPRESSED, NEOX, PHI, TINY_GPT, BERT, BERT | {"pretraining": True}, T5, MLP])
@pytest.mark.parametrize(
    "training",
    [
        {"adapters": LORA},
        {"adapters": LORA | {"kind": "dora", "modules_to_save": "head"}},
        {"freeze": []},
    ],
    ids=lambda training: next(iter(training)),
)
def test_trained_tensors_are_the_simulators(
    model: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    if "freeze" in training:
        training = {"freeze": {"mlp": ["linear0"], "t5": ["embedding", "encoder"]}.get(model["kind"], ["embedding", "block1"])}
    elif model is MLP:
        training = {"adapters": training["adapters"] | {"modules_to_save": "linear3"}}
    scenario = make_scenario(WORKERS, model, **training)
    trained, layers = TrainedModel(scenario), scenario.layers(WHOLE)
    ties = {(tie.layer, tie.name) for tie in trained.ties}

    for number, (layer, module) in enumerate(zip(layers, trained.shapes(), strict=True)):
        tied = {id(parameter) for name, parameter in module.named_parameters() if (number, name) in ties}
        own = [parameter for parameter in trained_parameters(module) if id(parameter) not in tied]
        assert tuple(parameter.numel() for parameter in own) == layer.tensors, layer.name


@pytest.mark.parametrize("model", [LLAMA, NEOX])
@pytest.mark.parametrize("adapters", [LORA, DORA, ATTENTION], ids=["lora", "dora", "attention"])
def test_adapters_begin_as_the_frozen_model(
    model: dict[str, Any], adapters: dict[str, Any], make_scenario: MakeScenario
) -> None:
    tokens = torch.arange(8).reshape(1, 8)
    outputs = []
    for training in ({}, {"adapters": adapters}):
        whole = TrainedModel(make_scenario(WORKERS, model, **training))
        outputs.append(whole.graph(dict(zip(whole.numbers, whole.build(whole.numbers), strict=True)))(tokens))

    frozen, adapted = outputs
    assert torch.allclose(frozen, adapted, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "model", "training"),
    [
        (WORKERS, NEOX, {"adapters": LORA}),
        (WORKERS, LLAMA, {"adapters": DORA, "zero": 3}),
        *in_bulk(
            (WORKERS, LLAMA, {"adapters": ATTENTION, "zero": 2}),
            (WORKERS, TIED, {"freeze": ["embedding", "block[01]"]}),
            (WORKERS, LLAMA, {"freeze": ["embedding", "block0"], "zero": 3, "recompute": "full"}),
            ({**WORKERS, "overlap": False}, LLAMA, {"adapters": LORA | {"modules_to_save": "head"}, "optimizer": "adam"}),
            (PIPELINE, TIED, {"adapters": LORA}),
            (HYBRID, LLAMA, {"freeze": "block1"}),
            ({**HYBRID, "workers": 2, "stages": 1}, LLAMA, {"adapters": DORA, "zero": 1}),
            ({**HYBRID, "workers": 2, "stages": 1}, LLAMA, {"adapters": DORA, "zero": 3}),
        ),
    ],
)
@pytest.mark.parametrize("compute", ["real", *in_bulk("paced")])
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], compute: str, make_scenario: MakeScenario
) -> None:
    scenario = make_scenario(strategy, model, precision="fp64", batch=8, steps=3, **training)

    assert deviation(paced(scenario) if compute == "paced" else scenario) < 1e-9


def test_only_trained_parameters_change(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(WORKERS, LLAMA, precision="fp64", steps=2, adapters=DORA)
    before, after = SingleProcess.of(scenario).parameters(), full_batch.train(scenario, ())

    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if "adapters" in name}


@pytest.mark.parametrize(
    ("strategy", "training", "message"),
    [
        ({"kind": "local_sgd", "workers": 2}, {"freeze": "block0"}, "training.freeze by the strategy local_sgd is predicted"),
        ({"kind": "hybrid", "tensor": 2}, {"adapters": LORA}, "training.adapters of divided layers is predicted"),
        (
            PIPELINE,
            {"freeze": ["embedding", "block[01]"]},
            "training.freeze of whole stages is predicted but not measured: each",
        ),
        (
            WORKERS,
            {"adapters": LORA, "base_precision": "nf4"},
            "training.base_precision: nf4 is predicted but not measured: ranks",
        ),
    ],
)
def test_what_ranks_cannot_train_in_part_is_refused(
    strategy: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=message):
        check_trainable(make_scenario(strategy, LLAMA, **training))


@pytest.mark.full
@pytest.mark.parametrize("training", [{"adapters": LORA}, {"freeze": ["embedding", "block0"]}], ids=["adapters", "frozen"])
@pytest.mark.parametrize(("zero", "ranks"), [(0, 1), (3, 2)])
def test_messages_are_the_predicted_ones(zero: int, ranks: int, training: dict[str, Any], make_scenario: MakeScenario) -> None:
    scenario = paced(make_scenario(WORKERS, LLAMA, steps=2, zero=zero, **training))

    # a rank sends its part of what two gather or scatter, and as much as it has of what they sum
    sent = collectives(predict(scenario))
    assert collectives(measure(scenario)) == {ranks * size_bytes: count for size_bytes, count in sent.items()}
