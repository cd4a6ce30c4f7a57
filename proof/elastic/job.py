"""Job: what is trained, how often it is saved, and the folder for its logs and checkpoints."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scaleproof.simulator.cluster.perturbations import EVEN
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.parameter_server import SYNCHRONOUS
from scaleproof.simulator.parallelism import DataParallel, ParameterServer
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.record.steps import total_steps, warmup_steps


@dataclass(frozen=True)
class Job:
    """folder: on storage that all hosts share. by_ranks: scenario for each number of ranks with which the job may continue.
    every: steps from one checkpoint to the next. silence_s: without messages from a rank until its peers take it for dead.
    patience_s: for which ranks wait for one another before training, and the launcher for progress. hands_over: whether ranks
    save and end at the end of a step in which one of them is signalled to stop."""

    folder: Path
    by_ranks: Mapping[int, Scenario]
    every: int
    silence_s: float = 5.0
    patience_s: float = 120.0
    hands_over: bool = False

    @property
    def ranks(self) -> int:
        """Number of ranks at the start."""
        return max(self.by_ranks)

    @property
    def scenario(self) -> Scenario:
        """Scenario for the initial number of ranks."""
        return self.by_ranks[self.ranks]

    @property
    def steps(self) -> int:
        """Number of steps, including warm-up steps."""
        return total_steps(self.scenario)

    @property
    def warmup(self) -> int:
        """Number of warm-up steps."""
        return warmup_steps(self.scenario)

    @property
    def holders(self) -> range:
        """Ranks that save: servers, which have the parameters, or rank 0, which has those of all ranks."""
        strategy = self.scenario.strategy
        if isinstance(strategy, ParameterServer):
            return range(strategy.workers, strategy.ranks)
        return range(1)

    def write(self) -> None:
        """Writes the job to its folder, for its processes to read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _file(self.folder).write_bytes(pickle.dumps(self))


def read_job(folder: Path) -> Job:
    """Reads the job that our launcher wrote to a folder."""
    job = pickle.loads(_file(folder).read_bytes())  # noqa: S301 - written by our own launcher
    assert isinstance(job, Job)
    return job


def check(job: Job) -> None:
    """Raises InputError if a job's state cannot be saved and restored."""
    for scenario in job.by_ranks.values():
        check_trainable(scenario)
        if scenario.unevenness != EVEN or scenario.input is not None:
            field = "input" if scenario.unevenness == EVEN else "unevenness"
            raise InputError(f"{scenario.name}: {field} is not imposed on elastic jobs; leave it out")
        if not _is_restored(scenario):
            raise InputError(
                f"{scenario.name}: this {scenario.strategy.kind} cannot be restored from checkpoints; give data_parallel "
                "without ZeRO and compression, or a synchronous parameter_server without backups, overlap and two levels, "
                "neither in fp16 nor with training.offload, whose copies of the parameters are not saved"
            )


def _is_restored(scenario: Scenario) -> bool:
    strategy = scenario.strategy
    if scenario.training.precision == "fp16" or scenario.training.offload:
        return False
    if isinstance(strategy, ParameterServer):
        return strategy.consistency == SYNCHRONOUS and not strategy.overlap and not strategy.two_level
    return isinstance(strategy, DataParallel) and not scenario.training.zero and strategy.compression is None


def _file(folder: Path) -> Path:
    return folder / "job"
