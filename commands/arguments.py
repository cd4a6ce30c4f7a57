"""Arguments that several commands have, and how argparse parses their values."""

from __future__ import annotations

import argparse


def add_scenario_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Adds the positional argument SCENARIO (or several) and `--set`."""
    help_text = "a YAML file, or a name from 'scaleproof list'"
    if several:
        parser.add_argument("scenarios", nargs="+", metavar="SCENARIO", help=help_text)
    else:
        parser.add_argument("scenario", metavar="SCENARIO", help=help_text)
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser, example: str = "strategy.workers=8") -> None:
    """Adds `--set FIELD=VALUE`, with an example of an override for the help text."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        dest="overrides",
        help=f"override a field, such as {example}; may be repeated",
    )


def positive(text: str) -> int:
    """Parses a whole number of at least 1. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def listed(text: str) -> tuple[str, ...]:
    """Parses words separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
