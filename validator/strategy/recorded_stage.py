"""Recorded stages: stages of torch.distributed.pipelining that note their passes, and what their rank waits for between them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from simulator.run import Phase
from validator.recorder import Recorder


class Lane:
    """What a rank does in turn, whichever of its stages it does it for: passes, and between them its sends and receives.

    A receive is waited for from when the rank was done with all before it until its pass begins, however early it was posted.
    A rank is busy with a send until it posts a receive or begins a pass.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # since when the rank does what it does now
        self._since_s = recorder.now()
        self._send: dict[str, Any] | None = None
        self._awaited: dict[tuple[int, int, bool], dict[str, Any]] = {}

    def begin_step(self) -> None:
        """The rank has a step before it."""
        self._since_s = self._recorder.now()

    def post_receive(self, stage: int, microbatch: int, forward: bool, message: dict[str, Any]) -> None:
        """A pass will wait for the message."""
        self._end_send()
        self._awaited[stage, microbatch, forward] = message | {"stage": stage, "microbatch": microbatch}
        self._recorder.enter(Phase.RECEIVE)

    def begin_pass(self, stage: int, microbatch: int, forward: bool) -> float:
        """When the pass begins, now that what it waited for is there."""
        begin_s = self._recorder.now()
        awaited = self._awaited.pop((stage, microbatch, forward), None)
        if awaited is not None:
            # where nothing tells how long sending took, it counts as waiting
            self._end_send(self._send["start_s"] if self._send else None)
            self._recorder.add(Phase.RECEIVE, self._since_s, begin_s, **awaited)
        self._end_send(begin_s)
        self._recorder.enter(Phase.FORWARD if forward else Phase.BACKWARD)
        return begin_s
