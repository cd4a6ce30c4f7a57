"""The schema of scenarios, which both predictions and measurements use."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from scaleproof.simulator.captured.strategy import CapturedStrategy
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import storage_precision
from scaleproof.simulator.cluster.device.kernels.products import Recipe, has_nvfp4, has_scaled_blocks
from scaleproof.simulator.cluster.host import with_host
from scaleproof.simulator.cluster.perturbations import EVEN, Perturbations
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.common.spec import Count, Spec
from scaleproof.simulator.common.units import counted, format_bytes
from scaleproof.simulator.common.yaml_file import FieldPath
from scaleproof.simulator.frameworks import IDEAL, Framework
from scaleproof.simulator.frameworks.files import renamed
from scaleproof.simulator.model import AnyModel, Hstu
from scaleproof.simulator.model.autocast import with_wide_stream
from scaleproof.simulator.model.contrastive import Peers, TwoTowers, with_loss
from scaleproof.simulator.model.fine_tuning import FineTuning, trained_part
from scaleproof.simulator.model.layers import Layer, ModelSpec, Shard
from scaleproof.simulator.model.traced import Traced
from scaleproof.simulator.model.transformer.decoder import Gpt, Transformer
from scaleproof.simulator.parallelism import (
    DataParallel,
    GatherAverage,
    Hybrid,
    LocalSgd,
    ModelParallel,
    ParameterServer,
    Pipeline,
    Strategy,
)
from scaleproof.simulator.parallelism.option_rules import check_options
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy, check_shares, peers_of
from scaleproof.simulator.parallelism.strategy import StrategyRegistry
from scaleproof.simulator.parallelism.used_devices import placed
from scaleproof.simulator.scenario.balanced_shares import balanced_shares
from scaleproof.simulator.scenario.convergence import Convergence
from scaleproof.simulator.scenario.fine_tuning import fine_tuning_problems
from scaleproof.simulator.scenario.framework_choice import (
    check_attention,
    check_supported,
    default_framework,
    features,
    with_defaults,
    with_training_defaults,
)
from scaleproof.simulator.scenario.lengths import LengthStatistics, statistics, with_keys
from scaleproof.simulator.scenario.reliability import Reliability
from scaleproof.simulator.scenario.training import Batch, Input, Training, averages_gradients, state_problems

# All kinds of strategies that scenarios may have.
KINDS: Final = StrategyRegistry(
    ParameterServer, DataParallel, LocalSgd, GatherAverage, ModelParallel, Pipeline, Hybrid, CapturedStrategy
)
AnyStrategy = Annotated[Strategy, KINDS]
# Maximum of one layer, so that 64-bit integers do not overflow when bytes are computed.
_MOST_PARAMETERS: Final = 10**15


def _layers(
    model: ModelSpec,
    shard: Shard,
    autocast: bool = False,
    tuning: FineTuning | None = None,
    keys: float = 1.0,
    peers: Peers | None = None,
) -> Sequence[Layer]:
    """The layers of a model, identical objects for equal models. Raises FieldError if the model cannot be sharded, or trained,
    so."""
    # traced models have a cache of their own, by the folder of the user's function, and warn each time
    if isinstance(model, Traced):
        return with_loss(model.build_layers(shard), model, peers)
    return _built(model, shard, autocast, tuning, keys, peers)


@functools.lru_cache(maxsize=64)
def _built(
    model: ModelSpec, shard: Shard, autocast: bool, tuning: FineTuning | None, keys: float, peers: Peers | None
) -> Sequence[Layer]:
    layers = tuple(with_loss(model.build_layers(shard), model, peers))
    layers = layers if keys == 1 else with_keys(layers, keys)
    layers = with_wide_stream(layers) if autocast else layers
    return layers if tuning is None else trained_part(layers, tuning)


class Scenario(Spec):
    """A training job: model + cluster + framework + strategy + batch + training.

    If the framework is left out, it is the usual one of the strategy; strategy fields that are left out have the framework's
    values.
    """

    name: str = ""
    description: str = ""
    model: Annotated[AnyModel, Field(description="inline, or the name or path of a model file")]
    cluster: Annotated[Cluster, Field(description="inline, or the name or path of a cluster file")]
    framework: Annotated[Framework, Field(description="inline, or the name or path of a framework file")] = IDEAL
    software: str = Field(
        "", max_length=200,
        description="words for training software that does not ship, such as 'PaddlePaddle 2021', in place of `framework`",
    )  # fmt: skip
    strategy: AnyStrategy
    batch: Batch
    steps: Count = 20
    training: Training = Training()
    unevenness: Perturbations = EVEN
    input: Input | None = None
    reliability: Reliability | None = Field(
        None, description="how often parts fail and how training is saved, for goodput; inline, or a name or path"
    )
    convergence: Convergence | None = Field(None, description="how many steps reach the target loss, a model to be calibrated")
    compute: Literal["real", "paced"] = Field(
        "real", description="in measurements: real computes; paced emulates compute by waiting for the predicted time"
    )

    @field_validator("name")
    @classmethod
    def _name_is_no_path(cls, name: str) -> str:
        """Rejects names that are no folder names: results are kept in a folder of the scenario's name."""
        if name in (".", "..") or any(character in name for character in "/\\\0") or len(name.encode()) > 200:
            raise ValueError(f"{name[:40]!r} cannot name a folder; give up to 200 bytes without slashes")
        return name

    @field_validator("cluster", mode="wrap")
    @classmethod
    def _place_in_cluster(cls, value: Any, validate: Callable[[Any], Cluster]) -> Cluster:
        """Validates the cluster, and prefixes its errors with "cluster"."""
        try:
            return validate(value)
        except FieldError as error:
            raise FieldError(("cluster", *error.field), error.message) from None

    def __repr__(self) -> str:
        what = f"{self.model.name or self.model.kind} by {self.strategy.kind}"
        where = f"{counted(self.strategy.ranks, 'rank')} of {self.cluster.name or 'a cluster'}"
        return f"Scenario({self.name}: {what} on {where}, {counted(self.total_samples, 'sample')} per step)"

    __str__ = __repr__

    @property
    def framework_is_default(self) -> bool:
        """Whether the scenario names no framework, so that it has the usual one of its strategy."""
        return "framework" not in self.model_fields_set

    @property
    def total_samples(self) -> int:
        """Samples per step, over all workers."""
        return self.batch.total or (self.batch.per_worker or 1) * self.strategy.workers

    @property
    def samples_per_worker(self) -> int:
        """Samples per step and worker."""
        return self.total_samples // self.strategy.workers

    @property
    def recipe(self) -> Recipe:
        """How matrix products in 8 or 4 bits are scaled."""
        training = self.training
        if training.precision != "fp4":
            return training.fp8_recipe
        kernels = self.cluster.device.kernels
        return training.fp4_recipe or ("nvfp4" if kernels is None or has_nvfp4(kernels.generation) else "mxfp4")

    @property
    def uses_host(self) -> bool:
        """Whether hosts have states, parameters or activations that their devices would have otherwise."""
        captured = isinstance(self.strategy, CapturedStrategy) and self.strategy.script.uses_host
        return bool(self.training.offload) or self.strategy.plan.stores_rows_on_hosts or captured

    def layers(self, shard: Shard, peers: Peers | None = None) -> Sequence[Layer]:
        """The layers of a rank of the sharded model, as they are trained, with samples of the mean length. peers: whose
        features a contrastive loss compares; those of the scenario if None.

        Identical objects for equal models. Raises FieldError if it cannot be sharded, or trained, so.
        """
        model, keys, found = self.model, 1.0, self.length_statistics
        if found is not None:
            whole = shard.context * (shard.tensor if shard.sequence else 1)
            tokens = math.ceil(found.padded / whole) * whole
            longest = {"positions": model.positions or model.sequence} if isinstance(model, Hstu) else {}
            model, keys = model.model_copy(update={"sequence": tokens, **longest}), round(found.keys / tokens, 4)
        if shard.sequence and self.framework.memory.keeps_gathered == "always":
            shard = shard._replace(regathers=False)
        if shard.context > 1 and self.framework.ring.repeats_keys:
            shard = shard._replace(repeats_keys=True)
        if not isinstance(model, TwoTowers) or model.contrast is None:
            peers = None
        elif peers is None:
            peers = peers_of(self.strategy, self.samples_per_worker)
        return _layers(model, shard, self.training.has_wide_stream, self.tuning, keys, peers)

    @property
    def tuning(self) -> FineTuning | None:
        """What is trained of the model; None if all of it is."""
        # the software of GPT-2 and its kin has one product for queries, keys and values
        return self.training.fine_tuning(is_fused=isinstance(self.model, Gpt))

    @property
    def length_statistics(self) -> LengthStatistics | None:
        """Tokens of samples of different lengths; None if all are as long. Raises InputError for a file of lengths that cannot
        be read."""
        lengths, longest, plan = self.batch.lengths, getattr(self.model, "sequence", None), self.strategy.plan
        if lengths is None or longest is None:
            return None
        samples = max(1, self.samples_per_worker // plan.microbatches)
        return statistics(
            lengths, longest, samples, plan.microbatches, plan.workers, self.training.zero == 3 or plan.stages > 1,
            plan.context, plan.context_by,
        )  # fmt: skip

    @property
    def tokens_per_sample(self) -> int | None:
        """Tokens per sample that the model reads, without padding, plus those that a decoder writes; None if it does not read
        tokens."""
        read: int | None = getattr(self.model, "sequence", None)
        if (found := self.length_statistics) is not None:
            return round(found.mean)
        return None if read is None else read + getattr(self.model, "target_sequence", 0)

    @property
    def longest(self) -> Self:
        """The scenario with samples of the greatest length, for which memory must suffice."""
        if self.batch.lengths is None:
            return self
        return self.model_copy(update={"batch": self.batch.model_copy(update={"lengths": None})})

    def copied(self, **update: Any) -> Self:
        """A copy with other parts, which are not validated, and with their default framework unless the scenario names one.

        Raises FieldError if a named framework does not support them.
        """
        copy = self.model_copy(update=update)
        copy._take_defaults()
        return copy

    @model_validator(mode="after")
    def _defaults_are_there(self) -> Self:
        self._take_defaults()
        return self

    def _take_defaults(self) -> None:
        """Fills in the number of microbatches where their size is given, the used devices of nodes, the default framework, the
        strategy fields that the framework decides, and what it calls selective recomputation."""
        if getattr(self.strategy, "shares", None) == "auto":
            self.__dict__["strategy"] = self.strategy.defaulted({"shares": self._balanced_shares()})
        # `_parts_fit` reports samples that workers do not divide
        if self.total_samples % self.strategy.workers == 0:
            self.__dict__["strategy"] = self.strategy.for_samples(self.samples_per_worker)
        strategy, training = self.strategy, self.training
        cluster = placed(self.cluster, strategy.plan)
        copies = self.input is not None and self.input.copied_bytes > 0
        self.__dict__["cluster"] = with_host(cluster) if self.uses_host or copies else cluster
        if self.framework_is_default:
            self.__dict__["framework"] = default_framework(self, strategy, training.zero)
        else:
            check_supported(self.framework, features(strategy, training.precision, training.zero, self.cluster))
            check_attention(self.framework, self.model)
            self.__dict__["framework"] = renamed(self.framework)
        self.__dict__["strategy"] = with_defaults(strategy, self.framework, training.zero, training.precision)
        self.__dict__["training"] = with_training_defaults(training, self.framework, strategy)

    def _balanced_shares(self) -> tuple[int, ...]:
        plan, workers, precision = self.strategy.plan, self.strategy.workers, self.training.precision
        layers, mesh = _layers(self.model, plan.shard), plan.grid_on(self.cluster)
        if any(precision not in device.peak_flops for device in self.cluster.all_devices):
            return (self.total_samples // workers,) * workers  # `_precision_problems` reports it
        kinds = mesh.kinds_on(self.cluster)[:, 0].tolist()
        return balanced_shares(layers, self.cluster, precision, kinds, plan.microbatches, self.total_samples)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        """Checks rules between parts. FieldError passes through pydantic, and `load` adds the place in the file."""
        workers, strategy = self.strategy.workers, self.strategy
        if (shares := strategy.plan.shares) is not None:
            check_shares(shares, workers, self.total_samples)
        elif self.total_samples % workers:
            nearest = max(1, round(self.total_samples / workers)) * workers
            message = f"{workers} workers do not divide {self.total_samples} samples; give a multiple such as {nearest}"
            raise FieldError(("batch",), message)
        layers = _layers(self.model, strategy.plan.shard)
        if max((layer.parameters for layer in layers), default=0) > _MOST_PARAMETERS:
            raise FieldError(("model",), f"a layer has more than {_MOST_PARAMETERS:.0e} parameters; give a narrower one")
        self.check_options()
        for field, text in fine_tuning_problems(self):
            raise FieldError(field, text)
        layers = self.layers(strategy.plan.shard)
        strategy.check(layers, self.samples_per_worker)
        stored_bytes = max((layer.table_bytes for layer in layers), default=0.0)
        if stored_bytes > self.cluster.device.capacity_bytes:
            message = (
                f"the fullest worker's tables take {format_bytes(stored_bytes)}, its device has "
                f"{format_bytes(self.cluster.device.capacity_bytes)}; divide them by row or column, add workers, or on: host"
            )
            raise FieldError(("strategy", "tables"), message)
        self.training.recompute.check(layers, self.model.kind)
        if isinstance(strategy, CapturedStrategy):
            strategy.check_training(self.training, self.cluster.device.peak_flops)
        states = state_problems(self.training, strategy)
        for field, text in chain(self._training_problems(), states, self._cluster_problems(), self._precision_problems()):
            raise FieldError(field, text)
        return self

    def _training_problems(self) -> Iterator[tuple[FieldPath, str]]:
        """Fields of the training that do not suit the strategy, and messages that say what to do."""
        training, strategy, kind, averages = self.training, self.strategy, self.strategy.kind, averages_gradients(self.strategy)
        if "parameters" in training.offload and training.zero < 3:
            yield (
                ("training", "offload"),
                "only sharded parameters can be offloaded; set training.zero=3, or offload only the optimizer",
            )
        if training.zero and strategy.servers:
            message = f"servers have the optimizer states of a {kind}; leave zero out, or use data_parallel"
            yield ("training", "zero"), message
        if training.zero and not averages:
            yield ("training", "zero"), f"the strategy {kind} does not shard states; leave zero out, or use data_parallel"
        if self.batch.lengths is not None and (not isinstance(self.model, Transformer | Hstu) or not averages):
            what = f"the strategy {kind}" if isinstance(self.model, Transformer | Hstu) else f"a {self.model.kind}"
            message = (
                f"not modelled with {what}; leave it out, or train a gpt, llama or hstu by data_parallel, pipeline or hybrid"
            )
            yield ("batch", "lengths"), message
        for field in ("accumulate_precision", "reduce_precision", "fused_accumulation"):
            if getattr(training, field) is not None and not averages:
                yield ("training", field), f"not supported by the strategy {kind}; remove {field}, or use data_parallel"
        stored = "fp32" if training.autocast else storage_precision(training.precision)
        for field in ("accumulate_precision", "reduce_precision"):
            if getattr(training, field) not in (None, "fp32", stored):
                known = " or ".join(dict.fromkeys(("fp32", stored)))
                yield ("training", field), f"gradients are {stored}, not {getattr(training, field)}; give {known}"

    def _cluster_problems(self) -> Iterator[tuple[FieldPath, str]]:
        """Numbers of ranks that the cluster does not have, and links that it lacks."""
        cluster, strategy, needed = self.cluster, self.strategy, self.strategy.training_ranks
        if needed > cluster.devices:
            yield (
                ("strategy",),
                f"{needed} ranks for {cluster.devices} devices ({cluster.nodes} nodes × {cluster.node.devices}); "
                f"give at most {cluster.devices}, or set cluster.nodes={-(-needed // cluster.node.devices)}"
                if cluster.has_equal_nodes
                else f"{needed} ranks for {cluster.devices} devices of {cluster.nodes} nodes; give at most {cluster.devices}",
            )
        if (nodes := strategy.nodes_needed(cluster)) > cluster.nodes:
            message = f"workers and dedicated servers need {nodes} nodes, the cluster has {cluster.nodes}"
            colocated = ", or placement: colocated" if hasattr(strategy, "placement") else ""
            yield ("strategy", "servers"), f"{message}; set cluster.nodes={nodes}{colocated}"
        host = cluster.node.host
        if self.training.offload_to == "nvme" and (host is None or host.nvme is None):
            message = (
                "missing for training.offload_to=nvme; give rates, as in {read: 6 GB/s, write: 4 GB/s}, or offload_to=host"
            )
            yield ("cluster", "node", "host", "nvme"), message
        if cluster.nodes > 1 and cluster.network is None:
            yield ("cluster", "network"), "missing between several nodes; give bandwidth and latency, or a name such as 10-gbe"
        if strategy.communicates_in_nodes(cluster) and cluster.node.link is None:
            yield ("cluster", "node", "link"), "missing between several ranks of a node; give bandwidth and latency"
        if cluster.kinds:
            yield from self._kinds_problems()
        for field, ranks in self.unevenness.named_by_field():
            if max(ranks) >= strategy.ranks:
                message = f"there is no rank {max(ranks)}; ranks are numbered 0 to {strategy.ranks - 1}"
                yield ("unevenness", *field), message
        if self.convergence is not None:
            self.convergence.check(strategy)

    def _kinds_problems(self) -> Iterator[tuple[FieldPath, str]]:
        """What does not train on nodes with different devices."""
        strategy, plan, cluster = self.strategy, self.strategy.plan, self.cluster
        sizes = sorted({cluster.devices_of(node) for node in range(min(cluster.nodes, cluster.nodes_of(plan.ranks)))})
        undivided = [size for size in sizes if size % plan.model_parallel_size]
        if not isinstance(strategy, ReplicaStrategy) or strategy.servers:
            message = f"{strategy.kind} needs equal devices on all nodes, these have {len(self.cluster.kinds) + 1} kinds"
            yield ("strategy", "kind"), f"{message}; use data_parallel (with zero as well), pipeline or hybrid"
        elif undivided:
            message = f"groups of {plan.model_parallel_size} ranks that divide layers would straddle nodes of different devices"
            yield ("strategy", "tensor"), f"{message}; give a divisor of {' and '.join(map(str, sizes))}"
        elif not cluster.has_equal_nodes and plan.expert > 1:
            message = "ranks with different experts exchange tokens over nodes with equal numbers of devices, these have"
            yield ("strategy", "expert"), f"{message} {' and '.join(map(str, sizes))}; leave expert out, or set node.used"
        if self.training.measured_step is not None:
            yield ("training", "measured_step"), "is of one device, the nodes have several; leave it out"

    def _precision_problems(self) -> Iterator[tuple[FieldPath, str]]:
        """Precisions that the device lacks, recipes of other precisions, and training without master weights."""
        training, device, precision = self.training, self.cluster.device, self.training.precision
        for one in self.cluster.all_devices:
            if precision not in one.peak_flops:
                known = ", ".join(sorted(one.peak_flops))
                yield ("training", "precision"), f"{one.name} has no peak rate for {precision}; use one of {known}"
        for field, bits in (("fp8_recipe", 8), ("fp4_recipe", 4)):
            if precision != f"fp{bits}" and field in training.model_fields_set:
                message = f"{getattr(training, field)} scales {bits}-bit products, but precision is {precision}"
                yield ("training", field), f"{message}; set training.precision=fp{bits}, or leave it out"
        if device.kernels is not None:
            generation = device.kernels.generation
            if training.fp8_recipe == "mxfp8" and not has_scaled_blocks(generation, device.peak_flops):
                message = f"mxfp8 needs a GPU such as Blackwell, but {device.name} is not one"
                yield ("training", "fp8_recipe"), f"{message}; use blockwise, current or delayed"
            if training.fp4_recipe == "nvfp4" and not has_nvfp4(generation):
                yield ("training", "fp4_recipe"), f"nvfp4 needs an NVIDIA GPU, but {device.name} is not one; use mxfp4"
        if not training.master and precision != "bf16":
            message = f"{precision} does not train without master copies; give true, or precision=bf16"
            yield ("training", "master"), message
        if not training.master and self.strategy.servers:
            message = f"the servers of a {self.strategy.kind} update in fp32; leave master out, or use data_parallel"
            yield ("training", "master"), message

    def check_options(self) -> None:
        """Checks that options have their defaults where the training or the cluster refuses others; raises FieldError."""
        check_options(self.strategy, self.option_values)

    @property
    def option_values(self) -> dict[str, Any]:
        """Values that decide where the strategy's options have an effect, by the names in their rules."""
        plan = self.strategy.plan
        more = {"averages": plan.averages, "ranks": plan.ranks, "nodes": self.cluster.nodes_of(plan.ranks)}
        return vars(plan) | vars(self.strategy) | more | {"zero": self.training.zero}


def json_schema() -> dict[str, Any]:
    """JSON schema of a scenario file for editors, shorthands included."""
    result = Scenario.model_json_schema(by_alias=True)
    fields = result["properties"]
    for part in catalog.PARTS:
        fields[part] = _named(fields[part])
    cluster = result["$defs"]["Cluster"]["properties"]
    cluster["device"] = _named(cluster["device"])
    cluster["nodes"] = {"anyOf": [_bare(cluster["nodes"]), {"type": "array", "items": {"type": "object"}}]}
    for part, field in (("Node", "link"), ("Cluster", "network")):
        of_part = result["$defs"][part]["properties"]
        of_part[field] = {"anyOf": [{"type": "string", "description": "name of a kind of link"}, _bare(of_part[field])]}
    link = result["$defs"]["Link"]
    link["properties"]["nics"] = {"type": "string", "description": "in place of bandwidth: network cards, as in 8 x 400 Gbit/s"}
    link["required"].remove("bandwidth")
    fields["batch"] = {"anyOf": [{"type": "integer", "minimum": 1}, _bare(fields["batch"])]}
    kinds = sorted(result["properties"]["strategy"]["discriminator"]["mapping"])
    fields["strategy"] = {"anyOf": [{"enum": kinds}, _bare(fields["strategy"])]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **result, "title": "scaleproof scenario"}


def _named(field: dict[str, Any]) -> dict[str, Any]:
    """A part that may be given by name or path, or as another one with changes."""
    changed = {
        "type": "object",
        "properties": {"base": {"type": "string", "description": "name or path of what the other fields change"}},
        "required": ["base"],
    }
    return {"anyOf": [{"type": "string", "description": "name or path"}, _bare(field), changed]}


def _bare(field: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in field.items() if key not in ("title", "description")}
