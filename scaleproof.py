"""scaleproof: forecasts how fast distributed training will run, then proves the forecast.

    from scaleproof import load, predict, measure

    run = predict(load("resnet50-ring-p100"))
    print(run.samples_per_s)

The same as a command: `scaleproof --help`. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaleproof.simulator.analysis.compare import compare
    from scaleproof.simulator.analysis.crossover.crossover import crossover
    from scaleproof.simulator.analysis.goodput import goodput
    from scaleproof.simulator.analysis.planner import plan
    from scaleproof.simulator.analysis.sensitivity.sensitivity import sensitivity
    from scaleproof.simulator.analysis.study import sweep
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.scenario.load import load
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.validator.measure import MeasureOptions, measure

__all__ = [
    "Scenario", "MeasureOptions", "compare", "crossover", "goodput", "load", "main", "measure", "plan", "predict", "sensitivity",
    "sweep",
]  # fmt: skip
__version__ = "0.1.0"

_PUBLIC = {
    "load": "scaleproof.simulator.scenario.schema",
    "Scenario": "scaleproof.simulator.scenario.schema",
    "predict": "scaleproof.simulator.predict",
    "compare": "scaleproof.simulator.analysis.compare",
    "sensitivity": "scaleproof.simulator.analysis.sensitivity.sensitivity",
    "crossover": "scaleproof.simulator.analysis.crossover.crossover",
    "goodput": "scaleproof.simulator.analysis.goodput",
    "sweep": "scaleproof.simulator.analysis.study",
    "plan": "scaleproof.simulator.analysis.planner",
    "measure": "scaleproof.validator.measure",
    "MeasureOptions": "scaleproof.validator.measure",
}
_COMMANDS = (
    "scaleproof.commands.predicting.predict",
    "scaleproof.commands.measuring.score",
    "scaleproof.commands.reporting.report",
    "scaleproof.commands.reporting.claims",
)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'scaleproof' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code. Errors of ours are one line each on stderr."""
    from scaleproof.simulator.common.errors import ScaleproofError, printable

    # nearly all objects live until the command ends: looking through them again and again is time lost
    gc.set_threshold(100_000, 50, 50)
    # a warning is a line on stderr, as an error is
    warnings.formatwarning = lambda message, *_, **__: printable(f"warning: {message}") + "\n"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # what a terminal's encoding lacks, and half a character that a file may hold, is shown by its number
        sys.stdout.reconfigure(errors="backslashreplace")
    options = _options(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except ScaleproofError as error:
        print(printable(str(error)), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output has gone, as `| head` does; keep the interpreter from complaining about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        told = f"{error.filename}: {error.strerror}; choose another place" if error.filename else str(error)
        print(printable(told), file=sys.stderr)
        return 1
    except MemoryError:
        print("out of memory: this takes more than there is; ask for fewer ranks, steps or points", file=sys.stderr)
        return 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says. Several scenarios may stand before and after options, which argparse does not take itself."""
    parser = _parser()
    options, left = parser.parse_known_args(arguments)
    if any(word.startswith("-") for word in left) or (left and "scenarios" not in options):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        options.scenarios += left
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scaleproof", description="Forecast how fast distributed training will run, then prove it by running it."
    )
    parser.add_argument("--version", action="version", version=f"scaleproof {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        importlib.import_module(module).mount(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
