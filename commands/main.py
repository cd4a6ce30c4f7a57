"""The command line: `main` parses the arguments, runs the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

from scaleproof import __version__
from scaleproof.commands.arguments import SUMMARIES
from scaleproof.commands.interrupts import interruption, sigterm_raises

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
    "predicting.device",
    "predicting.list_",
    "predicting.shipped",
    "measuring.capture",
    "measuring.calibrate",
    "measuring.import_",
    "measuring.measure",
    "measuring.reconcile",
    "measuring.fit",
    "measuring.prove",
    "measuring.faults",
    "measuring.converge",
    "measuring.score",
    "reporting.report",
    "reporting.timeline",
    "reporting.claims",
    "reporting.explore",
    "reporting.history",
    "completion",
)


# The commands by what they are for, in the order of --help.
_GROUPS: Final = {
    "predict and decide": (
        "predict", "plan", "sweep", "compare", "crossover", "sensitivity", "uneven", "goodput", "collective", "model",
    ),
    "measure and calibrate": (
        "capture", "calibrate", "import", "measure", "runs", "reconcile", "fit", "prove", "faults", "converge", "score",
    ),
    "look at results": ("report", "timeline", "claims", "explore", "history"),
    "look up": ("list", "show", "schema", "cluster", "device", "completion"),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code. A ScaleproofError is printed to stderr as one line."""
    from scaleproof.simulator.common.errors import ExitCode, ScaleproofError, missing_extra, printable

    # nearly all objects live until the command ends, so frequent garbage collection finds nothing
    gc.set_threshold(100_000, 50, 50)
    # print a warning as one line on stderr, like an error
    warnings.formatwarning = lambda message, *_, **__: printable(f"warning: {message}") + "\n"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # escape characters that the terminal's encoding lacks, and lone surrogates
        sys.stdout.reconfigure(errors="backslashreplace")
    options = _options(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        with sigterm_raises():
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
    except KeyboardInterrupt as error:
        line, exit_code = interruption(error, options)
        print(printable(line), file=sys.stderr)
        return exit_code
    except BrokenPipeError:
        # the reader of stdout has closed it, as `| head` does; keep the interpreter from reporting that at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        message = f"{error.filename}: {error.strerror}; choose another path" if error.filename else str(error)
        print(printable(message), file=sys.stderr)
        return ExitCode.FAILED
    except MemoryError:
        print("out of memory: use fewer ranks, steps or points", file=sys.stderr)
        return ExitCode.FAILED


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line. Scenarios may stand both before and after options, which argparse alone does not accept."""
    parser = parser_of_commands()
    options, rest = parser.parse_known_args(arguments)
    if any(word.startswith("-") for word in rest) or (rest and "scenarios" not in options):
        given = list(sys.argv[1:] if arguments is None else arguments)
        parser.error(f"unrecognized arguments: {' '.join(rest)}{_option_hint(parser, given, rest)}")
    if rest:
        options.scenarios += rest
    return options


def _option_hint(parser: _Parser, given: Sequence[str], unknown: Sequence[str]) -> str:
    """The option that an unknown one may stand for, or how to set a field of the scenario that has its name."""
    from scaleproof.simulator.scenario.fields import field_named

    option = next((word.partition("=")[0] for word in unknown if word.startswith("--")), "")
    command = next((parser.commands[word] for word in given if word in parser.commands), parser)
    flags = [flag for action in command._actions for flag in action.option_strings]
    field = field_named(option[2:].replace("-", "_")) if "--set" in flags else ""
    if field:
        at = given.index(next(word for word in given if word.startswith(option)))
        values = [given[at].partition("=")[2], *given[at + 1 : at + 2]]
        value = next((value for value in values if value and not value.startswith("-")), "VALUE")
        return f"; to change a field of the scenario, write --set {field}={value}"
    close = difflib.get_close_matches(option, flags, n=1)
    return f"; did you mean {close[0]}?" if close else ""


class _Parser(argparse.ArgumentParser):
    """The parser of the command line: help by groups of commands, and errors that name the nearest command."""

    is_whole = False
    commands: Mapping[str, argparse.ArgumentParser] = MappingProxyType({})

    def format_help(self) -> str:
        """Help with the commands in groups."""
        if not self.is_whole:
            return super().format_help()
        lines = [self.format_usage().rstrip(), "", self.description or ""]
        for group, names in _GROUPS.items():
            lines += ["", f"{group}:", *(f"  {name:<12} {SUMMARIES[name]}" for name in names)]
        return "\n".join([*lines, "", "'scaleproof COMMAND --help' describes a command; --version prints the version.", ""])

    def error(self, message: str) -> NoReturn:
        """Prints the error, with the nearest command for an unknown one, and ends with exit code 2."""
        if unknown := re.search(r"argument COMMAND: invalid choice: '(.*?)'", message):
            names = [name for names in _GROUPS.values() for name in names]
            close = difflib.get_close_matches(unknown[1], names, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"the commands are {', '.join(names)}"
            message = f"no command is called '{unknown[1]}'; {hint}"
        super().error(message)


def parser_of_commands() -> _Parser:
    """The parser of the command line, with the parsers of all commands."""
    parser = _Parser(
        prog="scaleproof", description="Predict how fast distributed training runs, and prove the prediction by running it."
    )
    parser.add_argument("--version", action="version", version=f"scaleproof {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        importlib.import_module(f"scaleproof.commands.{module}").mount(commands)
    parser.commands = commands.choices
    parser.is_whole = True
    return parser
