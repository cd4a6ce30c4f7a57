"""scaleproof predicts how fast distributed training runs, and proves the prediction by running it.

    import scaleproof as sp

    run = sp.predict("resnet50-ring-p100", {"strategy.workers": 8})
    print(run.samples_per_s)

A scenario is the name of a shipped one, a path, or a mapping with the fields of a YAML file. The same on the command line:
`scaleproof --help`. A public name is imported when it is first used, so that `import scaleproof` imports neither numpy nor
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaleproof.api import (
        claims,
        collective,
        compare,
        crossover,
        elastic,
        evidence,
        goodput,
        model,
        plan,
        predict,
        report,
        sensitivity,
        sweep,
    )
    from scaleproof.commands.main import main
    from scaleproof.measuring import calibrate, capture, fit, measure, reconcile
    from scaleproof.results import (
        ComparisonResult,
        EvidenceResult,
        PlansBySize,
        RankedPlans,
        ReconciliationResult,
        RunResult,
        SweepResult,
    )
    from scaleproof.simulator.common.errors import (
        FieldError,
        InputError,
        MissingDependencyError,
        NotFoundError,
        RunError,
        ScaleproofError,
        ScenarioError,
    )
    from scaleproof.simulator.scenario.load import load
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.validator.measure import MeasureOptions

__version__ = "0.1.0"
__all__ = [
    "ComparisonResult", "EvidenceResult", "FieldError", "InputError", "MeasureOptions", "MissingDependencyError",
    "NotFoundError", "PlansBySize", "RankedPlans", "ReconciliationResult", "RunError", "RunResult", "ScaleproofError",
    "Scenario", "ScenarioError", "SweepResult", "calibrate", "capture", "claims", "collective", "compare", "crossover",
    "elastic", "evidence", "fit", "goodput", "load", "main", "measure", "model", "plan", "predict", "reconcile", "report",
    "sensitivity", "sweep",
]  # fmt: skip

_NAMES = {
    "api": (
        "claims", "collective", "compare", "crossover", "elastic", "evidence", "goodput", "model", "plan", "predict", "report",
        "sensitivity", "sweep",
    ),
    "commands.main": ("main",),
    "measuring": ("calibrate", "capture", "fit", "measure", "reconcile"),
    "results": (
        "ComparisonResult", "EvidenceResult", "PlansBySize", "RankedPlans", "ReconciliationResult", "RunResult", "SweepResult",
    ),
    "simulator.common.errors": (
        "FieldError", "InputError", "MissingDependencyError", "NotFoundError", "RunError", "ScaleproofError",
        "ScenarioError",
    ),
    "simulator.scenario.load": ("load",),
    "simulator.scenario.schema": ("Scenario",),
    "validator.measure": ("MeasureOptions",),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used.

    Raises AttributeError for other names, and MissingDependencyError where a name needs an extra that is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'scaleproof' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"scaleproof.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        from scaleproof.simulator.common.errors import missing_extra

        raise missing_extra(error) or error from None
    return getattr(module, name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted([*__all__, "__version__"])
