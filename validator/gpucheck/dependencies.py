"""Dependencies: what a machine's own Python lacks is taken from wheels that were carried there.

Nothing here needs more than Python itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from simulator.errors import MissingDependencyError

# Pure Python, or small: packages that wheels are carried of, by the name that imports them.
CARRIED: Final = {
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "typing_extensions": "typing-extensions",
    "annotated_types": "annotated-types",
    "typing_inspection": "typing-inspection",
    "simpy": "simpy",
}
# What wheels are too large or too close to the machine for.
_OWN: Final = ("torch", "numpy", "matplotlib", "networkx", "jinja2", "rich", "yaml", "PIL")
_INSTALL_S: Final = 120.0


def provide(site: Path, wheels: Path) -> Path | None:
    """Makes imports work: installs what is missing from the folder `wheels` into `site`, which it returns; None if nothing is.

    Raises MissingDependencyError where wheels do not have it.
    """
    own = sorted(_missing(_OWN))
    if own:
        raise MissingDependencyError(
            f"{sys.executable} lacks {', '.join(own)}; install them, or give another python3 as PYTHON"
        )
    missing = sorted(_missing(CARRIED))
    if not missing:
        return None
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    remedy = f"run 'make gpu-wheels GPU_PYTHON={python}' on a connected machine and bring {wheels}/ here"
    if not any(wheels.glob("*.whl")):
        raise MissingDependencyError(f"{', '.join(missing)}: missing, and no wheels in {wheels}/; {remedy}")
    _install(site, wheels, missing, remedy)
    # in front of all others, which have older versions of what these need
    sys.path.insert(0, str(site.resolve()))
    importlib.invalidate_caches()
    return site


def _missing(names: Iterable[str]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def _install(site: Path, wheels: Path, missing: Iterable[str], remedy: str) -> None:
    """All that is carried, since versions of it belong together."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--upgrade"]
    command += ["--find-links", str(wheels), "--target", str(site), *CARRIED.values()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        raise MissingDependencyError(f"pip took more than {_INSTALL_S:g} s to install from {wheels}/; {remedy}") from None
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: pip failed"]
        why = told[-1].removeprefix("ERROR: ")
        raise MissingDependencyError(f"{', '.join(missing)}: missing, and {wheels}/ does not do: {why}; {remedy}")
