"""Configurations: ways to train one scenario's model, as columns of numbers, a row each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.analysis.planner.estimate.factorize import Distinct, Numbers, combined, distinct, taken
from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.model.layers import Counted, Layer, Shard, glued_ends
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute
from scaleproof.simulator.scenario.framework_choice import planned_fields
from scaleproof.simulator.scenario.gradient_precision import gradient_sizes
from scaleproof.simulator.scenario.schema import Batch, Scenario
from scaleproof.simulator.strategy import Hybrid
from scaleproof.simulator.strategy.compile import check_size
from scaleproof.simulator.strategy.layout.mesh import ORDER, Axis
from scaleproof.simulator.strategy.pipeline import schedule as schedules
from scaleproof.simulator.strategy.pipeline.schedule import ScheduleName
from scaleproof.simulator.strategy.plan import Plan

_KEPT: Final = (
    "prefetch", "algorithm", "account_for_embedding", "account_for_loss", "overlap_experts", "node_limit",
    "deduplicated", "dispatch_precision", "combine_precision",
)  # fmt: skip


@dataclass(frozen=True)
class Space:
    """What may be chosen for a scenario, whose model, cluster, batch and all else stay.

    ranks: that train, of which tensor · context · stages · workers is one. Of the degrees those are taken that divide what they
    must. expert_tensor: None for as many as `tensor`. samples: of a microbatch. buckets_bytes: where buckets of gradients
    close. orders: of axes, the innermost first.
    """

    scenario: Scenario
    ranks: tuple[int, ...]
    tensor: tuple[int, ...] = (1,)
    context: tuple[int, ...] = (1,)
    expert: tuple[int, ...] = (1,)
    expert_tensor: tuple[int | None, ...] = (None,)
    stages: tuple[int, ...] = (1,)
    chunks: tuple[int, ...] = (1,)
    samples: tuple[int, ...] = (1,)
    schedules: tuple[ScheduleName, ...] = ("1f1b",)
    zero: tuple[int, ...] = (0,)
    recompute: tuple[Recompute, ...] = (NO_RECOMPUTE,)
    sequence_parallel: tuple[bool, ...] = (False,)
    buckets_bytes: tuple[float, ...] = (25 * 2.0**20,)
    orders: tuple[tuple[Axis, ...], ...] = (ORDER,)

    @cached_property
    def kept(self) -> dict[str, Any]:
        """All other strategy fields: as the scenario's own hybrid gives them, else as its framework has them."""
        own = self.scenario.strategy
        found = planned_fields(self.scenario)
        found.pop("bucket_bytes")
        return found | ({name: getattr(own, name) for name in _KEPT} if isinstance(own, Hybrid) else {})

    def kept_over(self, stages: int) -> dict[str, Any]:
        """The same for pipelines of some stages, in which a framework may keep what ZeRO's stage 3 gathers."""
        reshard = self.kept["reshard"]
        return self.kept | {"reshard": stages == 1 if reshard is None else reshard}

    @cached_property
    def counted(self) -> Counted:
        """Ends of the model that count as blocks of stages, where there are several."""
        return Counted(*(bool(self.kept.get(f"account_for_{end}", False)) for end in Counted._fields))

    @cached_property
    def adds(self) -> bool:
        """Whether adding gradients to whole buffers takes time, which it does where microbatches do not scatter them."""
        return gradient_sizes(self.scenario.training, Hybrid(), self.scenario.framework).added > 0

    def options(self, one: Mapping[str, int]) -> dict[str, Any]:
        """The same as far as it suits one configuration's columns."""
        ranks, zero = one["tensor"] * one["context"] * one["stages"] * one["workers"], one.get("zero", 0)
        suits = {
            "account_for_embedding": one["stages"] > 1,
            "account_for_loss": one["stages"] > 1,
            "split_sends": one["tensor"] > 1 and one["stages"] > 1,
            "context_by": one["context"] > 1,
            "overlap_tensor": one["sequence_parallel"] == 1,
            "overlap_gather": zero in (1, 2),
            "prefetch": zero == 3,
            "reshard": zero == 3,
            "node_limit": one["expert"] > 1 and ranks > self.scenario.cluster.node.devices,
            **dict.fromkeys(("overlap_experts", "deduplicated", "dispatch_precision", "combine_precision"), one["expert"] > 1),
        }
        return {name: value for name, value in self.kept_over(one["stages"]).items() if suits.get(name, True)}

    def layers(self, shard: Shard) -> list[Layer] | None:
        """The model's layers, divided so; None where it cannot be."""
        try:
            return self.scenario.model.build_layers(shard)
        except FieldError:
            return None


class _Column:
    """A column of configurations, of the half that has it."""

    def __set_name__(self, owner: type[Configurations], name: str) -> None:
        self._name = name

    def __get__(self, found: Configurations, owner: type[Configurations]) -> Numbers:
        values = taken(found.half(self._name)[self._name], found.place(self._name))
        # from now on the instance itself has it
        found.__dict__[self._name] = values
        return values


@dataclass(frozen=True)
class Configurations:
    """Columns of one length. What `schedule`, `recompute`, `bucket` and `order` number is in the space's lists. samples: of a
    microbatch. expert_tensor: 0 for None.

    Millions of configurations are combinations of few halves: `shapes`, how a model and its samples are divided, and `rests`,
    all that is left to choose. shape, rest: the row of each half's columns that a configuration has.
    """

    space: Space
    shapes: Mapping[str, Numbers]
    rests: Mapping[str, Numbers]
    shape: Numbers
    rest: Numbers

    tensor = _Column()
    context = _Column()
    expert = _Column()
    expert_tensor = _Column()
    stages = _Column()
    chunks = _Column()
    workers = _Column()
    samples = _Column()
    microbatches = _Column()
    schedule = _Column()
    zero = _Column()
    recompute = _Column()
    sequence_parallel = _Column()
    bucket = _Column()
    order = _Column()

    def __len__(self) -> int:
        return len(self.shape)

    def half(self, name: str) -> Mapping[str, Numbers]:
        """The half that has a column."""
        return self.rests if name in _REST else self.shapes

    def place(self, name: str) -> Numbers:
        """In which row of that half each configuration is."""
        return self.rest if name in _REST else self.shape

    def take(self, rows: Any) -> Configurations:
        """Some of them."""
        return Configurations(self.space, self.shapes, self.rests, self.shape[rows], self.rest[rows])

    def distinct(self, *names: str) -> Distinct:
        """Which of them are alike in some columns."""
        return self.alike(*(self._codes(half, [name for name in names if name in half]) for half in (self.shapes, self.rests)))

    def alike(self, shapes: Numbers, rests: Numbers) -> Distinct:
        """Which of them are alike in codes of the rows of their halves."""
        return combined([(shapes, self.shape), (rests, self.rest)])

    def _codes(self, half: Mapping[str, Numbers], names: Sequence[str]) -> Numbers:
        """Of the rows of a half by some of its columns."""
        columns = [half[name] for name in names] or [np.zeros(len(half["tensor" if half is self.shapes else "zero"]), np.int64)]
        return distinct(*columns).code

    def row(self, row: int) -> dict[str, Any]:
        """One of them, in the words that scenarios have."""
        space = self.space
        numbers: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in COLUMNS}
        return numbers | {
            "framework": space.scenario.framework.name,
            "schedule": space.schedules[numbers["schedule"]],
            "recompute": str(space.recompute[numbers["recompute"]]),
            "sequence_parallel": bool(numbers["sequence_parallel"]),
            "bucket_bytes": space.buckets_bytes[numbers.pop("bucket")],
            "order": list(space.orders[numbers["order"]]),
            "expert_tensor": numbers["expert_tensor"] or None,
        }

    def scenario(self, row: int) -> Scenario:
        """The scenario of one. Raises FieldError where it is not valid after all."""
        space, base = self.space, self.space.scenario
        one = {name: int(getattr(self, name)[row]) for name in COLUMNS}
        options = space.options(one)
        strategy = Hybrid(
            workers_=one["workers"], stages_=one["stages"], tensor=one["tensor"], context=one["context"], expert=one["expert"],
            expert_tensor=one["expert_tensor"] or None, chunks=one["chunks"], balance="layers",
            microbatches_=one["microbatches"], schedule=space.schedules[one["schedule"]],
            sequence_parallel=bool(one["sequence_parallel"]), order=space.orders[one["order"]], **options,
        )  # fmt: skip
        # sizes are read from text alone
        strategy = strategy.model_copy(update={"bucket_bytes": space.buckets_bytes[one["bucket"]]})
        training = base.training.model_copy(update={"zero": one["zero"], "recompute": space.recompute[one["recompute"]]})
        given = {name: getattr(base, name) for name in Scenario.model_fields}
        given |= {"strategy": strategy, "training": training, "batch": Batch(total=base.total_samples)}
        return Scenario(**given)


_NONE: Final = np.empty(0, dtype=np.int64)
_REST: Final = ("zero", "recompute", "bucket", "order")
_SHAPE: Final = (
    "tensor", "context", "expert", "expert_tensor", "stages", "workers", "sequence_parallel", "chunks", "samples", "schedule",
    "microbatches",
)  # fmt: skip
COLUMNS: Final = (*_SHAPE, *_REST)


def every(space: Space) -> Configurations:
    """All valid ones. Where gradients are not summed, ZeRO and buckets are not varied; where a schedule has one chunk a rank,
    chunks are not."""
    rests = np.array(list(itertools.product(*_rest_axes(space))), dtype=np.int64).T
    shapes, suiting = [np.empty((0, len(_SHAPE)), dtype=np.int64)], [_NONE]
    passed: dict[tuple[int, int, int, int], Numbers] = {}
    for degrees, layers in _degrees(space):
        first, last = glued_ends(layers)
        ends = sum(space.counted) if degrees["stages"] > 1 else 0
        # experts' tokens move next to another microbatch's compute
        least = 2 if space.options(degrees).get("overlap_experts") else 1
        key = degrees["stages"], degrees["workers"], last - first + ends, least
        if key not in passed:
            passed[key] = _passed(space, *key)
        own = np.tile([*degrees.values()], (len(passed[key]), 1))
        shapes.append(np.hstack([own, passed[key]]))
        suiting += [np.flatnonzero(_suit(space, degrees, layers, rests))] * len(own)
    # each column's values one after another, which numpy takes from without a copy
    shaped = np.ascontiguousarray(np.concatenate(shapes).T)
    columns = dict(zip(_SHAPE, shaped, strict=True)), dict(zip(_REST, rests, strict=True))
    shape = np.repeat(np.arange(len(suiting) - 1), [len(own) for own in suiting[1:]])
    return Configurations(space, *columns, shape, np.concatenate(suiting))


def _rest_axes(space: Space) -> Iterator[Sequence[int]]:
    yield space.zero
    yield from (range(len(choices)) for choices in (space.recompute, space.buckets_bytes, space.orders))


def _suit(space: Space, degrees: Mapping[str, int], layers: Sequence[Layer], rests: Numbers) -> NDArray[np.bool_]:
    """Which of all that is left to choose go with some degrees."""
    zero, recompute, bucket, order = rests
    suited = np.array([one.suits(layers) for one in space.recompute], dtype=np.bool_)
    # layers are gathered and scattered one by one in ZeRO's third stage, whatever buckets are; one axis has no order
    suits = ~((zero == 3) & (bucket > 0))
    if degrees["stages"] == 1 or degrees["workers"] == 1:
        suits &= order == 0
    if not _plan(degrees).averages:
        suits &= (zero == space.zero[0]) & (bucket == 0)
    result: NDArray[np.bool_] = suits & suited[recompute]
    return result


def _degrees(space: Space) -> Iterator[tuple[dict[str, int], list[Layer]]]:
    """Degrees that divide what they must, and the layers that follow."""
    total = space.scenario.total_samples
    axes = space.ranks, space.tensor, space.context, space.expert, space.expert_tensor, space.stages, space.sequence_parallel
    layers: dict[Shard, list[Layer] | None] = {}
    for ranks, tensor, context, expert, expert_tensor, stages, sequence in itertools.product(*axes):
        workers, rest = divmod(ranks, tensor * context * stages)
        if rest or workers == 0 or total % workers or (sequence and tensor == 1):
            continue
        # where nothing is folded, expert_tensor says nothing
        if expert_tensor is not None and expert_tensor >= tensor and (expert == 1 or context == 1):
            continue
        degrees = {
            "tensor": tensor, "context": context, "expert": expert, "expert_tensor": expert_tensor or 0, "stages": stages,
            "workers": workers, "sequence_parallel": int(sequence),
        }  # fmt: skip
        plan = replace(_plan(degrees), context_by=space.options(degrees).get("context_by", "ring"))
        shard = plan.shard
        if shard not in layers:
            layers[shard] = space.layers(shard)
        found = layers[shard]
        if found is not None and _divides(plan, any(layer.expert_parameters for layer in found)):
            yield degrees, found


def _plan(degrees: Mapping[str, int]) -> Plan:
    """The plan of some degrees."""
    return Plan(
        workers=degrees["workers"], stages=degrees["stages"], tensor=degrees["tensor"], context=degrees["context"],
        expert=degrees["expert"], expert_tensor=degrees["expert_tensor"] or None,
        sequence_parallel=bool(degrees["sequence_parallel"]),
    )  # fmt: skip


def _divides(plan: Plan, experts: bool) -> bool:
    """Whether experts can be divided so."""
    try:
        plan.check_experts(experts)
    except FieldError:
        return False
    return True


def _passed(space: Space, stages: int, workers: int, blocks: int, least: int) -> Numbers:
    """How samples are divided, and in which order they are passed, where so many blocks of layers are cut into stages: chunks,
    samples, schedules and microbatches, `least` of these or more, shape (rows, 4)."""
    per_worker = space.scenario.total_samples // workers
    chunks = [chunks for chunks in space.chunks if stages * chunks <= blocks]
    samples = [samples for samples in space.samples if per_worker % samples == 0]
    rows = [
        (chunk, sample, schedule, per_worker // sample)
        for chunk, sample, (schedule, name) in itertools.product(chunks, samples, enumerate(space.schedules))
        if per_worker // sample >= least and _is_valid(name, stages, per_worker // sample, chunk)
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 4)


@lru_cache(maxsize=100_000)
def _is_valid(schedule: ScheduleName, stages: int, microbatches: int, chunks: int) -> bool:
    """Whether the schedule has an order for such numbers; of a single stage that of 1F1B alone, which all have."""
    if stages == 1 and (schedule != "1f1b" or chunks > 1):
        return False
    try:
        schedules.check(schedule, stages, microbatches, chunks)
        check_size(Plan(stages=stages, chunks=chunks, microbatches=microbatches))
    except FieldError:
        return False
    return True
