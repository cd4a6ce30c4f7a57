"""The explanation of the difference between a predicted and a measured run, as `reconcile.json` has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from pydantic import ConfigDict, Field, NonNegativeInt

# Waiting by part of the breakdown. Predictions have two kinds of waiting for ranks: `slowest_rank` is waiting for a device that
# is slower than the mean, which predicted phases contain. Measured ranks compute at their own speed, then wait.
WAITING: Final = ("bubble", "waiting_for_ranks", "waiting_for_server", "waiting_for_input")
# Parts by group, in the order of output.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "compute": ("forward", "backward", "optimizer"),
    "communication": ("volume", "rate", "overlap"),
    "waiting": WAITING,
    "unmodelled": ("unmodelled",),
}
# of files, which may be damaged
_FINITE: Final = ConfigDict(allow_inf_nan=False)


@dataclass(frozen=True)
class ErrorPart:
    """A part of predicted − measured step time, in seconds.

    predicted_s, measured_s: the part's seconds in a step of each side: for rate all the time in which bytes move, for overlap
    the hidden share of it; None for volume, which is not hidden.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _FINITE

    name: str
    difference_s: float
    predicted_s: float | None = None
    measured_s: float | None = None

    @property
    def group(self) -> str:
        """Name of the group of parts that this one belongs to; empty for a part of another version."""
        return next((group for group, names in GROUPS.items() if self.name in names), "")


@dataclass(frozen=True)
class Divergence:
    """A difference between both timelines: spans of one kind, in seconds of one rank in a step. rank: the predicted rank class.
    measured_ranks: the ranks in it. stage and microbatch are −1 where they do not apply."""

    __pydantic_config__: ClassVar[ConfigDict] = _FINITE

    rank: Annotated[int, Field(ge=0)]
    measured_ranks: tuple[NonNegativeInt, ...]
    phase: str
    stage: int
    microbatch: int
    predicted_s: float
    measured_s: float


class DetectedFault(NamedTuple):
    """kind: compute, jitter, messages, updates, input or network. who: names of the ranks; none for the network. ratio: of
    the time to that of others; of the step to one without the wait for input. words: a sentence, without full stop."""

    kind: str
    who: tuple[str, ...]
    ratio: float
    words: str


@dataclass(frozen=True)
class Explanation:
    """difference_s: predicted − measured step time, the sum of the parts. partings: the largest differences between the
    timelines. sentences: the explanation in words, without full stops."""

    __pydantic_config__: ClassVar[ConfigDict] = _FINITE

    difference_s: float = 0.0
    parts: tuple[ErrorPart, ...] = ()
    faults: tuple[DetectedFault, ...] = ()
    partings: tuple[Divergence, ...] = ()
    sentences: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain data for JSON."""
        parts = [{"name": part.name, "group": part.group, **asdict(part)} for part in self.parts]
        faults = [fault._asdict() for fault in self.faults]
        partings = [asdict(divergence) for divergence in self.partings]
        sentences = list(self.sentences)
        return {
            "difference_s": self.difference_s,
            "parts": parts,
            "faults": faults,
            "partings": partings,
            "sentences": sentences,
        }
