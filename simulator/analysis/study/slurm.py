"""Slurm jobs as a `concurrent.futures` executor.

The state of jobs is read from the queue (squeue), as accounting (sacct) is not available everywhere.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import RunError

# time limit of a job, unless SBATCH_TIMELIMIT is set
_LIMIT_MINUTES: Final = 240
# polling intervals: of the jobs' result files, and of the queue, which all users query
_FILES_S: Final = 1.0
_QUEUE_S: Final = 10.0
# timeout of one Slurm command; and of Slurm as a whole, which may restart while jobs continue
_TIMEOUT_S: Final = 8
_UNRESPONSIVE_S: Final = 600.0
# until the files of an ended job are visible over a network; until a job with a result leaves the queue; until a warning that
# no job has started
_FILE_S: Final = 15.0
_LEAVE_S: Final = 30.0
_PENDING_S: Final = 60.0


class SlurmJobs(Executor):
    """Jobs that submitit submits to Slurm. A job that has left the queue without a result has failed.

    jobs: submitit's executor.
    """

    poll_s = _FILES_S

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs
        self._running: dict[Future[Any], Any] = {}
        # when jobs were first missing from the queue, by their numbers
        self._gone_s: dict[str, float] = {}
        self._any_started = False
        self._first_s = self._responded_s = time.monotonic()
        self._queried_s = float("-inf")
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Queues a job. Raises RunError where Slurm does not accept it."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        future: Future[Any] = Future()
        submitted_s = time.monotonic()
        while True:
            try:
                # submitit prints sbatch's messages to stderr
                with redirect_stderr(io.StringIO()):
                    job = self._jobs.submit(run_until_signalled, function, *arguments, **options)
                with self._lock:
                    self._running[future] = job
                return future
            except (FailedJobError, FailedSubmissionError) as error:
                if self._running or not self._any_started or time.monotonic() - submitted_s > _LEAVE_S:
                    raise RunError(
                        f"--executor slurm: Slurm rejects jobs ({_last(str(error))}); finished points are saved; use --resume"
                    ) from None
            # jobs that have written their result count as queued for a short time
            time.sleep(self.poll_s)

    def _watch(self) -> None:
        """Polls jobs, and resolves the futures of those that have ended."""
        while not self._stopped.wait(self.poll_s):
            with self._lock:
                running = dict(self._running)
            with suppress(OSError):
                # makes a network file system refresh its view of the folder
                self._jobs.folder.chmod(0o700)
            if running and time.monotonic() - self._queried_s >= _QUEUE_S:
                self._query([job.job_id for job in running.values()])
            for future, job in running.items():
                self._resolve(future, job)

    def _query(self, jobs: Sequence[str]) -> None:
        """Notes which jobs have left the queue, and warns where none has started for long."""
        self._queried_s = time.monotonic()
        try:
            queued = _queue()
        except RunError as error:
            warnings.warn(f"{error}; running jobs continue", stacklevel=1)
            return
        self._responded_s = time.monotonic()
        for job in jobs:
            if job in queued:
                self._gone_s.pop(job, None)
            else:
                self._gone_s.setdefault(job, self._responded_s)
        self._any_started |= any(queued.get(job, "") is None for job in jobs) or bool(self._gone_s)
        if not self._any_started and self._queried_s - self._first_s > _PENDING_S:
            self._any_started = True
            why = ", ".join(sorted({queued.get(job) or "" for job in jobs}))
            warnings.warn(f"none of {len(jobs)} jobs has started yet ({why}); Ctrl-C cancels them", stacklevel=1)

    def _resolve(self, future: Future[Any], job: Any) -> None:
        """Gives a future the result or the error of a job that has ended."""
        from submitit.core.utils import UncompletedJobError

        result: Any = None
        failure: Exception | None = None
        now_s = time.monotonic()
        if job.paths.result_pickle.exists():
            self._any_started = True
            try:
                result = job.result()
            except Exception as error:
                failure = error
        elif now_s - self._gone_s.get(job.job_id, now_s) > _FILE_S:
            failure = UncompletedJobError(f"job {job.job_id} has ended without a result; see {job.paths.stderr}")
        elif now_s - self._responded_s > _UNRESPONSIVE_S:
            failure = UncompletedJobError(f"job {job.job_id}: Slurm has not responded for {_UNRESPONSIVE_S:.0f} s")
        else:
            return
        with self._lock:
            # a job that was cancelled in the meantime is resolved already
            if self._running.pop(future, None) is None:
                return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stops polling, after all jobs have ended if `wait`; with cancel_futures cancels queued and running jobs."""
        while wait and self._running:
            time.sleep(self.poll_s)
        self._stopped.set()
        with self._lock:
            if cancel_futures and self._running:
                try:
                    _slurm_output("scancel", "--quiet", *(job.job_id for job in self._running.values()))
                except RunError as error:
                    warnings.warn(f"{error}; cancel jobs with 'scancel --user $USER --name scaleproof'", stacklevel=1)
                for future in self._running:
                    future.cancel()
                self._running.clear()


def slurm(folder: Path) -> tuple[Callable[[], SlurmJobs], float | None]:
    """A function that starts an executor of Slurm jobs, and the time limit of a job in seconds if the environment sets one.

    folder: for the files of jobs; each sweep makes its own subfolder, as Slurm may reuse job numbers. Raises ImportError where
    submitit is not installed, RunError where Slurm does not respond.
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
    """Seconds of a time limit in sbatch's format: minutes, minutes:seconds, hours:minutes:seconds, or days-hours, optionally
    followed by :minutes and :seconds. None for other text."""
    days, dash, rest = text.rpartition("-")
    parts = [*([days] if dash else []), *rest.split(":")]
    if not all(part.isdecimal() for part in parts) or len(parts) > (4 if dash else 3):
        return None
    units = (86_400, 3600, 60, 1) if dash else (60, 1) if len(parts) < 3 else (3600, 60, 1)
    return float(sum(int(part) * unit for part, unit in zip(parts, units, strict=False)))


def run_until_signalled(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """Runs a function in a job that ends at once on Slurm's signals; submitit's handlers would wait, requeue the job, or raise
    in the middle of a point."""
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    return function(*arguments, **options)


def _queue() -> dict[str, str | None]:
    """The reason why each of this user's queued jobs is pending, by job; None for jobs that are not. Raises RunError."""
    lines = _slurm_output("squeue", "--noheader", f"--user={os.getuid()}", "--format=%A|%T|%r").splitlines()
    rows = (line.strip().split("|", 2) for line in lines if line.count("|") >= 2)
    return {job: reason if state == "PENDING" else None for job, state, reason in rows}


def _slurm_output(*command: str) -> str:
    """The output of a Slurm command. Raises RunError where it fails or does not respond in time."""
    # variables with which users change squeue's output
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True, env=environment,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]}: no response from Slurm within {_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        raise RunError(_last(error.stderr) or f"{command[0]} exits with status {error.returncode}") from None
    except OSError as error:
        raise RunError(f"{command[0]}: {error.strerror}") from None
    return completed.stdout


def _last(text: str) -> str:
    """The last line of a command's output, which gives the reason of a failure."""
    return (text.strip().splitlines() or [""])[-1].strip()
