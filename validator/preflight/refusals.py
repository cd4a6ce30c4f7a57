"""Refusals: a table of fields and values that can be predicted but not measured, with conditions, reasons and remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster.device.device import storage_precision
from scaleproof.simulator.cluster.network.topology import Switch
from scaleproof.simulator.model import T5, Siamese, Traced
from scaleproof.simulator.model.layers import WHOLE, Layer, kind_of
from scaleproof.simulator.model.transformer.decoder import Transformer
from scaleproof.simulator.model.transformer.vision_language import VisionLanguage
from scaleproof.simulator.parallelism import ParameterServer
from scaleproof.simulator.parallelism.compression import PowerSgd, TopK
from scaleproof.simulator.parallelism.plan import Plan
from scaleproof.simulator.parallelism.stages import V_SHAPED
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy.plan_costs import cut
from scaleproof.simulator.strategy.scenario_job import job_of
from scaleproof.validator.launch.refusal import UNMEASURED, Refusal
from scaleproof.validator.preflight.between_workers import contrast, recommenders, sparse_rows
from scaleproof.validator.train.capabilities import (
    ALGORITHMS,
    KINDS,
    NEVER_AHEAD,
    OPTIMIZERS,
    PRECISIONS,
    UPDATE_TOGETHER,
    has_documents,
    is_padded,
    splits_backward,
    supports_v_shape,
    trains_by_layers,
)

# Strategies whose ranks may train a part of a model.
_TRAINS_PARTS: Final = ("data_parallel", "pipeline", "hybrid")
_PRODUCTS: Final = {"fp8": "8-bit", "fp4": "4-bit"}


def refusals(scenario: Scenario) -> Iterator[Refusal]:
    """What cannot be trained in a scenario, the most important first."""
    for topic in _TABLE:
        yield from topic(scenario)


def _model(scenario: Scenario) -> Iterator[Refusal]:
    """Parts of the model that ranks cannot train as the strategy divides it."""
    model, plan, zero, is_paced = scenario.model, scenario.strategy.plan, scenario.training.zero, scenario.compute == "paced"
    shares_weights = getattr(model, "tied", False) or isinstance(model, Siamese | T5) or getattr(model, "pretraining", False)
    if is_paced:
        # of emulated models, towers alone share their weights, which ZeRO 1 and 2 do not shard
        shares_weights = isinstance(model, Siamese) and zero == 3
    divides_module = isinstance(model, Traced) and trains_by_layers(scenario)
    yield from [
        (shares_weights and zero, "training.zero",
         "torch's fully_shard cannot shard weights that several layers share, other than in one group with both",
         "leave it out, or give a model without shared weights"),
        (divides_module and any(layer.frozen_parameters for layer in model.build_layers()), "model.source",
         "real ranks train modules with frozen parameters undivided, each with all of them",
         "give data_parallel without zero and recomputation"),
    ]  # fmt: skip
    if is_paced:
        return
    yield from [
        (is_padded(scenario) and scenario.strategy.kind != "data_parallel",
         f"batch.lengths of {scenario.strategy.kind} is {UNMEASURED}",
         "torch.distributed.pipelining passes microbatches of one length on", "give batches: packed, or data_parallel"),
        (has_documents(scenario) and plan.context > 1, f"batch.lengths with strategy.context is {UNMEASURED}",
         "ranks that share a sample's tokens attend to all of them", "give across: true, or leave context out"),
        (scenario.batch.lengths is not None and plan.shares is not None, f"batch.lengths with strategy.shares is {UNMEASURED}",
         "lengths are drawn for equal shares", "leave either out"),
    ]  # fmt: skip
    yield isinstance(model, VisionLanguage), f"model: {kind_of(model)} is {UNMEASURED}", "", "give one that reads only text"
    if isinstance(model, Transformer):
        has_biases = model.experts is not None and model.experts.biases
        yield from [
            (model.sinks, f"model.sinks: {UNMEASURED}",
             "torch's attention has no terms without values", "leave them out, or set compute=paced"),
            (has_biases, f"model.experts.biases: {UNMEASURED}",
             "real experts have none", "leave them out, or set compute=paced"),
            (model.predictions > 0, f"model.predictions: {UNMEASURED}",
             "real samples have one target for each token", "leave it out, or set compute=paced"),
            (any(len(set(word) & kind) > 1 for word in (model.pattern or "").split() for kind in ({*"*M"}, {*"-E"})),
             f"model.pattern {model.pattern!r} is {UNMEASURED}", "a real block mixes tokens once and has one MLP",
             "give words such as 'M-' and '*'"),
            (model.recurrence is not None and has_documents(scenario), f"batch.lengths with a recurrence is {UNMEASURED}",
             "states pass from document to document", "give across: true, or set compute=paced"),
        ]  # fmt: skip
    yield from [
        (shares_weights and plan.servers and scenario.strategy.kind == "hybrid", "strategy.servers",
         "servers of hybrids update each rank's weights by themselves, and not copies that ranks share",
         "leave them out, or give a model without shared weights"),
        (divides_module and scenario.training.recompute.kind == "selective", "training.recompute",
         "a user's modules have no names of parts", "give full, or leave it out"),
        (scenario.strategy.kind == "hybrid" and plan.shares is not None, "strategy.shares",
         "different shares of hybrids' workers were not measured", "leave it out, or use data_parallel"),
        (divides_module and plan.shares is not None, "strategy.shares",
         "a user's module is divided for batches of one size", "leave it out"),
    ]  # fmt: skip
    if plan.shard._replace(expert=1, tables=None, workers=1) != WHOLE:
        yield from _division(scenario)


def _division(scenario: Scenario) -> Iterator[Refusal]:
    """Layers and tokens that real ranks cannot share."""
    model, plan = scenario.model, scenario.strategy.plan
    field = f"strategy.{'tensor' if plan.tensor > 1 else 'context'}"
    if not isinstance(model, Transformer):
        yield True, field, f"real layers of a {kind_of(model)} cannot be divided", "leave it out, or set compute=paced"
        return
    key_heads, by_heads = model.key_heads or model.heads, plan.context_by == "ulysses"
    yield from [
        (model.head_norms == "whole" and plan.tensor > 1, field,
         "real ranks normalise their own heads, not all of a token's as a whole", "give head_norms=true, or set compute=paced"),
        (model.recurrence is not None and plan.context > 1, "strategy.context",
         "real ranks do not exchange tokens for the states of a recurrence", "leave it out, or set compute=paced"),
        (model.recurrence is not None and plan.overlap_tensor, f"strategy.overlap_tensor with a recurrence is {UNMEASURED}",
         "its input is not one product", "set it to false, or compute=paced"),
        (model.recurrence is not None and model.recurrence.groups % plan.tensor, field,
         "real ranks have whole heads of keys of a recurrence", "give a divisor of recurrence.key_heads"),
        (model.gated, field,
         "real ranks do not divide gated attention", "leave it out, or set compute=paced"),
        (model.latent is not None, field,
         "real ranks do not divide the latents of queries and keys", "leave it out, or set compute=paced"),
        (key_heads % (plan.tensor * (plan.context if by_heads else 1)), field,
         f"real ranks have whole heads of keys, of which there are {key_heads}", "give a divisor"),
        (plan.context > 1 and not by_heads and (model.window or model.dropout or not model.flash), "strategy.context",
         "real rings and gathered keys have whole causal attention without windows, dropout or kept scores",
         "give context_by=ulysses, or set compute=paced"),
    ]  # fmt: skip


def _kind(scenario: Scenario) -> Iterator[Refusal]:
    kind = scenario.strategy.kind
    yield kind not in KINDS, f"strategy: {kind} can be predicted but not measured", "", f"give one of {', '.join(KINDS)}"


def _kernels(scenario: Scenario) -> Iterator[Refusal]:
    """Recomputation and accumulation that kernels of torch cannot do."""
    training, plan, is_real = scenario.training, scenario.strategy.plan, scenario.compute == "real"
    keeps_products, remedy = is_real and training.recompute.products is not None, "give modules or full, or set compute=paced"
    yield from [
        (keeps_products and plan.context > 1, f"training.recompute: products with strategy.context are {UNMEASURED}",
         "attention to the tokens of several ranks is not one kernel, of which torch keeps the output", remedy),
        (keeps_products and plan.overlap_tensor, f"training.recompute: products with strategy.overlap_tensor are {UNMEASURED}",
         "products that overlap with their exchanges are computed in pieces, and torch keeps whole ones", remedy),
        (keeps_products and splits_backward(plan), f"training.recompute: products with strategy.schedule are {UNMEASURED}",
         "torch keeps the outputs of products for one backward pass, not for those of inputs and of weights", remedy),
        (is_real and training.fused_accumulation, f"training.fused_accumulation is {UNMEASURED}",
         "torch's products do not add gradients to a buffer", "set it to false, leave it out, or set compute=paced"),
    ]  # fmt: skip


def _synchronisation(scenario: Scenario) -> Iterator[Refusal]:
    """Stages of ZeRO, and algorithms of all-reduces."""
    training, plan = scenario.training, scenario.strategy.plan
    yield from [
        (training.zero == 3 and training.accumulate_precision not in (None, training.precision) and plan.averages,
         f"training.accumulate_precision with training.zero=3 is {UNMEASURED}",
         "torch's fully_shard accumulates scattered gradients in the parameters' precision", "leave it out, or give zero 2"),
        (training.zero == 3 and plan.algorithm is not None, f"strategy.algorithm with training.zero=3 is {UNMEASURED}",
         "torch sums the gradients of shards by the library's choice", "leave the algorithm out, or give zero 2"),
        (training.zero >= 2 and splits_backward(plan) and plan.averages, "training.zero",
         _no_gradient_hooks(plan), "leave it out, or give another schedule"),
        (plan.algorithm not in (None, *ALGORITHMS), f"strategy.algorithm: {plan.algorithm} is {UNMEASURED}", "",
         f"give {' or '.join(ALGORITHMS)}, or leave it out for the library's choice"),
    ]  # fmt: skip


def _stages(scenario: Scenario) -> Iterator[Refusal]:
    """Schedules of pipelines, and gradients whose passes autograd has no hook for."""
    training, plan = scenario.training, scenario.strategy.plan
    if scenario.strategy.kind not in ("pipeline", "hybrid"):
        return
    is_piped, schedule = plan.stages > 1, plan.schedule
    yield from [
        (is_piped and schedule in V_SHAPED and not supports_v_shape(), "strategy.schedule",
         f"{schedule} needs torch 2.13; in older ones a rank sends to itself, which gloo cannot",
         "install it, or give another schedule"),
        (is_piped and plan.overlap_sends and schedule in NEVER_AHEAD, "strategy.overlap_sends",
         f"in {schedule} torch receives only when a rank reaches a pass", "set it to false"),
        (is_piped and not plan.overlap_sends and schedule not in ("1f1b", *NEVER_AHEAD), "strategy.overlap_sends",
         f"torch receives ahead of passes in {schedule}", "give true"),
        *((getattr(training, field) not in (None, training.precision) and splits_backward(plan), f"training.{field}",
           _no_gradient_hooks(plan), "leave it out, or give another schedule")
          for field in ("accumulate_precision", "reduce_precision")),
        (isinstance(scenario.model, T5) and splits_backward(plan) and scenario.compute == "real",
         f"strategy.schedule: {schedule} of a t5 is {UNMEASURED}",
         "torch cannot split the backward pass of positions that blocks of a stage share",
         "give 1f1b or gpipe, or set compute=paced"),
        (schedule == "1f1b" and plan.microbatches < plan.stages and not plan.overlap_sends, "strategy.microbatches",
         f"torch's 1f1b needs at least as many microbatches as stages, got {plan.microbatches} for {plan.stages}",
         f"give {plan.stages}, or gpipe"),
    ]  # fmt: skip


def _no_gradient_hooks(plan: Plan) -> str:
    return f"in {plan.schedule} torch does not report gradients of weights"


def _experts(scenario: Scenario) -> Iterator[Refusal]:
    """Ranks with different experts that are on nodes in a way that routers do not support."""
    plan, devices, experts = scenario.strategy.plan, scenario.cluster.node.devices, getattr(scenario.model, "experts", None)
    if experts is None or (plan.node_limit is None and not plan.deduplicated):
        return
    groups = plan.grid(devices).experts().reshape(-1, plan.expert) // devices
    counts = [[len(list(ranks)) for _, ranks in groupby(group.tolist())] for group in groups]
    fewest = sum(sorted(counts[0])[: plan.node_limit]) * experts.count // plan.expert
    yield from [
        (plan.deduplicated and len({count for group in counts for count in group}) > 1,
         f"strategy.dispatcher: {plan.dispatcher} is {UNMEASURED}",
         "a token comes to the same place of each node, which then need equal numbers of the ranks",
         "give degrees that fill nodes, or leave it out"),
        (plan.deduplicated and experts.capacity is not None,
         f"strategy.dispatcher: {plan.dispatcher} with model.experts.capacity is {UNMEASURED}",
         "experts then have one row for a token, and none to fill up to a capacity", "leave either out to measure"),
        (plan.node_limit is not None and any(group != counts[0] for group in counts),
         f"strategy.node_limit is {UNMEASURED}",
         "ranks with the same experts would choose by different nodes", "give degrees that fill nodes, or leave it out"),
        (plan.node_limit is not None and fewest < experts.active, f"strategy.node_limit: {plan.node_limit}",
         f"{fewest} experts on that number of nodes, but a token goes to {experts.active}",
         "give a larger one, or fewer active experts"),
    ]  # fmt: skip


def _hybrids(scenario: Scenario) -> Iterator[Refusal]:
    """Combinations of degrees and options of hybrids."""
    plan, model, is_real = scenario.strategy.plan, scenario.model, scenario.compute == "real"
    experts, sequence, context = getattr(model, "experts", None), getattr(model, "sequence", 0), plan.context
    if scenario.strategy.kind != "hybrid":
        return
    yield from [
        (plan.expert > 1 and not is_real and scenario.training.zero == 3,
         f"training.zero: 3 of emulated ranks that share experts is {UNMEASURED}", "", "give zero 2, or set compute=real"),
        (plan.overlap_tensor and experts is not None and is_real, f"strategy.overlap_tensor with experts is {UNMEASURED}",
         "they exchange tokens before or after they compute, not in pieces", "set it to false, or compute=paced, to measure"),
        (plan.splits and any(size % plan.tensor for size in _sent_elements(scenario)), "strategy.split_sends",
         f"{plan.tensor} ranks cannot each send an equal shard of the activations", "set it to false to measure"),
        (experts is not None and is_real and experts.active_groups < experts.groups,
         f"model.experts.active_groups is {UNMEASURED}", "routers of real models choose from all experts",
         "set it and model.experts.groups to 1, or give strategy.node_limit"),
        (plan.overlap_experts and is_real, f"strategy.overlap_experts is {UNMEASURED}",
         "torch.distributed.pipelining computes the passes of one microbatch at a time",
         "set it to false, or compute=paced, to measure"),
        (plan.overlap_shared_experts, f"strategy.overlap_shared_experts is {UNMEASURED}",
         "ranks wait for their exchanges before shared experts compute", "set it to false to measure"),
        *((getattr(plan, field) == "fp8", f"strategy.{field}: fp8 is {UNMEASURED}",
           "8-bit messages need scales of their elements, which no collective of torch sends", "give bf16, fp16 or fp32")
          for field in ("dispatch_precision", "combine_precision")),
        (plan.overlap and splits_backward(plan), "strategy.overlap",
         _no_gradient_hooks(plan), "set it to false, or give another schedule"),
        (plan.expert_tensor not in (None, 1) and (is_real or plan.shard.expert_tensor is not None),
         f"strategy.expert_tensor: {plan.expert_tensor} is {UNMEASURED}",
         "real tensor-parallel ranks have whole experts, or all of them share each expert's matrices", "give 1 to measure"),
        (plan.expert > 1 and plan.sequence_parallel and plan.expert_tensor is None and is_real,
         f"strategy.sequence_parallel of workers that share experts is {UNMEASURED}", "",
         "leave either out, or give expert_tensor: 1, to measure"),
        (plan.servers and (plan.expert > 1 or plan.sequence_parallel or (plan.tensor > 1 and experts is not None)),
         f"strategy.servers: with partial gradients or different experts on ranks, servers are {UNMEASURED}", "",
         "leave them out, or expert and sequence_parallel"),
        (context > 1 and plan.context_by != "ulysses" and sequence % (2 * context), "strategy.context",
         f"{context} ranks have two parts each of {sequence} tokens, to balance causal attention",
         f"give a sequence that is a multiple of {2 * context}"),
    ]  # fmt: skip


def _sent_elements(scenario: Scenario) -> list[int]:
    """Elements of which tensor-parallel ranks send equal shards."""
    model = scenario.model
    return [model.hidden] if isinstance(model, Transformer) else [layer.output_elements for layer in model.build_layers()]


def _precision(scenario: Scenario) -> Iterator[Refusal]:
    """Precisions that this machine or torch does not have."""
    training, framework, precision = scenario.training, scenario.framework.name, scenario.training.precision
    yield from [
        (precision not in PRECISIONS and scenario.compute == "real", f"training.precision: {precision} is {UNMEASURED}",
         f"processors have no {_PRODUCTS.get(precision, precision)} products",
         f"give one of {', '.join(PRECISIONS)}, or set compute=paced"),
        (training.autocast, f"training.autocast of {framework} is {UNMEASURED}",
         "ranks train models whose parameters have the training precision", "set training.autocast=false"),
        (training.zero == 3 and precision == "fp8" and scenario.framework.fp8_gathers,
         f"training.precision: fp8 with zero 3 by {framework} is {UNMEASURED}",
         "torch's fully_shard gathers parameters in 16 bits", "give bf16, or another framework"),
    ]  # fmt: skip


def _fine_tuning(scenario: Scenario) -> Iterator[Refusal]:
    """Frozen layers and adapters."""
    training, plan, model, kind = scenario.training, scenario.strategy.plan, scenario.model, scenario.strategy.kind
    adapters, is_real, stored = training.adapters, scenario.compute == "real", storage_precision(training.precision)
    if scenario.tuning is None:
        return
    field = "training.freeze" if adapters is None else "training.adapters"
    yield from [
        (training.base_precision not in (None, stored), f"training.base_precision: {training.base_precision} is {UNMEASURED}",
         "ranks compute with frozen parameters in the training precision", f"give {stored}, or leave it out"),
        (adapters is not None and adapters.precision not in (None, stored), f"training.adapters.precision is {UNMEASURED}",
         "ranks train adapters in the training precision", f"give {stored}, or leave it out"),
        (kind not in _TRAINS_PARTS or plan.servers, f"{field} by the strategy {kind} is {UNMEASURED}",
         "its ranks exchange all parameters of a model", f"give {', '.join(_TRAINS_PARTS)}, without servers"),
        (plan.shard != WHOLE or plan.context > 1, f"{field} of divided layers is {UNMEASURED}",
         "ranks do not divide adapters", "leave tensor, context and expert out"),
        (splits_backward(plan), f"{field} with strategy.schedule is {UNMEASURED}",
         "torch computes gradients of all weights of a stage in passes of their own", "give gpipe, 1f1b or interleaved_1f1b"),
        (plan.stages > 1 and isinstance(model, Siamese | T5), f"{field} of stages of a {kind_of(model)} is {UNMEASURED}",
         "some activations that stages exchange have no gradients", "leave stages out"),
        (plan.stages > 1 and not all(any(layer.tensors for layer in stage) for stage in _stage_layers(scenario)),
         f"{field} of whole stages is {UNMEASURED}", "each stage of torch.distributed.pipelining has a backward pass",
         "train a layer of each stage, or give fewer stages"),
        (adapters is not None and adapters.modules_to_save and training.zero == 3,
         f"training.adapters.modules_to_save with training.zero=3 is {UNMEASURED}",
         "ranks gather no frozen copies of layers that are trained", "give zero 2, or leave it out"),
        (is_real and adapters is not None and (getattr(model, "experts", None) is not None or isinstance(model, Siamese)),
         f"training.adapters of a {kind_of(model)} with experts or towers is {UNMEASURED}", "",
         "set compute=paced to measure"),
        (is_real and adapters is not None and training.recompute.products is not None,
         f"training.adapters with training.recompute: products is {UNMEASURED}",
         "torch would count the products of adapters, too", "give modules or full, or set compute=paced"),
    ]  # fmt: skip


def _stage_layers(scenario: Scenario) -> list[Sequence[Layer]]:
    """The layers of each stage, as they are trained."""
    job = job_of(scenario)
    return [job.layers[part.start : part.stop] for part in cut(job, scenario.strategy.plan)]


def _states(scenario: Scenario) -> Iterator[Refusal]:
    """Optimizers, their states, offloading and compression."""
    training, plan, optimizer, kind = (
        scenario.training,
        scenario.strategy.plan,
        scenario.training.optimizer,
        scenario.strategy.kind,
    )
    is_real, is_muon = scenario.compute == "real", optimizer == "muon"
    yield from [
        (optimizer not in (*OPTIMIZERS, "muon") and (training.zero > 0 or plan.tensor > 1 or scenario.strategy.servers > 0),
         f"training.optimizer: {optimizer} with divided parameters is {UNMEASURED}",
         "its update of an element depends on the whole tensor, of which ranks that shard have a part",
         f"give one of {', '.join(OPTIMIZERS)}"),
        (is_muon and is_real and (plan.tensor > 1 or plan.expert > 1),
         f"training.optimizer: muon of divided layers is {UNMEASURED}",
         "ranks gather the matrices that ZeRO shards, not those that tensor and expert parallelism divide",
         f"give one of {', '.join(OPTIMIZERS)}, leave tensor and expert out, or set compute=paced"),
        (is_muon and not is_real and plan.expert > 1 and training.zero,
         f"training.optimizer: muon of emulated experts with training.zero is {UNMEASURED}",
         "experts are sharded over other ranks than the rest, and momentum is gathered over one team",
         f"give one of {', '.join(OPTIMIZERS)}, or leave zero out"),
        (is_muon and training.precision == "fp16", f"training.optimizer: muon with training.precision=fp16 is {UNMEASURED}",
         "copies of parameters are not known to be matrices", "give another precision or optimizer"),
        (is_muon and training.state_bits is not None,
         f"training.state_bits: {training.state_bits} of muon is {UNMEASURED}",
         "its matrices are updated together, and states of given bits one by one", "leave it out, or give another optimizer"),
        *((value and kind not in UPDATE_TOGETHER, f"training.{field} by the strategy {kind} is {UNMEASURED}",
           "its workers exchange what is not a gradient over the whole batch", f"give one of {', '.join(UPDATE_TOGETHER)}")
          for field, value in (("ema", training.ema), ("clip_gradients", training.clip_gradients))),
        *((training.precision == "fp16" and value, f"training.{field} with training.precision=fp16 is {UNMEASURED}",
           "gradients of a scaled loss are divided by the scale with the update itself", "give another precision to measure")
          for field, value in (("clip_gradients", training.clip_gradients), ("delay_update", training.delay_update))),
        (training.offload_to == "nvme", f"training.offload_to: nvme is {UNMEASURED}",
         "ranks keep offloaded states in memory", "give host to measure"),
        ("activations" in training.offload and is_real and training.recompute.kind != "none",
         f"training.offload of activations with training.recompute is {UNMEASURED}",
         "torch's checkpoints keep their inputs by themselves", "leave recompute out, or set compute=paced"),
        ("optimizer" not in training.offload and "parameters" in training.offload,
         f"training.offload of parameters alone is {UNMEASURED}",
         "torch updates parameters in host memory by an optimizer in host memory", "give [optimizer, parameters] to measure"),
        ("parameters" in training.offload and not plan.averages,
         f"training.offload of parameters by one worker is {UNMEASURED}",
         "torch's fully_shard offloads what it shards", "give several workers, or [optimizer], to measure"),
        (training.precision == "fp16" and isinstance(plan.compression, PowerSgd | TopK),
         f"strategy.compression with training.precision=fp16 is {UNMEASURED}",
         "what workers leave unsent would have an older scale of the loss",
         "give another precision, or leave compression out"),
    ]  # fmt: skip


def _perturbations(scenario: Scenario) -> Iterator[Refusal]:
    """Perturbations of messages, links and emulated ranks that cannot be imposed."""
    unevenness, network = scenario.unevenness, scenario.cluster.network
    field = f"unevenness.message_jitter is {UNMEASURED}"
    yield unevenness.message_jitter, field, "real messages vary by themselves", "leave it out to measure"
    for number, tenant in enumerate(unevenness.tenants):
        field = f"unevenness.tenants.{number}"
        yield from [
            (tenant.share is None, f"{field}.flows is {UNMEASURED}",
             "a lab's background traffic has a constant rate, and does not give way as flows do", "give a share to measure"),
            (not tenant.cycle(1.0, 0.0).is_for_ever, f"{field}: traffic at times is {UNMEASURED}",
             "a lab's background traffic begins with the lab, before the first step", "leave after, lasts and period out"),
            (network is not None and not isinstance(network.topology, Switch),
             f"{field}: with several switches is {UNMEASURED}",
             "a lab's background traffic would also use the links between switches", "give a switch as topology"),
        ]  # fmt: skip


def _real_ranks(scenario: Scenario) -> Iterator[Refusal]:
    """Perturbations that need emulated compute."""
    unevenness, field = scenario.unevenness, _communicates_within_passes(scenario)
    if scenario.compute == "paced":
        return
    yield from [
        *((getattr(unevenness, name), f"unevenness.{name} of real compute is {UNMEASURED}",
           "a pass that computes cannot be given another duration, other than a multiple of its own", "set compute=paced")
          for name in ("noise", "throttled", "compute_jitter", "tail")),
        *((straggler.slowdown < 1,
           f"unevenness.stragglers.{number}.slowdown: {straggler.slowdown:g} of real compute is {UNMEASURED}",
           "a rank can wait, but not compute faster than it does", "give at least 1, or set compute=paced")
          for number, straggler in enumerate(unevenness.stragglers)),
        (unevenness.stragglers and field, f"unevenness.stragglers of real compute with {field} is {UNMEASURED}",
         "what a pass sends before its end would be sent too early", "leave it out, or set compute=paced"),
    ]  # fmt: skip


def _communicates_within_passes(scenario: Scenario) -> str:
    """The first field with which ranks communicate while they compute, or an empty string."""
    strategy, plan, zero = scenario.strategy, scenario.strategy.plan, scenario.training.zero
    pushes = isinstance(strategy, ParameterServer) and strategy.overlap
    given = {
        "strategy.overlap": pushes or (plan.overlap and plan.averages),
        "strategy.overlap_gather": plan.gathering(zero) == "next forward pass",
        f"training.zero={zero}": zero >= 2 and plan.averages,
        "strategy.tensor": plan.tensor > 1,
        "strategy.context": plan.context > 1,
        "strategy.expert": plan.expert > 1,
    }
    return next((field for field, is_given in given.items() if is_given), "")


def _data(scenario: Scenario) -> Iterator[Refusal]:
    """Files of text."""
    model = scenario.model
    if scenario.training.data is None:
        return
    path, sequence = Path(scenario.training.data), getattr(model, "sequence", 0)
    try:
        size_bytes = path.stat().st_size if path.is_file() else None
    except OSError:
        size_bytes = None
    yield from [
        (not isinstance(model, Transformer), "training.data",
         f"{path} is text, which a model of kind {model.kind} cannot read", "leave data out"),
        (size_bytes is None, "training.data", f"{path}: no such file",
         "give the path of a text file, or leave data out for random tokens"),
        (size_bytes is not None and size_bytes <= sequence, "training.data", f"{path} has {size_bytes} bytes",
         f"give at least {sequence + 1}, one sequence and a byte"),
    ]  # fmt: skip


# Refusals by topic, the most important first.
_TABLE: Final[Sequence[Callable[[Scenario], Iterator[Refusal]]]] = (
    _model, _kind, _kernels, _synchronisation, _stages, _experts, _hybrids, sparse_rows, recommenders, contrast,
    _precision, _fine_tuning, _states, _perturbations, _real_ranks, _data,
)  # fmt: skip
