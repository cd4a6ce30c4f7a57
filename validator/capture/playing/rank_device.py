"""The GPU of one rank that does not exist, and the communication of that rank with others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from scaleproof.validator.capture.backend import abi, cuda_api, registration
from scaleproof.validator.capture.backend.kernels import Kernels
from scaleproof.validator.capture.backend.memory import Arena
from scaleproof.validator.capture.backend.policies import policy_of
from scaleproof.validator.capture.backend.values import Values
from scaleproof.validator.capture.communication.distributed_api import DistributedApi
from scaleproof.validator.capture.communication.mailbox import Mailbox
from scaleproof.validator.capture.communication.recording import Recording
from scaleproof.validator.capture.job import CaptureJob, set_environment
from scaleproof.validator.capture.packages import operator
from scaleproof.validator.capture.packages.apex import patch_deepspeed
from scaleproof.validator.capture.packages.importing import PackageFinder
from scaleproof.validator.capture.packages.launches import TritonLaunches
from scaleproof.validator.capture.trace import HostClock, RankTrace

_LISTED: Final = 64


class RankDevice:
    """The parts of a rank's device, once it is installed. api: of communication. local: the rank's number on its node."""

    def __init__(
        self, job: CaptureJob, rank: int, folder: Path, trace: RankTrace, api: type[DistributedApi] = DistributedApi
    ) -> None:
        """folder: of all ranks, for values that they send to one another."""
        self.local = rank % job.ranks_per_node
        self._job, self._rank, self._api = job, rank, api
        self.trace, self.arena = trace, Arena(self.local, trace)
        self.recording, self.mailbox = Recording(trace, self.arena, rank), Mailbox(folder, rank)

    def install(self) -> None:
        """Replaces the parts of PyTorch that use a GPU or other ranks. Raises RunError for builds that cannot be replaced."""
        job, trace = self._job, self.trace
        devices = min(job.ranks_per_node, job.world_size)
        set_environment(job.script, self._rank, job.world_size, job.ranks_per_node)
        torch.set_num_threads(1)
        abi.install_device(devices, self.local)
        self.arena.install_storage()
        values = Values(self.arena, policy_of(job.values), trace.answer, trace.of_collective)
        kernels = Kernels(self.arena, values, trace, job.keeps_calls)
        registration.register(kernels)
        operator.install(kernels)
        cuda_api.install(trace, self.arena, job.device, self.local, devices)
        abi.check_training()
        _calibrate(trace.host)
        self._api(self.recording, values, self.mailbox, job.world_size).install()
        trace.context.install()
        operator.install_custom_operators(trace.note)
        launches = TritonLaunches(kernels, trace, job.device, self.local)
        PackageFinder(trace, job.packages, {"triton": launches.install, "deepspeed": patch_deepspeed}).install()


def _calibrate(host: HostClock) -> None:
    """Measures the host's time for calling a recorded operator, on zeros."""
    host.ignore_collections()
    one = torch.zeros(1, device="cuda")
    several = [one] * _LISTED
    host.calibrate(lambda: one.neg_(), lambda: torch._foreach_neg_(several), _LISTED)
