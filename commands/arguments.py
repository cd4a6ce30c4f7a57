"""Commands and their arguments: how modules add them to the command line, and how argparse parses their values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from scaleproof.commands.index import COMMANDS

Action = Callable[[argparse.Namespace], int]
_N = TypeVar("_N", int, float)
NAME: Final = "a YAML file, or a name from 'scaleproof list'"
SCENARIO: Final = f"{NAME}; or a model such as hf:config.json, with --set cluster=NAME --set batch=N"


def number(read: Callable[[str], _N], is_valid: Callable[[_N], bool], words: str) -> Callable[[str], _N]:
    """A function that parses numbers and raises ArgumentTypeError for others. words: the numbers that are valid."""

    def parse(text: str) -> _N:
        try:
            value: _N | None = read(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"expected {words}, got {text!r}")
        return value

    return parse


positive = number(int, lambda value: value >= 1, "a whole number of at least 1")


def duration(unit: str, unit_s: float) -> Callable[[str], float]:
    """A function that parses a time with its unit, such as '2 min', or a number of `unit`, and returns it in that unit. unit_s:
    seconds of the unit."""

    def read(text: str) -> float:
        from scaleproof.simulator.common.units import parse_time_s

        try:
            return float(text)
        except ValueError:
            return parse_time_s(text) / unit_s

    return number(read, lambda value: 0 < value < math.inf, f"a positive number of {unit}, or a time such as '90 min'")


def _read_share(text: str) -> float:
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


share = number(_read_share, lambda value: value >= 0, "a share, such as 25% or 0.25")
_seconds = duration("seconds", 1.0)


class Command:
    """A command of the command line. parser: argparse's parser of its arguments."""

    def __init__(self, commands: Any, name: str, run: Action | None, summary: str = "") -> None:
        """Adds the command to argparse's subparsers. summary: what it does, in a line (that of the index of commands)."""
        summary = summary or COMMANDS[name].summary
        description = f"{summary[0].upper()}{summary[1:]}."
        self.parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=description)
        self.parser.set_defaults(command=run, prog=self.parser.prog)

    def add(self, spec: str, help: str, repeated: bool = False, **settings: Any) -> None:  # noqa: A002
        """Adds an argument that is written as help shows it: '--flag', '--option VALUE', or 'POSITIONAL'.

        repeated: collects the values of an option that may be repeated. settings: for argparse. An option without
        a value and without settings is a flag.
        """
        if repeated:
            help, settings = f"{help}; may be repeated", {"action": "append", "default": []} | settings  # noqa: A001
        name, _, metavar = spec.partition(" ")
        if not name.startswith("-"):
            self.parser.add_argument(settings.pop("dest", name.lower()), metavar=name, help=help, **settings)
        elif metavar or settings:
            self.parser.add_argument(name, metavar=metavar or None, help=help, **settings)
        else:
            self.parser.add_argument(name, action="store_true", help=help)

    def add_scenario(self, several: bool = False) -> None:
        """Adds the positional argument SCENARIO (or several) and `--set`."""
        settings: dict[str, Any] = {"dest": "scenarios", "nargs": "+"} if several else {}
        self.add("SCENARIO", SCENARIO, **settings)
        self.add_overrides()

    def add_scenario_or_files(self) -> None:
        """Adds the positional argument SCENARIO, which `--from` may replace, and `--from`."""
        self.add("SCENARIO", SCENARIO, nargs="?")
        self.add(
            "--from FILE",
            "the job of a configuration of DeepSpeed, Accelerate, Transformers, TRL, Axolotl, LLaMA-Factory or torchtune; "
            "SCENARIO is then its model, if given",
            repeated=True,
            dest="files",
        )

    def add_overrides(self, of: str = "a field, such as strategy.workers=8", option: str = "--set") -> None:
        """Adds an option that overrides fields. of: the fields, for the help text."""
        dest = "overrides" if option == "--set" else option[2:].replace("-", "_")
        self.add(f"{option} FIELD=VALUE", f"override {of}", repeated=True, dest=dest)

    def add_place(self, action: str) -> None:
        """Adds `--on`. action: what is done there, for the help text."""
        places = "processes on this machine (local), hosts of an emulated network inside it (netlab), or ranks that torchrun "
        places += "or srun started (cluster)"
        self.add("--on", f"where to {action}: {places}", choices=["local", "netlab", "cluster"])

    def add_tokens(self) -> None:
        """Adds `--tokens`."""
        self.add("--tokens N", "also print time, money, energy and CO2 of training on N tokens, such as 15T", type=count)

    def add_timeout(self, what: str, seconds: float) -> None:
        """Adds `--timeout` with its default. what: the time, for the help text."""
        self.add("--timeout SECONDS", f"{what} ({seconds:g})", type=_seconds, default=seconds)


def count(text: str) -> float:
    """Parses a number such as 15T. Raises ArgumentTypeError."""
    from scaleproof.simulator.common.errors import UnitError
    from scaleproof.simulator.common.units import parse_count

    try:
        return parse_count(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size(text: str) -> float:
    """Parses a size above zero, such as 70GiB, in bytes. Raises ArgumentTypeError."""
    from scaleproof.simulator.common.errors import UnitError
    from scaleproof.simulator.common.units import parse_bytes

    try:
        parsed = parse_bytes(text)
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not parsed:
        raise argparse.ArgumentTypeError(f"expected a size above zero, got {text!r}")
    return parsed


def listed(text: str) -> tuple[str, ...]:
    """Parses words separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
