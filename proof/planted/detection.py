"""Which planted faults `reconcile` names, and which it names where there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scaleproof.proof.planted.kinds import KINDS, PlantedFault, drawn
from scaleproof.proof.proving.figures import DISTURBED
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.explain import explain
from scaleproof.validator.record.cpu_usage import Processors
from scaleproof.validator.record.provenance import NOTICED_LOAD, load_of

# Largest number of runs with and without a fault: a machine with other load can hide a fault or look like one.
_ATTEMPTS: Final = 3
Measure = Callable[[PlantedFault, bool], Run]


@dataclass(frozen=True)
class PlantedRuns:
    """Result for a fault. expected: begin of the sentence that should name it. found, healthy: sentences of the faults that
    `reconcile` found in the run with the fault and in the run without it. attempts: number of runs of either kind, of which the
    last count. disturbed: whether other work disturbed these."""

    kind: str
    seed: int
    strategy: str
    expected: str
    found: tuple[str, ...]
    healthy: tuple[str, ...]
    attempts: int
    disturbed: bool

    @property
    def named(self) -> str:
        """The sentence that names the fault; "" if none does."""
        return next((words for words in self.found if words.startswith(self.expected)), "")

    @property
    def wrong(self) -> tuple[str, ...]:
        """Sentences that accuse what works: others in the run with the fault, and all in the run without it."""
        return (*(words for words in self.found if words != self.named), *self.healthy)


def find_faults(seeds: Sequence[int], measure: Measure, report: Callable[[PlantedRuns], None]) -> list[PlantedRuns]:
    """Plants every kind of fault with every seed. report: called with each result. Raises the errors of `measure`."""
    results = []
    for fault in (drawn(kind, seed) for kind in KINDS for seed in seeds):
        results.append(planted(fault, measure))
        report(results[-1])
    return results


def planted(fault: PlantedFault, measure: Measure) -> PlantedRuns:
    """Trains with and without the fault; again if other work disturbed the runs."""
    predicted = predict(fault.scenario, interval=False)
    attempt, disturbed = 0, True
    while disturbed and attempt < _ATTEMPTS:
        attempt += 1
        meanwhile = Processors()
        runs = [measure(fault, with_fault) for with_fault in (True, False)]
        # a planted fault is other work, too
        disturbed = meanwhile.taken() > DISTURBED or load_of(runs[1].provenance) > NOTICED_LOAD
    found, healthy = (tuple(one.words for one in explain(predicted, run).faults) for run in runs)
    strategy = fault.scenario.strategy.kind
    return PlantedRuns(fault.kind, fault.seed, strategy, fault.words, found, healthy, attempt, disturbed)


def figures(results: Sequence[PlantedRuns]) -> dict[str, Any]:
    """Numbers of faults, of those named, and of wrong sentences, and each result, as data for JSON."""
    return {
        "faults": len(results),
        "named": sum(bool(one.named) for one in results),
        "wrong": sum(len(one.wrong) for one in results),
        "runs": [vars(one) | {"named": one.named, "wrong": one.wrong} for one in results],
    }
