"""The command line: `main` parses the arguments, runs the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Final

from scaleproof import __version__

# Modules that add commands, in the order of `--help`.
_COMMANDS: Final = (
    "predicting.predict",
    "predicting.plan",
    "predicting.sweep",
    "predicting.compare",
    "predicting.crossover",
    "predicting.sensitivity",
    "predicting.uneven",
    "predicting.goodput",
    "predicting.collective",
    "predicting.model",
    "predicting.cluster",
    "predicting.shipped",
    "measuring.calibrate",
    "measuring.import_",
    "measuring.measure",
    "measuring.reconcile",
    "measuring.prove",
    "measuring.faults",
    "measuring.converge",
    "measuring.score",
    "reporting.report",
    "reporting.timeline",
    "reporting.claims",
    "reporting.explore",
    "reporting.history",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code. Errors of ours are one line each on stderr."""
    from scaleproof.simulator.common.errors import ScaleproofError, missing_extra, printable

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
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        print(missing, file=sys.stderr)
        return missing.exit_code
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
        prog="scaleproof", description="Predict how fast distributed training runs, and prove the prediction by running it."
    )
    parser.add_argument("--version", action="version", version=f"scaleproof {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        importlib.import_module(f"scaleproof.commands.{module}").mount(commands)
    return parser
