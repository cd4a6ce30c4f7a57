"""What ships: scenarios, models, clusters and devices found by name in the data folder `scenarios`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import NotFoundError

# The data folder lies beside this package, in a checkout and in an installed wheel alike.
ROOT: Final = Path(__file__).resolve().parents[2] / "scenarios"
PARTS: Final = {"model": "models", "cluster": "clusters"}
# Parts of a scenario, what is part of a cluster, and what varies scenarios.
_FOLDERS: Final = PARTS | {"framework": "frameworks", "device": "devices", "study": "studies", "claim": "claims"}
# what files say of themselves
_SUMMARIES: Final = ("description", "claim")
SCENARIO_FOLDERS: Final = ("what-if", "systems", "demo", "netlab")


def names(folder: str) -> list[str]:
    """Names of what ships in `folder`, sorted."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))


def find_part(part: str, reference: str, beside: Path) -> Path:
    """The file of a model, cluster or device of that name, or at that path from the folder `beside`. Raises NotFoundError."""
    if _is_path(reference):
        return _existing(beside / reference, reference)
    folder = _FOLDERS[part]
    path = ROOT / folder / f"{reference}.yaml"
    if not path.is_file():
        raise NotFoundError(_unknown(part, reference, names(folder)))
    return path


def find_scenario(reference: str) -> Path:
    """The file of a scenario given by path or by the name of one that ships. Raises NotFoundError."""
    if _is_path(reference) or Path(reference).is_file():
        return _existing(Path(reference), reference)
    for folder in SCENARIO_FOLDERS:
        path = ROOT / folder / f"{reference}.yaml"
        if path.is_file():
            return path
    known = [name for folder in SCENARIO_FOLDERS for name in names(folder)]
    raise NotFoundError(_unknown("scenario", reference, known))


def find_anything(reference: str) -> Path:
    """The file of whatever ships under this name: scenario, study, claim, model, cluster or device. Raises NotFoundError."""
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


def _unknown(what: str, name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "'scaleproof list' shows what ships"
    return f"no {what} is called {name!r}; {hint}"


def summary(folder: str, name: str) -> str:
    """What a shipped file says of itself, the first line of it, without reading it as YAML in full."""
    for line in (ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        key, colon, words = line.partition(":")
        if colon and key in _SUMMARIES:
            return words.strip().strip("'\"")
    return ""
