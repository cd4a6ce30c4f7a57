"""Where the scripts of ranks are while they run: reported by the ranks on a signal, also where they are in code of C++."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Final, NamedTuple

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.validator.capture.communication.mailbox import Mailbox

REQUEST: Final = signal.SIGUSR1
_PLACE: Final = "place-{}.json"
_STACK: Final = "stack-{}.txt"
_FRAME: Final = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_DUMP: Final = "Stack (most recent call first):"
_WAITS: Final = (Mailbox.get.__code__, Mailbox.shared.__code__)


class ReportedPlace(NamedTuple):
    """Where a rank is. line: of the script, '' if none is known. does: what it waits for or is in, '' for the line itself.
    steps: training steps so far, None if the rank could not say."""

    rank: int
    line: str
    does: str
    steps: int | None

    @property
    def waits(self) -> bool:
        """Whether it waits for another rank."""
        return "waits" in self.does

    def text(self, script: str, wanted: int) -> str:
        """'train.py:7: rank 3 has taken 1 of 3 training steps and is at this line, where it waits for rank 0'. wanted: steps in
        all."""
        where = self.line or script
        steps = "" if self.steps is None else f" has taken {self.steps} of {wanted} training steps and"
        return f"{where}: rank {self.rank}{steps} is at this line{self.does and f', where it {self.does}'}"


class PlaceReporter:
    """Reports the place of a rank. folder: for reports; line: returns the script's own line; steps: those so far."""

    def __init__(self, folder: Path, rank: int, line: Callable[[], str], steps: Callable[[], int]) -> None:
        self._folder, self._rank, self._line, self._steps = folder, rank, line, steps
        self._stack: IO[str] | None = None

    def install(self) -> None:
        """Handles the signal: in C, which writes the stack, and then in Python, which knows more, if it is not in C++."""
        self._stack = (self._folder / _STACK.format(self._rank)).open("w")
        signal.signal(REQUEST, self._report)
        faulthandler.register(REQUEST, self._stack, all_threads=False, chain=True)

    def _report(self, _: int, frame: FrameType | None) -> None:
        plain = ReportedPlace(self._rank, self._line(), _does(frame), self._steps())
        write_atomically(self._folder / _PLACE.format(self._rank), json.dumps(plain).encode())


def _does(frame: FrameType | None) -> str:
    """What a rank waits for, or which function it is in."""
    innermost = frame
    while frame is not None:
        if frame.f_code in _WAITS:
            return f"waits for rank {frame.f_locals.get('source')}"
        frame = frame.f_back
    if innermost is None:
        return ""
    return _in(innermost.f_code.co_filename, innermost.f_lineno, innermost.f_code.co_name)


def _in(path: str, line: int, name: str) -> str:
    return f"is in {name} ({'/'.join(Path(path).parts[-2:])}:{line})"


def forget(folder: Path) -> None:
    """Removes earlier reports, so that those of before do not count."""
    for path in folder.glob(_PLACE.format("*")):
        path.unlink()


def read_places(folder: Path, is_own: Callable[[str], bool]) -> Iterator[ReportedPlace]:
    """Reports since the last call of `forget`. is_own: whether a file is the script's."""
    for stack in sorted(folder.glob(_STACK.format("*"))):
        rank = int(stack.stem.rpartition("-")[2])
        with contextlib.suppress(OSError, ValueError):
            place = folder / _PLACE.format(rank)
            if place.exists():
                yield ReportedPlace(*json.loads(place.read_bytes()))
                continue
            _, found, dump = stack.read_text(encoding="utf-8").rpartition(_DUMP)
            frames = _FRAME.findall(dump)
            if found and frames:
                own = next((f"{Path(path).name}:{line}" for path, line, _ in frames if is_own(path)), "")
                path, line, name = frames[0]
                yield ReportedPlace(rank, own, _in(path, int(line), name), None)
