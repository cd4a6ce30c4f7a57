"""Accounting: what a run comes to in tokens, FLOPs, energy and money. The same for predicted and measured runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.model.layers import Layer, ModelSpec
from scaleproof.simulator.model.recompute import Recompute, again
from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.convergence import to_target
from scaleproof.simulator.scenario.schema import Scenario

_MILLION = 1e6


def accounted(run: Run, scenario: Scenario) -> Run:
    """`run` of `scenario` with its tokens, what a target loss takes, FLOPs, energy and cost; None where the scenario does not
    tell.

    Of paced runs tokens and the target alone are told: they neither compute, nor run on what is described to draw power and to
    be paid for.

    Neither model nor hardware FLOPs count experts' room that stays empty, or what the busiest rank has beyond the mean.
    """
    tokens = tokens_per_sample(scenario.model)
    reached = None if scenario.convergence is None else to_target(scenario.convergence, run)
    told = replace(run, tokens=None if tokens is None else tokens * run.samples, to_target=reached)
    if run.compute == "paced":
        return told
    model_flops, recomputed_flops = flops_per_sample(
        _useful(scenario.model).build_layers(), scenario.training.recompute, scenario.job().recomputed
    )
    counted = replace(
        told,
        model_flops=model_flops * run.samples,
        hardware_flops=(model_flops + recomputed_flops) * run.samples,
        peak_flops=scenario.cluster.device.peak_flops[scenario.training.precision],
    )
    return replace(counted, **_bill(counted, scenario.cluster, scenario.strategy.nodes_needed(scenario.cluster)))


def tokens_per_sample(model: ModelSpec) -> int | None:
    """Tokens of a sample that the model reads, and writes where it has a decoder; None where it reads something else."""
    read: int | None = getattr(model, "sequence", None)
    return None if read is None else read + getattr(model, "target_sequence", 0)


def _useful(model: ModelSpec) -> ModelSpec:
    """The model whose experts compute what tokens ask of them, and no more."""
    experts: Experts | None = getattr(model, "experts", None)
    return model if experts is None else model.model_copy(update={"experts": experts.filled})


def flops_per_sample(
    layers: Sequence[Layer], recompute: Recompute, recomputed: Sequence[bool] | None = None
) -> tuple[float, float]:
    """FLOPs of the forward and the backward pass over one sample, and those of recomputation. recomputed: whether each layer is
    recomputed; all blocks are, if None."""
    concerned = recomputed or [not layer.glued for layer in layers]
    alike = Counter((layer.signature, is_concerned) for layer, is_concerned in zip(layers, concerned, strict=True))
    model_flops = recomputed_flops = 0.0
    for layer in {layer.signature: layer for layer in layers}.values():
        some, others = alike[layer.signature, True], alike[layer.signature, False]
        model_flops += (some + others) * (layer.forward_flops + layer.backward_flops)
        recomputed_flops += some * _recomputed_flops(layer, recompute)
    return model_flops, recomputed_flops


def _recomputed_flops(layer: Layer, recompute: Recompute) -> float:
    """FLOPs of the whole forward pass with full recomputation, of the operators concerned with selective (arXiv 2205.05198,
    section 5). What flash kernels compute twice inside is not counted, as is usual."""
    if recompute.kind == "none":
        return 0.0
    if recompute.kind == "full":
        return layer.forward_flops
    return sum(operator.forward_flops for operator in again(layer, recompute).operators)


def _bill(run: Run, cluster: Cluster, nodes: int) -> dict[str, Any]:
    """Energy and cost of a run on so many nodes, each powered and paid for as a whole, idle devices included."""
    node, bill = cluster.node, {}
    if node.power_W is not None:
        bill["energy_J"] = _by_unit(run, nodes * cluster.pue * _mean_power_W(run, node.power_W, node.idle_power_W))
    if node.price_USD_per_s is not None:
        bill["cost_USD"] = _by_unit(run, nodes * node.price_USD_per_s)
    return bill


def _mean_power_W(run: Run, power_W: float, idle_power_W: float | None) -> float:
    """Of a node: its full power throughout, or its idle power for the share of a step in which its ranks wait.

    Assumption: computing and communicating draw full power.
    """
    if idle_power_W is None or run.step_time_s == 0:
        return power_W
    busy = (run.breakdown_s["compute"] + run.breakdown_s["exposed_communication"]) / run.step_time_s
    return busy * power_W + (1 - busy) * idle_power_W


def _by_unit(run: Run, per_s: float) -> dict[str, float]:
    """What goes by the second, by what it is told for."""
    per_step = per_s * run.step_time_s
    result = {"per_step": per_step, "per_million_samples": per_step / run.samples * _MILLION}
    if run.tokens:
        result["per_million_tokens"] = per_step / run.tokens * _MILLION
    return result
