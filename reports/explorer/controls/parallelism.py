"""Choices of the framework, the strategy and its degrees, all on the same GPUs and with the same global batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scaleproof.reports.explorer.controls.choices import COUNTS, Control, Option, choice, fact, option
from scaleproof.reports.explorer.controls.families import FAMILIES, beginning, blocks
from scaleproof.reports.explorer.controls.layouts import BatchError, check, rearranged, settings_between
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.frameworks import files as frameworks
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.parallelism import Hybrid, Strategy
from scaleproof.simulator.parallelism.option_rules import has_effect, rules_of
from scaleproof.simulator.parallelism.replicas import ReplicaStrategy
from scaleproof.simulator.scenario.framework_choice import default_framework, features
from scaleproof.simulator.scenario.schema import Scenario

_SCHEDULES: Final = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved_1f1b": "interleaved 1F1B", "zb_h1": "zero bubble H1",
    "zb_h2": "zero bubble H2", "zb_v": "zero bubble V", "looped_bfs": "looped breadth-first",
}  # fmt: skip
_CHUNKED: Final = {"interleaved_1f1b": (2, 3, 4, 6, 8, 12), "looped_bfs": (2, 4), "zb_v": (2,)}
_ZERO: Final = ("0: none", "1: optimizer states", "2: + gradients", "3: + parameters (FSDP)")
_RECOMPUTE: Final = {"none": "none", "selective": "selective (attention scores)", "full": "full (whole layers)"}
# leaves the framework to the default
_ANY_FRAMEWORK: Final = "framework=null"
_DEGREES: Final = (
    ("tensor", "TP", "Tensor parallelism: ranks that share each layer's matrices. Two all-reduces per layer and pass, best "
                     "inside a node."),
    ("stages", "PP", "Pipeline parallelism: the layers are cut into this number of stages."),
    ("context", "CP", "Context parallelism: ranks that divide the tokens of each sequence."),
    ("expert", "EP", "Expert parallelism: data-parallel ranks that divide the experts of a mixture."),
    ("servers", "Servers", "Parameter servers: ranks that store the parameters and do not train."),
    ("period", "Period", "Steps that a worker takes alone before parameters are averaged."),
)  # fmt: skip


class Parallelism:
    """The valid choices of strategy, degrees and framework for one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._strategy = scenario.strategy

    def controls(self) -> Iterator[Control]:
        """The framework, the strategy and what it consists of."""
        yield self._family()
        if "workers" in type(self._strategy).model_fields:
            plan = self._strategy.plan
            degrees = (("TP", plan.tensor), ("CP", plan.context), ("PP", plan.stages))
            inner = " × ".join(f"{name} {degree}" for name, degree in degrees if degree > 1)
            value = f"{self._strategy.workers:,}" + (f" = {self._strategy.training_ranks:,} GPUs / ({inner})" if inner else "")
            yield fact("strategy.workers", "DP", value, "Data parallelism: replicas of the model, each with its own samples. "
                       "It follows from the number of GPUs and the other degrees.")  # fmt: skip
        yield from self._degrees()
        if isinstance(self._strategy, ReplicaStrategy):
            yield from self._schedule()
            yield from self._memory()
            yield from self._switches()
        if self._strategy.kind == "parameter_server":
            yield from self._served()
        yield self._framework()

    def unless(self, is_supported: bool) -> list[str]:
        """The setting that resets the framework to the default, if the named one does not support a choice."""
        return [] if is_supported or self._scenario.framework_is_default else [_ANY_FRAMEWORK]

    def supports(self, *needed: str) -> bool:
        """Whether the scenario's framework has some features."""
        return set(needed) <= set(self._scenario.framework.supports)

    def _framework(self) -> Control:
        scenario, strategy, training = self._scenario, self._strategy, self._scenario.training
        needed = features(strategy, training.precision, training.zero, scenario.cluster)
        usual = default_framework(scenario, strategy, training.zero).name
        flash = getattr(scenario.model, "flash", False)
        options: list[Option] = []
        for name in frameworks.names():
            one = shipped(name)
            if name == usual:
                options.insert(0, option(name, f"{name} (default)", _ANY_FRAMEWORK, hint=one.description))
            elif needed <= set(one.supports) and (one.has_flash or not flash):
                options.append(option(name, name, f"framework={name}", hint=one.description))
        return choice("framework", "Framework", "", options, scenario.framework.name,
                      term="Training software and its version: kernels, host work, overlap and memory.")  # fmt: skip

    def _family(self) -> Control:
        options = [self._other_family(kind) for kind in FAMILIES]
        words = FAMILIES[self._strategy.kind].help if self._strategy.kind in FAMILIES else "a strategy of an installed package"
        return choice("strategy.kind", "Strategy", words, options, self._strategy.kind,
                      term="Strategies are compared on the same GPUs and with the same global batch.")  # fmt: skip

    def _other_family(self, kind: str) -> Option:
        """The choice of a family on the same GPUs and with the same batch, or why that is not possible and what is."""
        scenario, family = self._scenario, FAMILIES[kind]
        if kind == self._strategy.kind:
            return option(kind, family.label, hint=family.help)
        base = self._for_family(kind)
        ranks = self._strategy.training_ranks
        try:
            after = rearranged(base, beginning(kind, base, ranks)).rebuilt()
            return option(kind, family.label, *settings_between(scenario, after), hint=family.help)
        except BatchError as error:
            other = base.copied(batch=base.batch.with_total(error.nearest))
            offer, reason = f"Use a global batch of {error.nearest:,}", str(error)
        except InputError as error:
            fewer = min(1 << (min(ranks, blocks(scenario)).bit_length() - 1), ranks)
            offer, reason = f"Use {fewer} GPUs", getattr(error, "message", str(error))
            other = base.copied(
                strategy=beginning("data_parallel", base, fewer), batch=base.batch.with_total(base.total_samples)
            )
        try:
            after = rearranged(other, beginning(kind, other, other.strategy.training_ranks)).rebuilt()
            sets = settings_between(scenario, after)
        except InputError:
            offer, sets = "", []
        return option(kind, family.label, *sets, hint=family.help, reason=f"Not on {ranks:,} GPUs with a global batch of "
                      f"{scenario.total_samples:,}: {reason}.", offer=offer)  # fmt: skip

    def _for_family(self, kind: str) -> Scenario:
        """The scenario without what a family does not support: ZeRO without replicas, and a framework that cannot run it."""
        scenario = self._scenario
        strategy = beginning(kind, scenario, scenario.strategy.training_ranks)
        if scenario.training.zero and not isinstance(strategy, ReplicaStrategy):
            update: dict[str, Any] = {"zero": 0}
            scenario = scenario.model_copy(update={"training": scenario.training.model_copy(update=update)})
        needed = features(strategy, scenario.training.precision, scenario.training.zero, scenario.cluster)
        return scenario if self.supports(*needed) else _with_default_framework(scenario)

    def _degrees(self) -> Iterator[Control]:
        fields = type(self._strategy).model_fields
        for field, label, term in _DEGREES:
            if field not in fields or (field == "servers" and self._strategy.kind != "parameter_server"):
                continue
            now = getattr(self._strategy, field)
            most = self._strategy.training_ranks if field != "period" else 4096
            options = [one for n in sorted({now, *COUNTS}) if n <= max(most, now) and (one := self._degree(field, n))]
            if len(options) > 1 or now > 1:
                yield choice(f"strategy.{field}", label, "", options, now, term=term)

    def _degree(self, name: str, degree: int) -> Option | None:
        """The choice of a degree; workers and microbatches follow. None where it is not possible."""
        if degree == getattr(self._strategy, name):
            return option(degree, f"{degree:,}", f"strategy.{name}={degree}")
        changes: list[dict[str, Any]] = [{name: degree}]
        if name == "stages" and isinstance(self._strategy, Hybrid):
            # a schedule with several chunks may not suit another number of stages
            changes.append({name: degree, "schedule": "1f1b", "chunks": 1})
        if name == "tensor" and degree == 1:
            changes.insert(0, {name: 1, "sequence_parallel": False})
        after = self._first_possible(changes)
        return None if after is None else option(degree, f"{degree:,}", *settings_between(self._scenario, after))

    def _first_possible(self, changes: list[dict[str, Any]]) -> Scenario | None:
        """The scenario with the first of some changes of its strategy that are valid on the same GPUs."""
        for update in changes:
            strategy = self._strategy.model_copy(update=update)
            try:
                return rearranged(self._base(strategy), strategy)
            except InputError:
                continue
        return None

    def _base(self, strategy: Strategy) -> Scenario:
        """The scenario, with the default framework if the named one does not support a strategy."""
        training = self._scenario.training
        needed = features(strategy, training.precision, training.zero, self._scenario.cluster)
        return self._scenario if self.supports(*needed) else _with_default_framework(self._scenario)

    def _schedule(self) -> Iterator[Control]:
        plan = self._strategy.plan
        if plan.stages == 1 or "schedule" not in type(self._strategy).model_fields:
            return
        options = []
        for schedule, label in _SCHEDULES.items():
            for chunks in _CHUNKED.get(schedule, (1,)):
                strategy = self._strategy.model_copy(update={"schedule": schedule, "chunks": chunks})
                if self._is_valid(strategy):
                    sets = (f"strategy.schedule={schedule}", f"strategy.chunks={chunks}")
                    options.append(option(f"{schedule} {chunks}", label + (f", VPP {chunks}" if chunks > 1 else ""), *sets))
        yield choice("strategy.schedule", "Schedule and VPP", "", options, f"{plan.schedule} {plan.chunks}",
                     term="Order of the microbatches in the stages. Virtual pipeline stages (VPP) cut each GPU's layers into "
                          "several parts, which shrinks the bubble and adds messages.")  # fmt: skip

    def _is_valid(self, strategy: Strategy) -> bool:
        try:
            check(self._scenario.copied(strategy=strategy))
        except InputError:
            return False
        return True

    def _switches(self) -> Iterator[Control]:
        """A switch for each option that is on or off, where it has an effect."""
        kind, given = type(self._strategy), self._scenario.option_values
        for name in rules_of(kind):
            if isinstance(getattr(self._strategy, name), bool) and has_effect(kind, name, given):
                yield self._switch(name)

    def _switch(self, name: str) -> Control:
        states = {True: "on", False: "off"}
        options = [option(str(is_on), word, f"strategy.{name}={str(is_on).lower()}") for is_on, word in states.items()]
        label, term = name.replace("_", " "), type(self._strategy).model_fields[name].description or ""
        return choice(f"strategy.{name}", label.capitalize(), "", options, getattr(self._strategy, name),
                      term=f"{term[:1].upper()}{term[1:]}.")  # fmt: skip

    def _memory(self) -> Iterator[Control]:
        training, plan, cluster = self._scenario.training, self._strategy.plan, self._scenario.cluster
        if "shard_over" in type(self._strategy).model_fields and plan.workers > 1 and not (plan.compression or plan.servers):
            options = [
                option(zero, words, f"training.zero={zero}",
                       *self.unless(self.supports(*features(self._strategy, training.precision, zero, cluster))))
                for zero, words in enumerate(_ZERO)
            ]  # fmt: skip
            yield choice("training.zero", "Sharding (ZeRO stage)", "", options, training.zero,
                         term="What data-parallel ranks shard instead of replicating. Stage 3 is FSDP: parameters are "
                              "all-gathered layer by layer.")  # fmt: skip
        layers = self._scenario.layers(plan.shard)
        scores = any(kept.group == "attention" for layer in layers for kept in layer.kept)
        selects = scores or self._scenario.framework.selective.products is not None
        kinds = {kind: label for kind, label in _RECOMPUTE.items() if selects or kind != "selective"}
        options = [option(kind, label, f"training.recompute={kind}") for kind, label in kinds.items()]
        yield choice("training.recompute", "Recompute", "", options, str(training.recompute),
                     term="Activation checkpointing: activations are dropped and computed again when needed.")  # fmt: skip

    def _served(self) -> Iterator[Control]:
        strategy: Any = self._strategy
        modes = {
            "synchronous": "synchronous (BSP)",
            "asynchronous": "asynchronous (ASP)",
            "stale_synchronous": "stale synchronous (SSP)",
        }
        options = []
        for mode, label in modes.items():
            bound = [f"strategy.bound={'3' if mode == 'stale_synchronous' else 'null'}"]
            backups = ["strategy.backups=0"] if strategy.backups and mode != "synchronous" else []
            options.append(option(mode, label, f"strategy.mode={mode}", *bound, *backups))
        yield choice("strategy.mode", "Consistency", "", options, strategy.mode, term="When workers get new parameters.")
        places = {"dedicated": "dedicated nodes", "colocated": "workers' nodes"}
        options = [
            option(place, label, f"strategy.placement={place}")
            for place, label in places.items()
            if self._is_valid(strategy.model_copy(update={"placement": place}))
        ]
        yield choice("strategy.placement", "Server placement", "", options, strategy.placement,
                     term="Dedicated servers have nodes of their own; others share the workers' network cards.")  # fmt: skip
        yield self._switch("overlap")
        if self._scenario.cluster.network is not None:
            yield self._nodes()

    def _nodes(self) -> Control:
        cluster, needed = self._scenario.cluster, self._strategy.nodes_needed(self._scenario.cluster)
        options = [option(count, f"{count:,}", f"cluster.nodes={count}") for count in COUNTS if needed <= count <= 4 * needed]
        return choice("cluster.nodes", "Nodes", f"{needed:,} are in use", options, cluster.nodes,
                      term="Nodes of the cluster: dedicated servers need some in addition to those of the GPUs.")  # fmt: skip


def _with_default_framework(scenario: Scenario) -> Scenario:
    """The scenario without a named framework."""
    copy = scenario.model_copy()
    object.__setattr__(copy, "__pydantic_fields_set__", scenario.model_fields_set - {"framework"})
    return copy
