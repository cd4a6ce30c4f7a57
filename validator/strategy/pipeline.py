"""Pipeline parallelism: torch.distributed.pipelining runs the schedule, a stage of ours notes what it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from simulator.model import cut_into_stages
from simulator.run import Phase
from simulator.strategy import Hybrid, Pipeline
from validator import model
from validator.recorder import Recorder
from validator.strategy.base import Context, Trainer, apply_update, name_parameters

SCHEDULES: Final = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def create(context: Context, strategy: Pipeline) -> Trainer:
    """The trainer of this rank's stage."""
    return StageTrainer(context, strategy, worker=0, stage=context.rank)


class StageTrainer(Trainer):
    """One stage of one worker's pipeline. group: the ranks of that worker in stage order, all ranks if None."""

    def __init__(
        self, context: Context, strategy: Pipeline | Hybrid, worker: int, stage: int, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(context)
        self.stage = stage
        self.layers = context.build(cut_into_stages(context.scenario.model.build_layers(), strategy.stages)[stage])
        self.batches = context.batches(worker)
        self.module = nn.Sequential(*self.layers.values())
        self.recorded = RecordedStage(self.recorder, self.module, stage, strategy.stages, context.device, group=group)
        self.optimizer = context.optimizer(self.module.parameters())
        self.microbatches = strategy.microbatches
        schedule = SCHEDULES[strategy.schedule]
        self.schedule = schedule(self.recorded, self.microbatches, self._loss, scale_grads=False)

    def step(self, index: int) -> None:
        batch = self.batches[index]
        inputs = (batch.inputs,) if self.recorded.is_first else ()
        self.schedule.step(*inputs, target=batch.targets if self.recorded.is_last else None, return_outputs=False)
        self.recorded.end_sends()
        self.average()
        apply_update(self.recorder, self.optimizer, stage=self.stage)

    def average(self) -> None:
        """Averages gradients over workers, of which there is one."""

    def parameters(self) -> Mapping[str, Tensor]:
        return name_parameters(self.layers)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """A microbatch's part of the mean loss; it belongs to the forward pass."""
        loss = model.loss(outputs, targets)
        self.recorded.end_forward()
        self.note_loss(loss, len(targets))
        return loss / self.microbatches


class RecordedStage(PipelineStage):
    """A stage that notes its passes and what it waits for between them.

    Schedules call, for each microbatch, get_*_recv_ops, *_one_chunk and get_*_send_ops in this order. A receive lasts from
    the first to the second; what passes between the end of a pass and the next get_*_recv_ops is spent on own sends.
    """

    def __init__(self, recorder: Recorder, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recorder = recorder
        self._receive_s: float | None = None
        self._forward: tuple[int, float] | None = None
        self._passed_s = 0.0
        self._send: dict[str, Any] | None = None

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._begin_receive(super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._begin_receive(super().get_bwd_recv_ops(bwd_chunk_id))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        begin_s = self._end_receive(fwd_chunk_id, forward=True)
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self._forward = fwd_chunk_id, begin_s
        if not self.is_last:
            self.end_forward()
        return output

    def end_forward(self) -> None:
        """The forward pass of a microbatch is over, on the last stage with its loss."""
        if self._forward is not None:
            microbatch, begin_s = self._forward
            self._forward = None
            self._note_pass(Phase.FORWARD, microbatch, begin_s)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        begin_s = self._end_receive(bwd_chunk_id, forward=False)
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._note_pass(Phase.BACKWARD, bwd_chunk_id, begin_s)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._begin_send(super().get_fwd_send_ops(fwd_chunk_id), fwd_chunk_id, forward=True)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._begin_send(super().get_bwd_send_ops(bwd_chunk_id), bwd_chunk_id, forward=False)

    def end_sends(self) -> None:
        """What was sent last is on its way, and the stage goes on."""
        if self._send is not None:
            self._recorder.add(Phase.SEND, self._passed_s, self._recorder.now(), stage=self.stage_index, **self._send)
            self._send = None

    def _begin_receive(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        self.end_sends()
        if ops:
            self._receive_s = self._recorder.now()
            self._receive = _message(ops)
            self._recorder.enter(Phase.RECEIVE)
        return ops

    def _end_receive(self, microbatch: int, *, forward: bool) -> float:
        """When the pass begins."""
        begin_s = self._recorder.now()
        if self._receive_s is not None:
            labels = self._receive | {"stage": self.stage_index, "microbatch": microbatch, "match": _match(microbatch, forward)}
            self._recorder.add(Phase.RECEIVE, self._receive_s, begin_s, **labels)
            self._receive_s = None
        self._recorder.enter(Phase.FORWARD if forward else Phase.BACKWARD)
        return begin_s

    def _note_pass(self, phase: Phase, microbatch: int, begin_s: float) -> None:
        self._passed_s = self._recorder.now()
        self._recorder.add(phase, begin_s, self._passed_s, stage=self.stage_index, microbatch=microbatch)
        self._recorder.enter(Phase.SEND)

    def _begin_send(self, ops: list[dist.P2POp], microbatch: int, *, forward: bool) -> list[dist.P2POp]:
        if ops:
            match = _match(microbatch, forward)
            self._send = _message(ops) | {"microbatch": microbatch, "match": match, "start_s": self._recorder.now()}
        return ops


def _message(ops: list[dist.P2POp]) -> dict[str, Any]:
    size_bytes = float(sum(op.tensor.numel() * op.tensor.element_size() for op in ops))
    return {"peer": ops[0].peer, "size_bytes": size_bytes}


def _match(microbatch: int, forward: bool) -> int:
    """The number of a message within a step: activations are even, their gradients odd."""
    return 2 * microbatch + (not forward)
