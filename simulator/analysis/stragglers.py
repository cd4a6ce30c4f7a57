"""uneven: the throughput that stragglers, jitter and other perturbations cost, by consistency model.

The same workers train with synchronous, backup, stale-synchronous and asynchronous parameter servers, and with a ring
allreduce; under each perturbation of the scenario separately, and under all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.analysis.alternatives import contenders
from scaleproof.simulator.analysis.study.axes import StudyAxis
from scaleproof.simulator.analysis.study.evaluate import Row, row_of, table
from scaleproof.simulator.analysis.study.grid import Variants
from scaleproof.simulator.analysis.variants import Variant, frameworks
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.perturbations import EVEN, Perturbations
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.common.errors import FieldError, InputError, naming_extras
from scaleproof.simulator.common.record import Record
from scaleproof.simulator.parallelism import ParameterServer, Strategy
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario

if TYPE_CHECKING:
    import pandas as pd

# Workers for each backup worker. 4 backups of 100 workers were the best of those tried in arXiv 1604.00981, section 4.
_WORKERS_PER_BACKUP: Final = 24
_BOUND: Final = 3
_SEED: Final = "seed"
ALONE: Final = "even"
TOGETHER: Final = "all together"
NETWORK: Final = "network variability"


class Cell(Variant):
    """The prediction of one consistency model under one kind of perturbation.

    of_even: throughput over that without perturbations. staleness: mean number of updates by other workers between a pull and
    the push that follows from it. dropped: share of pushes that servers drop. warnings: from the prediction.
    """

    of_even: float | None = None
    staleness: float | None = None
    dropped: float | None = None
    warnings: tuple[str, ...] = ()


class Uneven(Record):
    """Predictions of all consistency models under all perturbations. ways: descriptions by name of the consistency model, or
    `ring`. cells: by kind of perturbation, then by way."""

    scenario: str
    workers: int
    ways: dict[str, str]
    cells: dict[str, dict[str, Cell]]

    def framework_words(self, way: str) -> str:
        """The framework used for a way, such as 'pytorch-ddp, by default'; "" where it cannot be trained."""
        return frameworks(row[way] for row in self.cells.values())

    @naming_extras()
    def to_frame(self) -> pd.DataFrame:
        """One row per kind of perturbation and way."""
        import pandas as pd

        rows = [
            {"unevenness": kind, "way": way, **cell.to_dict()} for kind, row in self.cells.items() for way, cell in row.items()
        ]
        return pd.DataFrame(rows).drop(columns="warnings")


def uneven(scenario: Scenario, backups: int | None = None, bound: int = _BOUND) -> Uneven:
    """Predicts the throughput of each consistency model under each perturbation of the scenario.

    backups: pushes that synchronous servers do not wait for; if None, one per 24 workers, and at least one. bound: steps that
    stale-synchronous workers may be ahead of the slowest.

    Raises InputError for a scenario without perturbations, FieldError for one without servers, with `units` or `two_level`.
    """
    own = scenario.strategy
    if not isinstance(own, ParameterServer):
        raise FieldError(("strategy", "kind"), f"{own.kind} is always synchronous; give a parameter_server")
    if own.units is not None or own.two_level:
        field = "units" if own.units is not None else "two_level"
        raise FieldError(("strategy", field), "not supported by all consistency models that are compared; leave it out")
    backups = max(1, round(own.workers / _WORKERS_PER_BACKUP)) if backups is None else backups
    if not 0 < backups < own.workers:
        raise InputError(f"--backups {backups}: give 1 to {own.workers - 1} of {own.workers} workers")
    if bound < 0:
        raise InputError(f"--bound {bound}: the number of steps that the slowest may be behind; give 0 or more")
    kinds = _kinds(scenario)
    ways = _ways(scenario, own, backups, bound)

    def perturbed(kind: tuple[Cluster, Perturbations], way: tuple[str, Strategy]) -> Scenario:
        # validated again, since a perturbation may name ranks that this strategy does not have
        return scenario.rebuilt(strategy=way[1], cluster=kind[0], unevenness=kind[1])

    grid = Variants((StudyAxis.named_values("unevenness", kinds), StudyAxis.named_values("strategy", ways)), perturbed)
    rows = iter(table(grid, _results))
    found = {kind: {way: Cell.of(next(rows)) for way in ways} for kind in kinds}
    cells = {kind: {way: _compared(cell, found[ALONE][way]) for way, cell in row.items()} for kind, row in found.items()}
    meanings = {name: words for name, (words, _) in ways.items()}
    return Uneven(scenario=scenario.name, workers=own.workers, ways=meanings, cells=cells)


def _kinds(scenario: Scenario) -> dict[str, tuple[Cluster, Perturbations]]:
    """The cluster and the perturbations by kind: none, each separately, and all together. Raises InputError if there are none.

    A network with a variability of its own is one kind, unless the scenario gives jitter of messages: messages vary by as much,
    and are slower by the mean slowdown, since contention only slows.
    """
    given, cluster = scenario.unevenness, scenario.cluster
    names = [name for name in Perturbations.model_fields if name != _SEED and getattr(given, name) != getattr(EVEN, name)]
    kinds = {name: (cluster, EVEN.model_copy(update={name: getattr(given, name), _SEED: given.seed})) for name in names}
    together = cluster, given
    variability = cluster.network.variability if cluster.network is not None else None
    if variability and not given.message_jitter:
        slower, varies = slowed(cluster, {"network.bandwidth": 1 + variability}), {"message_jitter": variability}
        kinds[NETWORK] = slower, EVEN.model_copy(update={**varies, _SEED: given.seed})
        together = slower, given.model_copy(update=varies)
    if not kinds:
        raise InputError("unevenness: missing from the scenario; set it, as in unevenness.compute_jitter=0.3")
    return {ALONE: (cluster, EVEN), **kinds, **({TOGETHER: together} if len(kinds) > 1 else {})}


def _ways(scenario: Scenario, own: ParameterServer, backups: int, bound: int) -> dict[str, tuple[str, Strategy]]:
    def served(**fields: Any) -> Strategy:
        return own.model_copy(update={"mode": "synchronous", "bound": None, "backups": 0, **fields})

    (ring,) = contenders(scenario, ["ring"])
    return {
        "synchronous": ("servers wait for all pushes of a step", served()),
        "backups": (f"they wait for all but {backups}, and drop what comes later", served(backups=backups)),
        "stale": (
            f"workers go on until the slowest is {bound} step{'s' if bound != 1 else ''} behind",
            served(mode="stale_synchronous", bound=bound),
        ),
        "asynchronous": ("workers wait for nobody", served(mode="asynchronous")),
        "ring": ("no servers: an allreduce, which waits for all", ring.strategy(scenario, {})),
    }


def _compared(cell: Cell, even: Cell) -> Cell:
    """The cell with its throughput over that without perturbations."""
    of_even = cell.samples_per_s / even.samples_per_s if cell.samples_per_s and even.samples_per_s else None
    return cell.model_copy(update={"of_even": of_even})


def _results(scenario: Scenario) -> Row:
    """The columns of a cell; a ring has neither staleness nor dropped pushes."""
    run = timed(scenario)
    staleness, dropped = (run.servers.version_staleness.mean, run.servers.dropped) if run.servers else (0.0, 0.0)
    return row_of(run) | {"staleness": staleness, "dropped": dropped, "warnings": run.warnings}
