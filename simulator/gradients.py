"""Gradients: in which precision they are accumulated over microbatches and reduced over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.cluster.device import ELEMENT_BYTES
from simulator.errors import FieldError
from simulator.strategy.costs import GradientSizes
from simulator.strategy.replicated import Replicated

if TYPE_CHECKING:
    from simulator.scenario import Training
    from simulator.strategy import Strategy


def gradient_sizes(training: Training, strategy: Strategy) -> GradientSizes:
    """Bytes of gradients by the fields of `training`, or where they are absent by what is usual.

    Usual: the training precision for both, and no time for the addition. A product that adds to the buffer itself reads and
    writes the buffer in place of writing a gradient; else an addition reads the gradient and the buffer and writes the buffer.
    """
    size = ELEMENT_BYTES[training.precision]
    reduced = _size(training.reduce_precision) or strategy.plan.gradient_bytes or size
    accumulated = _size(training.accumulate_precision) or reduced
    if training.accumulate_precision is None and training.fused_accumulation is None:
        return GradientSizes(accumulated, reduced)
    added = 2 * accumulated - size if training.fused_accumulation else size + 2 * accumulated
    return GradientSizes(accumulated, reduced, added)


def check_gradients(training: Training, strategy: Strategy) -> None:
    """Raises FieldError where a strategy does not accumulate or reduce gradients so."""
    given = {
        "accumulate_precision": training.accumulate_precision,
        "reduce_precision": training.reduce_precision,
        "fused_accumulation": training.fused_accumulation,
    }
    for field in (field for field, value in given.items() if value is not None):
        if strategy.servers or not isinstance(strategy, Replicated):
            message = (
                f"workers of a {strategy.kind} exchange gradients as they are; leave {field} out, or train by data_parallel"
            )
            raise FieldError(("training", field), message)
    for field in ("accumulate_precision", "reduce_precision"):
        if given[field] not in (None, "fp32", training.precision):
            known = " or ".join(dict.fromkeys(("fp32", training.precision)))
            raise FieldError(("training", field), f"gradients are {training.precision}, not {given[field]}; give {known}")
    if training.reduce_precision is not None and strategy.plan.gradient_bytes is not None:
        message = "training.reduce_precision says it already; leave gradient_bytes out"
        raise FieldError(("strategy", "gradient_bytes"), message)


def _size(precision: str | None) -> int | None:
    return None if precision is None else ELEMENT_BYTES[precision]
