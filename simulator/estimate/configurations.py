"""Configurations: ways to train one scenario's model, as columns of numbers, a row each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from simulator.errors import FieldError
from simulator.model.layers import Layer, Shard, glued_ends
from simulator.recompute import NO_RECOMPUTE, Recompute
from simulator.scenario import Batch, Scenario
from simulator.strategy import Hybrid
from simulator.strategy import schedule as schedules
from simulator.strategy.grid import ORDER, Axis
from simulator.strategy.plan import Plan
from simulator.strategy.replicas import check_size
from simulator.strategy.schedule import ScheduleName

Numbers = NDArray[np.int64]

_KEPT: Final = (
    "overlap", "overlap_sends", "overlap_tensor", "context_by", "split_sends", "overlap_gather", "gradient_bytes", "prefetch",
    "reshard", "algorithm",
)  # fmt: skip


@dataclass(frozen=True)
class Space:
    """What may be chosen for a scenario, whose model, cluster, batch and all else stay.

    ranks: that train, of which tensor · context · stages · workers is one. Of the degrees those are taken that divide what they
    must. samples: of a microbatch. buckets_bytes: where buckets of gradients close. orders: of axes, the innermost first.
    """

    scenario: Scenario
    ranks: tuple[int, ...]
    tensor: tuple[int, ...] = (1,)
    context: tuple[int, ...] = (1,)
    expert: tuple[int, ...] = (1,)
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
        """What the scenario's own strategy says of all else."""
        own = self.scenario.strategy
        return {name: getattr(own, name) for name in _KEPT} if isinstance(own, Hybrid) else {"overlap": True}

    def options(self, tensor: int, context: int, stages: int, zero: int, sequence_parallel: int) -> dict[str, Any]:
        """The same as far as it suits such degrees."""
        suits = {
            "split_sends": tensor > 1 and stages > 1,
            "context_by": context > 1,
            "overlap_tensor": sequence_parallel == 1,
            "overlap_gather": zero in (1, 2),
            "prefetch": zero == 3,
            "reshard": zero == 3,
        }
        return {name: value for name, value in self.kept.items() if suits.get(name, True)}

    def layers(self, shard: Shard) -> list[Layer] | None:
        """The model's layers, divided so; None where it cannot be."""
        try:
            return self.scenario.model.build_layers(shard)
        except FieldError:
            return None


@dataclass(frozen=True)
class Configurations:
    """Columns of one length. What `schedule`, `recompute`, `bucket` and `order` number is in the space's lists. samples: of a
    microbatch."""

    space: Space
    tensor: Numbers
    context: Numbers
    expert: Numbers
    stages: Numbers
    chunks: Numbers
    workers: Numbers
    samples: Numbers
    microbatches: Numbers
    schedule: Numbers
    zero: Numbers
    recompute: Numbers
    sequence_parallel: Numbers
    bucket: Numbers
    order: Numbers

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: Any) -> Configurations:
        """Some of them."""
        return Configurations(self.space, **{name: getattr(self, name)[rows] for name in COLUMNS})

    def row(self, row: int) -> dict[str, Any]:
        """One of them, in the words that scenarios have."""
        space = self.space
        numbers: dict[str, Any] = {name: int(getattr(self, name)[row]) for name in COLUMNS}
        return numbers | {
            "schedule": space.schedules[numbers["schedule"]],
            "recompute": str(space.recompute[numbers["recompute"]]),
            "sequence_parallel": bool(numbers["sequence_parallel"]),
            "bucket_bytes": space.buckets_bytes[numbers.pop("bucket")],
            "order": list(space.orders[numbers["order"]]),
        }

    def scenario(self, row: int) -> Scenario:
        """The scenario of one. Raises FieldError where it is not valid after all."""
        space, base = self.space, self.space.scenario
        one = {name: int(getattr(self, name)[row]) for name in COLUMNS}
        options = space.options(*(one[name] for name in ("tensor", "context", "stages", "zero", "sequence_parallel")))
        strategy = Hybrid(
            workers_=one["workers"], stages_=one["stages"], tensor=one["tensor"], context=one["context"], expert=one["expert"],
            chunks=one["chunks"], microbatches_=one["microbatches"], schedule=space.schedules[one["schedule"]],
            sequence_parallel=bool(one["sequence_parallel"]), order=space.orders[one["order"]], **options,
        )  # fmt: skip
        # sizes are read from text alone
        strategy = strategy.model_copy(update={"bucket_bytes": space.buckets_bytes[one["bucket"]]})
        training = base.training.model_copy(update={"zero": one["zero"], "recompute": space.recompute[one["recompute"]]})
        given = {name: getattr(base, name) for name in Scenario.model_fields}
        given |= {"strategy": strategy, "training": training, "batch": Batch(total=base.total_samples)}
        return Scenario(**given)


_REST: Final = ("zero", "recompute", "bucket", "order")
COLUMNS: Final = tuple(one.name for one in fields(Configurations) if one.name != "space")


def every(space: Space) -> Configurations:
    """All valid ones. Where gradients are not summed, ZeRO and buckets are not varied; where a schedule has one chunk a rank,
    chunks are not."""
    parts = [part for degrees in _degrees(space) for part in [_with_rest(space, *degrees)] if part is not None]
    if not parts:
        return Configurations(space, **{name: np.empty(0, dtype=np.int64) for name in COLUMNS})
    return Configurations(space, **{name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def _degrees(space: Space) -> Iterator[tuple[dict[str, int], list[Layer]]]:
    """Degrees that divide what they must, and the layers that follow."""
    total = space.scenario.total_samples
    axes = space.ranks, space.tensor, space.context, space.expert, space.stages, space.sequence_parallel
    layers: dict[Shard, list[Layer] | None] = {}
    for ranks, tensor, context, expert, stages, sequence in itertools.product(*axes):
        workers, rest = divmod(ranks, tensor * context * stages)
        if rest or workers == 0 or total % workers or workers % expert or (sequence and tensor == 1):
            continue
        shard = Shard(
            tensor, sequence, expert, context, space.options(tensor, context, stages, 0, sequence).get("context_by", "ring")
        )
        if shard not in layers:
            layers[shard] = space.layers(shard)
        found = layers[shard]
        if found is None or (expert > 1 and not any(layer.expert_parameters for layer in found)):
            continue
        degrees = {
            "tensor": tensor, "context": context, "expert": expert, "stages": stages, "workers": workers,
            "sequence_parallel": int(sequence),
        }  # fmt: skip
        yield degrees, found


def _with_rest(space: Space, degrees: dict[str, int], layers: Sequence[Layer]) -> dict[str, Numbers] | None:
    """All that is left to choose for some degrees; None where nothing is valid."""
    first, last = glued_ends(layers)
    summed = degrees["workers"] * degrees["context"] > 1
    scores = any(kept.group == "attention" for layer in layers for kept in layer.kept)
    per_worker = space.scenario.total_samples // degrees["workers"]
    axes = {
        "chunks": [chunks for chunks in space.chunks if degrees["stages"] * chunks <= last - first],
        "samples": [samples for samples in space.samples if per_worker % samples == 0],
        "schedule": range(len(space.schedules)),
        "zero": space.zero if summed else space.zero[:1],
        "recompute": [i for i, one in enumerate(space.recompute) if scores or one.kind != "selective"],
        "bucket": range(len(space.buckets_bytes) if summed else 1),
        "order": range(len(space.orders)),
    }
    suiting = [
        (chunks, samples, schedule)
        for chunks, samples, schedule in itertools.product(axes["chunks"], axes["samples"], axes["schedule"])
        if _is_valid(space.schedules[schedule], degrees["stages"], per_worker // samples, chunks)
    ]
    if not suiting:
        return None
    alike = degrees["stages"] == 1 or degrees["workers"] == 1
    rest = np.array(
        [
            (zero, recompute, bucket, order)
            for zero, recompute, bucket, order in itertools.product(*(axes[name] for name in _REST))
            # layers are gathered and scattered one by one in ZeRO's third stage, whatever buckets are; one axis has no order
            if not (zero == 3 and bucket) and not (alike and order)
        ]
    )
    chosen = np.repeat(np.array(suiting), len(rest), axis=0)
    rest = np.tile(rest, (len(suiting), 1))
    columns = {name: np.full(len(chosen), value) for name, value in degrees.items()}
    columns |= dict(zip(("chunks", "samples", "schedule"), chosen.T, strict=True))
    columns |= dict(zip(_REST, rest.T, strict=True))
    return columns | {"microbatches": per_worker // columns["samples"]}


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
