"""uneven: what each kind of a scenario's unevenness costs, by how workers wait for one another.

The same workers and servers, once synchronous, once with backups, once stale-synchronous, once asynchronous, and a ring of the
same workers beside them; under each kind of unevenness that the scenario names alone, and under all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from scaleproof.simulator.analysis.alternatives import contenders
from scaleproof.simulator.analysis.sensitivity.sensitivity import rebuilt
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program.perturbations import EVEN, Perturbations
from scaleproof.simulator.run.run import framework_words
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.simulator.strategy import ParameterServer, Strategy

if TYPE_CHECKING:
    import pandas as pd

# Of so many workers one push is not waited for. 4 of 100 was the best of those tried in arXiv 1604.00981, section 4.
_SPARED_OF: Final = 24
_BOUND: Final = 3
_SEED: Final = "seed"
ALONE: Final = "even"
TOGETHER: Final = "all together"


@dataclass(frozen=True)
class Cell:
    """One way to wait under one kind of unevenness. of_even: the share of the throughput that is left of that of even ranks.

    staleness: updates by others that the parameters got between a pull and the push that follows from it, on average. dropped:
    share of pushes. problem: why it cannot be trained so, the rest is None then. warnings: of the forecast. framework: that the
    way is trained with.
    """

    samples_per_s: float | None = None
    of_even: float | None = None
    staleness: float | None = None
    dropped: float | None = None
    problem: str = ""
    warnings: tuple[str, ...] = ()
    framework: str = ""
    framework_is_default: bool = False


@dataclass(frozen=True)
class Uneven:
    """ways: in words, by name. cells: by kind of unevenness, then by way."""

    scenario: str
    workers: int
    ways: Mapping[str, str]
    cells: Mapping[str, Mapping[str, Cell]]

    def framework_words(self, way: str) -> str:
        """'pytorch-ddp, by default' of a way; "" where it cannot be trained."""
        cells = [row[way] for row in self.cells.values()]
        return next(filter(None, (framework_words(cell.framework, cell.framework_is_default) for cell in cells)), "")

    def plain(self) -> dict[str, Any]:
        """As data for JSON."""
        return asdict(self)

    def table(self) -> pd.DataFrame:
        """A row for each kind of unevenness and way."""
        import pandas as pd

        rows = [
            {"unevenness": kind, "way": way, **asdict(cell)} for kind, row in self.cells.items() for way, cell in row.items()
        ]
        return pd.DataFrame(rows).drop(columns="warnings")


def uneven(scenario: Scenario, backups: int | None = None, bound: int = _BOUND) -> Uneven:
    """What each kind of unevenness costs. backups: pushes that synchronous servers do not wait for, one of 24 workers, or one,
    if None. bound: of stale-synchronous ones.

    Raises InputError for a scenario that is even, FieldError for one without servers, or whose workers share out units.
    """
    own = scenario.strategy
    if not isinstance(own, ParameterServer):
        raise FieldError(("strategy", "kind"), f"a {own.kind} always waits for all; give a parameter_server")
    if own.units is not None or own.two_level:
        field = "units" if own.units is not None else "two_level"
        raise FieldError(("strategy", field), "not all ways to wait have it; leave it out")
    backups = max(1, round(own.workers / _SPARED_OF)) if backups is None else backups
    if not 0 < backups < own.workers:
        raise InputError(f"--backups {backups}: give 1 to {own.workers - 1} of {own.workers} workers")
    if bound < 0:
        raise InputError(f"--bound {bound}: steps that the slowest may be behind; give 0 or more")
    kinds = _kinds(scenario.unevenness)
    ways = _ways(scenario, own, backups, bound)
    cells: dict[str, dict[str, Cell]] = {}
    for kind, unevenness in kinds.items():
        row = {name: _cell(scenario, strategy, unevenness) for name, (_, strategy) in ways.items()}
        first = cells.get(ALONE, row)
        cells[kind] = {name: _against(cell, first[name]) for name, cell in row.items()}
    return Uneven(scenario.name, own.workers, {name: words for name, (words, _) in ways.items()}, cells)


def _kinds(given: Perturbations) -> dict[str, Perturbations]:
    """None, each alone, and all."""
    names = [name for name in Perturbations.model_fields if name != _SEED and getattr(given, name) != getattr(EVEN, name)]
    if not names:
        raise InputError("unevenness: the scenario says nothing of it; give such as unevenness.compute_jitter=0.3")
    alone = {name: EVEN.model_copy(update={name: getattr(given, name), _SEED: given.seed}) for name in names}
    return {ALONE: EVEN, **alone, **({TOGETHER: given} if len(names) > 1 else {})}


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


def _cell(scenario: Scenario, strategy: Strategy, unevenness: Perturbations) -> Cell:
    try:
        # checked, since ranks that are named may not be there
        run = timed(rebuilt(scenario, strategy=strategy, unevenness=unevenness))
    except FieldError as error:
        return Cell(problem=str(error))
    told = run.servers or {}
    staleness = told.get("version_staleness", {}).get("mean", 0.0)
    framework = run.framework, run.framework_is_default
    return Cell(run.samples_per_s, None, staleness, told.get("dropped", 0.0), "", run.warnings, *framework)


def _against(cell: Cell, even: Cell) -> Cell:
    if cell.samples_per_s is None or not even.samples_per_s:
        return cell
    return Cell(**{**vars(cell), "of_even": cell.samples_per_s / even.samples_per_s})
