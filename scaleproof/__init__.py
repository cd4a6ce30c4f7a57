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
    from scaleproof.api import collective, compare, evidence, model, plan, predict, report
    from scaleproof.commands.main import main
    from scaleproof.simulator.analysis.crossover.crossover import crossover
    from scaleproof.simulator.analysis.goodput import goodput
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity
    from scaleproof.simulator.analysis.study.sweep import sweep
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
    from scaleproof.validator.measure import MeasureOptions, measure

__version__ = "0.1.0"
__all__ = [
    "FieldError", "InputError", "MeasureOptions", "MissingDependencyError", "NotFoundError", "RunError", "ScaleproofError",
    "Scenario", "ScenarioError", "collective", "compare", "crossover", "evidence", "goodput", "load", "main", "measure",
    "model", "plan", "predict", "report", "sensitivity", "sweep",
]  # fmt: skip

_ERRORS = "simulator.common.errors"
_MODULES = {
    "FieldError": _ERRORS,
    "InputError": _ERRORS,
    "MeasureOptions": "validator.measure",
    "MissingDependencyError": _ERRORS,
    "NotFoundError": _ERRORS,
    "RunError": _ERRORS,
    "ScaleproofError": _ERRORS,
    "Scenario": "simulator.scenario.schema",
    "ScenarioError": _ERRORS,
    "collective": "api",
    "compare": "api",
    "crossover": "simulator.analysis.crossover.crossover",
    "evidence": "api",
    "goodput": "simulator.analysis.goodput",
    "load": "simulator.scenario.load",
    "main": "commands.main",
    "measure": "validator.measure",
    "model": "api",
    "plan": "api",
    "predict": "api",
    "report": "api",
    "sensitivity": "simulator.analysis.sensitivity.sensitivity",
    "sweep": "simulator.analysis.study.sweep",
}


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
