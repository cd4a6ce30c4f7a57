"""scaleproof predicts how fast distributed training runs, and proves the prediction by running it.

    import scaleproof

    run = scaleproof.predict(scaleproof.load("resnet50-ring-p100"))
    print(run.samples_per_s)

The same on the command line: `scaleproof --help`. A public name is imported when it is first used, so that
`import scaleproof` imports neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaleproof.commands.main import main
    from scaleproof.simulator.analysis.collective.time import collective_time
    from scaleproof.simulator.analysis.compare import compare
    from scaleproof.simulator.analysis.crossover.crossover import crossover
    from scaleproof.simulator.analysis.goodput import goodput
    from scaleproof.simulator.analysis.planner.search import plan
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity
    from scaleproof.simulator.analysis.study.sweep import sweep
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.scenario.load import load
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.validator.measure import MeasureOptions, measure

__version__ = "0.1.0"
__all__ = [
    "MeasureOptions", "Scenario", "collective_time", "compare", "crossover", "goodput", "load", "main", "measure", "plan",
    "predict", "sensitivity", "sweep",
]  # fmt: skip

_MODULES = {
    "MeasureOptions": "validator.measure",
    "Scenario": "simulator.scenario.schema",
    "collective_time": "simulator.analysis.collective.time",
    "compare": "simulator.analysis.compare",
    "crossover": "simulator.analysis.crossover.crossover",
    "goodput": "simulator.analysis.goodput",
    "load": "simulator.scenario.load",
    "main": "commands.main",
    "measure": "validator.measure",
    "plan": "simulator.analysis.planner.search",
    "predict": "simulator.predict",
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
