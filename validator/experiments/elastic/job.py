"""Job: what is trained, how often it is saved, and where its processes leave what they note and save."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.program.consistency import SYNCHRONOUS
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import DataParallel, ParameterServer
from scaleproof.validator.launch.preflight.checks import check_trainable
from scaleproof.validator.train.steps import total_steps, warmup_steps


@dataclass(frozen=True)
class Job:
    """folder: on storage that all hosts see. by_ranks: the scenario for each number of ranks that it may go on with. every:
    steps from one checkpoint to the next. silence_s: after which a rank that hears nothing of another takes it for dead.
    patience_s: for which ranks wait for one another before they train, and the launcher for any of them to get on."""

    folder: Path
    by_ranks: Mapping[int, Scenario]
    every: int
    silence_s: float = 5.0
    patience_s: float = 120.0

    @property
    def ranks(self) -> int:
        """How many it starts with."""
        return max(self.by_ranks)

    @property
    def scenario(self) -> Scenario:
        """For all of them."""
        return self.by_ranks[self.ranks]

    @property
    def steps(self) -> int:
        """How many are trained; warm-up steps are steps like others here."""
        return total_steps(self.scenario)

    @property
    def warmup(self) -> int:
        return warmup_steps(self.scenario)

    @property
    def holders(self) -> range:
        """Ranks that save: servers, which have the parameters, or rank 0, whose are everybody's."""
        strategy = self.scenario.strategy
        if isinstance(strategy, ParameterServer):
            return range(strategy.workers, strategy.ranks)
        return range(1)

    def write(self) -> None:
        """Leaves the job in its folder, for its processes to read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _file(self.folder).write_bytes(pickle.dumps(self))


def read_job(folder: Path) -> Job:
    """The job that a launcher of ours has written there."""
    job = pickle.loads(_file(folder).read_bytes())  # noqa: S301 - written by our own launcher
    assert isinstance(job, Job)
    return job


def check(job: Job) -> None:
    """Raises InputError where a job's state cannot be saved and restored."""
    for scenario in job.by_ranks.values():
        check_trainable(scenario)
        if not _is_restored(scenario):
            raise InputError(
                f"{scenario.name}: a {scenario.strategy.kind} like this is not restored from checkpoints; give data_parallel "
                "without ZeRO and compression, or a synchronous parameter_server without backups, overlap and two levels"
            )


def _is_restored(scenario: Scenario) -> bool:
    strategy = scenario.strategy
    if isinstance(strategy, ParameterServer):
        return strategy.gate == SYNCHRONOUS and not strategy.overlap and not strategy.two_level
    return isinstance(strategy, DataParallel) and not scenario.training.zero and strategy.compression is None


def _file(folder: Path) -> Path:
    return folder / "job"
