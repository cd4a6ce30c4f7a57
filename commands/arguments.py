"""Arguments of commands, as argparse reads them."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A number of something. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def listed(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
