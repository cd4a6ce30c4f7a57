"""Pipeline parallelism: contiguous stages of layers on different ranks, microbatches passing through them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simulator.errors import FieldError
from simulator.model.layers import Layer, cut_into_stages
from simulator.program import Program, ProgramBuilder, Rows
from simulator.run import Phase
from simulator.spec import Count
from simulator.strategy.base import Strategy
from simulator.strategy.costs import Costs, Job
from simulator.strategy.fabric import Fabric
from simulator.strategy.feeding import FIRST_SLOT, Feeding
from simulator.strategy.schedule import ScheduleName, slots

# stages · microbatches of all replicas that are simulated; as many take 6 s and 0.6 GiB on a 2-core virtual machine
_MOST_PASSES: Final = 200_000


class Pipelined(Strategy):
    """What strategies with stages have in common."""

    stages_: Count = Field(1, alias="stages")
    microbatches_: Count = Field(1, alias="microbatches")
    schedule: ScheduleName = "1f1b"

    @property
    def stages(self) -> int:
        return self.stages_

    @property
    def microbatches(self) -> int:
        return self.microbatches_

    def check(self, layers: Sequence[Layer], samples_per_worker: int) -> None:
        super().check(layers, samples_per_worker)
        self.check_size(1)
        if self.schedule == "1f1b" and self.microbatches < self.stages:
            numbers = f"{self.microbatches} for {self.stages}"
            message = f"1f1b needs at least as many microbatches as stages, got {numbers}; give {self.stages}, or gpipe"
            raise FieldError(("strategy", "microbatches"), message)

    def check_size(self, replicas: int) -> None:
        """Raises FieldError where a step has more passes than can be simulated one by one."""
        passes = replicas * self.stages * self.microbatches
        if passes > _MOST_PASSES:
            most = _MOST_PASSES // (replicas * self.stages)
            message = f"{passes} passes in a step are too many to simulate; give at most {most}"
            raise FieldError(("strategy", "microbatches"), message)


class Pipeline(Pipelined):
    """One replica of the model, cut into stages."""

    kind: Literal["pipeline"] = "pipeline"

    def compile(self, job: Job) -> Program:
        """The passes of every stage in the schedule's order, with the messages between stages."""
        builder = ProgramBuilder()
        replica = Replica(builder, Fabric(job.cluster, builder), Feeding(builder, job), job, self)
        replica.add(first_rank=0)
        replica.add_optimizers([[]] * self.stages)
        return builder.build()


class Replica:
    """Adds one pipeline's passes and transfers to a program.

    A receive is posted when its rank gets to it, and data moves once both sides are ready, as torch.distributed.pipelining
    and Megatron-LM do it. By stage: `places` (node and device), `ranks`, and `last_rows`, which its optimizer follows.
    """

    def __init__(self, builder: ProgramBuilder, fabric: Fabric, feeding: Feeding, job: Job, strategy: Pipelined) -> None:
        self.builder = builder
        self.fabric = fabric
        self.feeding = feeding
        self.job = job
        self.strategy = strategy
        self.ranges = cut_into_stages(job.layers, strategy.stages)
        self.costs: Costs = job.costs(strategy.microbatches)

    def add(self, first_rank: int, name: str = "stage {stage}", multiplicity: int = 1) -> None:
        """Adds ranks first_rank, first_rank + 1, … with their passes and transfers."""
        per_node = self.job.cluster.node.devices
        stages = range(len(self.ranges))
        self.places = [divmod(first_rank + stage, per_node) for stage in stages]
        self.nodes = [node for node, _ in self.places]
        self.ranks = [
            self.fabric.add_rank(
                name.format(stage=stage),
                self.job.unevenness,
                first_rank + stage,
                self.nodes[stage],
                multiplicity=multiplicity,
            )
            for stage in stages
        ]
        self.feeding.add(self.ranks[0], self.nodes[0], 1, multiplicity)
        lanes = self._add_lanes()
        last_rows = self.builder.computes(self.ranks, Phase.SEND, 0.0, stage=stages)
        sends = self._add_transfers(lanes)
        self._wait_for_sends(lanes, sends)
        self.builder.follow(last_rows[:, None], sends)
        self.last_rows: list[int] = last_rows.tolist()

    def add_optimizers(self, after: Sequence[Sequence[int]]) -> None:
        """Adds each stage's optimizer step, once `after[stage]` and the stage's sends are done."""
        for stage, rank in enumerate(self.ranks):
            parameters = float(self.costs.parameters[self.ranges[stage]].sum())
            work_s = self.job.optimizer_s(parameters, self.strategy.workers)
            self.builder.compute(rank, Phase.OPTIMIZER, work_s, after[stage], stage)

    def _add_lanes(self) -> _Lanes:
        """The passes of every stage in their order. Before them the step begins and the first receive is posted; where gpipe
        turns from forward to backward it waits for its sends."""
        stages, passes = np.arange(len(self.ranges))[:, None], np.arange(self.strategy.microbatches)
        forward, backward = slots(self.strategy.schedule, len(stages), len(passes))
        none = np.array([-1])
        parts = [
            (Phase.WAIT, none, np.full_like(stages, -1)),
            (Phase.FORWARD, passes, forward),
            (Phase.BACKWARD, passes, backward),
        ]
        if self.strategy.schedule == "gpipe":
            parts.append((Phase.SEND, none, forward[:, -1:] + 1))
        slot = np.concatenate([part for _, _, part in parts], axis=1)
        order = np.argsort(slot, axis=1)
        phase = np.concatenate([np.full(len(part), phase) for phase, part, _ in parts])[order]
        microbatch = np.concatenate([part for _, part, _ in parts])[order]
        # between the slots of passes there is one for messages
        slot = 2 * np.take_along_axis(slot, order, axis=1) + FIRST_SLOT + 2
        work_s = np.take_along_axis(self._work_s(), phase, axis=1)
        ranks = np.array(self.ranks)[:, None]
        rows = self.builder.computes(ranks, phase, work_s, stage=stages, microbatch=microbatch, slot=slot)
        return _Lanes(rows, phase, slot)

    def _work_s(self) -> NDArray[np.float64]:
        """Seconds of compute by stage and phase."""
        seconds = np.zeros((len(self.ranges), len(Phase)))
        for stage, layers in enumerate(self.ranges):
            seconds[stage, Phase.FORWARD] = self.costs.forward_s[layers].sum()
            seconds[stage, Phase.BACKWARD] = self.costs.backward_s[layers].sum()
        return seconds

    def _add_transfers(self, lanes: _Lanes) -> Rows:
        """Activations to the next stage and their gradients back, each once made on one side and awaited on the other.

        Returns the row of the message that each task of the lanes sends, −1 for none.
        """
        sends = np.full(lanes.rows.size, -1)
        slot, first = lanes.slot.ravel(), lanes.rows.flat[0]
        forward, backward = lanes.passes(Phase.FORWARD), lanes.passes(Phase.BACKWARD)
        neighbours = list(itertools.pairwise(range(len(self.ranges))))
        ways = [(a, b, b, forward) for a, b in neighbours] + [(b, a, b, backward) for a, b in neighbours]
        for source, target, boundary, passes in ways:
            made, used = passes[source], passes[target]
            # a receive is posted where the lane has got to just before it
            awaited = used - 1
            size_bytes = float(self.costs.output_bytes[self.ranges[boundary].start - 1])
            path = self.fabric.message(self.places[source], self.places[target], size_bytes)
            rows = self.builder.transfers(
                self.ranks[source], self.ranks[target], size_bytes, path, Phase.SEND, (made, awaited),
                stage=source, microbatch=np.arange(len(made)), slot=np.maximum(slot[made - first], slot[awaited - first]) + 1,
            )  # fmt: skip
            self.builder.follow(used, rows)
            sends[made - first] = rows
        return sends.reshape(lanes.rows.shape)

    def _wait_for_sends(self, lanes: _Lanes, sends: Rows) -> None:
        """A stage waits for what it has sent: gpipe when it turns from forward to backward, 1f1b whenever it turns."""
        if self.strategy.schedule == "gpipe":
            turn = lanes.rows[lanes.phase == Phase.SEND]
            self.builder.follow(turn[:, None], np.where(lanes.phase == Phase.FORWARD, sends, -1))
        else:
            turned = lanes.phase[:, 1:] != lanes.phase[:, :-1]
            self.builder.follow(lanes.rows[:, 1:][turned], sends[:, :-1][turned])


class _Lanes(NamedTuple):
    """Tasks of the main lanes in their order: row, phase and slot, each of shape (stages, tasks of a stage)."""

    rows: Rows
    phase: NDArray[np.int64]
    slot: NDArray[np.int64]

    def passes(self, phase: Phase) -> Rows:
        """Rows of the passes of a phase, shape (stages, microbatches)."""
        rows: Rows = self.rows[self.phase == phase].reshape(len(self.rows), -1)
        return rows
