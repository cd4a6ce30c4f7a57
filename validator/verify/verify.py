"""Verification: compares the parameters that ranks trained with those of one process that follows the same rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.model.layers import has_operator
from scaleproof.simulator.parallelism.compression import Bf16, Fp16
from scaleproof.simulator.run.records import Verification
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.launch import run_on_ranks
from scaleproof.validator.launch.refusal import refuse

if TYPE_CHECKING:
    from torch import Tensor

# One process trains on all samples, and reports no progress.
LONGEST_S: Final = 300.0
# Largest deviation by rounding, as sums are taken in another order. Adam divides by the size of gradients, which amplifies the
# rounding of tiny ones. In bf16 rounding is as large as the change of a step, so that bf16 cannot be verified.
_TOLERANCES: Final = {"fp64": 1e-9, "fp32": 5e-4, "fp16": 0.05}
_ADAM_FACTOR: Final = 10.0
_SMALLEST: Final = 1e-30


def check_verifiable(scenario: Scenario) -> None:
    """Raises InputError where one process cannot follow the ranks, or cannot distinguish wrong training from rounding."""
    refuse(scenario, ((applies, "--verify", reason, remedy) for applies, reason, remedy in _refusals(scenario)))


def _refusals(scenario: Scenario) -> Iterator[tuple[object, str, str]]:
    """What cannot be verified: whether it applies, the reason, and what to do instead."""
    training, model, plan, is_real = scenario.training, scenario.model, scenario.strategy.plan, scenario.compute == "real"
    capacity = getattr(getattr(model, "experts", None), "capacity", None)
    drops = training.adapters is not None and training.adapters.dropout > 0
    rounds = plan.dispatch_precision or plan.combine_precision
    is_compressed, is_fp16 = plan.compression is not None, training.precision == "fp16"
    is_divided = plan.context > 1 or plan.expert > 1 or plan.folds > 1 or plan.sequence_parallel
    yield from [
        (training.precision not in _TOLERANCES, f"rounding in {training.precision} hides errors of training",
         f"set training.precision={' or '.join(_TOLERANCES)}"),
        (is_fp16 and (training.zero or is_compressed),
         "in fp16 shards of copies in 32 bits are not gathered, nor compressed gradients scaled",
         "leave training.zero and compression out"),
        (is_real and (drops or any(has_operator(model, words) for words in ("dropout", "mask"))),
         "masks of dropout differ between ranks", "leave dropout out of the model and of adapters"),
        (is_real and capacity is not None and plan.context * plan.folds > 1,
         "ranks that share tokens drop others than one process does",
         "leave out model.experts.capacity, or strategy.context and expert_tensor"),
        (is_real and rounds and plan.tensor > 1,
         "one process cannot round the parts of experts' outputs that tensor-parallel ranks send",
         "leave dispatch_precision and combine_precision, or strategy.tensor, out"),
        (is_real and rounds and plan.deduplicated,
         "one process cannot round the sums of experts' outputs that nodes send",
         "leave dispatch_precision and combine_precision, or strategy.dispatcher, out"),
        (is_real and training.state_bits == 8 and plan.tensor > 1,
         "one process has no blocks of states as in the parts of tensor-parallel ranks",
         "give state_bits 16 or 32, or leave strategy.tensor out"),
        (is_compressed and (is_divided or (plan.tensor > 1 and not isinstance(plan.compression, Fp16 | Bf16))),
         "one process cannot compress the parts of gradients that ranks which share layers send",
         "leave compression out to verify the rest"),
    ]  # fmt: skip


def tolerance_of(scenario: Scenario) -> float:
    """Largest relative deviation of parameters that rounding explains, as ranks sum in another order than one process."""
    training = scenario.training
    # sums of fp64 gradients may be in fp32
    sums = {training.accumulate_precision, training.reduce_precision} if training.precision == "fp64" else set()
    precision = "fp32" if "fp32" in sums else training.precision
    return _TOLERANCES[precision] * (_ADAM_FACTOR if training.optimizer == "adam" else 1.0)


def verdict(scenario: Scenario, folder: Path, notes: Sequence[Mapping[str, Any]], timeout_s: float) -> Verification:
    """The result of `verify_here`, run in a process of its own. Raises RankError where that fails."""
    return Verification(**run_on_ranks(verify_here, 1, scenario, folder, notes, timeout_s=max(timeout_s, LONGEST_S))[0])


def verify_here(scenario: Scenario, folder: Path, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Follows the scenario's rule in this process and compares with the parameters that ranks left in `folder`.

    Returns the fields of a `Verification`. The deviation is the largest over tensors and ranks of the norm of the difference,
    relative to the norm of the tensor's change in training, or to the quadratic mean of all tensors' changes if that is larger.
    If it is beyond the tolerance, the process trains again from rounded initial parameters.
    Raises ValueError where ranks left other parameters than the model has.
    """
    from scaleproof.validator.verify.reference import rule_of
    from scaleproof.validator.verify.reference.single_process import rounded

    rule = rule_of(scenario)
    expected = rule.train(scenario, notes)
    deviation = deviation_of(scenario, folder, expected)
    tolerance = tolerance_of(scenario) if rule.tolerance is None else rule.tolerance
    amplified = 0.0
    if deviation > tolerance:
        with rounded():
            amplified = _largest_difference(rule.train(scenario, notes), expected, _scales(scenario, expected))
    return {"rule": rule.words, "deviation": deviation, "tolerance": tolerance, "amplified": amplified}


def deviation_of(scenario: Scenario, folder: Path, expected: Mapping[str, Tensor]) -> float:
    """The deviation of the parameters that ranks left in `folder` from the expected ones, as `verify_here` describes it. Raises
    ValueError where ranks left other parameters than the model has."""
    import torch

    scales = _scales(scenario, expected)
    seen: set[str] = set()
    deviation = 0.0
    for rank in range(scenario.strategy.training_ranks):
        # on the processor: other processes may hold the GPUs that the parameters were on
        left = torch.load(folder / f"rank{rank}.pt", map_location="cpu", weights_only=True)
        _check_names(scenario, rank, set(left), set(expected))
        seen |= set(left)
        deviation = max(deviation, _largest_difference(left, expected, scales))
    if missing := sorted(set(expected) - seen):
        raise ValueError(f"no rank trained {', '.join(missing[:3])}")
    return deviation


def _scales(scenario: Scenario, expected: Mapping[str, Tensor]) -> dict[str, float]:
    """Norms by tensor that differences are relative to: of its change in training, or the quadratic mean of all tensors'."""
    from scaleproof.validator.verify.reference.single_process import SingleProcess

    initial = SingleProcess.of(scenario).parameters()
    changed = {name: float((value - initial[name]).norm()) for name, value in expected.items()}
    typical = math.sqrt(sum(size**2 for size in changed.values()) / len(changed))
    return {name: max(size, typical, _SMALLEST) for name, size in changed.items()}


def _largest_difference(values: Mapping[str, Tensor], expected: Mapping[str, Tensor], scales: Mapping[str, float]) -> float:
    """The largest norm of the difference of a tensor from the expected one, relative to its scale."""
    largest = 0.0
    for name, value in values.items():
        share = float((value.cpu().double() - expected[name].double()).norm()) / scales[name]
        # a NaN would compare as not larger
        largest = max(largest, math.inf if math.isnan(share) else share)
    return largest


def _check_names(scenario: Scenario, rank: int, left: set[str], expected: set[str]) -> None:
    """Raises ValueError where a rank left unknown parameters, none, or not all where it should have all."""
    plan = scenario.strategy.plan
    if unknown := sorted(left - expected):
        raise ValueError(f"rank {rank} trained {unknown[0]}, which is not in the model")
    if not left or (plan.stages == 1 and plan.expert == 1 and left != expected):
        raise ValueError(f"rank {rank} did not train {min(expected - left)}")
