"""Capabilities of real training: the strategies that can be measured, their supported fields, and further limits of each.

Does not import torch, so that scenarios are refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.model import T5
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import V_SHAPED
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.preflight import refusals

# Schedules in which torch posts a receive when a rank reaches the pass that needs it; 1f1b can be run either way.
_NEVER_AHEAD: Final = ("gpipe", "looped_bfs")
# Kinds of strategy that are trained; captured scripts train by themselves.
KINDS: Final = (
    "data_parallel", "local_sgd", "gather_average", "model_parallel", "parameter_server", "pipeline", "hybrid",
)  # fmt: skip
_ALGORITHMS: Final = ("ring",)
# Schedules whose backward passes compute all gradients at once.
_WHOLE_BACKWARD: Final = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs")


def check_strategy(scenario: Scenario) -> None:
    """Raises InputError where the strategy, or values of its fields, cannot be measured."""
    strategy = scenario.strategy
    if strategy.kind not in KINDS:
        raise InputError(f"strategy: {strategy.kind} can be predicted but not measured; give one of {', '.join(KINDS)}")
    _check_training(scenario)
    if (check := _CHECKS.get(strategy.kind)) is not None:
        check(scenario)


def _check_training(scenario: Scenario) -> None:
    """Raises InputError for fields of `training` that cannot be measured."""
    training = scenario.training
    if training.recompute.products is not None and scenario.compute == "real":
        _check_products(scenario.strategy.plan)
    if training.fused_accumulation and scenario.compute == "real":
        message = f"is predicted but not measured: {refusals.FUSED}; set it to false, leave it out, or set compute=paced"
        raise InputError(f"training.fused_accumulation {message}")
    if training.zero:
        _check_sharded(scenario)


def _check_products(plan: Plan) -> None:
    """Raises InputError where ranks cannot recompute every second product of real blocks."""
    for field, is_set, reason in (
        ("context", plan.context > 1, refusals.SHARED_ATTENTION),
        ("overlap_tensor", plan.overlap_tensor, refusals.PRODUCTS_IN_PIECES),
        ("schedule", splits_backward(plan), refusals.TWO_BACKWARD_PASSES),
    ):
        if is_set:
            message = f"products with strategy.{field} are predicted but not measured: {reason}"
            raise InputError(f"training.recompute: {message}; give modules or full, or set compute=paced")


def _check_sharded(scenario: Scenario) -> None:
    """Raises InputError where ZeRO cannot be measured at this stage, or with this strategy."""
    training, plan = scenario.training, scenario.strategy.plan
    if training.zero == 3 and training.accumulate_precision not in (None, training.precision) and plan.averages:
        message = f"with training.zero=3 is predicted but not measured: {refusals.ACCUMULATED_SHARDS}"
        raise InputError(f"training.accumulate_precision {message}; leave it out, or give zero 2")
    if training.zero == 3 and plan.algorithm is not None:
        raise InputError(
            "strategy.algorithm with training.zero=3 is predicted but not measured: torch sums the gradients of shards by the "
            "library's choice; leave the algorithm out, or give zero 2"
        )
    if training.zero >= 2 and splits_backward(plan) and plan.averages:
        raise InputError(f"training.zero: {_no_gradient_hooks(plan)}; leave it out, or give another schedule")


def _check_data_parallel(scenario: Scenario) -> None:
    _check_algorithm(scenario.strategy.plan)


def _check_algorithm(plan: Plan) -> None:
    if plan.algorithm is not None and plan.algorithm not in _ALGORITHMS:
        known = f"give {' or '.join(_ALGORITHMS)}, or leave it out for the library's choice"
        raise InputError(f"strategy.algorithm: {plan.algorithm} is predicted but not measured; {known}")


def _check_stages(scenario: Scenario) -> None:
    plan = scenario.strategy.plan
    if plan.schedule in V_SHAPED and plan.stages > 1 and not supports_v_shape():
        message = f"{plan.schedule} needs torch 2.13; in older ones a rank sends to itself, which gloo cannot"
        raise InputError(f"strategy.schedule: {message}; install it, or give another schedule")
    if plan.stages > 1 and plan.overlap_sends and plan.schedule in _NEVER_AHEAD:
        message = f"in {plan.schedule} torch receives only when a rank reaches a pass; set it to false"
        raise InputError(f"strategy.overlap_sends: {message}")
    if plan.stages > 1 and not plan.overlap_sends and plan.schedule not in ("1f1b", *_NEVER_AHEAD):
        raise InputError(f"strategy.overlap_sends: torch receives ahead of passes in {plan.schedule}; give true")
    _check_gradients(scenario)
    if isinstance(scenario.model, T5) and splits_backward(plan) and scenario.compute == "real":
        message = f"{plan.schedule} of a t5 is predicted but not measured: {refusals.SPLIT_SHARED}"
        raise InputError(f"strategy.schedule: {message}; give 1f1b or gpipe, or set compute=paced")
    if plan.schedule == "1f1b" and plan.microbatches < plan.stages and not plan.overlap_sends:
        numbers = f"{plan.microbatches} for {plan.stages}"
        message = f"torch's 1f1b needs at least as many microbatches as stages, got {numbers}; give {plan.stages}, or gpipe"
        raise InputError(f"strategy.microbatches: {message}")


def _check_gradients(scenario: Scenario) -> None:
    """Raises InputError where gradients of weights have a pass and a precision of their own: autograd has no hook for them."""
    training, plan = scenario.training, scenario.strategy.plan
    for field in ("accumulate_precision", "reduce_precision"):
        if getattr(training, field) not in (None, training.precision) and splits_backward(plan):
            raise InputError(f"training.{field}: {_no_gradient_hooks(plan)}; leave it out, or give another schedule")


def splits_backward(plan: Plan) -> bool:
    """Whether gradients of weights have backward passes of their own."""
    return plan.stages > 1 and plan.schedule not in _WHOLE_BACKWARD


def _no_gradient_hooks(plan: Plan) -> str:
    return f"in {plan.schedule} torch does not report gradients of weights"


def _check_expert_nodes(scenario: Scenario) -> None:
    """Raises InputError where ranks with different experts are on nodes in a way that routers do not support."""
    plan, devices, experts = scenario.strategy.plan, scenario.cluster.node.devices, getattr(scenario.model, "experts", None)
    if experts is None or (plan.node_limit is None and not plan.deduplicated):
        return
    groups = plan.grid(devices).experts(plan.expert, plan.expert_tensor).reshape(-1, plan.expert) // devices
    counts = [[len(list(own)) for _, own in groupby(group.tolist())] for group in groups]
    if plan.deduplicated and len({count for group in counts for count in group}) > 1:
        message = f"is predicted but not measured: {refusals.UNEVEN_NODES}; give degrees that fill nodes, or leave it out"
        raise InputError(f"strategy.deduplicated {message}")
    if plan.deduplicated and experts.capacity is not None:
        message = f"with model.experts.capacity is predicted but not measured: {refusals.UNDUPLICATED_ROWS}"
        raise InputError(f"strategy.deduplicated {message}; leave either out to measure")
    if plan.node_limit is None:
        return
    if any(group != counts[0] for group in counts):
        message = f"is predicted but not measured: {refusals.OTHER_NODES}; give degrees that fill nodes, or leave it out"
        raise InputError(f"strategy.node_limit {message}")
    fewest = sum(sorted(counts[0])[: plan.node_limit]) * experts.count // plan.expert
    if fewest < experts.active:
        message = f"{plan.node_limit}: {fewest} experts on that number of nodes, but a token goes to {experts.active}"
        raise InputError(f"strategy.node_limit: {message}; give a larger one, or fewer active experts")


def _check_servers(scenario: Scenario) -> None:
    """Raises InputError where sparse gradients cannot be measured."""
    strategy, training, model = scenario.strategy, scenario.training, scenario.model
    if not isinstance(strategy, ParameterServer) or strategy.sparse is None:
        return
    refused = "with strategy.sparse is predicted but not measured"
    tables = model.build_layers()[0].tensors
    if not isinstance(model, Transformer) or model.tied or tables[0] < max(tables):
        advice = "give a gpt or llama that is not tied, with fewer positions than tokens"
        raise InputError(f"model {refused}: {refusals.SPARSE}; {advice}")
    if training.optimizer != "sgd":
        raise InputError(f"training.optimizer: {training.optimizer} {refused}: {refusals.TOUCHED}; give sgd")
    if strategy.shard == "bytes" and strategy.servers > 1:
        raise InputError(f"strategy.shard: bytes {refused}: {refusals.DIVIDED_ROWS}; give shard: tensor, or one server")
    if strategy.two_level:
        raise InputError(f"strategy.two_level {refused}: workers of a node touch different rows; leave either out")
    if training.offload:
        raise InputError(f"training.offload {refused}; leave either out")


def _check_hybrid(scenario: Scenario) -> None:
    _check_stages(scenario)
    _check_algorithm(scenario.strategy.plan)
    plan, experts = scenario.strategy.plan, getattr(scenario.model, "experts", None)
    _check_expert_nodes(scenario)
    if plan.expert > 1 and scenario.compute == "paced" and scenario.training.zero == 3:
        message = "of emulated ranks that share experts is predicted but not measured; give zero 2, or set compute=real"
        raise InputError(f"training.zero: 3 {message}")
    if plan.overlap_tensor and experts is not None and scenario.compute == "real":
        message = f"is predicted but not measured: {refusals.WHOLE_EXCHANGES}; set it to false, or compute=paced, to measure"
        raise InputError(f"strategy.overlap_tensor with experts {message}")
    _check_shards(scenario)
    if plan.overlap_experts and scenario.compute == "real":
        message = f"is predicted but not measured: {refusals.ONE_MICROBATCH}; set it to false, or compute=paced, to measure"
        raise InputError(f"strategy.overlap_experts {message}")
    for field in ("dispatch_precision", "combine_precision"):
        if getattr(plan, field) == "fp8":
            message = f"fp8 is predicted but not measured: {refusals.SCALED}; give bf16, fp16 or fp32"
            raise InputError(f"strategy.{field}: {message}")
    if plan.overlap and splits_backward(plan):
        raise InputError(f"strategy.overlap: {_no_gradient_hooks(plan)}; set it to false, or give another schedule")
    if plan.expert_tensor not in (None, 1) and (scenario.compute == "real" or plan.shard.expert_tensor is not None):
        message = f"{plan.expert_tensor} is predicted but not measured: {refusals.DIVIDED_EXPERTS}"
        raise InputError(f"strategy.expert_tensor: {message}; give 1 to measure")
    if plan.expert > 1 and plan.sequence_parallel and plan.expert_tensor is None and scenario.compute == "real":
        shared = "of workers that share experts is predicted but not measured"
        raise InputError(f"strategy.sequence_parallel {shared}; leave either out, or give expert_tensor: 1, to measure")
    if plan.servers and (plan.expert > 1 or plan.sequence_parallel or (plan.tensor > 1 and experts is not None)):
        message = "with partial gradients or different experts on ranks, servers are predicted but not measured"
        raise InputError(f"strategy.servers: {message}; leave them out, or expert and sequence_parallel")
    sequence = getattr(scenario.model, "sequence", 0)
    if plan.context > 1 and plan.context_by != "ulysses" and sequence % (2 * plan.context):
        message = f"{plan.context} ranks have two parts each of {sequence} tokens, to balance causal attention"
        raise InputError(f"strategy.context: {message}; give a sequence that is a multiple of {2 * plan.context}")


def _check_shards(scenario: Scenario) -> None:
    """Raises InputError where tensor-parallel ranks cannot each send an equal shard of activations."""
    plan, model = scenario.strategy.plan, scenario.model
    sizes = [model.hidden] if isinstance(model, Transformer) else [one.output_elements for one in model.build_layers()]
    if plan.splits and any(size % plan.tensor for size in sizes):
        message = f"{plan.tensor} ranks cannot each send an equal shard of the activations; set it to false to measure"
        raise InputError(f"strategy.split_sends: {message}")


def trains_by_layers(scenario: Scenario) -> bool:
    """Whether ranks train layers that can be separated: those of stages, of shards, of recomputation and of buckets."""
    strategy, training = scenario.strategy, scenario.training
    staged = strategy.kind in ("pipeline", "hybrid", "model_parallel")
    pushes_buckets = isinstance(strategy, ParameterServer) and strategy.overlap
    return staged or pushes_buckets or training.zero > 0 or training.recompute.kind != "none"


def supports_v_shape() -> bool:
    """Whether torch's pipelines support neighbouring stages on one rank, as V-shaped schedules have (not in 2.11, in 2.13)."""
    try:
        major, minor, *_ = version("torch").split(".")
    except PackageNotFoundError:
        # a missing torch is reported when it is needed
        return True
    return (int(major), int(minor)) >= (2, 13)


# Further checks by kind of strategy.
_CHECKS: Final[dict[str, Callable[[Scenario], None]]] = {
    "data_parallel": _check_data_parallel,
    "pipeline": _check_stages,
    "hybrid": _check_hybrid,
    "parameter_server": _check_servers,
}
