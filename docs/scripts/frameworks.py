"""Prints the table of docs/guides/frameworks.md, as frameworks ship today: `python docs/scripts/frameworks.py`."""

from __future__ import annotations

from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.frameworks.library import names

HEAD = "| name | what it is | runs |\n|---|---|---|"


def row(name: str) -> str:
    """One framework."""
    framework = shipped(name)
    supports = ", ".join(one.replace("_", " ") for one in framework.supports)
    return f"| `{name}` | {framework.description} | {supports} |"


def table() -> str:
    """All that ship."""
    return "\n".join([HEAD, *map(row, names())])


if __name__ == "__main__":
    print(table())
