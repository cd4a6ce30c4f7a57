"""Options of training, run by several ranks, give the parameters of one process that follows the same rule by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.measure import MeasureOptions, measure
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.verify.reference import full_batch
from scaleproof.validator.verify.verify import check_verifiable
from tests.validator.conftest import CLUSTER, TINY_GPT, MakeScenario
from tests.validator.verdicts import deviation, in_bulk, paced

WORKERS = {"kind": "data_parallel", "workers": 2}
STAGES = {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2}
TENSOR = {"kind": "hybrid", "workers": 2, "tensor": 2, "microbatches": 2}
EXPERTS = {"kind": "hybrid", "workers": 2, "expert": 2, "microbatches": 2}
# of biases of keys the gradient is zero but for rounding, of which Lion takes the sign
NO_BIASES = TINY_GPT | {"kind": "llama"}
# few samples give larger gradients than norms are clipped to
CLIPPED = {"clip_gradients": True, "batch": 4}
STEEP = TINY_GPT | {"hidden": 64}
MIXTURE = STEEP | {"experts": {"count": 4, "active": 2, "feedforward": 64}}
# a matrix of each block has more elements than 8-bit states need
WIDE = TINY_GPT | {"layers": 2, "hidden": 64}
HOST = {"offload": ["optimizer"], "optimizer": "adam"}
NODE = CLUSTER["node"] | {"host": {"link": "40 MB/s", "adam_rate": 1e9}}  # type: ignore[operator]
SHORTER = {"distribution": "lognormal", "mean": 12}
LONGER = NO_BIASES | {"sequence": 32}
CLOSE = 1e-9


@pytest.mark.parametrize(
    ("strategy", "model", "training"),
    [
        (WORKERS, TINY_GPT, {"optimizer": "muon", "zero": 1}),
        (TENSOR, STEEP, CLIPPED | {"zero": 2}),
        (STAGES, TINY_GPT, {"ema": "fp32", "zero": 1}),
        *in_bulk(
            (WORKERS, WIDE, {"optimizer": "adam", "state_bits": 8, "zero": 3}),
            (WORKERS, NO_BIASES, {"optimizer": "lion", "zero": 3}),
            (WORKERS, TINY_GPT, {"optimizer": "muon"}),
            (STAGES, TINY_GPT, {"optimizer": "muon", "zero": 3}),
            (WORKERS, STEEP, CLIPPED),
            (WORKERS, STEEP, CLIPPED | {"zero": 3}),
            (EXPERTS, MIXTURE, CLIPPED),
            ({"kind": "pipeline", "stages": 2, "microbatches": 4}, TINY_GPT | {"tied": True}, CLIPPED),
            (STAGES, WIDE, {"optimizer": "momentum", "state_bits": 8, "zero": 2}),
            (WORKERS, TINY_GPT, {"optimizer": "adam", "state_bits": 16, "zero": 2}),
            (TENSOR, TINY_GPT, {"ema": "fp32"}),
            (WORKERS, TINY_GPT, {"ema": "fp64", "zero": 3, "optimizer": "adam"}),
        ),
    ],
)
def test_optimizers_and_states(
    strategy: dict[str, Any], model: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, model, precision="fp64", **training)) < CLOSE


@pytest.mark.parametrize(
    ("strategy", "training"),
    [
        (WORKERS, {"optimizer": "muon", "zero": 1}),
        *in_bulk((WORKERS, {"optimizer": "muon", "zero": 3})),
    ],
)
def test_emulated_compute(strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario) -> None:
    assert deviation(paced(make_scenario(strategy, precision="fp64", **training))) < CLOSE


@pytest.mark.parametrize(
    "training",
    [
        {"zero": 2, "ema": "fp32"} | CLIPPED,
        *in_bulk({}, {"zero": 3, "offload": ["optimizer", "parameters"]}),
    ],
)
def test_delayed_updates(training: dict[str, Any], make_scenario: MakeScenario) -> None:
    fields = HOST | {"delay_update": True, "precision": "fp64"} | training
    assert deviation(make_scenario(WORKERS, STEEP, cluster=CLUSTER | {"node": NODE}, **fields)) < CLOSE


@pytest.mark.parametrize(
    ("strategy", "training"),
    [
        (STAGES, {"offload": ["activations"], "recompute": "full"}),
        *in_bulk((WORKERS, HOST | {"offload": ["optimizer", "parameters"], "zero": 3})),
    ],
)
def test_emulated_links_to_hosts(strategy: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario) -> None:
    scenario = paced(make_scenario(strategy, cluster=CLUSTER | {"node": NODE}, precision="fp64", **training))
    assert deviation(scenario) < CLOSE


@pytest.mark.full
@pytest.mark.parametrize(
    "training",
    [{"clip_gradients": True}, {"ema": "fp64"}, HOST | {"delay_update": True}, {"optimizer": "adam", "state_bits": 16}],
)
def test_options_change_what_one_process_trains(training: dict[str, Any], make_scenario: MakeScenario) -> None:
    """Else the comparison would show nothing."""
    alone = {"kind": "data_parallel", "workers": 1}
    plain = {name: value for name, value in training.items() if name in HOST}
    node = CLUSTER | {"node": NODE}
    with_it, without = (
        full_batch.train(make_scenario(alone, STEEP, batch=4, cluster=node, precision="fp64", learning_rate=0.1, **fields), [])
        for fields in (training, plain)
    )
    assert max(float((with_it[name] - without[name]).norm()) for name in with_it) > 1e-3


@pytest.mark.parametrize(
    ("strategy", "lengths", "training"),
    [
        (WORKERS | {"microbatches": 2}, SHORTER, {"zero": 3}),
        ({"kind": "pipeline", "stages": 2, "microbatches": 4}, SHORTER | {"batches": "packed"}, {}),
        *in_bulk(
            (WORKERS | {"microbatches": 2}, SHORTER | {"batches": "grouped"}, {"recompute": "full"}),
            (TENSOR, SHORTER | {"batches": "packed"}, {"recompute": "selective"}),
            (WORKERS, SHORTER | {"batches": "packed", "across": True}, {}),
        ),
    ],
)
def test_samples_of_different_lengths(
    strategy: dict[str, Any], lengths: dict[str, Any], training: dict[str, Any], make_scenario: MakeScenario
) -> None:
    assert deviation(make_scenario(strategy, LONGER, lengths=lengths, precision="fp64", **training)) < CLOSE


@pytest.mark.parametrize(
    ("strategy", "fields", "message"),
    [
        (TENSOR, {"optimizer": "muon"}, "training.optimizer: muon of divided layers .* leave tensor and expert out"),
        *(
            (WORKERS, {"optimizer": "muon", "state_bits": bits}, f"training.state_bits: {bits} of muon .* leave it out")
            for bits in (16, 32)
        ),
        (WORKERS, {"precision": "fp16", "clip_gradients": True}, "training.clip_gradients with training.precision=fp16"),
        ({"kind": "local_sgd", "workers": 2, "period": 2}, {"ema": "fp32"}, "training.ema by the strategy local_sgd"),
        (STAGES, {"lengths": SHORTER}, "batch.lengths of hybrid .* batches: packed"),
        (WORKERS | {"shares": [1, 3]}, {"lengths": SHORTER}, "batch.lengths with strategy.shares .* leave either out"),
    ],
)
def test_what_is_not_run_is_refused_with_a_remedy(
    strategy: dict[str, Any], fields: dict[str, Any], message: str, make_scenario: MakeScenario
) -> None:
    with pytest.raises(InputError, match=message):
        check_trainable(make_scenario(strategy, LONGER, batch=4, **fields))


@pytest.mark.parametrize("zero", [1, 2])
def test_muon_of_emulated_experts_is_not_sharded(zero: int, make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match=r"training.optimizer: muon of emulated experts .* or leave zero out"):
        check_trainable(paced(make_scenario(EXPERTS, MIXTURE, optimizer="muon", zero=zero)))


def test_steps_that_are_left_out_change_no_average(make_scenario: MakeScenario) -> None:
    """Steps so long that losses grow until gradients in fp16 are infinite, after which the average would go on to move."""
    scenario = make_scenario(WORKERS, STEEP, precision="fp16", ema="fp32", learning_rate=100.0)
    run = measure(scenario, watch=MeasureOptions(verify=True))
    assert run.verified is not None
    assert run.verified.is_right


def test_blocks_of_states_of_tensor_parallel_ranks_are_not_verified(make_scenario: MakeScenario) -> None:
    with pytest.raises(InputError, match=r"--verify: one process has no blocks of states .* give state_bits 16"):
        check_verifiable(make_scenario(TENSOR, optimizer="adam", state_bits=8, precision="fp64"))


def test_masks_of_packed_samples_equal_samples_by_themselves() -> None:
    """Theory: a causal mask that is cut at documents gives what each document gives alone."""
    from scaleproof.validator.train.models.attention import Attend, within_documents

    heads = [torch.randn(2, 2, 6, 4, dtype=torch.float64) for _ in range(3)]
    documents = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
    found = within_documents(Attend(True), documents)(*heads)

    seen = (documents[:, :, None] == documents[:, None, :]) & torch.ones(6, 6, dtype=torch.bool).tril()
    expected = torch.nn.functional.scaled_dot_product_attention(*heads, seen[:, None])
    assert torch.allclose(found, expected, atol=1e-12)
