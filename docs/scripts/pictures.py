"""Draws the pictures of docs/reference/strategies.md again, by the commands below them: `python docs/scripts/pictures.py`."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Final

import scaleproof

PAGE: Final = Path(__file__).parents[1] / "reference" / "strategies.md"


def commands() -> list[list[str]]:
    """Arguments of each `scaleproof timeline` that the page shows."""
    return [shlex.split(line) for line in re.findall(r"^scaleproof (timeline .*)$", PAGE.read_text(), re.MULTILINE)]


if __name__ == "__main__":
    os.chdir(PAGE.parents[2])
    raise SystemExit(max(map(scaleproof.main, commands())))
