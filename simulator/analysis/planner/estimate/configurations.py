"""Configurations: ways to train one scenario's model, as columns of numbers with one row each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.errors import FieldError
from scaleproof.simulator.frameworks import Framework
from scaleproof.simulator.model.layers import Counted, Layer, Shard, block_range
from scaleproof.simulator.model.recompute import NO_RECOMPUTE, Recompute
from scaleproof.simulator.parallelism import Hybrid
from scaleproof.simulator.parallelism.mesh import ORDER, Axis
from scaleproof.simulator.parallelism.option_rules import is_accepted
from scaleproof.simulator.parallelism.plan import Plan, check_size
from scaleproof.simulator.parallelism.stages import Balance, ScheduleName, check_schedule
from scaleproof.simulator.parallelism.used_devices import placed
from scaleproof.simulator.scenario.framework_choice import default_framework, planned_fields
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.scenario.training import gradient_sizes

Numbers = NDArray[np.int64]
# Up to this many possible keys per row a table of all keys is faster than sorting the rows; keys are below the other number.
_DENSE: Final = 8
_MOST_KEYS: Final = 2**62
# One configuration by the names of columns.
Values = Mapping[str, int]
# Options of hybrids that plans neither search nor keep, as estimates do not model them.
_NOT_ESTIMATED: Final = ("kind", "servers", "balance", "shares", "micro_batch_size", "scatter", "shard_over", "compression")
# Columns that are fields of plans.
_PLANNED: Final = ("workers", "stages", "chunks", "tensor", "context", "expert", "microbatches")
_DEFAULTS: Final = Plan()
# Columns that decide which options apply.
_RULED: Final = ("tensor", "context", "expert", "stages", "workers", "sequence_parallel", "zero", "microbatches")


@dataclass(frozen=True)
class Space:
    """Choices for a scenario, whose model, cluster, batch and other fields stay fixed.

    ranks: number of ranks, the product tensor · context · stages · workers. Combinations of degrees that do not divide what
    they must are left out. expert_tensor: None for the same as `tensor`. samples: per microbatch. buckets_bytes: sizes at which
    buckets of gradients close. orders: of axes, the innermost first. by_default: whether layouts of which the scenario's
    framework is not the default are left out. blocks: numbers of blocks of each stage, None for about equal ones. kind: of the
    nodes whose devices all ranks have, None for that of each rank's own node. tried: values of strategy fields that other
    spaces of a plan do not have, in place of those that are kept. `selective` in `recompute` means what the framework calls so.
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
    by_default: bool = False
    blocks: tuple[tuple[int, ...] | None, ...] = (None,)
    kind: int | None = None
    tried: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        meant = tuple(one.meant_by(self.scenario.framework.selective) for one in self.recompute)
        object.__setattr__(self, "recompute", meant)

    @cached_property
    def kept(self) -> dict[str, Any]:
        """Values of all other strategy fields: those of the scenario's own hybrid strategy, else its framework's."""
        own, found = self.scenario.strategy, planned_fields(self.scenario)
        found.pop("bucket_bytes")
        searched = {*COLUMNS, "bucket_bytes", *_NOT_ESTIMATED}
        given = Hybrid.model_fields.keys() - searched if isinstance(own, Hybrid) else ()
        return {name: getattr(own, name) for name in given} | found | {**self.tried}

    def reshards(self, stages: int) -> bool:
        """Whether pipelines with some number of stages free the parameters that ZeRO's stage 3 gathers."""
        reshard = self.kept["reshard"]
        return stages == 1 if reshard is None else bool(reshard)

    @cached_property
    def counted(self) -> Counted:
        """Ends of the model that count as blocks of stages in pipelines."""
        return Counted(*(bool(self.kept.get(f"account_for_{end}", False)) for end in Counted._fields))

    @cached_property
    def adds(self) -> bool:
        """Whether adding gradients to whole buffers takes time, which it does where microbatches do not scatter them."""
        return gradient_sizes(self.scenario.training, Hybrid(), self.scenario.framework).added > 0

    def options(self, values: Values) -> dict[str, Any]:
        """Values of the other strategy fields that apply to a configuration, or to degrees without ZeRO's stage."""
        given: dict[str, Any] = {name: values[name] for name in _RULED if name in values}
        given |= {} if self.balance(values) == "layers" else {"balance": "blocks"}
        key = tuple(given.items())
        if key not in self._options:
            ranks = values["tensor"] * values["context"] * values["stages"] * values["workers"]
            given["nodes"] = self.scenario.cluster.nodes_of(ranks)
            kept = self.kept | {"reshard": self.reshards(values["stages"])}
            self._options[key] = {name: value for name, value in kept.items() if is_accepted(Hybrid, name, given)}
        return self._options[key].copy()

    @cached_property
    def _options(self) -> dict[tuple[tuple[str, Any], ...], dict[str, Any]]:
        return {}

    def balance(self, values: Values) -> Balance:
        """Numbers of blocks of each stage of a configuration, or what is balanced between stages."""
        return self.blocks[values.get("blocks", 0)] or "layers"

    def plan(self, values: Values) -> Plan:
        """The plan of a configuration, as its scenario's strategy returns it."""
        given: dict[str, Any] = {name: values[name] for name in _PLANNED}
        given |= {
            "expert_tensor": values["expert_tensor"] or None, "order": self.orders[values["order"]],
            "sequence_parallel": bool(values["sequence_parallel"]), "schedule": self.schedules[values["schedule"]],
            "bucket_bytes": self.buckets_bytes[values["bucket"]], "balance": self.balance(values), **self.options(values),
        }  # fmt: skip
        # a copy of defaults takes a fifth of the time of making them again
        return _DEFAULTS.model_copy(update=given)

    def default_framework(self, zero: int, **degrees: int) -> Framework:
        """The default framework of a hybrid with these degrees."""
        return default_framework(self.scenario, Hybrid.model_validate(degrees), zero)

    def layers(self, shard: Shard) -> Sequence[Layer] | None:
        """The model's layers with a sharding, None if the model cannot be sharded so."""
        try:
            return self.scenario.layers(shard)
        except FieldError:
            return None


class Distinct(NamedTuple):
    """Codes of rows that are equal in some columns. code: of each row, from 0 on. first: a row with each code."""

    code: Numbers
    first: Numbers

    def __len__(self) -> int:
        return len(self.first)


def distinct(*columns: Numbers) -> Distinct:
    """Codes of rows, from columns of one length that contain whole numbers from 0 on."""
    key, count = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        if count * size > _MOST_KEYS:
            key = np.unique(key, return_inverse=True)[1]
            count = len(key)
        key = key * size + column
        count *= size
    if count > _DENSE * len(key):
        _, first, code = np.unique(key, return_index=True, return_inverse=True)
        return Distinct(code, first)
    row = np.full(count, -1)
    # numpy keeps the last row that is written for each key
    row[key] = np.arange(len(key))
    occurs = row >= 0
    return Distinct((np.cumsum(occurs) - 1)[key], row[occurs])


@dataclass(frozen=True, eq=False)
class Configurations:
    """Columns of equal length. `schedule`, `recompute`, `bucket`, `order` and `blocks` are indices of the space's lists.
    samples: per microbatch. expert_tensor: 0 for None."""

    space: Space
    tensor: Numbers
    context: Numbers
    expert: Numbers
    expert_tensor: Numbers
    stages: Numbers
    workers: Numbers
    sequence_parallel: Numbers
    chunks: Numbers
    samples: Numbers
    schedule: Numbers
    microbatches: Numbers
    zero: Numbers
    recompute: Numbers
    bucket: Numbers
    order: Numbers
    blocks: Numbers

    @classmethod
    def of(cls, space: Space, rows: Sequence[Values]) -> Self:
        """The configurations of some rows."""
        return cls(space, *(np.array([row[name] for row in rows], dtype=np.int64) for name in COLUMNS))

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: Any) -> Configurations:
        """The configurations in some rows."""
        return Configurations(self.space, *(getattr(self, name)[rows] for name in COLUMNS))

    def values(self, rows: Numbers) -> Iterator[Values]:
        """Yields the configurations in some rows."""
        columns = [getattr(self, name)[rows].tolist() for name in COLUMNS]
        return (dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True))

    def distinct(self, *names: str) -> Distinct:
        """Codes of configurations that are equal in some columns."""
        return distinct(*(getattr(self, name) for name in names))

    @cached_property
    def fully_recomputed(self) -> Numbers:
        """For each configuration, the row of the otherwise equal one with full recomputation; -1 without such a row."""
        full = [number for number, recompute in enumerate(self.space.recompute) if recompute.kind == "full"]
        code = self.distinct(*(name for name in COLUMNS if name != "recompute")).code
        row_of = np.full(int(code.max(initial=0)) + 1, -1)
        is_full = np.isin(self.recompute, full[:1])
        row_of[code[is_full]] = np.flatnonzero(is_full)
        rows: Numbers = row_of[code]
        return rows

    @cached_property
    def used_devices(self) -> Numbers:
        """Number of devices of each node that the ranks of each configuration use."""
        cluster, order = self.space.scenario.cluster, self.space.orders
        degrees = self.distinct(*_DEGREES, "order")
        first = self.take(degrees.first)
        columns = np.array([getattr(first, name) for name in (*_DEGREES, "order")]).T.tolist()
        plans = (_plan(dict(zip(_DEGREES, own, strict=False))).model_copy(update={"order": order[own[-1]]}) for own in columns)
        used: Numbers = np.array([placed(cluster, plan).node.devices for plan in plans], dtype=np.int64)[degrees.code]
        return used

    def nodes(self) -> Numbers:
        """Number of nodes that each configuration needs."""
        ranks = self.tensor * self.context * self.stages * self.workers
        nodes: Numbers = -(-ranks // self.used_devices)
        return nodes

    def by_used_devices(self) -> Iterator[tuple[Numbers, Configurations]]:
        """Rows whose ranks use the same number of devices of each node, and these configurations on nodes used so."""
        cluster, used = self.space.scenario.cluster, self.used_devices
        for devices in np.unique(used).tolist():
            rows, whole = np.flatnonzero(used == devices), cluster.unplaced
            on = whole if devices == whole.node.devices else whole.using(devices)
            scenario = self.space.scenario if on is cluster else self.space.scenario.model_copy(update={"cluster": on})
            yield rows, replace(self.take(rows), space=replace(self.space, scenario=scenario))

    def row(self, row: int) -> dict[str, Any]:
        """One configuration, with the names and values of scenario fields."""
        space = self.space
        numbers: dict[str, Any] = dict(next(self.values(np.array([row]))))
        blocks = numbers.pop("blocks")
        return numbers | {
            "framework": space.scenario.framework.name,
            "schedule": space.schedules[numbers["schedule"]],
            "recompute": str(space.recompute[numbers["recompute"]]),
            "sequence_parallel": bool(numbers["sequence_parallel"]),
            "bucket_bytes": space.buckets_bytes[numbers.pop("bucket")],
            "order": list(space.orders[numbers["order"]]),
            "expert_tensor": numbers["expert_tensor"] or None,
            **(space.tried if numbers["expert"] > 1 else {}),
            **({} if space.blocks[blocks] is None else {"blocks": list(space.blocks[blocks] or ())}),
            **({} if (tables := space.scenario.strategy.plan.tables) is None else {"tables": tables.shard}),
            **({"offload": " and ".join(space.scenario.training.offload)} if space.scenario.training.offload else {}),
        }

    def scenario(self, row: int, shares: tuple[int, ...] | None = None) -> Scenario:
        """The scenario of one configuration. shares: samples of each worker, where they differ. Raises FieldError if it turns
        out to be invalid."""
        space, base = self.space, self.space.scenario
        (columns,) = self.values(np.array([row]))
        options = space.options(columns)
        sizes_bytes = {
            "bucket_bytes": space.buckets_bytes[columns["bucket"]], "first_bucket_bytes": options.pop("first_bucket_bytes"),
        }  # fmt: skip
        strategy = Hybrid(
            workers=columns["workers"], stages=columns["stages"], tensor=columns["tensor"],
            context=columns["context"], expert=columns["expert"],
            expert_tensor=columns["expert_tensor"] or None, chunks=columns["chunks"],
            balance=space.balance(columns), shares=shares, microbatches=columns["microbatches"],
            schedule=space.schedules[columns["schedule"]], sequence_parallel=bool(columns["sequence_parallel"]),
            order=space.orders[columns["order"]], **options,
        )  # fmt: skip
        # validation would parse sizes from text
        strategy = strategy.model_copy(update=sizes_bytes)
        training = base.training.model_copy(
            update={"zero": columns["zero"], "recompute": space.recompute[columns["recompute"]]}
        )
        total = sum(shares) if shares else columns["workers"] * columns["microbatches"] * columns["samples"]
        given = {name: getattr(base, name) for name in Scenario.model_fields}
        given |= {"strategy": strategy, "training": training, "batch": base.batch.with_total(total)}
        return Scenario(**given)


_DEGREES: Final = ("tensor", "context", "expert", "expert_tensor", "stages", "workers", "sequence_parallel")
COLUMNS: Final = (*_DEGREES, "chunks", "samples", "schedule", "microbatches", "zero", "recompute", "bucket", "order", "blocks")


def every(space: Space) -> Configurations:
    """All valid configurations of a space: degrees of parallelism, with each way to divide samples and to order passes, and
    each combination of the other choices.

    ZeRO and buckets are not varied where no gradients are summed, nor chunks where a schedule has one chunk per rank.
    """
    indices = (range(len(choices)) for choices in (space.recompute, space.buckets_bytes, space.orders))
    others = np.array(list(itertools.product(space.zero, *indices, [0])), dtype=np.int64)
    blocks = [np.empty((0, len(COLUMNS)), dtype=np.int64)]
    passes: dict[tuple[int, int, int, int], Numbers] = {}
    for degrees, layers in degrees_of(space):
        first, last = block_range(layers)
        ends = sum(space.counted) if degrees["stages"] > 1 else 0
        # experts' tokens are exchanged during another microbatch's compute
        least = 2 if space.options(degrees).get("overlap_experts") else 1
        key = degrees["stages"], degrees["workers"], last - first + ends, least
        if key not in passes:
            passes[key] = _passes(space, *key)
        suited = others[suits(space, degrees, layers, others.T)]
        count = len(passes[key]) * len(suited)
        own = np.tile([*degrees.values()], (count, 1))
        blocks.append(np.hstack([own, np.repeat(passes[key], len(suited), axis=0), np.tile(suited, (len(passes[key]), 1))]))
    return Configurations(space, *np.ascontiguousarray(np.concatenate(blocks).T))


def by_lengths(c: Configurations) -> Iterator[Configurations]:
    """Yields the configurations whose microbatches of samples of different lengths have the same number of samples, as padding
    depends on it, and whose workers wait for each other as often: each with a scenario that has these numbers."""
    base = c.space.scenario
    own = base.strategy if isinstance(base.strategy, Hybrid) else Hybrid()
    batched = distinct(c.workers, c.microbatches, c.samples, c.context, np.minimum(c.stages, 2), c.zero // 3)
    for number, values in enumerate(c.values(batched.first)):
        numbers: dict[str, Any] = {name: values[name] for name in ("workers", "microbatches", "context")}
        numbers |= {"stages": min(values["stages"], 2), "context_by": c.space.kept.get("context_by", "ring")}
        scenario = base.model_copy(
            update={
                "strategy": own.model_copy(update=numbers | {"micro_batch_size": None}),
                "training": base.training.model_copy(update={"zero": values["zero"] // 3 * 3}),
                "batch": base.batch.with_total(base.total_samples),
            }
        )
        yield replace(c.take(np.flatnonzero(batched.code == number)), space=replace(c.space, scenario=scenario))


def suits(space: Space, degrees: Mapping[str, int], layers: Sequence[Layer], rests: Numbers) -> NDArray[np.bool_]:
    """Which rows of the other choices are compatible with some degrees, shape (rows,)."""
    zero, recompute, bucket, order, _ = rests
    suited = np.array([configuration.suits(layers) for configuration in space.recompute], dtype=np.bool_)
    # ZeRO's stage 3 gathers and scatters layer by layer, without buckets; a single axis has no order
    suits = ~((zero == 3) & (bucket > 0))
    if space.by_default:
        own = space.scenario.framework.name
        given = {name: degrees[name] for name in ("workers", "tensor", "context", "expert", "stages")}
        suits &= np.isin(zero, [stage for stage in space.zero if space.default_framework(stage, **given).name == own])
    if degrees["stages"] == 1 or degrees["workers"] == 1:
        suits &= order == 0
    if not _plan(degrees).averages:
        suits &= (zero == space.zero[0]) & (bucket == 0)
    result: NDArray[np.bool_] = suits & suited[recompute]
    return result


def degrees_of(space: Space, divides: bool = True) -> Iterator[tuple[dict[str, int], Sequence[Layer]]]:
    """Degrees that divide what they must, and the layers that follow. divides: whether workers divide samples."""
    total = space.scenario.total_samples
    axes = space.ranks, space.tensor, space.context, space.expert, space.expert_tensor, space.stages, space.sequence_parallel
    layers: dict[Shard, Sequence[Layer] | None] = {}
    for ranks, tensor, context, expert, expert_tensor, stages, sequence in itertools.product(*axes):
        workers, rest = divmod(ranks, tensor * context * stages)
        if rest or workers == 0 or (divides and total % workers):
            continue
        if sequence and not is_accepted(Hybrid, "sequence_parallel", {"tensor": tensor}):
            continue
        # expert_tensor makes no difference where nothing is folded
        if expert_tensor is not None and expert_tensor >= tensor and (expert == 1 or context == 1):
            continue
        degrees = {
            "tensor": tensor, "context": context, "expert": expert, "expert_tensor": expert_tensor or 0, "stages": stages,
            "workers": workers, "sequence_parallel": int(sequence),
        }  # fmt: skip
        options = space.options(degrees)
        decided: dict[str, Any] = {name: options[name] for name in ("context_by", "dispatcher") if name in options}
        plan = _plan(degrees).model_copy(update=decided)
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


def _passes(space: Space, stages: int, workers: int, blocks: int, least: int) -> Numbers:
    """Ways to divide samples and to order passes over `blocks` blocks of layers: chunks, samples, schedules and microbatches,
    the latter no fewer than `least`, shape (rows, 4)."""
    per_worker = space.scenario.total_samples // workers
    chunks = [chunks for chunks in space.chunks if stages * chunks <= blocks]
    samples = [samples for samples in space.samples if per_worker % samples == 0]
    rows = [
        (chunk, sample, schedule, per_worker // sample)
        for chunk, sample, (schedule, name) in itertools.product(chunks, samples, enumerate(space.schedules))
        if per_worker // sample >= least and is_valid_schedule(name, stages, per_worker // sample, chunk)
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), 4)


@lru_cache(maxsize=100_000)
def is_valid_schedule(schedule: ScheduleName, stages: int, microbatches: int, chunks: int) -> bool:
    """Whether the schedule has an order for these numbers. A single stage has 1F1B only, which equals all others."""
    if stages == 1 and (schedule != "1f1b" or chunks > 1):
        return False
    try:
        check_schedule(schedule, stages, microbatches, chunks)
        check_size(Plan(stages=stages, chunks=chunks, microbatches=microbatches))
    except FieldError:
        return False
    return True
