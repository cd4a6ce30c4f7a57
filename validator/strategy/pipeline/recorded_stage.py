"""Recorded stages: stages of torch.distributed.pipelining that record their passes, sends, receives and waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from scaleproof.simulator.common.spans import Phase
from scaleproof.validator.record.recorder import Recorder

# Key of a message: the stage at its end on this rank, the microbatch, and whether it carries activations (else gradients).
_Key = tuple[int, int, bool]


class PassRecorder:
    """Records what a rank does one after the other for all of its stages: passes, sends and receives.

    A send lasts until the rank posts a receive or begins a pass. A wait for a receive lasts from the end of the rank's previous
    work to the begin of the pass, however early the receive was posted. free: whether the rank waits for its sends only at the
    end of a step.
    """

    def __init__(self, recorder: Recorder, free: bool) -> None:
        self.recorder = recorder
        self._free = free
        self._awaited: dict[_Key, dict[str, Any]] = {}
        self._send: dict[str, Any] | None = None
        self._has_sent = False
        self.begin_step()

    def begin_step(self) -> None:
        """The rank begins a step."""
        self._has_sent = False
        # begin of the rank's current activity
        self._since_s = self.recorder.now()

    def end_step(self) -> None:
        """The rank ends a step; all of its sends are complete."""
        if self._free and self._has_sent and self._send is None:
            self._send = {}
        self._end_send(self.recorder.now())

    def post_receive(self, key: _Key, message: dict[str, Any]) -> None:
        """The rank posts the receive of a message for which the pass of that key will wait."""
        self._end_send(self.recorder.now())
        self._awaited[key] = message
        self.recorder.enter(Phase.RECEIVE)

    def begin_send(self, message: dict[str, Any]) -> None:
        """The rank begins to send a message."""
        begin_s = self.recorder.now()
        self._end_send(begin_s)
        self._send = message | {"start_s": begin_s}
        self._has_sent = True

    def begin_pass(self, key: _Key) -> Any:
        """The rank begins the pass of that key, whose message has arrived; returns the mark of the begin."""
        begin_s = self.recorder.now()
        awaited = self._awaited.pop(key, None)
        if awaited is None:
            self._end_send(begin_s)
        else:
            # the last recorded event before the wait is the begin of a send
            self._end_send(self._send["start_s"] if self._send else begin_s)
            self.recorder.add(Phase.RECEIVE, self._since_s, begin_s, **awaited)
        self.recorder.enter(Phase.FORWARD if key[2] else Phase.BACKWARD)
        return begin_s

    def end_pass(self, phase: Phase, begin_s: Any, stage: int, microbatch: int) -> None:
        """The rank ends a pass that began at the mark `begin_s`."""
        self.recorder.lengthen_compute()
        self._since_s = self.recorder.now()
        self.recorder.add(phase, begin_s, self._since_s, stage=stage, microbatch=microbatch)
        self.recorder.enter(Phase.SEND)

    def _end_send(self, end_s: Any) -> None:
        if self._send is not None:
            self.recorder.add(Phase.SEND, self._since_s, end_s, **self._send)
            self._send, self._since_s = None, end_s


class RecordedStage(PipelineStage):
    """A stage that reports to the recorder of its rank, which all stages of the rank share.

    For each microbatch schedules call get_*_recv_ops when they post a receive, *_one_chunk once it has arrived, and
    get_*_send_ops when they send. This is undocumented, as in torch 2.11 to 2.13.

    prepare_backward: called before each backward pass.
    """

    def __init__(self, passes: PassRecorder, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._passes = passes
        self.prepare_backward: Callable[[], object] = lambda: None
        self._forward: tuple[int, Any] | None = None

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of a microbatch's activations, which the recorder notes as posted."""
        return self._post_receive(super().get_fwd_recv_ops(fwd_chunk_id), fwd_chunk_id, forward=True)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receives of a microbatch's gradients, which the recorder notes as posted."""
        return self._post_receive(super().get_bwd_recv_ops(bwd_chunk_id), bwd_chunk_id, forward=False)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Runs and records the forward pass of a microbatch; on the last stage, `end_forward` ends it."""
        self._forward = fwd_chunk_id, self._passes.begin_pass((self.stage_index, fwd_chunk_id, True))
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if not self.is_last:
            self.end_forward()
        return output

    def end_forward(self) -> None:
        """Records the end of a microbatch's forward pass, which on the last stage includes the loss."""
        if self._forward is not None:
            microbatch, begin_s = self._forward
            self._forward = None
            self._passes.end_pass(Phase.FORWARD, begin_s, self.stage_index, microbatch)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Runs and records the backward pass of a microbatch."""
        begin_s = self._passes.begin_pass((self.stage_index, bwd_chunk_id, False))
        self.prepare_backward()
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._passes.end_pass(Phase.BACKWARD, begin_s, self.stage_index, bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Runs and records the pass of a microbatch that computes gradients of weights."""
        begin_s = self._passes.begin_pass((self.stage_index, bwd_chunk_id, False))
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._passes.end_pass(Phase.BACKWARD, begin_s, self.stage_index, bwd_chunk_id)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of a microbatch's activations, which the recorder notes as begun."""
        return self._begin_send(super().get_fwd_send_ops(fwd_chunk_id), fwd_chunk_id, forward=True)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Sends of a microbatch's gradients, which the recorder notes as begun."""
        return self._begin_send(super().get_bwd_send_ops(bwd_chunk_id), bwd_chunk_id, forward=False)

    def _post_receive(self, ops: list[dist.P2POp], microbatch: int, *, forward: bool) -> list[dist.P2POp]:
        if ops:
            # activations come from the previous stage
            message = self._message(ops, microbatch, self.stage_index - forward, forward)
            self._passes.post_receive((self.stage_index, microbatch, forward), message)
        return ops

    def _begin_send(self, ops: list[dist.P2POp], microbatch: int, *, forward: bool) -> list[dist.P2POp]:
        if ops:
            self._passes.begin_send(self._message(ops, microbatch, self.stage_index - (not forward), forward))
        return ops

    def _message(self, ops: list[dist.P2POp], microbatch: int, boundary: int, forward: bool) -> dict[str, Any]:
        """Labels of a message's span. boundary: number of the stage before the crossed boundary. match: even for activations,
        odd for gradients."""
        size_bytes = float(sum(op.tensor.numel() * op.tensor.element_size() for op in ops))
        match = 2 * (microbatch * self.num_stages + boundary) + (not forward)
        labels = {"stage": self.stage_index, "microbatch": microbatch}
        return labels | {"peer": ops[0].peer, "size_bytes": size_bytes, "match": match}
