"""Shipped scenarios, models, clusters, devices and other files, found by name in the data folder `scenarios`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import NotFoundError

# The data folder is next to this package both in a checkout and in an installed wheel.
ROOT: Final = Path(__file__).resolve().parents[2] / "scenarios"
# The prefix of a published training run in place of a scenario: published:ROW-ID.
PUBLISHED: Final = "published:"
# parts of a scenario that may be given by name, and their folders
PARTS: Final = {"model": "models", "cluster": "clusters", "framework": "frameworks", "reliability": "reliability"}
_FOLDERS: Final = PARTS | {"device": "devices", "study": "studies", "claim": "claims"}
# keys whose value describes a file
_SUMMARY_KEYS: Final = ("description", "claim")
SCENARIO_FOLDERS: Final = ("what-if", "systems", "demo", "netlab", "elastic")
# The command for each kind of file, for who gives the file to another one.
_COMMANDS: Final = {
    "scenario": "predict {}", "study": "sweep {} --out DIR", "claim": "claims {}", "model": "model {}", "cluster": "show {}",
    "framework": "show {}", "device": "device {}", "reliability": "show {}",
}  # fmt: skip
# similarity of spellings from which one may be meant: 'dgx-h10' for 'dgx-h100', but not 'imagenet' for 'alexnet'
_SIMILAR: Final = 0.7
# number of names that a suggestion lists
_MOST_NAMES: Final = 3


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
    check_not_a_folder(reference)
    if _is_path(reference) or Path(reference).is_file():
        return _existing(Path(reference), reference)
    path = _shipped(SCENARIO_FOLDERS, reference)
    if path is not None:
        return path
    known = [name for folder in SCENARIO_FOLDERS for name in names(folder)]
    return find_scenario(_spelled("scenario", reference, known))


def is_model(reference: str) -> bool:
    """Whether a reference that may be a scenario is a model: `hf:...`, `python:...`, or the name of a shipped model alone."""
    if reference.startswith(("hf:", "python:")):
        return True
    return (
        reference in names(PARTS["model"]) and not Path(reference).is_file() and _shipped(SCENARIO_FOLDERS, reference) is None
    )


def find_study(reference: str) -> Path:
    """Path of a study, given by path or by the name of a shipped one. Raises NotFoundError."""
    check_not_a_folder(reference)
    if _is_path(reference) or Path(reference).is_file():
        return _existing(Path(reference), reference)
    folder = _FOLDERS["study"]
    return _shipped((folder,), reference) or ROOT / folder / f"{_spelled('study', reference, names(folder))}.yaml"


def check_not_a_folder(reference: str) -> None:
    """Raises NotFoundError for an empty name and for a folder, which is probably one of results."""
    if not reference:
        raise NotFoundError("a name is empty; give the path of a YAML file or a name from 'scaleproof list'")
    if Path(reference).is_dir():
        message = f"{reference} is a folder; to see the results in it, use 'scaleproof report {reference}'"
        raise NotFoundError(message)


def _shipped(folders: Iterable[str], name: str) -> Path | None:
    """The first shipped file of a name; None if there is no such file."""
    paths = (ROOT / folder / f"{name}.yaml" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def find_anything(reference: str) -> Path:
    """Path of the first shipped file of this name: scenario, model, cluster, framework, device, study or claim.

    Raises NotFoundError.
    """
    folders = (*SCENARIO_FOLDERS, *_FOLDERS.values())
    path = _shipped(folders, reference)
    if path is not None:
        return path
    kind = "scenario, study, claim, model, cluster, framework, reliability or device"
    return find_anything(_spelled(kind, reference, [name for folder in folders for name in names(folder)]))


def _is_path(reference: str) -> bool:
    return "/" in reference or reference.endswith((".yaml", ".yml", ".zip"))


def _existing(path: Path, reference: str) -> Path:
    if not path.is_file():
        raise NotFoundError(f"{reference}: no such file; give the path of a YAML file or a name from 'scaleproof list'")
    return path


def _spelled(kind: str, reference: str, known: Sequence[str]) -> str:
    """The only known name that differs from a reference in case and punctuation alone. Raises NotFoundError."""
    same = [name for name in known if letters(name) == letters(reference)]
    if len(same) != 1:
        raise NotFoundError(_unknown(kind, reference, known))
    return same[0]


def letters(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def has_word(name: str, word: str) -> bool:
    """Whether a name has a part that begins with a word, whatever the punctuation: 'llama3' in 'tiny-llama-3-8b'."""
    parts, wanted = re.split(r"[^a-z0-9]+", name.lower()), letters(word)
    return any("".join(parts[at:]).startswith(wanted) for at in range(len(parts)))


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """The known names that a name may stand for, the likeliest first: those that have it as a word, or those that are spelled
    similarly."""
    wanted = letters(name)
    containing = [one for one in known if len(wanted) > 1 and has_word(one, wanted)]
    spelled = {letters(one): one for one in reversed(known)}
    similar = [spelled[one] for one in difflib.get_close_matches(wanted, spelled, n=1, cutoff=_SIMILAR)]
    return (sorted(containing, key=lambda one: (len(one), one)) or similar)[:_MOST_NAMES]


def either(names: Sequence[str]) -> str:
    """Names as a choice: 'a', 'b' or 'c'."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """'no model is called ...' and what to do, or what the name is instead."""
    for other, folders in {"scenario": SCENARIO_FOLDERS, **{part: (folder,) for part, folder in _FOLDERS.items()}}.items():
        same = [one for folder in folders for one in names(folder) if letters(one) == letters(name)]
        if other not in kind and same:
            name = same[0]
            return f"{name!r} is a {other}, not a {kind}; use 'scaleproof {_COMMANDS[other].format(name)}'"
    close = nearest(name, known)
    hint = f"did you mean {either(close)}?" if close else "'scaleproof list' shows what ships"
    return f"no {kind} is called {name!r}; {hint}"


def summary(folder: str, name: str) -> str:
    """First line of the description of a shipped file, read without parsing the YAML; empty for a file without one."""
    for line in (ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        key, colon, value = line.partition(":")
        if colon and key in _SUMMARY_KEYS:
            return value.strip().strip("'\"")
    return ""
