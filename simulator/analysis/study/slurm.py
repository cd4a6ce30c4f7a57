"""Jobs of a queue as `concurrent.futures` has it, and what Slurm itself says of them, which keeps no accounts everywhere."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import RunError

# what a job may take, unless SBATCH_TIMELIMIT says so
_LIMIT_MINUTES: Final = 240
# between two looks at jobs, at files that jobs on other machines leave, and at the queue, which everybody asks
_LOOK_S: Final = 0.2
_FILES_S: Final = 1.0
_QUEUE_S: Final = 10.0
# for a command of Slurm to answer; and for all of it to be silent, as where it starts again, which jobs outlive
_PATIENCE_S: Final = 8
_SILENT_S: Final = 600.0
# between a job's end and its files, over a network; between its result and its end; and before it is told that none begins
_FILE_S: Final = 15.0
_LEAVE_S: Final = 30.0
_PENDING_S: Final = 60.0


class Jobs(Executor):
    """One of submitit's executors as one of `concurrent.futures`."""

    look_s = _LOOK_S

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs
        self._running: dict[Future[Any], Any] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Queues a job."""
        future: Future[Any] = Future()
        job = self._jobs.submit(function, *arguments, **options)
        with self._lock:
            self._running[future] = job
        return future

    def _watch(self) -> None:
        """Tells futures what has become of their jobs."""
        while not self._stopped.wait(self.look_s):
            with self._lock:
                looked_at = dict(self._running)
            self._look(list(looked_at.values()))
            for future, job in looked_at.items():
                self._tell(future, job)

    def _tell(self, future: Future[Any], job: Any) -> None:
        result, wrong = None, None
        try:
            if not self._ended(job):
                return
            result = job.result()
        except Exception as error:
            wrong = error
        with self._lock:
            # what was taken back in the meantime is told already
            if self._running.pop(future, None) is None:
                return
        if wrong is None:
            future.set_result(result)
        else:
            future.set_exception(wrong)

    def _look(self, jobs: list[Any]) -> None:
        """Before each look at jobs."""

    def _ended(self, job: Any) -> bool:
        """Whether there is something of a job to tell. Raises what there is where that is no result."""
        ended: bool = job.done()
        return ended

    def _cancel(self, jobs: Iterable[Any]) -> None:
        for job in jobs:
            job.cancel()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Lets no more jobs end; with cancel_futures takes those back that are queued or run."""
        while wait and self._running:
            time.sleep(_LOOK_S)
        self._stopped.set()
        with self._lock:
            if cancel_futures and self._running:
                self._cancel(self._running.values())
                for future in self._running:
                    future.cancel()
                self._running.clear()


class SlurmJobs(Jobs):
    """Slurm's. A job that is no longer in the queue and has left no result is gone."""

    look_s = _FILES_S

    def __init__(self, jobs: Any) -> None:
        self._gone_s: dict[str, float] = {}
        self._begun = False
        self._first_s = self._answered_s = time.monotonic()
        self._asked_s = float("-inf")
        super().__init__(jobs)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Queues a job. Raises RunError where Slurm does not take it."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        asked_s = time.monotonic()
        while True:
            try:
                # which submitit prints what sbatch says to
                with redirect_stderr(io.StringIO()):
                    return super().submit(obedient, function, *arguments, **options)
            except (FailedJobError, FailedSubmissionError) as error:
                if self._running or not self._begun or time.monotonic() - asked_s > _LEAVE_S:
                    raise RunError(
                        f"--executor slurm: no job is taken ({_last(str(error))}); what is done is kept, and --resume goes on"
                    ) from None
            # jobs that have left their result count as queued for a moment more
            time.sleep(self.look_s)

    def _look(self, jobs: list[Any]) -> None:
        with suppress(OSError):
            # so that a file system over a network looks again itself
            self._jobs.folder.chmod(0o700)
        now_s = time.monotonic()
        if not jobs or now_s - self._asked_s < _QUEUE_S:
            return
        self._asked_s = now_s
        try:
            queued = _queue()
        except RunError as error:
            warnings.warn(f"{error}; jobs that run go on", stacklevel=1)
            return
        self._answered_s = time.monotonic()
        for job in jobs:
            if job.job_id in queued:
                self._gone_s.pop(job.job_id, None)
            else:
                self._gone_s.setdefault(job.job_id, self._answered_s)
        self._begun |= any(queued.get(job.job_id, "") is None for job in jobs) or bool(self._gone_s)
        reasons = sorted({queued.get(job.job_id) or "" for job in jobs})
        if not self._begun and now_s - self._first_s > _PENDING_S:
            self._begun = True
            why = ", ".join(reasons)
            warnings.warn(f"none of {len(jobs)} jobs has begun yet ({why}); Ctrl-C takes them back", stacklevel=1)

    def _ended(self, job: Any) -> bool:
        from submitit.core.utils import UncompletedJobError

        if job.paths.result_pickle.exists():
            self._begun = True
            return True
        now_s = time.monotonic()
        if now_s - self._gone_s.get(job.job_id, now_s) > _FILE_S:
            raise UncompletedJobError(f"job {job.job_id} has ended without a result; {job.paths.stderr} may say why")
        if now_s - self._answered_s > _SILENT_S:
            raise UncompletedJobError(f"job {job.job_id}: nothing is heard of Slurm any more")
        return False

    def _cancel(self, jobs: Iterable[Any]) -> None:
        try:
            _asked("scancel", "--quiet", *(job.job_id for job in jobs))
        except RunError as error:
            warnings.warn(f"{error}; take jobs back with 'scancel --user $USER --name scaleproof'", stacklevel=1)


def slurm(folder: Path) -> tuple[Callable[[], SlurmJobs], float | None]:
    """What starts an executor of Slurm's jobs, and the seconds that a job has where the environment says so. folder: for their
    notes, of which each sweep has its own: numbers of jobs may come again.

    Raises ImportError where submitit is not installed, RunError where Slurm does not answer.
    """
    import submitit

    _queue()
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    try:
        jobs = submitit.SlurmExecutor(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=folder / "jobs"))
    except RuntimeError as error:
        raise RunError(_last(str(error))) from None
    jobs.update_parameters(time=_LIMIT_MINUTES, cpus_per_task=1, job_name="scaleproof")
    return lambda: SlurmJobs(jobs), limit_s(os.environ.get("SBATCH_TIMELIMIT", ""))


def limit_s(text: str) -> float | None:
    """A limit of time as sbatch reads it: minutes, minutes:seconds, hours:minutes:seconds, or days-hours:minutes:seconds, which
    may lack the last. None for what is none."""
    days, dash, rest = text.rpartition("-")
    parts = [*([days] if dash else []), *rest.split(":")]
    if not all(part.isdecimal() for part in parts) or len(parts) > (4 if dash else 3):
        return None
    units = (86_400, 3600, 60, 1) if dash else (60, 1) if len(parts) < 3 else (3600, 60, 1)
    return float(sum(int(part) * unit for part, unit in zip(parts, units, strict=False)))


def obedient(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """What a job does. It ends when Slurm says so: submitit's handlers would wait to be killed, begin again, or raise in the
    midst of a point."""
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    return function(*arguments, **options)


def _queue() -> dict[str, str | None]:
    """Why each of this user's jobs in the queue waits; None for those that do not. Raises RunError without an answer."""
    lines = _asked("squeue", "--noheader", f"--user={os.getuid()}", "--format=%A|%T|%r").splitlines()
    rows = (line.strip().split("|", 2) for line in lines if line.count("|") >= 2)
    return {job: reason if state == "PENDING" else None for job, state, reason in rows}


def _asked(*command: str) -> str:
    """What a command of Slurm prints. Raises RunError where it fails, or does not answer."""
    # variables with which users choose what they see
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=True, env=environment,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} has no answer from Slurm within {_PATIENCE_S} s") from None
    except subprocess.CalledProcessError as error:
        raise RunError(_last(error.stderr) or f"{command[0]} ends with {error.returncode}") from None
    except OSError as error:
        raise RunError(f"{command[0]}: {error.strerror}") from None
    return answer.stdout


def _last(text: str) -> str:
    """The last line of what a command says, which is its reason."""
    return (text.strip().splitlines() or [""])[-1].strip()
