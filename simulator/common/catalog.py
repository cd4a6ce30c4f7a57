"""Shipped scenarios, models, clusters, devices and other files, found by name in the data folder `scenarios`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import NotFoundError

# The data folder is next to this package both in a checkout and in an installed wheel.
ROOT: Final = Path(__file__).resolve().parents[2] / "scenarios"
# The prefix of a published training run in place of a scenario: published:ROW-ID.
PUBLISHED: Final = "published:"
# parts of a scenario that may be given by name, and their folders
PARTS: Final = {
    "model": "models", "cluster": "clusters", "framework": "frameworks", "reliability": "reliability", "input": "inputs",
}  # fmt: skip
SCENARIO_FOLDERS: Final = ("what-if", "systems", "demo", "netlab", "elastic")
# Folders of each kind of file.
_FOLDERS: Final[dict[str, tuple[str, ...]]] = {
    "scenario": SCENARIO_FOLDERS, **{part: (folder,) for part, folder in PARTS.items()},
    "device": ("devices",), "study": ("studies",), "claim": ("claims",),
}  # fmt: skip
# Words for training software that ships under another name, in letters and digits.
WORDS: Final = {
    "accelerate": "hf-trainer", "axolotl": "hf-trainer", "huggingface": "hf-trainer", "llamafactory": "hf-trainer",
    "transformers": "hf-trainer", "ddp": "pytorch-ddp", "lightning": "pytorch-ddp", "pytorch": "pytorch-ddp",
    "pytorchlightning": "pytorch-ddp", "fsdp1": "pytorch-fsdp1", "fsdp": "pytorch-fsdp2", "fsdp2": "pytorch-fsdp2",
    "deepspeed": "deepspeed-zero", "megatron": "megatron-core-0.12", "megatroncore": "megatron-core-0.12",
    "megatronlm": "megatron-core-0.12", "maxtext": "jax-maxtext", "jax": "jax-maxtext", "pax": "paxml", "praxis": "paxml",
    "paddle": "paddle-2023", "paddlepaddle": "paddle-2023", "paddlenlp": "paddle-2023", "paddlefleetx": "paddle-2023",
    "hf": "hf-trainer", "trainer": "hf-trainer", "libai": "oneflow", "colossal": "colossalai", "gemini": "colossalai",
    "nemomegatron": "nemo-2023", "megatronbridge": "nemo", "composer": "llm-foundry", "mosaicml": "llm-foundry",
    "modalities": "pytorch-fsdp1", "tensorflow": "tensorflow-2-mirrored", "zero": "deepspeed-zero",
}  # fmt: skip
# keys whose value describes a file
_SUMMARY_KEYS: Final = ("description", "claim")
# The command for each kind of file, for who gives the file to another one.
_COMMANDS: Final = {
    "scenario": "predict {}", "study": "sweep {} --out DIR", "claim": "claims {}", "model": "model {}", "cluster": "show {}",
    "framework": "show {}", "device": "device {}", "reliability": "show {}", "input": "show {}",
}  # fmt: skip
# similarity of spellings from which one may be meant: 'dgx-h10' for 'dgx-h100', but not 'imagenet' for 'alexnet'
_SIMILAR: Final = 0.7
# number of names that a suggestion lists
_MOST_NAMES: Final = 3


def names(folder: str) -> list[str]:
    """Sorted names of the files in a folder of the data folder."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))


def find_part(part: str, reference: str, folder: Path = Path()) -> Path:
    """Path of a model, cluster, device or other part, given by name or by a path relative to `folder`. Raises NotFoundError."""
    return _existing(folder / reference, reference) if _is_path(reference) else _shipped(part, _FOLDERS[part], reference)


def find_scenario(reference: str) -> Path:
    """Path of a scenario, given by path or by the name of a shipped one. Raises NotFoundError."""
    return _path_or_shipped("scenario", reference)


def find_study(reference: str) -> Path:
    """Path of a study, given by path or by the name of a shipped one. Raises NotFoundError."""
    return _path_or_shipped("study", reference)


def find_anything(reference: str) -> Path:
    """Path of the first shipped file of this name: scenario, model, cluster, framework, device, study or claim.

    Raises NotFoundError.
    """
    kinds = "scenario, study, claim, model, cluster, framework, reliability, input or device"
    return _shipped(kinds, [folder for folders in _FOLDERS.values() for folder in folders], reference)


def is_model(reference: str) -> bool:
    """Whether a reference that may be a scenario is a model: `hf:...`, `python:...`, `timm:...`, `torchvision:...`, or the name
    of a shipped model alone, whatever its case and punctuation."""
    if reference.startswith(("hf:", "python:", "timm:", "torchvision:")):
        return True
    wanted = letters(reference)
    is_shipped = wanted in map(letters, names(PARTS["model"])) and not _is_path(reference)
    return is_shipped and not Path(reference).is_file() and wanted not in map(letters, _files(SCENARIO_FOLDERS))


def check_not_a_folder(reference: str) -> None:
    """Raises NotFoundError for an empty name and for a folder, which is probably one of results."""
    if not reference:
        raise NotFoundError("a name is empty; give the path of a YAML file or a name from 'scaleproof list'")
    if Path(reference).is_dir():
        message = f"{reference} is a folder; to see the results in it, use 'scaleproof report {reference}'"
        raise NotFoundError(message)


def _path_or_shipped(kind: str, reference: str) -> Path:
    check_not_a_folder(reference)
    if _is_path(reference) or Path(reference).is_file():
        return _existing(Path(reference), reference)
    return _shipped(kind, _FOLDERS[kind], reference)


def _is_path(reference: str) -> bool:
    return "/" in reference or reference.endswith((".yaml", ".yml", ".zip"))


def _existing(path: Path, reference: str) -> Path:
    if not path.is_file():
        raise NotFoundError(f"{reference}: no such file; give the path of a YAML file or a name from 'scaleproof list'")
    return path


def _shipped(kind: str, folders: Sequence[str], reference: str) -> Path:
    """The shipped file of a name, or the only one whose name differs in case and punctuation alone. Raises NotFoundError."""
    files = _files(folders)
    if PARTS["framework"] in folders:
        reference = WORDS.get(letters(reference), reference)
    same = [reference] if reference in files else [name for name in files if letters(name) == letters(reference)]
    if len(same) != 1:
        raise NotFoundError(_unknown(kind, reference, list(files)))
    return files[same[0]]


def is_unknown(part: str, reference: str) -> bool:
    """Whether a name is of no shipped part, not even with another case or spelling, and no path."""
    if not letters(reference) or _is_path(reference) or letters(reference) in WORDS:
        return False
    known = [name for folders in _FOLDERS.values() for folder in folders for name in names(folder)]
    return letters(reference) not in map(letters, known) and not nearest(reference, names(PARTS[part]))


def _files(folders: Sequence[str]) -> dict[str, Path]:
    """Shipped files by name; the first where several folders have the name."""
    files: dict[str, Path] = {}
    for folder in folders:
        for name in names(folder):
            files.setdefault(name, ROOT / folder / f"{name}.yaml")
    return files


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
    for other, folders in _FOLDERS.items():
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
