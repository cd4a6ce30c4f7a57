"""Convergence: the number of parameter updates until a target loss, by batch size and staleness. A model to be calibrated.

Batches of B samples need S = S_min · (1 + B_crit / B) updates (McCandlish et al. 2018, arXiv 1812.06162, section 2): the
minimum, which the largest batch needs, and additional ones for the noise of gradients. They use E = S · B samples, so that (S /
S_min − 1) · (E / E_min − 1) = 1, with E_min = S_min · B_crit.

If servers do not wait, each push is an update, and gradients are stale: with n workers, others update the parameters τ = n − 1
times during a worker's step. Then S = S_min · (1 + k · τ + B_crit / B). Proven bounds for delayed gradients have this form,
O(σ² / ε² + τ / ε) updates: delay matters where gradients are exact, and not where noise dominates (Stich & Karimireddy 2019,
arXiv 1909.05350; with the mean delay for τ, and learning rates that depend on delays, Koloskova et al. 2022, arXiv 2206.08307).
This is a bound, not a law: k has to be measured.

τ is the mean delay if nobody waits, even if workers differ: some are less delayed, and others more. If workers stay in step the
mean is half of it, but the loss is the same: n such updates, the last of which is n − 1 behind, equal one update with n times
the samples, which is k = 1.

Assumptions: learning rates are tuned for each batch size and staleness; the noise scale is an average over the training.
Not modelled, and rejected: compressed gradients, and workers that take several steps alone (local SGD).
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.parameter_server import Bsp
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.parallelism import Strategy

# more than any training needs, and small enough not to overflow a float
_MOST: Final = 1e15


class Convergence(Spec):
    """Parameters of the number of updates until the target loss, as `scaleproof converge` measures them."""

    minimum_steps: float = Field(gt=0, le=_MOST, description="updates to the target with the largest batch")
    critical_batch: float = Field(gt=0, le=_MOST, description="samples in a batch that needs twice as many updates")
    staleness_penalty: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="share of minimum_steps that each update by another worker during a step adds; asynchronous only",
    )
    uncertainty: float = Field(0.0, ge=0, le=10, description="standard deviation of the logarithm of the predicted steps")

    def steps(self, batch: float, staleness: float = 0.0) -> float:
        """Number of parameter updates of `batch` samples each. staleness: updates by others during a worker's step."""
        return self.minimum_steps * (1 + (self.staleness_penalty or 0.0) * staleness + self.critical_batch / batch)

    @property
    def minimum_samples(self) -> float:
        """Number of samples until the target with the smallest batches, without staleness."""
        return self.minimum_steps * self.critical_batch

    def check(self, strategy: Strategy) -> None:
        """Raises FieldError if the model does not apply to a strategy."""
        if strategy.plan.compression is not None:
            message = "not modelled for compressed gradients; remove convergence or strategy.compression"
            raise FieldError(("convergence",), message)
        if strategy.program_steps > 1 or strategy.kind == "local_sgd":
            message = f"not modelled for workers that take several steps alone, as in {strategy.kind}; remove convergence"
            raise FieldError(("convergence",), message)
        if not isinstance(getattr(strategy, "consistency", Bsp()), Bsp) and self.staleness_penalty is None:
            message = "missing: asynchronous servers apply stale gradients; give the value that scaleproof converge measures"
            raise FieldError(("convergence", "staleness_penalty"), message)
