"""The versions that a page was made with, and the sources of a scenario's numbers."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

_PACKAGES: Final = ("scaleproof", "numpy", "scipy", "pandas", "pyarrow", "pydantic", "simpy", "matplotlib", "jinja2")


def made_with() -> tuple[str, str]:
    """Versions of the packages that make a page, as one of its facts."""
    return "Page made with", ", ".join(f"{name} {number}" for name, number in _versions())


def _versions() -> Iterator[tuple[str, str]]:
    yield "Python", platform.python_version()
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def frameworks(words: Iterable[str]) -> list[tuple[str, str]]:
    """The frameworks of predictions, as one of a page's facts; empty if they are not recorded."""
    named = list(dict.fromkeys(filter(None, words)))
    return [("Frameworks" if len(named) > 1 else "Framework", "; ".join(named))] if named else []


def cited(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yields part and source of each `source` field of a scenario."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "source" and isinstance(inner, str):
                yield place or "scenario", " ".join(inner.split())
            else:
                yield from cited(inner, f"{place}.{key}".lstrip("."))
