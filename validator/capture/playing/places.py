"""Where the scripts of ranks are while they run: reported on a signal by a thread of each, also while others are in C++."""

from __future__ import annotations

import itertools
import json
import linecache
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.validator.capture.communication.mailbox import Mailbox

REQUEST: Final = signal.SIGUSR1
_PLACE: Final = "place-{}.json"
_WAITS: Final = (Mailbox.get.__code__, Mailbox.shared.__code__)
# Files of communication, here and in PyTorch.
_COMMUNICATION: Final = re.compile(r"/(capture/communication/\w+|distributed/(distributed_c10d|rendezvous|rpc/\w+))\.py$")


class ReportedPlace(NamedTuple):
    """Where a rank is. line: of the script, '' if none is known. does: what it waits for or is in. steps: training steps so
    far. communicates: whether that line communicates with ranks."""

    rank: int
    line: str
    does: str
    steps: int
    communicates: bool

    @property
    def waits(self) -> bool:
        """Whether it waits for another rank."""
        return "waits" in self.does

    def text(self, script: str, wanted: int) -> str:
        """'train.py:7: rank 3 has taken 1 of 3 training steps and is at this line, where it waits for rank 0'. wanted: steps in
        all."""
        steps = f"has taken {self.steps} of {wanted} training steps"
        return f"{self.line or script}: rank {self.rank} {steps} and is at this line, where it {self.does}"


class PlaceReporter:
    """Reports the place of a rank. folder: for reports; line: returns the script's own line of a frame; is_own: whether a file
    is the script's; steps: those so far."""

    def __init__(
        self, folder: Path, rank: int, line: Callable[[FrameType], str], is_own: Callable[[str], bool], steps: Callable[[], int]
    ) -> None:
        self._folder, self._rank, self._line, self._is_own, self._steps = folder, rank, line, is_own, steps

    def install(self) -> None:
        """Takes requests in a thread, which sees whole frames: a handler that ran within Dynamo would not."""
        threading.Thread(target=self._serve, name="places", daemon=True).start()

    def _serve(self) -> None:
        while True:
            signal.sigwait([REQUEST])
            place = json.dumps(self._place()).encode()
            write_atomically(self._folder / _PLACE.format(self._rank), place)

    def _place(self) -> ReportedPlace:
        """Where the main thread is. The frame lives no longer than this call: it holds the tensors of its variables, whose
        memory would count after the script has let go of them."""
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        files = [one.f_code.co_filename for one, _ in traceback.walk_stack(frame)]
        return ReportedPlace(self._rank, self._line(frame), _does(frame), self._steps(), _communicates(files, self._is_own))


def _does(innermost: FrameType) -> str:
    """What a rank waits for, or which function it is in."""
    for frame, _ in traceback.walk_stack(innermost):
        if frame.f_code in _WAITS:
            return f"waits for rank {frame.f_locals.get('source')}"
    # a frame between two lines has none
    path, line = innermost.f_code.co_filename, innermost.f_lineno
    source = linecache.getline(path, line or 0).strip()
    place = f"{'/'.join(Path(path).parts[-2:])}:{line}{source and f': {source}'}"
    return f"is in {innermost.f_code.co_name} ({place})"


def _communicates(files: Iterable[str], is_own: Callable[[str], bool]) -> bool:
    """Whether the script's innermost line is in a call of communication. files: of all frames, the innermost first."""
    return any(map(_COMMUNICATION.search, itertools.takewhile(lambda path: not is_own(path), files)))


def hold_requests() -> None:
    """Keeps requests until a reporter takes them. Called before this process, or one that it forks, starts threads."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [REQUEST])


def forget(folder: Path) -> None:
    """Removes earlier reports, so that those of before do not count."""
    for path in folder.glob(_PLACE.format("*")):
        path.unlink()


def read_places(folder: Path) -> Iterator[ReportedPlace]:
    """Reports since the last call of `forget`."""
    for path in sorted(folder.glob(_PLACE.format("*"))):
        yield ReportedPlace(*json.loads(path.read_bytes()))
