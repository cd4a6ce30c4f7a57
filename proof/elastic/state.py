"""Checkpoints: what a rank saves so that training can continue from it, and how ranks agree on the step.

Rank 0 saves for all if all ranks have all parameters; parameter servers each save their part, and send it to the workers after
restoring. Files are written atomically.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.records import EventLog
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.validator.launch import rank
from scaleproof.validator.strategy.base import Trainer
from scaleproof.validator.strategy.data_parallel.microbatched import MicrobatchedReplica
from scaleproof.validator.strategy.parameter_server.server import Server
from scaleproof.validator.strategy.parameter_server.worker import Worker

# Checkpoints kept per rank: a server may be killed before it has saved a step that others have saved; then all need the
# previous one.
_KEPT: Final = 2


class Keeper:
    """Saves and restores one rank's part of the state."""

    def __init__(self, job: Job, trainer: Trainer, log: EventLog) -> None:
        self._job, self._trainer, self._log = job, trainer, log
        self._rank = rank.here().rank

    def begin(self) -> int:
        """Restores the last checkpoint and returns its step; saves the initial state if there is no checkpoint."""
        step = self._last_step()
        if step is None:
            self.save(0)
            step = self._last_step()
            assert step is not None, "a step was just saved"
        began_s = time.perf_counter()
        for holder in self._read_by():
            _restore(self._trainer, torch.load(self._path(holder, step), weights_only=True))
        _send_to_workers(self._trainer)
        self._log.note("restored", step=step, rank=self._rank, took_s=time.perf_counter() - began_s)
        return step

    def save(self, step: int) -> None:
        """Saves the state after `step` steps, if this rank saves."""
        if self._rank not in self._job.holders:
            return
        began_s = time.perf_counter()
        content = io.BytesIO()
        torch.save(_state(self._trainer), content)
        write_atomically(self._path(self._rank, step), content.getvalue())
        for old in self._saved(self._rank)[:-_KEPT]:
            self._path(self._rank, old).unlink()
        self._log.note("saved", step=step, rank=self._rank, took_s=time.perf_counter() - began_s)

    def digest(self) -> str:
        """Digest of the parameters, to the last bit."""
        digest = hashlib.sha256()
        for name, value in sorted(self._trainer.parameters().items()):
            digest.update(name.encode() + value.detach().numpy().tobytes())
        return digest.hexdigest()

    def _last_step(self) -> int | None:
        """The last step that all saving ranks have saved, the same on all ranks; None without one."""
        own = self._saved(self._rank) if self._rank in self._job.holders else None
        common = set.intersection(*(set(steps) for steps in rank.exchange(own) if steps is not None))
        return max(common, default=None)

    def _read_by(self) -> range:
        """Ranks whose files this rank reads: those of the saving rank if one saves for all, otherwise its own."""
        if isinstance(self._trainer, MicrobatchedReplica):
            return self._job.holders
        return range(self._rank, self._rank + 1) if self._rank in self._job.holders else range(0)

    def _saved(self, holder: int) -> list[int]:
        return sorted(int(path.stem.rpartition("-")[2]) for path in self._job.folder.glob(f"state-{holder}-*.pt"))

    def _path(self, holder: int, step: int) -> Path:
        return self._job.folder / f"state-{holder}-{step}.pt"


def _state(trainer: Trainer) -> dict[str, Any]:
    if isinstance(trainer, Server):
        return {str(part.bucket): (part.value.detach(), part.optimizer.state_dict()) for part in trainer.parts}
    assert isinstance(trainer, MicrobatchedReplica), "others do not save"
    parameters = {name: value.detach() for name, value in trainer.parameters().items()}
    return {"parameters": parameters, "optimizer": trainer.optimizer.state_dict()}


@torch.no_grad()
def _restore(trainer: Trainer, state: Mapping[str, Any]) -> None:
    if isinstance(trainer, Server):
        for part in trainer.parts:
            value, optimizer = state[str(part.bucket)]
            part.value.copy_(value)
            part.optimizer.load_state_dict(optimizer)
        return
    assert isinstance(trainer, MicrobatchedReplica), "others do not read"
    for name, value in trainer.parameters().items():
        value.copy_(state["parameters"][name])
    trainer.optimizer.load_state_dict(state["optimizer"])


@torch.no_grad()
def _send_to_workers(trainer: Trainer) -> None:
    """Sends the servers' parameters to every worker over the network."""
    if isinstance(trainer, Server):
        for worker in range(trainer.strategy.workers):
            for part in trainer.parts:
                dist.send(part.value.detach(), worker)
    elif isinstance(trainer, Worker):
        for bucket in reversed(range(len(trainer.layout.buckets))):
            for work in trainer.pull(bucket):
                work.wait()
