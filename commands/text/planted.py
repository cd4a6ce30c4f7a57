"""Console text of planted faults: which were named, and what was accused without a fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.units import counted

if TYPE_CHECKING:
    from scaleproof.proof.planted.detection import PlantedRuns

_HEADS: Final = ("fault", "seed", "strategy", "named")


def line(result: PlantedRuns) -> str:
    """One line about a planted fault."""
    return f"{result.kind}, seed {result.seed}: {result.named or 'not named'}"


def describe(results: Sequence[PlantedRuns]) -> str:
    """Console text of all planted faults: a row each, wrong sentences, and their numbers."""
    rows = [(one.kind, str(one.seed), one.strategy, one.named or "not named") for one in results]
    named = sum(bool(one.named) for one in results)
    wrong = [f"wrong  {one.kind}, seed {one.seed}: {words}" for one in results for words in one.wrong]
    runs = f"{counted(2 * len(results), 'run')}, half of them without a fault"
    total = f"{named} of {counted(len(results), 'fault')} named; {counted(len(wrong), 'wrong sentence')} in {runs}"
    return "\n".join((*table([_HEADS, *rows], "<><<"), "", *wrong, total, *_disturbed(results)))


def _disturbed(results: Sequence[PlantedRuns]) -> Iterator[str]:
    disturbed = sum(one.disturbed for one in results)
    if disturbed:
        yield f"other work disturbed the runs of {counted(disturbed, 'fault')}, also when they were repeated"
