"""Optimizers of copies keep what 16 bits would lose, and states in host memory train like those of a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.train import master_copies
from scaleproof.validator.train.master_copies import MasterOptimizer, StaticScaler
from scaleproof.validator.train.trained_model import TrainedModel
from tests.validator import faults
from tests.validator.conftest import CLUSTER, MakeScenario
from tests.validator.verdicts import deviation, in_bulk

WORKERS = {"kind": "data_parallel", "workers": 2}
SHARED = {"kind": "hybrid", "tensor": 2, "stages": 2, "microbatches": 2}


def descent(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def test_changes_smaller_than_a_parameters_precision_add_up() -> None:
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = MasterOptimizer([parameter], descent, torch.float32, torch.device("cpu"))

    for _ in range(16):
        # half the distance from 1 to its lower neighbour in fp16 is 2^-12
        parameter.grad = torch.full_like(parameter, 2.0**-14)
        optimizer.step()
        optimizer.zero_grad()

    assert float(parameter.detach()) == 1 - 16 * 2.0**-14


def test_an_infinite_gradient_changes_nothing_and_halves_the_scale() -> None:
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float16))
    scaler = GradScaler("cpu", init_scale=1024.0)
    optimizer = MasterOptimizer([parameter], descent, torch.float32, torch.device("cpu"), scaler)
    scaled = []
    for gradient in (torch.inf, 0.25):
        scaled.append(float(scaler.scale(torch.ones(1))))
        parameter.grad = torch.full_like(parameter, gradient * scaled[-1])
        optimizer.step()

    assert scaled == [1024.0, 512.0]
    assert float(parameter.detach()) == 0.75


def test_a_static_scale_remains_after_an_infinite_gradient() -> None:
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float16))
    scaler = StaticScaler("cpu")
    optimizer = MasterOptimizer([parameter], descent, torch.float32, torch.device("cpu"), scaler)
    for gradient in (torch.inf, 0.25):
        (copy,) = optimizer.copies
        copy.grad = torch.full_like(copy, gradient * float(scaler.scale(torch.ones(1))))
        optimizer.step()

    assert optimizer.skipped == [0]
    assert float(parameter.detach()) == 0.75


class CountedStream:
    """A stream whose synchronisations are counted."""

    def __init__(self) -> None:
        self.synchronised = 0

    def synchronize(self) -> None:
        self.synchronised += 1


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)])
def test_buffers_in_pinned_memory_change_no_result_and_are_waited_for_once_a_step(
    dtype: torch.dtype, copies: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = [(3, 4), (4,), (2, 2)]
    initial = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    gradients = [[torch.randn(shape, generator=generator).to(dtype) for shape in shapes] for _ in range(3)]

    def trained() -> list[nn.Parameter]:
        parameters = [nn.Parameter(one.clone()) for one in initial]
        optimizer = MasterOptimizer(parameters, lambda own: torch.optim.Adam(own, lr=0.1), copies, torch.device("cpu"))
        for step in gradients:
            for parameter, gradient in zip(parameters[:2], step, strict=False):
                parameter.grad = gradient.clone()
            optimizer.step()
            optimizer.zero_grad()
        return parameters

    plain, stream = trained(), CountedStream()
    monkeypatch.setattr(master_copies, "_are_on_gpu", lambda _: True)
    monkeypatch.setattr(master_copies, "_pinned", lambda elements, kind: torch.empty(elements, dtype=kind))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    buffered = trained()

    assert stream.synchronised == len(gradients)
    assert all(torch.equal(one, other) for one, other in zip(plain, buffered, strict=True))
    assert not torch.equal(plain[0], initial[0])
    assert torch.equal(plain[2], initial[2]), "a parameter without gradients does not change"


@pytest.mark.full
@pytest.mark.parametrize(
    ("strategy", "training"),
    [
        (SHARED, {"optimizer": "adam"}),
        *in_bulk(
            (WORKERS, {"zero": 1}),
            (WORKERS, {"zero": 3, "optimizer": "adam"}),
            ({"kind": "pipeline", "stages": 2, "microbatches": 4}, {"recompute": "full"}),
            ({"kind": "gather_average", "workers": 2}, {"offload": ["optimizer"]}),
            ({"kind": "local_sgd", "workers": 2, "period": 2}, {"offload": ["optimizer"]}),
            ({"kind": "parameter_server", "workers": 2}, {"optimizer": "momentum"}),
        ),
    ],
)
def test_losses_in_16_bits_are_those_in_64_bits_up_to_rounding(
    strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    watch = MeasureOptions(verify=not training.get("zero"))
    narrow, wide = (measure(make_scenario(strategy, precision=p, steps=10, **training), watch=watch) for p in ("fp16", "fp64"))

    assert narrow.verified is None or narrow.verified.is_right
    assert narrow.losses == pytest.approx(wide.losses, rel=2e-3)
    assert narrow.losses != pytest.approx(wide.losses, rel=1e-9)


@pytest.mark.parametrize(
    ("strategy", "training"),
    [
        (WORKERS, {"offload": ["optimizer", "parameters"], "zero": 3, "optimizer": "adam"}),
        (WORKERS, {"offload": ["optimizer"], "zero": 1, "optimizer": "momentum"}),
        (WORKERS, {"offload": ["activations"]}),
        *in_bulk(
            ({"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}, {"offload": ["optimizer"], "zero": 1}),
            (SHARED, {"offload": ["optimizer"], "optimizer": "adam"}),
            ({"kind": "local_sgd", "workers": 2, "period": 2}, {"offload": ["optimizer"], "optimizer": "adam"}),
            ({"kind": "gather_average", "workers": 2}, {"offload": ["optimizer"]}),
        ),
    ],
)
def test_offloaded_states_train_like_one_process(
    strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, precision="fp64", **training)) < 1e-9


# a host with drives
NODE = CLUSTER["node"] | {"host": {"nvme": {"read": "6 GB/s", "write": "4 GB/s"}}}  # type: ignore[operator]


@pytest.mark.parametrize(
    ("strategy", "training", "message"),
    [
        ({**WORKERS, "compression": {"kind": "top_k", "share": 0.1}}, {"precision": "fp16"}, "strategy.compression with"),
        (WORKERS, {"offload": ["optimizer"], "offload_to": "nvme"}, "training.offload_to: nvme .* give host to measure"),
        (
            WORKERS,
            {"offload": ["activations"], "recompute": "full"},
            "training.offload of activations with training.recompute .* leave recompute out, or set compute=paced",
        ),
        (WORKERS, {"offload": ["parameters"], "zero": 3}, r"training.offload of parameters alone.*\[optimizer, parameters\]"),
    ],
)
def test_states_without_a_scale_or_an_optimizer_are_rejected(
    strategy: dict[str, Any], training: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=message):
        measure(make_scenario(strategy, cluster=CLUSTER | {"node": NODE}, **training))


def test_shards_in_16_bits_are_not_verified(make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match="--verify: in fp16 shards of copies"):
        measure(make_scenario(WORKERS, precision="fp16", zero=1), watch=MeasureOptions(verify=True))


@pytest.mark.parametrize(
    ("fault", "is_right"), [(faults.begin_with_a_large_scale, True), *in_bulk((faults.train_without_averaging, False))]
)
def test_verification_follows_steps_without_an_update(
    fault: Any, is_right: bool, make_scenario: MakeScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.train_here", fault)

    run = measure(make_scenario({**WORKERS, "overlap": False}, precision="fp16", steps=10), watch=MeasureOptions(verify=True))

    assert run.verified is not None
    assert run.verified.is_right == is_right


def test_bf16_is_updated_in_bf16(make_scenario: MakeScenario) -> None:
    # as training.master=false describes: parameters, gradients and states in 16 bits, and nothing in 32
    device = {**CLUSTER["device"], "peak": {"bf16": "50 GFLOP/s"}}  # type: ignore[dict-item]
    cluster = CLUSTER | {"device": device}
    model = TrainedModel(make_scenario(WORKERS, cluster=cluster, precision="bf16", master=False, optimizer="adam"))
    (layer,) = model.build(range(1))
    layer.to(torch.bfloat16)
    optimizer = model.optimizer(layer.parameters())
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [state for one in optimizer.state.values() for name, state in one.items() if name != "step"]
    assert {state.dtype for state in states} == {torch.bfloat16}
