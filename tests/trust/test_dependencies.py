"""Dependencies: imported ones are declared, declared ones are pinned, and licences are compatible."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
OWN: Final = ("scaleproof",)
# Licences that are compatible with Apache-2.0 for unmodified dependencies.
_GOOD: Final = re.compile(
    r"(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|MPL|Mozilla|Zlib|BSL-1\.0|CC0|Unlicense|DFSG)[\w\s.()-]*"
)
_PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# What comes with something declared, as a part of it.
_PARTS: Final = {"pydantic_core": "pydantic"}


def _declared(*extras: str) -> set[str]:
    """Names of the packages that are installed always, and with these extras."""
    lines = [*_PROJECT["dependencies"], *(line for extra in extras for line in _PROJECT["optional-dependencies"][extra])]
    names = set()
    for requirement in map(Requirement, lines):
        if requirement.name == _PROJECT["name"]:
            names |= _declared(*requirement.extras)
        else:
            # an extra that is named like the package that it installs, as dask[distributed]
            names |= {canonicalize_name(name) for name in (requirement.name, *requirement.extras)}
    return names


@cache
def _imported(package: str) -> frozenset[tuple[str, str]]:
    """Imported external modules, each with the file that imports it."""
    found = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top not in OWN:
                    found.add((_PARTS.get(top, top), file.relative_to(ROOT).as_posix()))
    return frozenset(found)


@cache
def _brought() -> Mapping[str, list[str]]:
    """Names of the packages that bring each module."""
    return packages_distributions()


@pytest.mark.full
@pytest.mark.parametrize(
    ("package", "extras"),
    [
        ("simulator", ("studies", "validator", "executors")),
        ("validator", ("validator",)),
        ("reports", ("reports", "explorer")),
        ("proof", ("reports", "validator")),
        ("commands", ("reports", "explorer")),
        ("scaleproof", ("studies", "reports")),
    ],
)
def test_every_imported_package_is_declared(package: str, extras: tuple[str, ...]) -> None:
    brought, declared = _brought(), _declared(*extras)
    unknown = {
        f"{file}: {module}"
        for module, file in _imported(package)
        if not declared & {canonicalize_name(name) for name in brought.get(module, [module])}
    }
    assert unknown == set()


def test_the_base_package_imports_extras_only_where_declared() -> None:
    """`pip install .` is enough to predict and to plan."""
    brought, declared = _brought(), _declared()
    extra = {
        module
        for package in ("simulator", "commands")
        for module, _ in _imported(package)
        if not declared & {canonicalize_name(name) for name in brought.get(module, [module])}
    }
    assert extra <= {"distributed", "joblib", "pandas", "pyarrow", "submitit", "torch"}


def test_every_declared_dependency_is_pinned() -> None:
    lines = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}
    assert _declared(*_PROJECT["optional-dependencies"]) - pinned == set()


def _needed(names: set[str]) -> set[str]:
    """These packages and all their dependencies."""
    found: set[str] = set()
    left = sorted(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            reported = [Requirement(one) for one in distribution(name).requires or []]
            left += [
                canonicalize_name(one.name) for one in reported if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
    return found


def test_dependencies_have_compatible_licences() -> None:
    """Of what is installed to use all of it, not of what develops it."""
    odd = {name: _licence(name) for name in _needed(_declared("validator", "executors")) if not _is_good(_licence(name))}
    assert odd == {}


def _licence(name: str) -> str:
    about = distribution(name).metadata
    classified = [one.rpartition("::")[2].strip() for one in about.get_all("Classifier") or [] if one.startswith("License ::")]
    return about.get("License-Expression") or " AND ".join(classified) or (about.get("License") or "").partition("\n")[0]


def _is_good(licence: str) -> bool:
    parts = [part.strip(" ()") for part in re.split(r"\bAND\b|\bWITH\b|;", licence)]
    return all(
        any(_GOOD.fullmatch(either.strip(" ()")) for either in part.split(" OR ")) or part == "LLVM-exception" or part == "0BSD"
        for part in parts
    )


def test_only_pickles_of_own_processes_are_loaded() -> None:
    """A file that is unpickled runs what it says. Where it is done all the same, the line says whose pickle it is."""
    found = {
        f"{file.relative_to(ROOT)}"
        for package in ("simulator", "validator", "reports", "proof", "commands")
        for file in ((ROOT / package).rglob("*.py"))
        for line in file.read_text().splitlines()
        if re.search(
            r"\bpickle\.(load|loads|Unpickler)\b|\bjoblib\.load\b|allow_pickle=True|weights_only=False|\byaml\.(un|full_)", line
        )
    }
    captures = {f"validator/capture/{name}.py" for name in ("communication/mailbox", "replaced/files")}
    captures |= {f"validator/capture/playing/{name}.py" for name in ("player", "processes")}
    # dumps of others, of which only plain data is read
    captures.add("validator/calibration/imports/plain_data.py")
    own = {"simulator/analysis/study/evaluate.py", "validator/launch/rank.py", "proof/elastic/job.py"}
    own.add("validator/script_runs/operator_times.py")
    assert found == own | captures
