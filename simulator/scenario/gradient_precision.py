"""The precision in which gradients are accumulated over microbatches and reduced over ranks."""

from __future__ import annotations

from typing import NamedTuple

from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, storage_precision
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.parallelism import Strategy
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.scenario.training import Training


class GradientSizes(NamedTuple):
    """Bytes of gradients per parameter.

    accumulated: in the buffer to which microbatches add their gradients. reduced: in the sums over ranks. added: read and
    written by a microbatch to add to the buffer, in addition to the traffic of the gradient's matrix product.
    """

    accumulated: int
    reduced: int
    added: int = 0


def gradient_sizes(training: Training, strategy: Strategy, framework: Framework) -> GradientSizes:
    """Bytes per parameter of gradients, from the fields of `training`, or from the framework where these are absent. Without
    master weights, gradients have the training precision unless the fields say otherwise.

    A fused product reads and writes the accumulation buffer instead of writing a gradient; otherwise an addition reads the
    gradient and the buffer and writes the buffer. If a framework specifies neither, accumulation costs nothing.
    """
    size, usual = training.parameter_bytes, framework.gradients
    # a framework's wider gradients go with its master weights
    decides = isinstance(strategy, ReplicaStrategy) and not strategy.servers and training.master
    usually_reduced, usually_accumulated = (
        choice.element_bytes(training.precision) if decides else None for choice in (usual.reduce, usual.accumulate)
    )
    reduced = _size(training.reduce_precision) or max(usually_reduced or 0, size)
    accumulated = _size(training.accumulate_precision) or max(usually_accumulated or reduced, size)
    fused = training.fused_accumulation if training.fused_accumulation is not None else usual.fused
    if training.accumulate_precision is None and (fused is None or not decides):
        return GradientSizes(accumulated, reduced)
    added = 2 * accumulated - size if fused else size + 2 * accumulated
    return GradientSizes(accumulated, reduced, added)


def check_gradients(training: Training, strategy: Strategy) -> None:
    """Raises FieldError for a precision of gradients that a strategy does not support."""
    given = {
        "accumulate_precision": training.accumulate_precision,
        "reduce_precision": training.reduce_precision,
        "fused_accumulation": training.fused_accumulation,
    }
    for field in (field for field, value in given.items() if value is not None):
        if strategy.servers or not isinstance(strategy, ReplicaStrategy):
            message = f"not supported by the strategy {strategy.kind}; remove {field}, or use data_parallel"
            raise FieldError(("training", field), message)
    stored = "fp32" if training.autocast else storage_precision(training.precision)
    for field in ("accumulate_precision", "reduce_precision"):
        if given[field] not in (None, "fp32", stored):
            known = " or ".join(dict.fromkeys(("fp32", stored)))
            raise FieldError(("training", field), f"gradients are {stored}, not {given[field]}; give {known}")


def _size(precision: str | None) -> int | None:
    return None if precision is None else ELEMENT_BYTES[precision]
