"""Recorded stages: stages of torch.distributed.pipelining that note their passes, and what their rank waits for in between."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from scaleproof.simulator.run.run import Phase
from scaleproof.validator.record.recorder import Recorder

# Of a message: the stage that is sent to or from, the microbatch, and whether it is activations or their gradients.
_Key = tuple[int, int, bool]


class Lane:
    """What a rank does in turn, whichever of its stages it does that for: passes, and in between its sends and receives.

    It is busy with a send until it posts a receive or begins a pass. It waits for a receive from when it was done with all
    that came before until the pass begins, however early the receive was posted. free: whether what was sent is waited for
    at the end of a step alone.
    """

    def __init__(self, recorder: Recorder, free: bool) -> None:
        self.recorder = recorder
        self._free = free
        self._awaited: dict[_Key, dict[str, Any]] = {}
        self._send: dict[str, Any] | None = None
        self._has_sent = False
        self.begin_step()

    def begin_step(self) -> None:
        self._has_sent = False
        # since when the rank does what it does now
        self._since_s = self.recorder.now()

    def end_step(self) -> None:
        """What was sent is gone."""
        if self._free and self._has_sent and self._send is None:
            self._send = {}
        self._end_send(self.recorder.now())

    def post_receive(self, key: _Key, message: dict[str, Any]) -> None:
        """The pass of that key is to wait for the message."""
        self._end_send(self.recorder.now())
        self._awaited[key] = message
        self.recorder.enter(Phase.RECEIVE)

    def begin_send(self, message: dict[str, Any]) -> None:
        begin_s = self.recorder.now()
        self._end_send(begin_s)
        self._send = message | {"start_s": begin_s}
        self._has_sent = True

    def begin_pass(self, key: _Key) -> Any:
        """The mark at which the pass begins, now that what it waited for is there."""
        begin_s = self.recorder.now()
        awaited = self._awaited.pop(key, None)
        if awaited is None:
            self._end_send(begin_s)
        else:
            # the last thing that is known before the wait is that something was sent
            self._end_send(self._send["start_s"] if self._send else begin_s)
            self.recorder.add(Phase.RECEIVE, self._since_s, begin_s, **awaited)
        self.recorder.enter(Phase.FORWARD if key[2] else Phase.BACKWARD)
        return begin_s

    def end_pass(self, phase: Phase, begin_s: Any, stage: int, microbatch: int) -> None:
        self._since_s = self.recorder.now()
        self.recorder.add(phase, begin_s, self._since_s, stage=stage, microbatch=microbatch)
        self.recorder.enter(Phase.SEND)

    def _end_send(self, end_s: Any) -> None:
        if self._send is not None:
            self.recorder.add(Phase.SEND, self._since_s, end_s, **self._send)
            self._send, self._since_s = None, end_s


class RecordedStage(PipelineStage):
    """A stage that tells its rank's lane what it does; stages of one rank share a lane.

    Schedules call, for each microbatch, get_*_recv_ops when they post a receive, *_one_chunk once it is there, and
    get_*_send_ops when they send. None of that is documented: it is so in torch 2.11 to 2.13.
    """

    def __init__(self, lane: Lane, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lane = lane
        self._forward: tuple[int, Any] | None = None

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._post_receive(super().get_fwd_recv_ops(fwd_chunk_id), fwd_chunk_id, forward=True)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._post_receive(super().get_bwd_recv_ops(bwd_chunk_id), bwd_chunk_id, forward=False)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._forward = fwd_chunk_id, self._lane.begin_pass((self.stage_index, fwd_chunk_id, True))
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if not self.is_last:
            self.end_forward()
        return output

    def end_forward(self) -> None:
        """The forward pass of a microbatch is over, on the last stage with its loss."""
        if self._forward is not None:
            microbatch, begin_s = self._forward
            self._forward = None
            self._lane.end_pass(Phase.FORWARD, begin_s, self.stage_index, microbatch)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        begin_s = self._lane.begin_pass((self.stage_index, bwd_chunk_id, False))
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._lane.end_pass(Phase.BACKWARD, begin_s, self.stage_index, bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        begin_s = self._lane.begin_pass((self.stage_index, bwd_chunk_id, False))
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._lane.end_pass(Phase.BACKWARD, begin_s, self.stage_index, bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._begin_send(super().get_fwd_send_ops(fwd_chunk_id), fwd_chunk_id, forward=True)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._begin_send(super().get_bwd_send_ops(bwd_chunk_id), bwd_chunk_id, forward=False)

    def _post_receive(self, ops: list[dist.P2POp], microbatch: int, *, forward: bool) -> list[dist.P2POp]:
        if ops:
            # the stage before sends activations
            message = self._message(ops, microbatch, self.stage_index - forward, forward)
            self._lane.post_receive((self.stage_index, microbatch, forward), message)
        return ops

    def _begin_send(self, ops: list[dist.P2POp], microbatch: int, *, forward: bool) -> list[dist.P2POp]:
        if ops:
            self._lane.begin_send(self._message(ops, microbatch, self.stage_index - (not forward), forward))
        return ops

    def _message(self, ops: list[dist.P2POp], microbatch: int, boundary: int, forward: bool) -> dict[str, Any]:
        """Labels of a message's span. boundary: the stage before what is crossed; activations are even, their gradients odd."""
        size_bytes = float(sum(op.tensor.numel() * op.tensor.element_size() for op in ops))
        match = 2 * (microbatch * self.num_stages + boundary) + (not forward)
        labels = {"stage": self.stage_index, "microbatch": microbatch}
        return labels | {"peer": ops[0].peer, "size_bytes": size_bytes, "match": match}
