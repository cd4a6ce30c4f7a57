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

from scaleproof.simulator.common.errors import MissingDependencyError

# Wheels are carried of these and of what they need (`make gpu-wheels`): they are small.
CARRIED: Final = ("pydantic", "simpy")
# By the names that import them: large, or the machine's own.
_OWN: Final = ("torch", "numpy", "matplotlib", "networkx", "jinja2", "rich", "yaml", "PIL")
_INSTALL_S: Final = 120.0


def provide(site: Path, wheels: Path) -> Path | None:
    """Makes imports work: where packages are missing, installs them from the folder `wheels` into `site`, and returns that.

    Raises MissingDependencyError where wheels do not have them.
    """
    if own := _missing(_OWN):
        raise MissingDependencyError(f"{sys.executable} lacks {', '.join(own)}; install them, or give another Python as PYTHON")
    missing = _missing(CARRIED)
    if not missing:
        return None
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    remedy = f"run 'make gpu-wheels GPU_PYTHON={python}' on a connected machine and bring {wheels}/ here"
    if not any(wheels.glob("*.whl")):
        raise MissingDependencyError(f"{', '.join(missing)} missing, and no wheels in {wheels}/; {remedy}")
    if why := _install(site, wheels):
        raise MissingDependencyError(f"{', '.join(missing)} missing, and {wheels}/ does not do: {why}; {remedy}")
    # in front of all others, which may have older versions of what these need
    sys.path.insert(0, str(site.resolve()))
    importlib.invalidate_caches()
    return site


def _missing(names: Iterable[str]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def _install(site: Path, wheels: Path) -> str:
    """Why it could not be; nothing where it was."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--upgrade"]
    command += ["--find-links", str(wheels), "--target", str(site), *CARRIED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        return f"pip took more than {_INSTALL_S:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or ["pip failed"]
    return next((line for line in lines if line.startswith("ERROR: ")), lines[-1]).removeprefix("ERROR: ")
