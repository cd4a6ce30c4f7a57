"""Installation of packages that the machine's own Python lacks from wheels that were copied there.

This module needs only the standard library.
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

# Packages whose wheels, with their dependencies, are copied (`make gpu-wheels`), by their import names.
CARRIED: Final = {
    **{name: name for name in ("pydantic", "simpy", "numpy", "scipy", "pyarrow", "matplotlib", "networkx", "jinja2", "rich")},
    "yaml": "pyyaml",
    "PIL": "pillow",
}
# Import names of packages that the machine must provide: they depend on it.
_OWN: Final = ("torch",)
_INSTALL_S: Final = 120.0


def provide(site: Path, wheels: Path) -> Path | None:
    """Installs missing packages from the folder `wheels` into `site`, and returns `site`; None if all packages are there.

    Raises MissingDependencyError if the wheels do not provide them.
    """
    if own := _missing(_OWN):
        raise MissingDependencyError(f"{sys.executable} lacks {', '.join(own)}; install them, or set PYTHON to another Python")
    missing = _missing(CARRIED)
    if not missing:
        return None
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    remedy = f"run 'make gpu-wheels GPU_PYTHON={python}' on a connected machine and copy {wheels}/ here"
    if not any(wheels.glob("*.whl")):
        raise MissingDependencyError(f"{', '.join(missing)} missing, and there are no wheels in {wheels}/; {remedy}")
    if why := _install(site, wheels, [CARRIED[name] for name in missing]):
        raise MissingDependencyError(f"{', '.join(missing)} missing, and installing from {wheels}/ failed: {why}; {remedy}")
    # before all others, which may include older versions of their dependencies
    sys.path.insert(0, str(site.resolve()))
    importlib.invalidate_caches()
    return site


def _missing(names: Iterable[str]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]


def _install(site: Path, wheels: Path, packages: Iterable[str]) -> str:
    """Installs packages; returns the reason if it failed, otherwise ""."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--upgrade"]
    command += ["--find-links", str(wheels), "--target", str(site), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
    except subprocess.TimeoutExpired:
        return f"pip took more than {_INSTALL_S:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or ["pip failed"]
    return next((line for line in lines if line.startswith("ERROR: ")), lines[-1]).removeprefix("ERROR: ")
