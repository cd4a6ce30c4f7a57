"""Plays one rank: runs the script in this process, on a GPU that does not exist, and writes the record of a step."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from scaleproof.simulator.captured.record import ProcessGroup, RecordedRanks
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.validator.capture.backend.calls import OperatorCall
from scaleproof.validator.capture.command.command_line import parse
from scaleproof.validator.capture.command.launchers import LAUNCHERS, console_script, package_of, start_in_place
from scaleproof.validator.capture.communication.mailbox import NoValueError
from scaleproof.validator.capture.communication.matching import IssuedCalls
from scaleproof.validator.capture.compiled.regions import CompiledRegions
from scaleproof.validator.capture.context import ScriptContext, whole_parameters
from scaleproof.validator.capture.failures import NoStepError, failure_plain
from scaleproof.validator.capture.job import CaptureJob, Script, set_environment
from scaleproof.validator.capture.playing.places import PlaceReporter
from scaleproof.validator.capture.playing.rank_device import RankDevice
from scaleproof.validator.capture.replaced.checkpoints import Checkpoints
from scaleproof.validator.capture.replaced.files import SavedFiles
from scaleproof.validator.capture.replaced.unsupported import refuse_unsupported
from scaleproof.validator.capture.steps import KeptStep, Steps, local_part
from scaleproof.validator.capture.trace import RankTrace

RECORD: Final = "record-{}.pickle"
FAILURE: Final = "failure-{}.json"
# Steps that it takes to compare two after the first one.
_COMPARABLE: Final = 3
# Relative difference of moved bytes up to which ranks count as equal.
_NEAR: Final = 0.02


class RankRecord(NamedTuple):
    """The record of a rank. own: its step, as a class of this rank alone; all_groups: of the whole job; warnings: for users.
    calls: of operators by their rows, if the job keeps them. products_hash: of products and communication; moved_bytes: by all
    other operators. issued: its calls of communication."""

    own: RecordedRanks
    all_groups: tuple[ProcessGroup, ...]
    warnings: tuple[str, ...]
    calls: Mapping[int, OperatorCall]
    products_hash: str
    moved_bytes: int
    issued: IssuedCalls

    def equals(self, other: RankRecord) -> bool:
        """Whether both ranks do the same: they launch the same operators, or the same products between the same communication,
        while all others move as many bytes. Flat parameters are cut where it may be, so that each rank has other tensors."""
        if self.own.operators_hash == other.own.operators_hash:
            return True
        most = max(self.moved_bytes, other.moved_bytes)
        return self.products_hash == other.products_hash and abs(self.moved_bytes - other.moved_bytes) <= _NEAR * most


class Player:
    """A rank's parts. folder: where its record, or why there is none, is written."""

    def __init__(self, job: CaptureJob, rank: int, folder: Path) -> None:
        self._job, self._rank, self._folder = job, rank, folder

    def play(self) -> NoReturn:
        """Runs the script until enough steps are recorded, and ends this process."""
        try:
            self._install()
            run_script(self._job.script)
        except BaseException as error:
            self._fail(error)
        self._finish()

    def _install(self) -> None:
        job = self._job
        self._context = ScriptContext(folder_of(job.script))
        self._trace = RankTrace(self._context)
        device = RankDevice(job, self._rank, self._folder, self._trace)
        device.install()
        self._recording, self._mailbox = device.recording, device.mailbox
        CompiledRegions(self._trace, device.arena).install()
        Checkpoints(self._trace, SavedFiles(self._folder, self._rank), self._rank).install()
        refuse_unsupported(device.local)
        start_in_place(self._start, job.script.target in LAUNCHERS)
        self._steps = Steps(self._trace, device.arena, job.steps, self._finish)
        self._steps.install()
        context = self._context
        PlaceReporter(self._folder, self._rank, context.line, context.is_own_file, lambda: self._steps.count).install()

    def _start(self, words: Sequence[str]) -> NoReturn:
        """Runs what a launcher starts."""
        script = parse(words).script
        set_environment(script, self._rank, self._job.world_size, self._job.ranks_per_node)
        self._context.follow(folder_of(script))
        run_script(script)
        self._finish()

    def _finish(self) -> NoReturn:
        """Writes the record, and ends this process, whatever the script still does."""
        code = 0
        try:
            record = self._record()
            write_atomically(self._folder / RECORD.format(self._rank), pickle.dumps(record))
            self._mailbox.end()
        except BaseException as error:
            self._write_failure(error)
            code = 1
        _leave(code)

    def _record(self) -> RankRecord:
        kept = self._steps.kept()
        if kept is None:
            message = (
                "the script ended without a step of an optimizer, so there is no training step to record; capture takes scripts"
            )
            raise NoStepError(f"{message} that train with torch.optim")
        trace = self._trace
        events, calls = trace.kept(kept.begin, kept.end)
        parameters = list(self._steps.parameters.values())
        warnings = (*_warnings(kept), *trace.notes)
        own = RecordedRanks(
            name=f"rank {self._rank}", ranks=(range(self._rank, self._rank + 1),), played=self._rank, why="",
            groups=tuple(self._recording.groups),
            parameters=whole_parameters(self._context.roots.values(), parameters),
            local_parameters=sum(local_part(parameter).numel() for parameter in parameters), inputs=kept.inputs,
            optimizers=kept.optimizers, kept_step=kept.number, steps=kept.steps, peak_bytes=trace.peaks(kept.first_mark),
            operators_hash=trace.digest(kept.begin, kept.end), decisions=trace.decisions(),
            **events._asdict(),
        )  # fmt: skip
        return RankRecord(
            own, tuple(self._recording.all_groups), warnings, calls, trace.digest(kept.begin, kept.end, moves=False),
            trace.moved_bytes(kept.begin, kept.end),
            IssuedCalls.of(self._recording.calls, kept.first_end, kept.begin, kept.end, kept.number),
        )  # fmt: skip

    def _fail(self, error: BaseException) -> None:
        """Ends this process after an error, unless it is an exit that reports success."""
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        if isinstance(error, NoValueError) and self._steps.kept() is not None:
            # the rank that it communicates with has taken enough steps
            return
        self._write_failure(error)
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        _leave(1)

    def _write_failure(self, error: BaseException) -> None:
        plain = failure_plain(error, getattr(self, "_context", None), self._rank)
        write_atomically(self._folder / FAILURE.format(self._rank), json.dumps(plain).encode())


def _warnings(kept: KeptStep) -> Iterator[str]:
    """What users should know of the step that was kept."""
    if kept.steps < _COMPARABLE:
        took = "one step" if kept.steps == 1 else f"{kept.steps} steps"
        yield f"the script took {took}, so that the last one was not compared with one like it; let it take four"
    elif not kept.is_steady:
        yield f"the last step ({kept.number + 1} of {kept.steps}) differs from the one before; let the script take more steps"


def run_script(script: Script) -> None:
    """Runs a script in this process as Python does."""
    path = script.target
    if not script.is_module and not Path(path).is_file():
        path = str(console_script(path) or path)
    sys.argv = [path, *(word.replace("${local_rank}", os.environ["LOCAL_RANK"]) for word in script.arguments)]
    sys.path[:0] = filter(None, dict(script.environment).get("PYTHONPATH", "").split(os.pathsep))
    if script.is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(script.target, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(path).resolve().parent))
        runpy.run_path(path, run_name="__main__")


def folder_of(script: Script) -> Path:
    """Folder of the script's own files: for modules and console commands of an installed package, that package's."""
    if Path(script.target).is_file() and not script.is_module:
        return Path(script.target).resolve().parent
    package = script.target.partition(".")[0] if script.is_module else package_of(script.target)
    spec = PathFinder.find_spec(package, [os.getcwd(), *sys.path]) if package else None
    found = next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
    if found is None or (Path(found).is_relative_to(Path.cwd()) and not Path(found).is_relative_to(sys.prefix)):
        return Path.cwd()
    return Path(found).resolve()


def _leave(code: int) -> NoReturn:
    # destructors of CUDA tensors and of PyTorch's threads are not needed
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def play(job: CaptureJob, rank: int, folder: Path) -> NoReturn:
    """Plays a rank in this process, which ends with it."""
    Player(job, rank, folder).play()


def read_record(path: Path) -> RankRecord:
    """The record that a player of the same capture has written."""
    record = pickle.loads(path.read_bytes())  # noqa: S301 - written by a rank of this capture
    assert isinstance(record, RankRecord)
    return record
