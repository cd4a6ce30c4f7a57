"""Mixtures whose experts are on several ranks: one process rounds what ranks would send in fewer bits, and limits the nodes on
which a token's experts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.train.models.mixture import LocalExperts, Mixture
from scaleproof.validator.verify.reference import full_batch
from scaleproof.validator.verify.reference.single_process import SingleProcess

_TYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, None: None}
# Values near the middle of two rounded ones are rounded either way, by the order of sums.
TOLERANCE: Final = 0.01


def train(scenario: Scenario, notes: Sequence[Mapping[str, Any]]) -> Mapping[str, Tensor]:
    """The parameters after all steps in one process."""
    process, plan = SingleProcess.of(scenario, full_batch.bounds_of(notes)), scenario.strategy.plan
    there, back = _TYPES[plan.dispatch_precision], _TYPES[plan.combine_precision]
    for module in process.module.modules():
        if isinstance(module, Mixture):
            if is_rounded(scenario):
                _round(module.experts, there, back)
            if plan.node_limit is not None:
                module.choose = _NodeLimitedRouting(_nodes(scenario, module.count), plan.node_limit, module.active)
    return full_batch.train_in(process, full_batch.skipped_steps(notes))


def _round(experts: LocalExperts, there: torch.dtype | None, back: torch.dtype | None) -> None:
    """Rounds the inputs of experts and the gradients of their outputs to one type, the others to another."""
    experts.register_forward_pre_hook(lambda _, inputs: (_Rounded.apply(inputs[0], there, back), inputs[1]))  # type: ignore[no-untyped-call]
    experts.register_forward_hook(lambda _, inputs, output: _Rounded.apply(output, back, there))  # type: ignore[no-untyped-call]


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, ahead: torch.dtype | None, back: torch.dtype | None) -> Tensor:
        context.back = back
        return x.to(ahead or x.dtype).to(x.dtype).view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return gradient.to(context.back or gradient.dtype).to(gradient.dtype), None, None


@dataclass(frozen=True)
class _NodeLimitedRouting:
    """Routes a token to the `active` largest experts of the `limit` best nodes. node_of: node of each expert."""

    node_of: Tensor
    limit: int
    active: int

    def __call__(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of each token's experts."""
        spread = -(-self.active // min(self.limit, int(self.node_of.max()) + 1))
        scores = []
        for node in range(int(self.node_of.max()) + 1):
            own = weights[:, self.node_of == node].sort(descending=True).values
            scores.append(own[:, :spread].sum(1))
        place = torch.stack(scores, 1).argsort(1, descending=True).argsort(1)
        masked = torch.where(place[:, self.node_of] < self.limit, weights, torch.zeros_like(weights))
        chosen = masked.sort(dim=1, descending=True)
        return chosen.values[:, : self.active], chosen.indices[:, : self.active]


def _nodes(scenario: Scenario, experts: int) -> Tensor:
    """The node of each expert, counted from the first one with any."""
    plan, devices = scenario.strategy.plan, scenario.cluster.node.devices
    ranks = plan.grid(devices).experts().reshape(-1, plan.expert)[0]
    changes = np.diff(ranks // devices, prepend=ranks[0] // devices) != 0
    return torch.from_numpy(np.cumsum(changes)).repeat_interleave(experts // plan.expert)


def is_rounded(scenario: Scenario) -> bool:
    """Whether ranks send tokens to experts in another precision than they compute in."""
    plan = scenario.strategy.plan
    return scenario.compute == "real" and plan.expert > 1 and bool(plan.dispatch_precision or plan.combine_precision)
