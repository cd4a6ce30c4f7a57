"""Functions that ranks run in tests: train, save and resume."""

from __future__ import annotations

from typing import Any

from scaleproof.proof.elastic.job import Job
from scaleproof.proof.elastic.records import EventLog
from scaleproof.proof.elastic.state import Keeper
from scaleproof.validator.launch.rank import here
from scaleproof.validator.record.recorder import Recorder
from scaleproof.validator.strategy import create
from scaleproof.validator.strategy.base import Context, Trainer

SAVED_AFTER = 3


def trainer(job: Job) -> Trainer:
    me = here()
    recorder = Recorder(me.status, lambda _: None)
    return create(Context(job.scenario, me.rank, me.device, recorder, job.steps), job.scenario.strategy)


def train(one: Trainer, keeper: Keeper, first: int, last: int) -> str:
    for index in range(first, last):
        one.recorder.begin_step(index)
        one.take(index)
        one.recorder.end_step()
    return keeper.digest()


def save_and_go_on(job: Job) -> dict[str, Any]:
    """Digests of what is there after the steps until a save, of what is restored from it, and of both at the end."""
    notes = EventLog(job.folder, here().rank, "trainer")
    first = trainer(job)
    keeper = Keeper(job, first, notes)
    began = keeper.begin()
    initial = keeper.digest()
    saved = train(first, keeper, 0, SAVED_AFTER)
    keeper.save(SAVED_AFTER)
    end = train(first, keeper, SAVED_AFTER, job.steps)
    again = trainer(job)
    restored = Keeper(job, again, notes)
    resumed = restored.begin()
    return {
        "began": began,
        "resumed": resumed,
        "digests": [initial, saved, end],
        "restored": [restored.digest(), train(again, restored, SAVED_AFTER, job.steps)],
    }


def save_often(job: Job) -> list[int]:
    """Saves after every step but, on the last rank, the last; the steps that are there then, and that all go on with."""
    notes = EventLog(job.folder, here().rank, "trainer")
    keeper = Keeper(job, trainer(job), notes)
    keeper.begin()
    for step in range(1, 6):
        if step < 5 or here().rank != here().ranks - 1:
            keeper.save(step)
    return [*keeper._saved(here().rank), keeper.begin()]
