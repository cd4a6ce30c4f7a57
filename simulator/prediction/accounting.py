"""Accounting of predicted and measured runs: tokens, FLOPs, energy and cost. `Run.mfu` and `Run.hfu` divide the FLOPs by the
peak."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster.quantities import DEVIATIONS
from scaleproof.simulator.model.layers import WHOLE, Layer, ModelSpec
from scaleproof.simulator.model.operators import Convolution
from scaleproof.simulator.model.recompute import Recompute, again
from scaleproof.simulator.model.transformer.experts import Experts
from scaleproof.simulator.run.records import TargetEstimate
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.convergence import Convergence
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.scenario_job import job_of

_MILLION = 1e6
_WINOGRAD = "MFU above 100 %: convolutions use Winograd's algorithm, which needs fewer multiplications than are counted"


def accounted(run: Run, scenario: Scenario) -> Run:
    """A run of a scenario with its tokens, samples to a target loss, FLOPs, energy and cost; None where the scenario does not
    define them.

    Runs with emulated compute get only tokens and the target: they do not compute, and do not run on the described hardware.
    Neither model nor hardware FLOPs include unused capacity of experts, or the load of the busiest rank beyond the mean.
    """
    read = scenario.tokens_per_sample
    tokens = None if read is None else read * run.samples
    target = None if scenario.convergence is None else to_target(scenario.convergence, run)
    if run.compute == "paced":
        return replace(run, tokens=tokens, to_target=target)
    model_flops, recomputed_flops = _flops_per_sample_of(scenario)
    node, pue = scenario.cluster.node, scenario.cluster.pue
    nodes = scenario.cluster.full_nodes(scenario.strategy.nodes_needed(scenario.cluster))
    power_W = _mean_power_W(run, node.power_W, node.idle_power_W)
    price_USD_per_s = scenario.cluster.node_USD_per_s(power_W)
    known = replace(
        run,
        tokens=tokens,
        to_target=target,
        model_flops=model_flops * run.samples,
        hardware_flops=(model_flops + recomputed_flops) * run.samples,
        peak_flops=_mean_peak_flops(scenario),
        device_noun=scenario.cluster.device.noun,
        energy_J=None if power_W is None else _by_unit(run, tokens, nodes * pue * power_W),
        cost_USD=None if price_USD_per_s is None else _by_unit(run, tokens, nodes * price_USD_per_s),
    )
    if (known.mfu or 0.0) > 1 and _convolves(scenario):
        return known.warned(_WINOGRAD)
    return known


def _mean_peak_flops(scenario: Scenario) -> float:
    """Peak FLOP/s of a rank's device, on average over the ranks where devices differ."""
    cluster, precision = scenario.cluster, scenario.training.precision
    if not cluster.kinds:
        return cluster.device.peak_flops[precision]
    kinds = [cluster.kind_of(cluster.place(rank)[0]) for rank in range(scenario.strategy.training_ranks)]
    return sum(cluster.with_device_of(kind).device.peak_flops[precision] for kind in kinds) / len(kinds)


def to_target(convergence: Convergence, run: Run) -> TargetEstimate:
    """The updates and samples until the target loss with the batch size and staleness of a run.

    A run without servers has one update per step; with backup workers, the batch is that of the workers that are waited for
    (arXiv 1604.00981).
    """
    servers = run.servers
    # updates during a step of all workers: one per worker, if they are asynchronous
    updates = max(1.0, servers.updates_per_s * run.step_time_s) if servers else 1.0
    batch, staleness = run.samples / updates, updates - 1
    steps, factor = convergence.steps(batch, staleness), math.exp(DEVIATIONS * convergence.uncertainty)
    return TargetEstimate(
        steps=steps,
        steps_interval=(steps / factor, steps * factor),
        batch=batch,
        staleness=staleness,
        samples=steps * batch,
        steps_over_fewest=steps / convergence.minimum_steps,
        samples_over_fewest=steps * batch / convergence.minimum_samples,
    )


def _convolves(scenario: Scenario) -> bool:
    return any(isinstance(one, Convolution) for layer in job_of(scenario).layers for one in layer.operators)


def _flops_per_sample_of(scenario: Scenario) -> tuple[float, float]:
    """FLOPs of the passes over one sample of a scenario, and of recomputation: those that a captured script ran, else those of
    the model's layers."""
    if isinstance(scenario.strategy, CapturedStrategy):
        model_flops, recomputed_flops = scenario.strategy.script.flops(scenario.strategy.workers)
        return model_flops / scenario.total_samples, recomputed_flops / scenario.total_samples
    layers = scenario.model_copy(update={"model": _with_filled_experts(scenario.model)}).layers(WHOLE)
    return flops_per_sample(layers, scenario.training.recompute, job_of(scenario).recomputed)


def _with_filled_experts(model: ModelSpec) -> ModelSpec:
    """The model with experts that compute exactly the tokens routed to them."""
    experts: Experts | None = getattr(model, "experts", None)
    return model if experts is None else model.model_copy(update={"experts": experts.filled})


def flops_per_sample(
    layers: Sequence[Layer], recompute: Recompute, recomputed: Sequence[bool] | None = None
) -> tuple[float, float]:
    """FLOPs of the forward and the backward pass over one sample, and FLOPs of recomputation.

    recomputed: whether each layer is recomputed; all blocks are if None.
    """
    is_recomputed = recomputed or [layer.can_be_recomputed for layer in layers]
    counts = Counter((layer.signature, again) for layer, again in zip(layers, is_recomputed, strict=True))
    model_flops = recomputed_flops = 0.0
    for layer in {layer.signature: layer for layer in layers}.values():
        twice, once = counts[layer.signature, True], counts[layer.signature, False]
        model_flops += (twice + once) * (layer.forward_flops + layer.backward_flops)
        recomputed_flops += twice * _recomputed_flops(layer, recompute)
    return model_flops, recomputed_flops


def _recomputed_flops(layer: Layer, recompute: Recompute) -> float:
    """FLOPs of recomputing a layer: the forward pass with full recomputation, the recomputed operators with selective
    recomputation (arXiv 2205.05198, section 5). Recomputation inside flash kernels is not counted, as usual."""
    if recompute.kind == "none":
        return 0.0
    if recompute.kind == "full":
        return layer.forward_flops
    return sum(operator.forward_flops for operator in again(layer, recompute).operators)


def _mean_power_W(run: Run, power_W: float | None, idle_power_W: float | None) -> float | None:
    """Mean power of a node in watts: full power, or idle power for the share of a step in which its ranks wait.

    Nodes are powered and paid for as a whole, idle devices included. Assumption: computing and communicating draw full power.
    Without a known idle power, so does waiting. None without a known power.
    """
    if power_W is None or idle_power_W is None or run.step_time_s == 0:
        return power_W
    busy = (run.breakdown_s["compute"] + run.breakdown_s["exposed_communication"]) / run.step_time_s
    return busy * power_W + (1 - busy) * idle_power_W


def _by_unit(run: Run, tokens: int | None, per_s: float) -> dict[str, float]:
    """A quantity that accrues per second, per step, per million samples and per million tokens."""
    per_step = per_s * run.step_time_s
    result = {"per_step": per_step, "per_million_samples": per_step / run.samples * _MILLION}
    if tokens:
        result["per_million_tokens"] = per_step / tokens * _MILLION
    return result
