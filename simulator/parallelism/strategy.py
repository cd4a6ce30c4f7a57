"""Base class of strategies, with the fields that users set and checks of these, and the registry of strategies by kind.

Other packages add theirs as entry points of the group `scaleproof.strategies`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, Self, Union, get_args

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.common.errors import FieldError, PluginError
from scaleproof.simulator.common.spec import Spec
from scaleproof.simulator.model.layers import Layer, cut_into_stages
from scaleproof.simulator.parallelism.plan import Plan

if TYPE_CHECKING:
    without_field = property
else:

    class without_field:  # noqa: N801 (a decorator)
        """A property of strategies that have no field of the same name; that of the others is the field's value."""

        def __init__(self, value: Callable[[Strategy], int]) -> None:
            self._value = value
            self.__doc__ = value.__doc__

        def __get__(self, strategy: Strategy | None, owner: type[Strategy]) -> int:
            if strategy is None:
                # pydantic would take it for the default of the field
                raise AttributeError
            return self._value(strategy)


class Strategy(Spec):
    """A way to train on several ranks.

    A worker is one replica of the model. It consists of `stages` pipeline stages, each of one or several ranks that share its
    layers. Servers are additional ranks. Strategies may have each of these numbers as a field.
    """

    model_config = ConfigDict(ignored_types=(without_field,))

    kind: str

    @without_field
    def workers(self) -> int:
        """Number of replicas of the model, which train on different samples."""
        return 1

    @without_field
    def stages(self) -> int:
        """Number of pipeline stages of each replica."""
        return 1

    @without_field
    def servers(self) -> int:
        """Number of ranks that store parameters and do not train."""
        return 0

    @without_field
    def microbatches(self) -> int:
        """Number of parts into which a worker's samples are divided."""
        return 1

    @property
    def fixed_samples(self) -> int | None:
        """Samples of a step and worker where the strategy decides them, else None."""
        return None

    @property
    def program_steps(self) -> int:
        """Optimizer steps of a worker in one step of the Program."""
        return 1

    def for_samples(self, samples_per_worker: int) -> Self:
        """The strategy with what depends on the samples of a step and worker. Raises FieldError where they do not suit it."""
        return self

    @cached_property
    def plan(self) -> Plan:
        """Division and schedule of the replicas."""
        return Plan(workers=self.workers, stages=self.stages, microbatches=self.microbatches)

    @property
    def training_ranks(self) -> int:
        """Number of ranks without the servers."""
        return self.plan.ranks

    @property
    def ranks(self) -> int:
        """Number of ranks, servers included."""
        return self.training_ranks + self.servers

    @property
    def waiting_ranks(self) -> int:
        """Number of ranks that wait for each other in each step, so that the slowest determines its duration."""
        return self.training_ranks

    def nodes_needed(self, cluster: Cluster) -> int:
        """Number of nodes of `cluster` that the ranks occupy."""
        return cluster.nodes_of(self.training_ranks)

    def communicates_in_nodes(self, cluster: Cluster) -> bool:
        """Whether ranks on the same node communicate."""
        return cluster.node.devices > 1

    def parts(self, layers: Sequence[Layer]) -> list[list[Layer]]:
        """Layers of a worker's model on each of its stages."""
        return [[layers[i] for i in part] for part in self.stage_layers(layers)]

    def stage_layers(self, layers: Sequence[Layer]) -> Sequence[Sequence[int]]:
        """Indices of the layers of each stage of the model."""
        return cut_into_stages(layers, self.stages)

    def worker_layers(self, layers: Sequence[Layer], samples_per_worker: float) -> Sequence[Layer]:
        """The layers as workers have them, who may have parts of some tensors. samples_per_worker: of a step."""
        return layers

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        """Checks that the strategy fits the model and the batch; raises FieldError."""
        if samples_per_worker % self.microbatches:
            nearest = nearest_divisor(samples_per_worker, self.microbatches)
            message = f"{self.microbatches} microbatches do not divide {samples_per_worker} samples; give {nearest}"
            raise FieldError(("strategy", "microbatches"), message)


def nearest_divisor(number: int, target: int) -> int:
    """The divisor of `number` closest to `target`; the smaller of two equally close ones."""
    candidates = (target + sign * distance for distance in range(target) for sign in (-1, 1))
    return next(divisor for divisor in candidates if number % divisor == 0)


class Plugins:
    """Objects of installed packages by kind of strategy: the entry points of a group, which are imported when first used.

    what: what an object is, for errors. built_in: kinds that no package may define.
    """

    def __init__(self, group: str, what: str, built_in: Collection[str]) -> None:
        self._group, self._what, self._built_in = group, what, built_in

    @cached_property
    def entries(self) -> dict[str, EntryPoint]:
        """Entry points by kind. Raises PluginError if a kind is defined twice."""
        entries: dict[str, EntryPoint] = {}
        for entry in entry_points(group=self._group):
            if entry.name in self._built_in or entry.name in entries:
                owner = _package(entries[entry.name]) if entry.name in entries else "scaleproof"
                text = f"{owner} also defines a {self._what} {entry.name!r}; uninstall one, or rename it"
                raise PluginError(f"{_package(entry)}: {text}")
            entries[entry.name] = entry
        return entries

    def load(self, kind: str) -> Any:
        """The object of a kind. Raises PluginError if it cannot be imported."""
        try:
            return self.entries[kind].load()
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise self.error(kind, f"cannot be imported ({reason}); fix the package, or uninstall it") from None

    def error(self, kind: str, problem: str) -> PluginError:
        """The error for an object that cannot be used."""
        entry = self.entries[kind]
        return PluginError(f"{_package(entry)}: the {self._what} {kind!r}, {entry.value}, {problem}")


class StrategyRegistry:
    """Strategies by `kind`: built-in ones, and those of installed packages.

    As an annotation of a pydantic field, it selects the strategy class by `kind`.
    """

    def __init__(self, *built_in: type[Strategy]) -> None:
        self._built_in: dict[str, type[Strategy]] = {strategy.model_fields["kind"].default: strategy for strategy in built_in}
        self.plugins = Plugins("scaleproof.strategies", "strategy", self._built_in)

    def names(self) -> list[str]:
        """All kinds, without importing plugins. Raises PluginError if two strategies have the same kind."""
        return [*self._built_in, *self.plugins.entries]

    def find(self, kind: object) -> type[Strategy] | None:
        """The strategy class of a kind, or None. Raises PluginError if its package is broken."""
        if not isinstance(kind, str):
            return None
        if kind in self._built_in:
            return self._built_in[kind]
        return self._loaded(kind) if kind in self.plugins.entries else None

    def _loaded(self, kind: str) -> type[Strategy]:
        """The strategy class of an installed package. Raises PluginError if it cannot be used."""
        strategy = self.plugins.load(kind)
        if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
            raise self.plugins.error(kind, "is not a subclass of scaleproof.plugin.Strategy; derive it from Strategy")
        field = strategy.model_fields["kind"]
        if get_args(field.annotation) != (kind,) or field.default != kind:
            raise self.plugins.error(kind, f"has a different kind; give it the field kind: Literal[{kind!r}] = {kind!r}")
        return strategy

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        built_in = handler.generate_schema(_among(self._built_in.values()))
        # serialise each strategy by its own class
        serialization = core_schema.simple_ser_schema("any")
        return core_schema.no_info_wrap_validator_function(self._validated, built_in, serialization=serialization)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """JSON schema of all strategies. Raises PluginError if a package is broken."""
        installed = map(self._loaded, self.plugins.entries)
        return handler(TypeAdapter(_among([*self._built_in.values(), *installed])).core_schema)

    def _validated(self, value: Any, built_in: Callable[[Any], Strategy]) -> Strategy:
        if isinstance(value, Strategy):
            return value
        kind = value.get("kind") if isinstance(value, dict) else None
        strategy = self.find(kind)
        return built_in(value) if strategy is None or kind in self._built_in else strategy.model_validate(value)


def _among(strategies: Any) -> Any:
    """Union of strategy types, discriminated by kind."""
    return Annotated[Union[tuple(strategies)], Field(discriminator="kind")]  # noqa: UP007


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
