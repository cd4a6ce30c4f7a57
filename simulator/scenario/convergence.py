"""Convergence: how many updates of the parameters reach a target loss, by batch and staleness. A model, to be calibrated.

Of a batch of B samples, S = S_min · (1 + B_crit / B) updates do (McCandlish et al. 2018, arXiv 1812.06162, section 2): the
fewest that the largest batch needs, and as many more as the noise of gradients costs. They take E = S · B samples, so that
(S / S_min − 1) · (E / E_min − 1) = 1, with E_min = S_min · B_crit.

Where servers wait for nobody each push is an update, and gradients are of parameters that others have updated since: of n
workers τ = n − 1 times, while a worker takes a step. Then S = S_min · (1 + k · τ + B_crit / B). What is proven of delayed
gradients is of this form, O(σ² / ε² + τ / ε) updates: delay costs where gradients are exact, and not where noise rules (Stich &
Karimireddy 2019, arXiv 1909.05350; with the mean delay for τ, and rates that follow delays, Koloskova et al. 2022, arXiv
2206.08307). That is a bound, not a law: k has to be measured.

τ is the mean delay where nobody waits, however unlike workers are: what some are less behind, others are more. Where they keep
in step the mean is half of it, but as much is lost: n such updates, the last of which is n − 1 behind, are what one by n times
the samples is, which is k = 1.

Assumed: learning rates are tuned for each batch and staleness; the noise's scale is that of the way to the target as a whole.
Not modelled: gradients that are compressed, and workers that take steps alone (local SGD); both are refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.program.consistency import Bsp

if TYPE_CHECKING:
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.strategy import Strategy

# far beyond any training, and below what would overflow a float
_MOST: Final = 1e15


class Convergence(Spec):
    """What it takes to reach the target loss, as `scaleproof converge` measures it or as you have found."""

    minimum_steps: float = Field(gt=0, le=_MOST, description="updates to the target with the largest batch")
    critical_batch: float = Field(gt=0, le=_MOST, description="samples in a batch that needs twice as many updates")
    staleness_penalty: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="of minimum_steps, what each update by another in a worker's step adds; asynchronous only",
    )
    uncertainty: float = Field(0.0, ge=0, le=10, description="standard deviation of the logarithm of steps that it predicts")

    def steps(self, batch: float, staleness: float = 0.0) -> float:
        """Updates of the parameters, each by `batch` samples. staleness: updates by others in a step of a worker."""
        return self.minimum_steps * (1 + (self.staleness_penalty or 0.0) * staleness + self.critical_batch / batch)

    @property
    def minimum_samples(self) -> float:
        """What the smallest batches take, without staleness."""
        return self.minimum_steps * self.critical_batch

    def check(self, strategy: Strategy) -> None:
        """Raises FieldError where the model does not tell of a strategy."""
        if strategy.plan.compression is not None:
            message = "of compressed gradients it is not modelled; leave convergence out, or strategy.compression"
            raise FieldError(("convergence",), message)
        if strategy.program_steps > 1 or strategy.kind == "local_sgd":
            message = f"of workers that take steps alone, as in {strategy.kind}, it is not modelled; leave convergence out"
            raise FieldError(("convergence",), message)
        if not isinstance(getattr(strategy, "gate", Bsp()), Bsp) and self.staleness_penalty is None:
            message = "missing: servers that wait for nobody apply stale gradients; give it, as scaleproof converge measures it"
            raise FieldError(("convergence", "staleness_penalty"), message)


def to_target(convergence: Convergence, run: Run) -> dict[str, Any]:
    """What reaching the target takes at a run's pace, as plain data.

    steps: updates of the parameters; steps_interval: between which they are with a probability of 90 %. batch: samples of each,
    those not counted that servers drop. staleness: updates by others in a step of a worker. samples: of all updates.
    steps_over_fewest, samples_over_fewest: times as many as any batch needs at least.

    A run without servers updates once a step; backup workers' batch is of those that are waited for (arXiv 1604.00981).
    """
    servers = run.servers
    # in a step of all workers, of which each makes one where they go on their own
    updates = max(1.0, servers["updates_per_s"] * run.step_time_s) if servers else 1.0
    batch, staleness = run.samples / updates, updates - 1
    steps, factor = convergence.steps(batch, staleness), math.exp(DEVIATIONS * convergence.uncertainty)
    return {
        "steps": steps,
        "steps_interval": (steps / factor, steps * factor),
        "batch": batch,
        "staleness": staleness,
        "samples": steps * batch,
        "steps_over_fewest": steps / convergence.minimum_steps,
        "samples_over_fewest": steps * batch / convergence.minimum_samples,
    }
