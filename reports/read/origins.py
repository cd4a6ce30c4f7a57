"""Origins: what a page was made with, and where the numbers of a scenario are from."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

_PACKAGES: Final = ("scaleproof", "numpy", "scipy", "pandas", "pyarrow", "pydantic", "simpy", "matplotlib", "jinja2")


def made_with() -> tuple[str, str]:
    """The versions that a page is made with, as one of its facts."""
    return "Page made with", ", ".join(f"{name} {number}" for name, number in _versions())


def _versions() -> Iterator[tuple[str, str]]:
    yield "Python", platform.python_version()
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def frameworks(words: Iterable[str]) -> list[tuple[str, str]]:
    """The frameworks of what was predicted, as one of a page's facts; none where they are not recorded."""
    named = list(dict.fromkeys(filter(None, words)))
    return [("Frameworks" if len(named) > 1 else "Framework", "; ".join(named))] if named else []


def cited(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Where a scenario's numbers are from, by the part that says so."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "source" and isinstance(inner, str):
                yield place or "scenario", " ".join(inner.split())
            else:
                yield from cited(inner, f"{place}.{key}".lstrip("."))
