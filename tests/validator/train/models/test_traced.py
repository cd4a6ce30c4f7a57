"""Users' modules train with their own loss and optimizer, whole or divided into layers, like one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.model import Traced
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.train.layer_graph import LayerGraph
from scaleproof.validator.train.trained_model import RealModel, TrainedModel
from tests.validator.conftest import MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

WORKERS = {"kind": "data_parallel", "workers": 2}
PIPELINE = {"kind": "pipeline", "stages": 2, "microbatches": 2}
BRANCHES = {"kind": "model_parallel", "stages": 2}


def model(name: str) -> dict[str, Any]:
    return {"kind": "traced", "source": f"python:tests.validator.train.models.users:{name}"}


@pytest.mark.parametrize(
    ("strategy", "name", "training"),
    [
        (WORKERS, "with_loss", {}),
        (PIPELINE, "with_loss", {}),
        (WORKERS, "frozen", {}),
        *in_bulk(
            ({"kind": "parameter_server", "workers": 2, "servers": 1}, "frozen", {}),
            ({"kind": "gather_average", "workers": 2}, "frozen", {}),
            (BRANCHES, "towers", {}),
            (WORKERS, "towers", {}),
            (WORKERS, "cycle", {}),
            (WORKERS, "with_loss", {"zero": 3}),
            (WORKERS, "plain", {"recompute": "full"}),
            ({"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}, "plain", {}),
            ({"kind": "parameter_server", "workers": 2, "servers": 1, "overlap": True, "bucket": "1 KiB"}, "plain", {}),
            ({"kind": "parameter_server", "workers": 2, "servers": 1, "mode": "asynchronous"}, "with_loss", {}),
            ({"kind": "local_sgd", "workers": 2, "period": 2}, "plain", {}),
        ),
    ],
)
def test_parameters_equal_those_of_one_process(
    strategy: dict[str, Any], name: str, training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model(name), precision="fp64", batch=8, steps=3, **training)) < 1e-9


@pytest.mark.parametrize(("strategy", "name"), [(BRANCHES, "towers"), *in_bulk((PIPELINE, "plain"))])
def test_emulated_modules_train(strategy: dict[str, Any], name: str, make_scenario: MakeScenario) -> None:
    assert deviation(paced(make_scenario(strategy, model(name), precision="fp64", batch=8, steps=3))) < 1e-9


@pytest.mark.parametrize("name", ["with_loss", "plain", "towers"])
def test_divided_modules_compute_what_whole_ones_do(name: str) -> None:
    spec = Traced(**model(name))
    losses, norms = [], []
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(2, 8, dtype=torch.float64, generator=generator) for _ in range(2)]
    data[1] = torch.tensor([1, 3]) if name == "with_loss" else data[1]
    for samples in (None, 2):
        real = RealModel(spec, 0, torch.float64, samples)
        numbers = range(len(real.wiring))
        layers = dict(zip(numbers, real.build(numbers), strict=True))
        graph = LayerGraph(layers, real.wiring, {}, real.prelude, real.derived)
        loss = graph(data[0], data1=data[1])
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(sum(float(p.grad.norm()) for p in graph.parameters() if p.grad is not None))

    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert norms[0] == pytest.approx(norms[1], rel=1e-12)


def test_layers_read_values_of_data_from_a_prelude_and_not_from_one_another() -> None:
    real = RealModel(Traced(**model("plain")), 0, torch.float32, 2)

    # each block reads the previous one and the scale, which is a tensor after that of the batch
    assert real.derived == 1
    assert all(len([wire for wire in sources if wire.layer >= 0]) == 1 for sources in real.wiring[1:-2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loss_of_samples", r"its loss has 4 numbers; return one, such as loss\.mean\(\)"),
        ("detached", r"its loss does not depend on parameters; leave out detach\(\) and no_grad\(\)"),
        ("targets_alone", "returns targets without a loss; give a function"),
    ],
)
def test_wrong_losses_are_refused(name: str, message: str, make_scenario: MakeScenario) -> None:
    with pytest.raises(FieldError, match=message):
        make_scenario(WORKERS, model(name)).model.build_layers()


def test_frozen_parameters_are_not_given_to_the_optimizer(make_scenario: MakeScenario) -> None:
    trained_model = TrainedModel(make_scenario(WORKERS, model("frozen"), precision="fp64", optimizer="momentum"))
    (whole,) = trained_model.build([0])

    trained = sum(parameter.numel() for parameter in whole.parameters())
    # a norm, a block's product and the head; the module without use is frozen as well
    assert trained == 2 * 16 + (16 * 16 + 16) + (32 * 5 + 5)
    traced = Traced(**model("frozen")).build_layers()
    assert sum(layer.trained_parameters for layer in traced) == trained + 3 * 3 + 3
    before = {name: buffer.clone() for name, buffer in whole.named_buffers()}
    optimizer = trained_model.optimizer(whole.parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"]) == trained
    whole(torch.randn(4, 8, dtype=torch.float64)).backward()
    optimizer.step()
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in whole.named_buffers())


@pytest.mark.parametrize(("strategy", "training"), [(PIPELINE, {}), (WORKERS, {"zero": 3}), (WORKERS, {"recompute": "full"})])
def test_frozen_modules_are_not_divided_into_layers(
    strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    scenario = make_scenario(strategy, model("frozen"), **training)
    for one in (scenario, paced(scenario)):
        with pytest.raises(InputError, match="frozen parameters undivided, each with all of them; give data_parallel"):
            check_trainable(one)


@pytest.mark.parametrize("strategy", [PIPELINE, BRANCHES])
def test_cycles_of_layers_are_refused_on_several_ranks(strategy: dict[str, Any], make_scenario: MakeScenario) -> None:
    with pytest.raises(
        InputError, match=r"blocks\.0 runs again after blocks\.3, so that layers form a cycle .*; give data_parallel"
    ):
        check_trainable(make_scenario(strategy, model("cycle")))


def test_modules_that_cannot_be_sharded_are_refused(make_scenario: MakeScenario) -> None:
    with pytest.raises(FieldError, match=r"strategy\.tensor: a traced cannot be divided among ranks; leave tensor out"):
        check_trainable(make_scenario({"kind": "hybrid", "tensor": 2}, model("plain")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "single_number",
            "scale is a single number, which fully_shard cannot shard; make it a vector of length 1, or give zero 2",
        ),
        ("sparse_gradients", "words has sparse gradients, which ranks do not sum; build it with sparse=False"),
    ],
)
def test_parameters_that_ranks_cannot_share_are_refused(name: str, message: str, make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match=message):
        check_trainable(make_scenario(WORKERS, model(name), zero=3))
