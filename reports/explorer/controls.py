"""The controls of the page: fields of a scenario, with the choices that are valid with its other fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from scaleproof.reports.explorer import facts
from scaleproof.reports.explorer.families import FAMILIES, Room, room, usual
from scaleproof.reports.explorer.sliders import sliders
from scaleproof.simulator.cluster.device.device import Precision, is_narrow
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import library as frameworks
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.model.layers import Layer, Shard
from scaleproof.simulator.scenario import dump
from scaleproof.simulator.scenario.framework_choice import default_framework, features
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import Strategy
from scaleproof.simulator.strategy.replica_strategy import ReplicaStrategy

Control = dict[str, Any]
Option = dict[str, Any]

# how many there may be of something, as people buy it
_COUNTS: Final = sorted({base << power for base in (1, 3) for power in range(14)})
_SCHEDULES: Final = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved_1f1b": "interleaved 1F1B", "zb_h1": "zero bubble H1",
    "zb_h2": "zero bubble H2", "zb_v": "zero bubble V", "looped_bfs": "looped breadth-first",
}  # fmt: skip
_CHUNKED: Final = {"interleaved_1f1b": (2, 3, 4), "looped_bfs": (2, 4), "zb_v": (2,)}
# samples of a microbatch with which a model of the other sort begins
_TEXTS: Final = 1
_IMAGES: Final = 32
_ZERO: Final = ("none", "1: optimizer states", "2: and gradients", "3: and parameters (FSDP)")
_RECIPES: Final = {
    "delayed": "by maxima of earlier steps", "current": "by maxima of this step", "rowwise": "for each row",
    "blockwise": "for blocks of 128", "mxfp8": "for blocks of 32 (MXFP8)",
}  # fmt: skip
# leaves the framework to the default
_ANY_FRAMEWORK: Final = "framework=null"
_RECOMPUTE: Final = {"none": "none", "selective": "attention scores", "full": "whole layers"}


def controls(scenario: Scenario) -> list[dict[str, Any]]:
    """Groups of controls, each with its title."""
    choices = _Choices(scenario)
    return [
        {"title": "What is trained", "controls": list(choices.training())},
        {"title": "On what", "controls": [*choices.cluster(), *sliders(scenario)]},
        {"title": "How", "controls": list(choices.strategy())},
    ]


def _choice(field: str, label: str, words: str, options: Iterable[Option], now: object) -> Control:
    """A list of options with `now` selected; `now` is added first if it is missing."""
    listed = list(options)
    if all(option["says"] != str(now) for option in listed):
        listed.insert(0, {"says": str(now), "label": f"{now} (as it is)", "sets": []})
    return {"kind": "choice", "field": field, "label": label, "help": words, "options": listed, "value": str(now)}


def _option(says: object, label: str, *sets: str, hint: str = "") -> Option:
    return {"says": str(says), "label": label, "sets": list(sets), **({"hint": hint} if hint else {})}


class _Choices:
    """The valid choices for one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._strategy = scenario.strategy
        self._room: Room = room(scenario)
        self._layers: dict[Shard, list[Layer]] = {}

    def training(self) -> Iterator[Control]:
        scenario = self._scenario
        name = scenario.model.name or scenario.model.kind
        yield _choice("model", "Model", "the network that learns", map(self._model, facts.models().values()), name)
        yield self._batch()
        peaks = scenario.cluster.device.peak_flops
        formats = [_option(one, one, *self._for_precision(one)) for one in peaks]
        yield _choice("training.precision", "Number format", "of the arithmetic; 16 bits are faster and smaller than 32",
                      formats, scenario.training.precision)  # fmt: skip
        if scenario.training.precision == "fp8":
            names = [one for one in _RECIPES if one != "mxfp8" or self._generation == "blackwell"]
            recipes = [_option(one, _RECIPES[one], f"training.fp8_recipe={one}") for one in names]
            yield _choice("training.fp8_recipe", "Scaling of 8-bit products", "how numbers are fitted into 8 bits",
                          recipes, scenario.training.fp8_recipe)  # fmt: skip
        options = [_option(one, one, f"training.optimizer={one}") for one in ("sgd", "momentum", "adam", "lamb", "adafactor")]
        yield _choice("training.optimizer", "Optimizer", "how weights are changed; Adam keeps two more numbers for each weight",
                      options, scenario.training.optimizer)  # fmt: skip

    def _unless(self, is_supported: bool) -> list[str]:
        """The setting that resets the framework to the default, if the named one does not support a choice."""
        return [] if is_supported or self._scenario.framework_is_default else [_ANY_FRAMEWORK]

    def _supports(self, *needed: str) -> bool:
        return set(needed) <= set(self._scenario.framework.supports)

    @property
    def _generation(self) -> str:
        kernels = self._scenario.cluster.device.kernels
        return kernels.generation if kernels and kernels.generation else ""

    def _for_precision(self, precision: Precision) -> list[str]:
        """The settings that change the precision, without an 8-bit recipe for 16 bits and more."""
        training = self._scenario.training
        if is_narrow(precision) or "fp8_recipe" not in training.model_fields_set:
            return [f"training.precision={precision}", *self._unless(not is_narrow(precision) or self._supports("fp8"))]
        update = {"precision": precision, "fp8_recipe": type(training).model_fields["fp8_recipe"].default}
        changed = self._scenario.model_copy(update={"training": training.model_copy(update=update)})
        return [dump.dump_part(changed, "training").replace(": ", "=", 1)]

    def _for_strategy(self, strategy: Strategy, zero: int | None = None) -> list[str]:
        """The settings that reset the framework for a strategy, or for a ZeRO stage, if it does not support it."""
        training, cluster = self._scenario.training, self._scenario.cluster
        needed = features(strategy, training.precision, training.zero if zero is None else zero, cluster)
        return self._unless(self._supports(*needed))

    def framework(self) -> Control:
        """The choice of shipped frameworks that support the scenario."""
        scenario, strategy, training = self._scenario, self._strategy, self._scenario.training
        needed = features(strategy, training.precision, training.zero, scenario.cluster)
        usual = default_framework(strategy, training.precision, training.zero, scenario.model, scenario.cluster).name
        flash = getattr(scenario.model, "flash", False)
        options: list[Option] = []
        for name in frameworks.names():
            one = shipped(name)
            if name == usual:
                options.insert(0, _option(name, f"{name} (default)", _ANY_FRAMEWORK, hint=one.description))
            elif needed <= set(one.supports) and (one.has_flash or not flash):
                options.append(_option(name, name, f"framework={name}", hint=one.description))
        words = "the training software and its version: its kernels, its work on the host, what it overlaps and keeps"
        return _choice("framework", "Framework", words, options, scenario.framework.name)

    def _model(self, model: facts.ModelFacts) -> Option:
        """The choice of models, with a new strategy if the present one cannot train it."""
        plan, sets = self._strategy.plan, [f"model={model.name}"]
        if self._scenario.training.recompute.kind == "selective" and not model.scores:
            sets.append(f"training.recompute={'full' if model.heads else 'none'}")
        divides = model.divides(plan.model_parallel_size, plan.sequence_parallel or plan.context > 1)
        if not divides or (plan.expert > 1 and not model.experts) or plan.stages * plan.chunks > model.blocks:
            space = self._room._replace(blocks=model.blocks)
            sets += usual(self._strategy.kind, plan.ranks, space, plan.ranks * self._samples(model))
        elif bool(model.heads) != hasattr(self._scenario.model, "heads"):
            sets.append(f"batch.per_worker={plan.microbatches * self._samples(model)}")
        if model.heads and self._scenario.training.precision == "fp32":
            peaks = self._scenario.cluster.device.peak_flops
            sets += [f"training.precision={one}" for one in ("bf16", "fp16") if one in peaks][:1]
        sets += self._unless(self._scenario.framework.has_flash or not model.flash)
        return _option(model.name, model.name, *sets, hint=model.description)

    def _samples(self, model: facts.ModelFacts) -> int:
        """Samples per microbatch: the present number, unless texts replace the much smaller images, or the reverse."""
        if bool(model.heads) == hasattr(self._scenario.model, "heads"):
            return max(1, self._scenario.samples_per_worker // self._strategy.microbatches)
        return _TEXTS if model.heads else _IMAGES

    def _batch(self) -> Control:
        plan, each = self._strategy.plan, self._scenario.samples_per_worker
        counts = [count * plan.microbatches for count in _COUNTS if count <= 1024]
        options = [_option(n, f"{n:,}", f"batch.per_worker={n}") for n in counts if n <= 65536]
        return _choice(
            "batch.per_worker", "Samples a worker", "that each replica of the model learns from in one step", options, each
        )

    def cluster(self) -> Iterator[Control]:
        cluster = self._scenario.cluster
        clusters = map(self._other_cluster, facts.clusters().values())
        yield _choice(
            "cluster", "Cluster", "the machines, their devices and what joins them", clusters, cluster.name or "its own"
        )
        if cluster.network is not None:
            needed = self._strategy.nodes_needed(cluster)
            counts = [count for count in _COUNTS if needed <= count <= 4096]
            options = [_option(count, f"{count:,}", f"cluster.nodes={count}") for count in counts]
            each = f"machines of {cluster.node.devices} × {cluster.device.name}"
            yield _choice("cluster.nodes", "Nodes", f"{each}; {needed} are in use", options, cluster.nodes)

    def _other_cluster(self, other: facts.ClusterFacts) -> Option:
        """The choice of clusters, with other changes so that the strategy fits on it."""
        scenario, strategy, sets = self._scenario, self._strategy, [f"cluster={other.name}"]
        servers = strategy.nodes_needed(scenario.cluster) - -(-strategy.training_ranks // scenario.cluster.node.devices)
        needed = -(-strategy.training_ranks // other.devices) + servers
        if needed > other.nodes and other.has_network:
            sets.append(f"cluster.nodes={needed}")
        elif needed > other.nodes:
            space = Room(other.nodes, other.devices, self._room.blocks)
            sets += usual(strategy.kind, strategy.training_ranks, space, scenario.total_samples)
        if scenario.training.precision not in other.precisions:
            sets += self._for_precision(other.precision)
        elif scenario.training.fp8_recipe == "mxfp8" and other.generation != "blackwell":
            sets.append("training.fp8_recipe=delayed")
        sets += self._unless(other.generation != "cpu" or self._supports("cpu"))
        return _option(other.name, other.name, *sets, hint=other.description)

    def strategy(self) -> Iterator[Control]:
        yield self.framework()
        yield self._family()
        yield from self._degrees()
        if isinstance(self._strategy, ReplicaStrategy):
            yield from self._schedule()
            yield from self._switches()
            yield from self._memory()
        if self._strategy.kind == "parameter_server":
            yield from self._served()

    def _family(self) -> Control:
        strategy, zero = self._strategy, ["training.zero=0"] if self._scenario.training.zero else []
        samples, ranks = self._scenario.total_samples, strategy.training_ranks
        options = []
        for kind, family in FAMILIES.items():
            fresh = zero if kind not in ("data_parallel", "hybrid") else []
            sets = [*usual(kind, ranks, self._room, samples), *fresh, *self._for_kind(kind)] if kind != strategy.kind else []
            options.append(_option(kind, family.label, *sets, hint=family.help))
        words = FAMILIES[strategy.kind].help if strategy.kind in FAMILIES else "a strategy of an installed package"
        return _choice("strategy.kind", "Strategy", words, options, strategy.kind)

    def _for_kind(self, kind: str) -> list[str]:
        """The settings with which a family begins; hybrids begin as pipelines with replicas."""
        needed = {"hybrid": ("data_parallel", "pipeline")}.get(kind, (kind,))
        return self._unless(self._supports(*needed))

    def _degrees(self) -> Iterator[Control]:
        fields = type(self._strategy).model_fields
        for field, label, words in (
            ("workers", "Workers", "replicas of the model, each with its own samples"),
            ("servers", "Servers", "that hold the weights; several share the traffic"),
            ("stages", "Pipeline stages", "parts of the model one after another, each on its own device"),
            ("tensor", "Tensor-parallel ranks", "devices that share every layer's matrices; best inside a node"),
            ("context", "Context-parallel ranks", "devices that share every sample's tokens"),
            ("expert", "Expert-parallel workers", "workers that share a mixture's experts"),
            ("microbatches", "Microbatches", "parts of a worker's samples that follow one another"),
            ("period", "Period", "steps that workers train alone before they average"),
        ):
            name = f"{field}_" if f"{field}_" in fields else field
            if name in fields and self._is_offered(field):
                yield self._degree(field, name, label, words)

    def _is_offered(self, field: str) -> bool:
        """Whether a degree applies to the model and the family."""
        if field in ("tensor", "context"):
            return self._possible({field: 2}) or getattr(self._strategy.plan, field) > 1
        if field == "expert":
            return any(layer.expert_parameters for layer in self._built(self._strategy))
        return field != "servers" or self._strategy.kind == "parameter_server"

    def _degree(self, field: str, name: str, label: str, words: str) -> Control:
        now = getattr(self._strategy, name)
        counts = sorted({now, *(count for count in _COUNTS if self._possible({name: count}))})
        options = [
            _option(count, f"{count:,}", f"strategy.{field}={count}",
                    *self._for_strategy(self._strategy.model_copy(update={name: count})))
            for count in counts
        ]  # fmt: skip
        return _choice(f"strategy.{field}", label, words, options, now)

    def _schedule(self) -> Iterator[Control]:
        if self._strategy.stages == 1 or "schedule" not in type(self._strategy).model_fields:
            return
        plan = self._strategy.plan
        options, now = [], f"{plan.schedule} {plan.chunks}"
        for schedule, label in _SCHEDULES.items():
            for chunks in _CHUNKED.get(schedule, (1,)):
                sets = (f"strategy.schedule={schedule}", f"strategy.chunks={chunks}")
                if self._possible({"schedule": schedule, "chunks": chunks}):
                    parts = f", {chunks} parts a device" if chunks > 1 else ""
                    options.append(_option(f"{schedule} {chunks}", label + parts, *sets))
        yield _choice("strategy.schedule", "Schedule", "in which order stages take the microbatches", options, now)

    def _switches(self) -> Iterator[Control]:
        fields = type(self._strategy).model_fields
        if "overlap" in fields and self._strategy.workers > 1:
            yield self._switch("overlap", "Overlap", "sum gradients while the backward pass still goes on")
        if "sequence_parallel" in fields and self._strategy.plan.tensor > 1:
            yield self._switch("sequence_parallel", "Sequence parallelism", "divide what is between the matrices as well")

    def _switch(self, field: str, label: str, words: str) -> Control:
        options = [
            _option(str(is_on), "on" if is_on else "off", f"strategy.{field}={str(is_on).lower()}") for is_on in (True, False)
        ]
        return _choice(f"strategy.{field}", label, words, options, getattr(self._strategy, field))

    def _memory(self) -> Iterator[Control]:
        training, plan = self._scenario.training, self._strategy.plan
        if "shard_over" in type(self._strategy).model_fields and plan.workers > 1:
            options = [
                _option(stage, words, f"training.zero={stage}", *self._for_strategy(self._strategy, stage))
                for stage, words in enumerate(_ZERO)
            ]
            yield _choice("training.zero", "Share out (ZeRO)", "what workers hold a part of each, in place of a whole copy",
                          options, training.zero)  # fmt: skip
        scores = any(kept.group == "attention" for layer in self._built(self._strategy) for kept in layer.kept)
        kinds = {kind: label for kind, label in _RECOMPUTE.items() if scores or kind != "selective"}
        options = [_option(kind, label, f"training.recompute={kind}") for kind, label in kinds.items()]
        yield _choice("training.recompute", "Recompute", "forget activations and compute them again: less memory, more work",
                      options, str(training.recompute))  # fmt: skip

    def _served(self) -> Iterator[Control]:
        strategy: Any = self._strategy
        modes = {"synchronous": "all wait for all", "asynchronous": "nobody waits", "stale_synchronous": "wait for the slowest"}
        options = []
        for mode, words in modes.items():
            bound = [f"strategy.bound={'3' if mode == 'stale_synchronous' else 'null'}"]
            backups = ["strategy.backups=0"] if strategy.backups and mode != "synchronous" else []
            sets = [f"strategy.mode={mode}", *bound, *backups]
            options.append(_option(mode, f"{mode.replace('_', ' ')}: {words}", *sets))
        yield _choice("strategy.mode", "Servers answer", "when workers get new weights", options, strategy.mode)
        places = {"dedicated": "on nodes of their own", "colocated": "on the workers' nodes"}
        options = [
            _option(place, words, f"strategy.placement={place}")
            for place, words in places.items()
            if self._possible({"placement": place})
        ]
        yield _choice("strategy.placement", "Servers run", "machines of their own cost more, and share no network card",
                      options, strategy.placement)  # fmt: skip
        yield self._switch("overlap", "Overlap", "push and pull during the passes")

    def _possible(self, changes: dict[str, Any]) -> bool:
        """Whether the scenario is valid with changed fields of the strategy, given by attribute name."""
        scenario = self._scenario
        strategy = self._strategy.model_copy(update=changes)
        try:
            if scenario.batch.total and scenario.batch.total % strategy.workers:
                return False
            samples = scenario.batch.per_worker or scenario.total_samples // strategy.workers
            if (
                strategy.training_ranks > scenario.cluster.devices
                or strategy.nodes_needed(scenario.cluster) > scenario.cluster.nodes
            ):
                return False
            strategy.check(self._built(strategy), samples)
        except FieldError:
            return False
        named = [rank for _, ranks in scenario.unevenness.named_by_field() for rank in ranks]
        talks = strategy.communicates_in_nodes(scenario.cluster)
        return max(named, default=-1) < strategy.ranks and (scenario.cluster.node.link is not None or not talks)

    def _built(self, strategy: Strategy) -> list[Layer]:
        """The model's layers as the strategy divides them. Raises FieldError if it cannot."""
        shard = strategy.plan.shard
        if shard not in self._layers:
            self._layers[shard] = self._scenario.model.build_layers(shard)
        return self._layers[shard]
