"""Pipeline parallelism: contiguous stages of layers on different ranks, microbatches passing through them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import Field

from simulator.errors import FieldError
from simulator.model.layers import Layer, cut_into_stages
from simulator.program import Program, ProgramBuilder
from simulator.run import Phase
from simulator.spec import Count
from simulator.strategy.base import Strategy
from simulator.strategy.costs import Costs, Job
from simulator.strategy.fabric import Fabric
from simulator.strategy.schedule import Op, ScheduleName, order

# stages · microbatches of all replicas that are simulated; as many take 8 s and 0.6 GiB on a 2-core virtual machine
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
        replica = Replica(builder, Fabric(job.cluster, builder), job, self)
        replica.add(first_rank=0)
        replica.add_optimizers([[]] * self.stages)
        return builder.build()


class Replica:
    """Adds one pipeline's passes and transfers to a program.

    A receive is posted when its rank gets to it, and data moves once both sides are ready, as torch.distributed.pipelining
    and Megatron-LM do it. By stage: `passes` are the rows of its passes, `sends` of what follows from them to a neighbour,
    `last_rows` what its optimizer follows.
    """

    def __init__(self, builder: ProgramBuilder, fabric: Fabric, job: Job, strategy: Pipelined) -> None:
        self.builder = builder
        self.fabric = fabric
        self.job = job
        self.strategy = strategy
        self.ranges = cut_into_stages(job.layers, strategy.stages)
        self.costs: Costs = job.costs(strategy.microbatches)
        stages = range(strategy.stages)
        self.orders = [order(strategy.schedule, stage, strategy.stages, strategy.microbatches) for stage in stages]

    def add(self, first_rank: int, name: str = "stage {stage}", multiplicity: int = 1) -> None:
        """Adds ranks first_rank, first_rank + 1, … with their passes and transfers."""
        per_node = self.job.cluster.node.devices
        stages = range(len(self.ranges))
        self.nodes = [(first_rank + stage) // per_node for stage in stages]
        self.ranks = [
            self.builder.rank(
                name.format(stage=stage), multiplicity=multiplicity, uses=self.fabric.compute_uses(self.nodes[stage])
            )
            for stage in stages
        ]
        self.passes: list[dict[Op, int]] = []
        self.last_rows: list[int] = []
        self.waits: dict[int, list[int]] = {}
        self.send_waits: list[list[tuple[int, list[int]]]] = [[] for _ in stages]
        self.sends: list[dict[Op, int]] = [{} for _ in stages]
        for stage in stages:
            self._add_passes(stage)
        for microbatch in range(self.strategy.microbatches):
            for stage in stages[:-1]:
                self._add_transfer(Op(True, microbatch), stage, stage + 1)
                self._add_transfer(Op(False, microbatch), stage + 1, stage)
        for stage in stages:
            self._wait_for_sends(stage)

    def add_optimizers(self, after: Sequence[Sequence[int]]) -> None:
        """Adds each stage's optimizer step, once `after[stage]` and the stage's sends are done."""
        for stage, rank in enumerate(self.ranks):
            parameters = float(self.costs.parameters[self.ranges[stage]].sum())
            self.builder.compute(rank, Phase.OPTIMIZER, self.job.optimizer_s(parameters), after[stage], stage)

    def _add_passes(self, stage: int) -> None:
        """The stage's main lane: its passes in order, and where it waits for its own sends."""
        layers, rank = self.ranges[stage], self.ranks[stage]
        seconds = {True: float(self.costs.forward_s[layers].sum()), False: float(self.costs.backward_s[layers].sum())}
        # where the step begins on this rank: its first receive is posted here
        self.builder.wait(rank, Phase.WAIT, (), stage)
        passes: dict[Op, int] = {}
        last_forward = max(i for i, op in enumerate(self.orders[stage]) if op.forward)
        for i, op in enumerate(self.orders[stage]):
            phase = Phase.FORWARD if op.forward else Phase.BACKWARD
            waits: list[int] = []
            passes[op] = self.builder.compute(rank, phase, seconds[op.forward], waits, stage, op.microbatch)
            self.waits[passes[op]] = waits
            if self.strategy.schedule == "gpipe" and i == last_forward:
                self._add_wait_for_sends(stage)
        self.passes.append(passes)
        self.last_rows.append(self._add_wait_for_sends(stage))

    def _add_wait_for_sends(self, stage: int) -> int:
        """A wait for all that the stage has sent by then; the sends themselves are filled in later."""
        waits: list[int] = []
        row = self.builder.wait(self.ranks[stage], Phase.SEND, waits, stage)
        self.send_waits[stage].append((row, waits))
        return row

    def _add_transfer(self, op: Op, source: int, target: int) -> None:
        """The activation (or its gradient) between two stages, once made on one side and awaited on the other."""
        made, used = self.passes[source][op], self.passes[target][op]
        # a lane's rows are added one after another: the one before is where the receive is posted
        awaited = used - 1
        boundary = max(source, target)
        size_bytes = float(self.costs.output_bytes[self.ranges[boundary].start - 1])
        nodes = self.nodes[source], self.nodes[target]
        if nodes[0] == nodes[1]:
            path = self.fabric.inside(nodes[0], f"rank {self.ranks[source]}", f"rank {self.ranks[target]}")
        else:
            path = self.fabric.between(*nodes)
        ranks = self.ranks[source], self.ranks[target]
        row = self.builder.transfer(*ranks, size_bytes, path, Phase.SEND, (made, awaited), source, op.microbatch)
        self.waits[used].append(row)
        self.sends[source][op] = row

    def _wait_for_sends(self, stage: int) -> None:
        """A stage waits for what it has sent: gpipe when it turns from forward to backward, 1f1b whenever it turns, both at
        the end of the step."""
        sends = self.sends[stage]
        if self.strategy.schedule == "1f1b":
            for previous, op in itertools.pairwise(self.orders[stage]):
                if previous.forward != op.forward and previous in sends:
                    self.waits[self.passes[stage][op]].append(sends[previous])
        for row, waits in self.send_waits[stage]:
            waits += [sent for op, sent in sends.items() if self.passes[stage][op] < row]
