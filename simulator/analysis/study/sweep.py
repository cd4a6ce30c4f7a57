"""sweep: a study in, a row for each of its points out."""

from __future__ import annotations

import itertools
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scaleproof.simulator.analysis.study import executors
from scaleproof.simulator.analysis.study.evaluate import Row, TaskResult, rows
from scaleproof.simulator.analysis.study.executors import Workers
from scaleproof.simulator.analysis.study.store import Folder, frame, opened, table, table_of
from scaleproof.simulator.analysis.study.study import Numbers, Study, read
from scaleproof.simulator.common.errors import RunError, one_line

if TYPE_CHECKING:
    import pandas as pd

# Points of a task that are replayed together, in some tenths of a second.
_TOGETHER: Final = 1000
# Tasks that wait at the workers, for each that runs, so that none is idle.
_AHEAD: Final = 2
# Deaths of workers that a task may be part of, before it is tried with nothing beside it, and in all.
_SUSPECT: Final = 2
_MOST_DEATHS: Final = 4

Told = Callable[[int], None]


def sweep(
    study: str | Path | Mapping[str, Any] | Study, out: str | Path | None = None, *, resume: bool = False,
    executor: str = "local", scheduler: str | None = None, overrides: Sequence[str] = (), intervals: bool = False,
    told: Told = lambda points: None,
) -> pd.DataFrame:  # fmt: skip
    """A row for each point of a study: its axes, its step time, and what follows from that; or the error that it has.

    study: a file, the name of one that ships, or what a file would hold. out: where tables are kept as points finish; with
    resume what is there is not computed again. intervals: tell where each step time is with a probability of 90 %, which takes
    about twice as long. told: hears how many points are done, at first and after each task.
    """
    asked = study if isinstance(study, Study) else read(study, overrides)
    folder = None if out is None else Path(out)
    with _kept(asked, folder, intervals, resume) as kept:
        todo = kept.todo()
        told(len(asked) - len(todo))
        if len(todo):
            at_work = executors.workers(executor, scheduler, folder or Path("."))
            for found in done(asked, tasks(asked, todo, at_work.alone), intervals, at_work):
                kept.add(found)
                told(len(found))
        return kept.frame()


@dataclass
class Task:
    """Points to be done in one go, together or one after another. deaths: of workers that had it."""

    points: Numbers
    together: bool
    deaths: int = 0


def tasks(study: Study, points: Numbers, alone: int) -> list[Task]:
    """All of the points: those that may be replayed together, and `alone` of the others at a time."""
    if not study.numbers or len(points) == 0:
        return _cut(points, alone)
    others = [axis for axis in range(len(study.axes)) if axis not in study.numbers]
    _, kind = np.unique(study.places(points)[:, others], axis=0, return_inverse=True)
    order = np.argsort(kind.ravel(), kind="stable")
    groups = np.split(points[order], np.flatnonzero(np.diff(kind.ravel()[order])) + 1)
    several = [_cut(alike, _TOGETHER, together=True) for alike in groups if len(alike) > 1]
    single = np.concatenate([points[:0], *(alike for alike in groups if len(alike) == 1)])
    return [*itertools.chain.from_iterable(several), *_cut(single, alone)]


def _cut(points: Numbers, most: int, together: bool = False) -> list[Task]:
    return [Task(points[begin : begin + most], together) for begin in range(0, len(points), most)]


class _InMemoryRows:
    """Rows that are kept nowhere else."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._rows: list[Row] = []

    def todo(self) -> Numbers:
        return np.arange(len(self._study))

    def add(self, found: Sequence[Row]) -> None:
        self._rows += found

    def frame(self) -> pd.DataFrame:
        return frame(table_of(self._study, self._rows))


class _Disk:
    """Rows in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def todo(self) -> Numbers:
        return np.setdiff1d(np.arange(len(self._folder.study)), self._folder.done())

    def add(self, found: Sequence[Row]) -> None:
        self._folder.add(found)

    def frame(self) -> pd.DataFrame:
        return table(self._folder.path)


@contextmanager
def _kept(study: Study, path: Path | None, intervals: bool, resume: bool) -> Iterator[_InMemoryRows | _Disk]:
    if path is None:
        yield _InMemoryRows(study)
        return
    with opened(path, study, intervals, resume) as folder:
        yield _Disk(folder)


def done(study: Study, given: Iterable[Task], intervals: bool, at_work: Workers) -> Iterator[list[Row]]:
    """The rows of each task as it ends. What a worker died of is tried again; what workers die of again and again is cut into
    single points, and one that still kills gets a row that says so."""
    work = _TaskQueue(at_work, pickle.dumps(study), intervals, deque(given))
    try:
        yield from work.here()
        while work.waiting or work.suspects or work.running:
            work.submit()
            yield from work.ended()
    finally:
        work.stop()


@dataclass
class _TaskQueue:
    """Tasks that wait, those that were there when workers died, which go one at a time, and those that run."""

    at_work: Workers
    blob: bytes
    intervals: bool
    waiting: deque[Task]
    suspects: deque[Task] = field(default_factory=deque)
    running: dict[Future[TaskResult], Task] = field(default_factory=dict)
    executor: Executor | None = None

    def here(self) -> Iterator[list[Row]]:
        """What is done before others could have begun: of what is timed together, which takes little of anything, and what is
        one task in all."""
        left_s = self.at_work.start_s
        while self.waiting and (self.waiting[0].together or len(self.waiting) == 1) and left_s > 0:
            task, begun_s = self.waiting.popleft(), time.monotonic()
            part = rows(self.blob, task.points, self.intervals, task.together, self.at_work.task_s)
            left_s -= time.monotonic() - begun_s
            yield from self._had(task, part)

    def submit(self) -> None:
        """Gives workers what they can take."""
        while self.waiting and len(self.running) < self.at_work.count * _AHEAD:
            task = self.waiting.popleft()
            try:
                self._start(task)
            except RunError:
                # a queue may have enough for now: what it has is waited for
                if not self.running:
                    raise
                self.waiting.appendleft(task)
                break
        if self.suspects and not self.running:
            self._start(self.suspects.popleft())

    def _start(self, task: Task) -> None:
        if self.executor is None:
            self.executor = self._started()
        try:
            given = (self.blob, task.points, self.intervals, task.together, self.at_work.task_s)
            future = self.executor.submit(rows, *given)
        except self.at_work.deaths as error:
            # it broke just now: what it had before says so too
            future = Future()
            future.set_exception(error)
        self.running[future] = task

    def _started(self) -> Executor:
        """An executor. Raises RunError where there is none any more."""
        try:
            return self.at_work.start()
        except OSError as error:
            raise RunError(f"the workers are gone ({one_line(error)}); what is done is kept, and --resume goes on") from None

    def ended(self) -> Iterator[list[Row]]:
        """What has ended, once something has. Raises RunError where work cannot be handed out."""
        ready, _ = wait(self.running, return_when=FIRST_COMPLETED)
        for future in ready:
            task = self.running.pop(future)
            try:
                part = future.result()
            except self.at_work.deaths as error:
                yield from self._died(task, error)
            except Exception as error:
                raise RunError(
                    f"the executor failed ({one_line(error)}); what is done is kept, and --resume goes on"
                ) from error
            else:
                yield from self._had(task, part)

    def _had(self, task: Task, part: TaskResult) -> Iterator[list[Row]]:
        """What has come of a task; what is left of it waits."""
        self.waiting.extend(_cut(part.alone, self.at_work.alone))
        if len(part.rest):
            self.waiting.append(Task(part.rest, task.together))
        if part.rows:
            yield part.rows

    def _died(self, task: Task, error: BaseException) -> Iterator[list[Row]]:
        """Tries a task again whose worker has died, and has others do it."""
        if not self.running:
            # a broken executor breaks all that it had: once that is told, another one goes on
            self.stop()
        task.deaths += 1
        if task.deaths < _SUSPECT:
            self.waiting.append(task)
        elif task.deaths < _MOST_DEATHS:
            self.suspects.append(task)
        elif len(task.points) > 1:
            self.suspects.extend(replace(single, deaths=_SUSPECT) for single in _cut(task.points, 1))
        else:
            what = f"workers die of this point, {_MOST_DEATHS} times so far ({one_line(error)}); is there enough memory?"
            yield [{"point": int(task.points[0]), "error": what}]

    def stop(self) -> None:
        """Ends the executor."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            self.executor = None
