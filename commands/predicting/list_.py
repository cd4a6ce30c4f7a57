"""The command list: the shipped files, those of some kinds or with some words, with their sizes."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import show
from scaleproof.commands.text.tables import table

if TYPE_CHECKING:
    from scaleproof.simulator.cluster.device.device import Precision

# The kinds of files, their folder, and the title of their list.
KINDS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "scenarios": (
        ("what-if", "scenarios"),
        ("systems", "scenarios: named systems"),
        ("demo", "scenarios of the demo, small enough to measure"),
        ("netlab", "scenarios for an emulated network inside this machine"),
        ("elastic", "scenarios with hosts that fail, join or are interrupted"),
    ),
    "systems": (("systems", "scenarios: named systems"),),
    "studies": (("studies", "studies"),),
    "claims": (("claims", "claims"),),
    "models": (("models", "models"),),
    "clusters": (("clusters", "clusters"),),
    "frameworks": (("frameworks", "frameworks"),),
    "devices": (("devices", "devices"),),
    "reliability": (("reliability", "failures and recovery, for goodput"),),
    "inputs": (("inputs", "sources of samples, for input"),),
}
# where descriptions end in a pipe or a file
_WIDE: Final = 120
# precisions of training, the one whose FLOP/s are shown first
_PRECISIONS: Final[Sequence[Precision]] = ("bf16", "fp16", "tf32", "fp32")


class _File(NamedTuple):
    """A shipped file: its name, its size in words, and its description."""

    name: str
    size: str
    words: str


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    found = Command(commands, "list", _list)
    found.parser.description = (
        "List the shipped scenarios, systems, studies, claims, models, clusters, frameworks, devices and failures, all or "
        "those with some words: 'list devices', 'list models 70b'."
    )
    found.add("WORD", "a kind, such as models, or a part of a name or a description", dest="words", nargs="*")


def _list(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import NotFoundError

    words = [word.lower() for word in options.words]
    kinds = [kind for kind in KINDS if any(kind.startswith(word) and len(word) > 2 for word in words)]
    rest = [word for word in words if not any(kind.startswith(word) and len(word) > 2 for kind in kinds)]
    folders = {folder: (kind, title) for kind in kinds or KINDS for folder, title in KINDS[kind]}
    lists = [
        (title, files)
        for folder, (kind, title) in folders.items()
        if (files := [_sized(kind, folder, name) for name in _with_words(folder, rest)])
    ]
    if not lists:
        raise NotFoundError(_nothing(kinds or list(KINDS), rest))
    show("\n".join(line for title, files in lists for line in _lines(title, files)))
    return 0


def _with_words(folder: str, words: Sequence[str]) -> Iterator[str]:
    """Names of the files of a folder that have all words in their names or descriptions."""
    from scaleproof.simulator.common import catalog

    for name in catalog.names(folder):
        text = f"{name} {catalog.summary(folder, name)}"
        if all(word in text.lower() or catalog.has_word(name, word) for word in words):
            yield name


def _nothing(kinds: Sequence[str], words: Sequence[str]) -> str:
    """'no models has the words ...', with the nearest names."""
    from scaleproof.simulator.common import catalog

    known = [*KINDS, *(name for kind in kinds for folder, _ in KINDS[kind] for name in catalog.names(folder))]
    close = catalog.nearest("".join(words), known) or [name for word in words for name in catalog.nearest(word, known)]
    hint = f"did you mean {catalog.either(close)}?" if close else f"kinds are {', '.join(KINDS)}"
    what = kinds[0] if len(kinds) == 1 else "files"
    return f"no {what} with {' '.join(words)!r}; {hint}"


def _lines(title: str, files: Sequence[_File]) -> list[str]:
    """A list with its title; descriptions end where the terminal does, or where COLUMNS says."""
    width = shutil.get_terminal_size((_WIDE, 0)).columns
    has_sizes = any(file.size for file in files)
    rows = [(file.name, file.size, file.words) if has_sizes else (file.name, file.words) for file in files]
    return [title, *(line if len(line) <= width else f"{line[: width - 1]}…" for line in table(rows, "<", (30,), indent="  "))]


def _sized(kind: str, folder: str, name: str) -> _File:
    from scaleproof.simulator.common import catalog

    size = _SIZES.get(kind)
    return _File(name, size(name) if size else "", catalog.summary(folder, name))


def _gpus(name: str) -> str:
    """Number of devices of a cluster, and their name."""
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.scenario.read import load_cluster

    cluster = load_cluster(catalog.ROOT / "clusters" / f"{name}.yaml")
    return f"{cluster.devices:,} {cluster.device.name}"


def _memory(name: str) -> str:
    """Memory of a device, and its FLOP/s in the usual precision of training."""
    from scaleproof.simulator.common import catalog
    from scaleproof.simulator.common.units import format_bytes, format_count
    from scaleproof.simulator.scenario.read import load_device

    device = load_device(catalog.ROOT / "devices" / f"{name}.yaml")
    rates = [f", {format_count(device.peak_flops[one])}FLOP/s {one}" for one in _PRECISIONS if one in device.peak_flops]
    return f"{format_bytes(device.memory_bytes)}{''.join(rates[:1])}"


_SIZES: Final = {"clusters": _gpus, "devices": _memory}
