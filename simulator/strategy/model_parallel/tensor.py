"""Tensor and sequence parallelism: ranks divide the matrix products of a block (Megatron-LM, arXiv 1909.08053, section 3).

A pass waits for the sums of activations and of their gradients, or with sequence parallelism for gathers and scatters
(arXiv 2205.05198, section 4.2.2). Three of these collectives overlap with compute of their pass: a gather that the backward
pass repeats; a sum of input gradients, which weight gradients do not wait for; and collectives in pieces (arXiv 2305.06942).
"""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.cluster.collectives.cost import processors_taken
from scaleproof.simulator.model.operators import Exchange, Matmul
from scaleproof.simulator.strategy.job import Job
from scaleproof.simulator.strategy.model_parallel.compute_budget import LayerPass, Overlap

# Matrix products of a block whose inputs all tensor-parallel ranks have.
_READ_INPUT: Final = frozenset({"qkv", "up"})


def overlap(pass_: LayerPass, exchange: Exchange, pieces: int, job: Job) -> Overlap | None:
    """The compute that a collective overlaps with; None if the pass waits for all of it.

    pieces: number into which it is divided, to overlap with the product before or after it.
    """
    taken = processors_taken(job.cluster)
    if exchange.hidden:
        return Overlap.within(pass_, lambda *_: True, taken)
    if pieces > 1:
        # the first piece of a gather, or the last of a scatter, has no product to overlap with
        return Overlap.within(pass_, lambda operator, _: isinstance(operator, Matmul), 1 / pieces)
    if job.framework.overlap_input_gradients and _sums_input_gradients(exchange):
        return Overlap.within(pass_, lambda operator, of_weights: of_weights and operator.name in _READ_INPUT, taken)
    return None


def is_divisible(exchange: Exchange) -> bool:
    """Whether a collective can be divided into pieces, each of which a product needs or makes."""
    return exchange.axis == "tensor" and not exchange.hidden and exchange.op in ("all_gather", "reduce_scatter")


def _sums_input_gradients(exchange: Exchange) -> bool:
    """Whether the collective sums gradients of the products' inputs over tensor-parallel ranks."""
    return exchange.axis == "tensor" and exchange.backward and exchange.op in ("all_reduce", "reduce_scatter")
