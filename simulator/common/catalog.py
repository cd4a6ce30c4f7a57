"""Shipped scenarios, models, clusters, devices and other files, found by name in the data folder `scenarios`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import NotFoundError

# The data folder is next to this package both in a checkout and in an installed wheel.
ROOT: Final = Path(__file__).resolve().parents[2] / "scenarios"
PARTS: Final = {"model": "models", "cluster": "clusters"}
_FOLDERS: Final = PARTS | {"framework": "frameworks", "device": "devices", "study": "studies", "claim": "claims"}
# keys whose value describes a file
_SUMMARY_KEYS: Final = ("description", "claim")
SCENARIO_FOLDERS: Final = ("what-if", "systems", "demo", "netlab")


def names(folder: str) -> list[str]:
    """Sorted names of the files in a folder of the data folder."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))


def find_part(part: str, reference: str, folder: Path) -> Path:
    """Path of a model, cluster, device or other part, given by name or by a path relative to `folder`. Raises NotFoundError."""
    if _is_path(reference):
        return _existing(folder / reference, reference)
    shipped = _FOLDERS[part]
    path = ROOT / shipped / f"{reference}.yaml"
    return path if path.is_file() else ROOT / shipped / f"{_spelled(part, reference, names(shipped))}.yaml"


def find_scenario(reference: str) -> Path:
    """Path of a scenario, given by path or by the name of a shipped one. Raises NotFoundError."""
    if _is_path(reference) or Path(reference).is_file():
        return _existing(Path(reference), reference)
    for folder in SCENARIO_FOLDERS:
        path = ROOT / folder / f"{reference}.yaml"
        if path.is_file():
            return path
    known = [name for folder in SCENARIO_FOLDERS for name in names(folder)]
    return find_scenario(_spelled("scenario", reference, known))


def find_anything(reference: str) -> Path:
    """Path of the first shipped file of this name: scenario, model, cluster, framework, device, study or claim.

    Raises NotFoundError.
    """
    for folder in (*SCENARIO_FOLDERS, *_FOLDERS.values()):
        path = ROOT / folder / f"{reference}.yaml"
        if path.is_file():
            return path
    known = [name for folder in (*SCENARIO_FOLDERS, *_FOLDERS.values()) for name in names(folder)]
    raise NotFoundError(_unknown("scenario, study, claim, model, cluster or device", reference, known))


def _is_path(reference: str) -> bool:
    return "/" in reference or reference.endswith((".yaml", ".yml"))


def _existing(path: Path, reference: str) -> Path:
    if not path.is_file():
        raise NotFoundError(f"{reference}: no such file; give the path of a YAML file or a name from 'scaleproof list'")
    return path


def _spelled(kind: str, reference: str, known: list[str]) -> str:
    """The only known name that differs from a reference in case and punctuation alone. Raises NotFoundError."""
    letters = _letters(reference)
    same = [name for name in known if _letters(name) == letters]
    if len(same) != 1:
        raise NotFoundError(_unknown(kind, reference, known))
    return same[0]


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _unknown(kind: str, name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "'scaleproof list' shows what ships"
    return f"no {kind} is called {name!r}; {hint}"


def summary(folder: str, name: str) -> str:
    """First line of the description of a shipped file, read without parsing the YAML; empty if it has none."""
    for line in (ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        key, colon, value = line.partition(":")
        if colon and key in _SUMMARY_KEYS:
            return value.strip().strip("'\"")
    return ""
