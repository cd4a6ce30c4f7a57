"""The controls of the page: fields of a scenario, with the choices that are valid with its other fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, get_args

from scaleproof.reports.explorer.controls import facts
from scaleproof.reports.explorer.controls.choices import COUNTS, Control, Option, choice, option
from scaleproof.reports.explorer.controls.layouts import micro_batch_size, rearranged, settings_between
from scaleproof.reports.explorer.controls.parallelism import Parallelism
from scaleproof.reports.explorer.controls.sliders import input_sliders, sliders
from scaleproof.simulator.cluster.device.device import OPTIMIZER_STATES, Optimizer, Precision
from scaleproof.simulator.cluster.device.kernels.products import has_scaled_blocks
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import averages_gradients

# samples of a microbatch with which a model of the other sort begins
_TEXTS: Final = 1
_IMAGES: Final = 32
# gradient accumulation of the largest global batch that is offered
_MOST_ACCUMULATED: Final = 256
_MOST_GPUS: Final = 32_768
_RECIPES: Final = {
    "delayed": "delayed (maxima of earlier steps)", "current": "current (maxima of this step)", "rowwise": "rowwise",
    "blockwise": "blockwise (128)", "mxfp8": "MXFP8 (blocks of 32)",
}  # fmt: skip


def controls(scenario: Scenario) -> list[dict[str, Any]]:
    """Groups of controls, each with its title."""
    training, parallelism = _Training(scenario), Parallelism(scenario)
    loading = input_sliders(scenario)
    return [
        {"title": "Model and batch", "controls": list(training.controls())},
        {"title": "Cluster", "controls": [gpus(scenario), *_cluster(scenario), *sliders(scenario), *_price(scenario)]},
        {"title": "Parallelism", "controls": list(parallelism.controls())},
        *([{"title": "Data loading", "controls": loading}] if loading else []),
    ]


def gpus(scenario: Scenario) -> Control:
    """The slider of the number of GPUs. Numbers that cannot be divided are offered as well; the answer then says why."""
    now, devices = scenario.strategy.training_ranks, scenario.cluster.node.devices
    counts = sorted({now, *(count for count in COUNTS if count <= _MOST_GPUS)})
    nodes = -(-now // devices)
    words = f"{counted(nodes, 'node')} of {devices} × {scenario.cluster.device.name}; the global batch, TP, PP and CP stay"
    return {"kind": "gpus", "field": "gpus", "label": "GPUs", "help": words, "counts": counts, "value": now,
            "term": "Training GPUs. Data parallelism (DP) and gradient accumulation (GA) follow; model, kind of cluster and "
                    "global batch stay the same."}  # fmt: skip


def _price(scenario: Scenario) -> Iterator[Control]:
    """The price of a GPU-hour, as a share of the node's price."""
    node = scenario.cluster.node
    value = "" if node.price_USD_per_s is None else f"{node.price_USD_per_s * 3600 / node.installed:.4g}"
    yield {"kind": "price", "field": "cluster.node.price", "label": "Price per GPU-hour", "unit": "USD", "value": value,
           "per": node.installed, "help": f"whole nodes of {node.installed} GPUs are paid for",
           "term": "What an hour of one GPU costs. Needed for the cost per million tokens."}  # fmt: skip


def _cluster(scenario: Scenario) -> Iterator[Control]:
    options = [_other_cluster(scenario, other) for other in facts.clusters().values()]
    yield choice("cluster", "Cluster", "", options, scenario.cluster.name or "its own", search=True,
                 term="Nodes, GPUs and network. The number of GPUs and the global batch stay the same.")  # fmt: skip


def _other_cluster(scenario: Scenario, other: facts.ClusterFacts) -> Option:
    """The choice of a cluster: on the same number of GPUs, or with the reason why that is not possible."""
    strategy, sets = scenario.strategy, [f"cluster={other.name}"]
    servers = strategy.nodes_needed(scenario.cluster) - -(-strategy.training_ranks // scenario.cluster.node.devices)
    needed = -(-strategy.training_ranks // other.devices) + servers
    reason = ""
    if needed > other.nodes and other.has_network:
        sets.append(f"cluster.nodes={needed}")
    elif needed > other.nodes:
        reason = f"{other.name} is one node of {other.devices} GPUs; the scenario uses {strategy.training_ranks:,}"
        sets += [f"strategy={{kind: data_parallel, workers: {other.devices}}}",
                 f"batch.total={max(1, round(scenario.total_samples / other.devices)) * other.devices}"]  # fmt: skip
    training, parallelism = scenario.training, Parallelism(scenario)
    if training.precision not in other.precisions:
        sets += for_precision(scenario, other.precision)
    elif training.fp8_recipe == "mxfp8" and not has_scaled_blocks(other.generation, other.precisions):
        sets.append("training.fp8_recipe=delayed")
    sets += parallelism.unless(other.generation != "cpu" or parallelism.supports("cpu"))
    offer = f"Use {other.devices} GPUs with DP {other.devices}" if reason else ""
    return option(other.name, other.name, *sets, hint=other.description, reason=reason, offer=offer)


def for_precision(scenario: Scenario, precision: Precision) -> list[str]:
    """The settings that change the precision, without a recipe of another one."""
    training, parallelism = scenario.training, Parallelism(scenario)
    stale = [field for field in ("fp8_recipe", "fp4_recipe") if not field.startswith(precision)]
    unless = parallelism.unless(precision not in ("fp8", "fp4") or parallelism.supports(precision))
    if not training.model_fields_set.intersection(stale):
        return [f"training.precision={precision}", *unless]
    update = {"precision": precision, **{field: type(training).model_fields[field].default for field in stale}}
    changed = scenario.model_copy(update={"training": training.model_copy(update=update)})
    return [dump.dump_part(changed, "training").replace(": ", "=", 1), *unless]


class _Training:
    """Choices of the model, the batch, the precision and the optimizer."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._parallelism = Parallelism(scenario)

    def controls(self) -> Iterator[Control]:
        scenario = self._scenario
        name = scenario.model.name or scenario.model.kind
        yield choice("model", "Model", "", [self._model(one) for one in facts.models().values()], name, search=True,
                     term="The network that is trained, on the same GPUs with the same global batch if it can be.")  # fmt: skip
        yield self._global_batch()
        yield from self._micro_batch()
        formats = [option(one, one, *for_precision(scenario, one)) for one in scenario.cluster.device.peak_flops]
        yield choice("training.precision", "Precision", "", formats, scenario.training.precision,
                     term="Number format of matrix products. bf16 and fp16 use tensor cores; fp8 is faster still.")  # fmt: skip
        if scenario.training.precision == "fp8":
            device = scenario.cluster.device
            has_blocks = device.kernels is not None and has_scaled_blocks(device.kernels.generation, device.peak_flops)
            recipes = [
                option(one, label, f"training.fp8_recipe={one}")
                for one, label in _RECIPES.items()
                if one != "mxfp8" or has_blocks
            ]
            yield choice("training.fp8_recipe", "FP8 recipe", "", recipes, scenario.training.fp8_recipe,
                         term="How tensors are scaled before they are cast to 8 bits.")  # fmt: skip
        training, shards = scenario.training, averages_gradients(scenario.strategy) and not scenario.training.offload
        known = [
            one for one in get_args(Optimizer)
            if (one != "muon" or shards) and (OPTIMIZER_STATES[one] or training.state_bits is None)
        ]  # fmt: skip
        options = [option(one, one, f"training.optimizer={one}") for one in known]
        yield choice("training.optimizer", "Optimizer", "", options, scenario.training.optimizer,
                     term="Adam and LAMB keep two states per parameter, momentum, Lion and Muon one, SGD none.")  # fmt: skip

    def _model(self, model: facts.ModelFacts) -> Option:
        """The choice of a model; where the degrees do not divide it, with plain data parallelism on the same GPUs."""
        scenario, plan, sets = self._scenario, self._scenario.strategy.plan, [f"model={model.name}"]
        if scenario.training.recompute.kind == "selective" and not model.scores:
            sets.append(f"training.recompute={'full' if model.heads else 'none'}")
        divides = model.divides(plan.model_parallel_size, plan.sequence_parallel or plan.context > 1)
        if not divides or (plan.expert > 1 and not model.experts) or plan.stages * plan.chunks > model.blocks:
            ranks = scenario.strategy.training_ranks
            each = max(1, round(scenario.total_samples / ranks))
            sets += [f"strategy={{kind: data_parallel, workers: {ranks}}}", f"batch.total={each * ranks}"]
        elif bool(model.heads) != hasattr(scenario.model, "heads"):
            sets.append(f"batch.per_worker={plan.microbatches * (_TEXTS if model.heads else _IMAGES)}")
        if model.heads and scenario.training.precision == "fp32":
            peaks = scenario.cluster.device.peak_flops
            sets += [f"training.precision={one}" for one in ("bf16", "fp16") if one in peaks][:1]
        sets += self._parallelism.unless(scenario.framework.has_flash or not model.flash)
        return option(model.name, model.name, *sets, hint=model.description)

    def _global_batch(self) -> Control:
        """The choice of the global batch, with the micro-batch size kept."""
        scenario, strategy = self._scenario, self._scenario.strategy
        each = micro_batch_size(scenario) * strategy.workers
        totals = sorted({count * each for count in COUNTS if count <= _MOST_ACCUMULATED} | {scenario.total_samples})
        options = []
        for total in totals:
            changed = self._with_batch(total)
            if changed is not None:
                options.append(option(total, f"{total:,}", *settings_between(scenario, changed)))
        tokens = getattr(scenario.model, "sequence", None)
        words = f"{scenario.total_samples * tokens:,} tokens per step" if tokens else "samples per optimizer step"
        return choice("batch.total", "Global batch", words, options, scenario.total_samples,
                      term="Samples of one optimizer step over all GPUs (GBS) = DP × micro-batch size × GA.")  # fmt: skip

    def _with_batch(self, total: int) -> Scenario | None:
        scenario = self._scenario
        try:
            return rearranged(
                scenario.copied(batch=scenario.batch.with_total(total)), scenario.strategy, micro_batch_size(scenario)
            )
        except InputError:
            return None

    def _micro_batch(self) -> Iterator[Control]:
        """The choice of the micro-batch size, for strategies that accumulate gradients."""
        scenario, strategy = self._scenario, self._scenario.strategy
        if "microbatches" not in type(strategy).model_fields:
            return
        samples = scenario.samples_per_worker
        options = []
        for size in [size for size in range(1, min(samples, 4096) + 1) if samples % size == 0]:
            try:
                changed = rearranged(scenario, strategy, size)
            except InputError:
                continue
            options.append(option(size, f"{size:,} (GA {samples // size:,})", *settings_between(scenario, changed)))
        yield choice("strategy.microbatches", "Micro-batch size", f"GA = {samples:,} samples per worker / micro-batch size",
                     options, micro_batch_size(scenario),
                     term="Samples of one forward and backward pass (MBS). Gradient accumulation (GA) is the number of "
                          "microbatches per step; a pipeline has a smaller bubble with more of them.")  # fmt: skip
