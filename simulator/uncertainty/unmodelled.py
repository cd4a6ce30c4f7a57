"""Parts of a scenario whose time is not modelled: what to say of them, and by how much they may prolong a step.

Each is one function of `_PARTS`. The prediction is that without their time; the upper end of its interval includes all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Matmul
from scaleproof.simulator.parallelism.stages import WHOLE
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import stage_layers
from scaleproof.simulator.strategy.scenario_job import job_of

# An irrational step, by which numbers of draws are spread evenly.
_GOLDEN: Final = 0.6180339887498949


class Unmodelled(NamedTuple):
    """A part of a step without a modelled time. note: what it is. most_s: its seconds if it overlaps with nothing."""

    note: str
    most_s: float


def unmodelled(scenario: Scenario) -> tuple[Unmodelled, ...]:
    """The parts of a scenario's step whose time is not modelled."""
    found = (part(scenario) for part in _PARTS)
    return tuple(one for one in found if one is not None)


def most_s(scenario: Scenario) -> float:
    """Seconds that all parts without a modelled time take at most in a step."""
    return sum(one.most_s for one in unmodelled(scenario))


def log_times(scenario: Scenario, step_s: float, draws: int) -> NDArray[np.float64]:
    """Logarithms of the factors by which parts without a modelled time prolong a step, shape (draws,): each time from none to
    the most is equally likely."""
    shares = (np.arange(1, draws + 1) * _GOLDEN) % 1.0
    return np.asarray(np.log1p(shares * most_s(scenario) / step_s))


def _repeated_recomputation(scenario: Scenario) -> Unmodelled | None:
    """Recomputation that passes for the gradients of weights repeat: torch.distributed.pipelining computes these weight
    by weight, and each unpacks the checkpoint of its block again (torch/distributed/pipelining/_backward.py)."""
    if scenario.training.recompute.kind == "none" or scenario.strategy.plan.schedule in WHOLE:
        return None
    plan, job = scenario.strategy.plan, job_of(scenario)
    samples = job.samples_per_worker / plan.microbatches

    def of_layer(layer: Layer) -> tuple[float]:
        weights = sum(isinstance(one, Matmul) and one.weight_gradient for one in layer.operators)
        return (weights * job.layer_passes_s(layer, samples)[2],)

    (layers_s,) = job.where_recomputed(job.of_layers(of_layer))
    stages = stage_layers(scenario.strategy, job)
    repeated_s = plan.microbatches * max(sum(layers_s[i] for one in own for i in stages[one]) for own in plan.stage_of)
    note = (
        "recomputed activations are kept until the gradients of weights; torch.distributed.pipelining keeps their gradients "
        f"alone and recomputes again for each weight, which is not modelled; the interval includes {format_time_s(repeated_s)} "
        "a step"
    )
    return Unmodelled(note, float(repeated_s))


_PARTS: Final[Sequence[Callable[[Scenario], Unmodelled | None]]] = (_repeated_recomputation,)
