"""sweep: predicts all points of a study, in parallel; one row for each point."""

from __future__ import annotations

import itertools
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.analysis.study import executors
from scaleproof.simulator.analysis.study.evaluate import Row, TaskResult, rows
from scaleproof.simulator.analysis.study.executors import Workers
from scaleproof.simulator.analysis.study.grid import Numbers
from scaleproof.simulator.analysis.study.store import opened
from scaleproof.simulator.analysis.study.study import Study, read
from scaleproof.simulator.common.errors import RunError, one_line

if TYPE_CHECKING:
    import pandas as pd

# Points of a task that are replayed together, which takes some tenths of a second.
_TOGETHER: Final = 1000
# Submitted tasks per worker, so that none is idle.
_AHEAD: Final = 2
# Deaths of workers after which a task runs without any other task, and after which it is given up or divided.
_SUSPECT_DEATHS: Final = 2
_MAX_DEATHS: Final = 4

Progress = Callable[[int], None]


def sweep(
    study: str | Path | Mapping[str, Any] | Study, out: str | Path | None = None, *, resume: bool = False,
    executor: str = "local", scheduler: str | None = None, overrides: Sequence[str] = (), intervals: bool = False,
    progress: Progress = lambda points: None,
) -> pd.DataFrame:  # fmt: skip
    """Predicts all points of a study; one row per point with its axes, its step time and derived results, or its error.

    study: a file, the name of a shipped study, or the content of a file. out: folder in which tables are saved as points
    finish; with `resume`, points that have results are not computed again. executor: local, dask or slurm. scheduler: address
    of a dask scheduler. intervals: whether to compute 90 % intervals of step times, which takes about twice as long. progress:
    called with the number of points done, once for those with results and after each task.
    """
    read_study = study if isinstance(study, Study) else read(study, overrides)
    folder = None if out is None else Path(out)
    workers = executors.workers(executor, scheduler, folder or Path("."))
    with opened(folder, read_study, intervals, resume) as results:
        todo = results.todo()
        progress(len(read_study) - len(todo))
        for rows_done in done(read_study, tasks(read_study, todo, workers.alone), intervals, workers):
            results.add(rows_done)
            progress(len(rows_done))
        return results.frame()


@dataclass
class Task:
    """Points for one worker. together: whether to replay them together. deaths: number of workers that died with this task."""

    points: Numbers
    together: bool
    deaths: int = 0


def tasks(study: Study, points: Numbers, alone: int) -> list[Task]:
    """Tasks for some points: those that may be replayed together, and tasks of `alone` of the others."""
    batches, single = study.batches(points)
    several = (_cut(batch, _TOGETHER, together=True) for batch in batches)
    return [*itertools.chain.from_iterable(several), *_cut(single, alone)]


def _cut(points: Numbers, most: int, together: bool = False) -> list[Task]:
    return [Task(points[begin : begin + most], together) for begin in range(0, len(points), most)]


def done(study: Study, given: Iterable[Task], intervals: bool, workers: Workers) -> Iterator[list[Row]]:
    """Runs tasks, and yields the rows of each as it ends.

    A task whose worker died is tried again; one with which workers die repeatedly is divided into single points, and a point
    with which they still die gets a row with that error.
    """
    work = _TaskQueue(workers, pickle.dumps(study), intervals, deque(given))
    try:
        yield from work.run_here()
        while work.waiting or work.suspects or work.running:
            work.submit()
            yield from work.ended()
    finally:
        work.stop()


@dataclass
class _TaskQueue:
    """Tasks of a sweep. waiting: not submitted. suspects: workers died with them; run one at a time. running: submitted."""

    workers: Workers
    blob: bytes
    intervals: bool
    waiting: deque[Task]
    suspects: deque[Task] = field(default_factory=deque)
    running: dict[Future[TaskResult], Task] = field(default_factory=dict)
    executor: Executor | None = None

    def run_here(self) -> Iterator[list[Row]]:
        """Runs tasks in this process for about the time in which workers would start, if they replay points together, which
        needs little memory, or if there is only one task."""
        left_s = self.workers.start_s
        while self.waiting and (self.waiting[0].together or len(self.waiting) == 1) and left_s > 0:
            task, begun_s = self.waiting.popleft(), time.monotonic()
            part = rows(self.blob, task.points, self.intervals, task.together, self.workers.task_s)
            left_s -= time.monotonic() - begun_s
            yield from self._finished(task, part)

    def submit(self) -> None:
        """Submits tasks as far as workers can take them."""
        while self.waiting and len(self.running) < self.workers.count * _AHEAD:
            task = self.waiting.popleft()
            try:
                self._start(task)
            except RunError:
                # a queue may be full: wait for the tasks that it has
                if not self.running:
                    raise
                self.waiting.appendleft(task)
                break
        if self.suspects and not self.running:
            self._start(self.suspects.popleft())

    def _start(self, task: Task) -> None:
        """Submits a task. Raises RunError where the executor cannot be started."""
        if self.executor is None:
            try:
                self.executor = self.workers.start()
            except OSError as error:
                reason = f"workers cannot be started ({one_line(error)}); finished points are saved; use --resume"
                raise RunError(reason) from None
        try:
            given = (self.blob, task.points, self.intervals, task.together, self.workers.task_s)
            future = self.executor.submit(rows, *given)
        except self.workers.deaths as error:
            # the executor just broke: the tasks submitted before fail with the same error
            future = Future()
            future.set_exception(error)
        self.running[future] = task

    def ended(self) -> Iterator[list[Row]]:
        """Waits for tasks to end, and yields their rows. Raises RunError where the executor fails."""
        ready, _ = wait(self.running, return_when=FIRST_COMPLETED)
        for future in ready:
            task = self.running.pop(future)
            try:
                part = future.result()
            except self.workers.deaths as error:
                yield from self._died(task, error)
            except Exception as error:
                raise RunError(f"the executor failed ({one_line(error)}); finished points are saved; use --resume") from error
            else:
                yield from self._finished(task, part)

    def _finished(self, task: Task, part: TaskResult) -> Iterator[list[Row]]:
        """Yields the rows of a task, and queues the points that are left of it."""
        self.waiting.extend(_cut(part.alone, self.workers.alone))
        if len(part.rest):
            self.waiting.append(Task(part.rest, task.together))
        if part.rows:
            yield part.rows

    def _died(self, task: Task, error: BaseException) -> Iterator[list[Row]]:
        """Queues a task again whose worker has died; yields an error row for a point that is given up."""
        if not self.running:
            # a broken executor fails all of its tasks: start a new one once all have failed
            self.stop()
        task.deaths += 1
        if task.deaths < _SUSPECT_DEATHS:
            self.waiting.append(task)
        elif task.deaths < _MAX_DEATHS:
            self.suspects.append(task)
        elif len(task.points) > 1:
            self.suspects.extend(replace(single, deaths=_SUSPECT_DEATHS) for single in _cut(task.points, 1))
        else:
            message = f"workers die at this point, {_MAX_DEATHS} times so far ({one_line(error)}); is there enough memory?"
            yield [{"point": int(task.points[0]), "error": message}]

    def stop(self) -> None:
        """Ends the executor."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
            self.executor = None
