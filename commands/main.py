"""The command line: `main` parses the arguments, runs the command, and turns errors into one line and an exit code.

SIGTERM ends a command as Ctrl-C does, and both say what they interrupted and how it continues.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, MappingProxyType
from typing import NoReturn

from scaleproof import __version__
from scaleproof.commands.index import COMMANDS, GROUPS
from scaleproof.simulator.common.errors import ExitCode, ScaleproofError, missing_extra, printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code. A ScaleproofError is printed to stderr as one line."""
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
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in given if not word.startswith("-")), "")
    parser = command_line([command] if command in COMMANDS else [])
    options, rest = parser.parse_known_args(given)
    if any(word.startswith("-") for word in rest) or (rest and "scenarios" not in options):
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

    commands: Mapping[str, argparse.ArgumentParser] = MappingProxyType({})

    def format_help(self) -> str:
        """Help with the commands in groups."""
        lines = [self.format_usage().rstrip(), "", self.description or ""]
        for group, commands in GROUPS.items():
            lines += ["", f"{group}:", *(f"  {name:<12} {command.summary}" for name, command in commands.items())]
        return "\n".join([*lines, "", "'scaleproof COMMAND --help' describes a command; --version prints the version.", ""])

    def error(self, message: str) -> NoReturn:
        """Prints the error, with the nearest command for an unknown one, and ends with exit code 2."""
        if unknown := re.search(r"argument COMMAND: invalid choice: '(.*?)'", message):
            close = difflib.get_close_matches(unknown[1], COMMANDS, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"the commands are {', '.join(COMMANDS)}"
            message = f"no command is called '{unknown[1]}'; {hint}"
        super().error(message)


def command_line(names: Sequence[str] = tuple(COMMANDS)) -> _Parser:
    """The parser of the command line, with the arguments of these commands, whose modules alone are imported."""
    parser = _Parser(
        prog="scaleproof", description="Predict how fast distributed training runs, and prove the prediction by running it."
    )
    parser.add_argument("--version", action="version", version=f"scaleproof {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser)
    for module in dict.fromkeys(COMMANDS[name].module for name in names):
        importlib.import_module(f"scaleproof.commands.{module}").mount(commands)
    parser.commands = commands.choices
    return parser


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Makes SIGTERM raise Terminated, once, unless the process has a handler of its own or this is not its main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    # `timeout` sends it twice, and the second one must not interrupt what ends processes and writes results
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def interruption(error: KeyboardInterrupt, options: argparse.Namespace) -> tuple[str, int]:
    """A line that says what was interrupted and how it continues, and the exit code.

    error: its notes say what is finished, and how the command continues. options: of the command line.
    """
    notes = getattr(error, "__notes__", [])
    if not notes and hasattr(options, "resume") and options.out:
        notes = [f"--out {options.out} --resume continues"]
    by, code = (" by SIGTERM", ExitCode.TERMINATED) if isinstance(error, Terminated) else ("", ExitCode.INTERRUPTED)
    return "; ".join([f"{options.prog} interrupted{by}", *notes]), code
