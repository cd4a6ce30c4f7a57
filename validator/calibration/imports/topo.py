"""Import of the `nvidia-smi topo -m` matrix: links between the GPUs of a node, network cards, and NUMA nodes.

The matrix gives classes of links, not their speed, which follows from the GPU's name in `nvidia-smi -L` of the same file.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster.network.topology_kinds import HybridCubeMesh
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.cluster_file.section import rate_text
from scaleproof.validator.calibration.gpu_links import ASSUMED_LATENCY, GpuLinks, links_of
from scaleproof.validator.calibration.imports.reading import ImportNotes, ImportResult, Machines, read_text

_EXPECTED: Final = "the matrix that `nvidia-smi topo -m` prints"
_LISTED: Final = re.compile(r"^\s*GPU\s+\d+:\s*(.+?)\s*(?:\(UUID.*)?$")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_GPU: Final = re.compile(r"GPU\d+")
_NIC: Final = re.compile(r"NIC\d+|(?:mlx|bnxt_re|irdma|rdmap|efa|hfi1|roce|ib)\w*")
_CLASS: Final = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB")
# Classes within one PCIe tree, through switches only: the position of a card that serves a GPU.
_NEAR: Final = ("PIX", "PXB", "PSB")
_RANGES: Final = re.compile(r"^[\d,\-]+$")


@dataclass
class Matrix:
    """between: class of link by pair of names, in both directions. numa: by GPU, missing if unknown."""

    gpus: list[str] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    between: dict[tuple[str, str], str] = field(default_factory=dict)
    numa: dict[str, str] = field(default_factory=dict)
    gpu: str = ""

    def pairs(self) -> dict[tuple[int, int], str]:
        """Class of the link of each pair of GPUs, the lower number first."""
        numbered = itertools.combinations(range(len(self.gpus)), 2)
        named = {pair: (self.gpus[pair[0]], self.gpus[pair[1]]) for pair in numbered}
        return {pair: self.between.get(names, "SYS") for pair, names in named.items()}

    def near_cards(self) -> list[str]:
        """Cards behind the same PCIe switch as a GPU."""
        return [card for card in self.cards if any(self.between.get((gpu, card)) in _NEAR for gpu in self.gpus)]


def read(path: Path, gpu: str = "") -> tuple[ImportResult, Matrix]:
    """Reads one node's matrix. gpu: name of its GPUs, if the file does not give it. Raises InputError if it is not a matrix."""
    notes, matrix = ImportNotes(), Matrix()
    heads: list[str] = []
    for number, raw in enumerate(read_text(path, _EXPECTED).splitlines(), start=1):
        words = _COLOURS.sub("", raw).replace("\t", "  ").split()
        if (listed := _LISTED.match(raw)) is not None:
            matrix.gpu = matrix.gpu or listed[1]
        elif not heads and words[:1] == ["GPU0"] and not any(map(_CLASS.fullmatch, words[1:2])):
            heads = _heads(words)
            matrix.gpus = [name for name in heads if _GPU.fullmatch(name)]
            matrix.cards = [name for name in heads if not _GPU.fullmatch(name)]
        elif heads and words and words[0] in heads:
            _row(path, number, words, heads, matrix, notes)
    if not heads:
        raise InputError(f"{path}: no line names GPU0, GPU1 and so on above a matrix; expected {_EXPECTED}")
    missing = [name for name in matrix.gpus if (name, name) not in matrix.between]
    if len(missing) == len(matrix.gpus):
        raise InputError(f"{path}: the matrix has no lines; expected {_EXPECTED}, in full")
    if missing:
        # the columns of missing lines are known
        notes.add(f"{path}: no line for {', '.join(missing)}, as if cut off; their columns are used")
    matrix.between |= {(b, a): kind for (a, b), kind in matrix.between.items() if (b, a) not in matrix.between}
    matrix.gpu = gpu or matrix.gpu
    return ImportResult("nvidia-smi topo -m", [str(path)], Machines(matrix.gpu, 1, len(matrix.gpus)), [], notes), matrix


def _heads(words: list[str]) -> list[str]:
    """Names of the columns for GPUs and cards; columns about affinity follow them."""
    return list(itertools.takewhile(lambda word: _GPU.fullmatch(word) or _NIC.fullmatch(word), words))


def _row(path: Path, number: int, words: list[str], heads: list[str], matrix: Matrix, notes: ImportNotes) -> None:
    name, kinds = words[0], words[1 : len(heads) + 1]
    kinds += ["nothing"] * (len(heads) - len(kinds))
    known = {other: kind for other, kind in zip(heads, kinds, strict=True) if _CLASS.fullmatch(kind)}
    if wrong := [f"{kind} for {other}" for other, kind in zip(heads, kinds, strict=True) if other not in known]:
        notes.add(f"{path}:{number}: {wrong[0]} in place of a class of link; its column is used instead")
    matrix.between |= {(name, other): kind for other, kind in known.items()}
    rest = words[len(heads) + 1 :]
    if _GPU.fullmatch(name) and len(rest) > 1 and _RANGES.match(rest[1]):
        matrix.numa[name] = rest[1]


def node(matrix: Matrix, imported: ImportResult) -> dict[str, Any]:
    """Data of `node` in a cluster file. Raises InputError if the GPU's name is needed and unknown."""
    links = links_of(matrix.gpu)
    result: dict[str, Any] = {"devices": len(matrix.gpus)}
    near = matrix.near_cards()
    if matrix.cards:
        result["cards"] = len(near) or len(matrix.cards)
        behind = f"{len(near)} are behind a GPU's PCIe switch" if near else "none is behind a GPU's PCIe switch, all"
        imported.notes.add(f"{len(matrix.cards)} network cards, of which {behind} and count; their speed is unknown")
    else:
        imported.notes.add("no network cards are listed; give node.cards and network if there are several nodes")
    if len(matrix.gpus) > 1:
        if links is None:
            what = f"{matrix.gpu!r} is unknown" if matrix.gpu else "the file does not name the GPU"
            raise InputError(f"{imported.files[0]}: {what}; give --gpu, such as h100-80gb-sxm, for the speed of its links")
        result["link"] = _link(matrix, links, imported.notes)
    return result


def _link(matrix: Matrix, links: GpuLinks, notes: ImportNotes) -> dict[str, Any]:
    """The link by NVLink if it connects all GPUs, directly or through others; otherwise by PCIe."""
    pairs, devices = matrix.pairs(), len(matrix.gpus)
    counts = {pair: int(kind[2:]) for pair, kind in pairs.items() if kind.startswith("NV")}
    if not counts or not links.nvlinks or not _joins_all(counts, devices):
        if counts:
            several = ", ".join(f"GPU{a}–GPU{b}" for a, b in list(counts)[:4])
            more = " and more" if len(counts) > 4 else ""
            notes.add(f"NVLink connects {several}{more} but not all GPUs; PCIe's speed is used for all")
        return _pcie(matrix, links, pairs)
    link_Bps = links.nvlink_Bps
    of_first = sum(count for pair, count in counts.items() if 0 in pair)
    is_uniform = len(counts) == len(pairs) and len(set(counts.values())) == 1
    if is_uniform and (devices == 2 or of_first > links.nvlinks):
        # more links than a GPU has: every pair lists the same links, which end at a switch
        return _described(next(iter(counts.values())) * link_Bps, {})
    if is_uniform:
        return _described(of_first * link_Bps, {"kind": "mesh"})
    if (cube := _as_cube_mesh(counts, devices)) is not None:
        return _described(cube.links * link_Bps, {"kind": cube.kind, "links": cube.links})
    graph = [{"between": list(pair), "bandwidth": rate_text(count * link_Bps)} for pair, count in counts.items()]
    return _described(of_first * link_Bps, {"kind": "graph", "links": graph})


def _as_cube_mesh(counts: dict[tuple[int, int], int], devices: int) -> HybridCubeMesh | None:
    """The hybrid cube mesh of a DGX-1 that has these links, in any order of GPUs; None for other links."""
    import networkx as nx

    if devices != 8:
        return None
    graph: nx.Graph[int] = nx.Graph()
    graph.add_weighted_edges_from((a, b, float(count)) for (a, b), count in counts.items())
    for cube in (HybridCubeMesh(links=4), HybridCubeMesh(links=6)):
        wired = cube.wire(devices, float(cube.links)).links
        assert wired is not None
        known: nx.Graph[Any] = nx.Graph()
        known.add_weighted_edges_from((a, b, wired.edges[a, b]["capacity_Bps"]) for a, b in wired.edges)
        if nx.is_isomorphic(graph, known, edge_match=lambda one, other: bool(one["weight"] == other["weight"])):
            return cube
    return None


def _described(rate_Bps: float, topology: dict[str, Any]) -> dict[str, Any]:
    link: dict[str, Any] = {"bandwidth": rate_text(rate_Bps), "latency": ASSUMED_LATENCY}
    return link | ({"topology": topology} if topology else {})


def _joins_all(counts: dict[tuple[int, int], int], devices: int) -> bool:
    reached = {0}
    for _ in range(devices):
        reached |= {end for pair in counts for end in pair if reached & set(pair)}
    return len(reached) == devices


def _pcie(matrix: Matrix, links: GpuLinks, pairs: dict[tuple[int, int], str]) -> dict[str, Any]:
    """A tree of PCIe switches and sockets if the matrix shows one, otherwise one switch."""
    devices = len(matrix.gpus)
    near = 1 + sum(kind in _NEAR for (first, _), kind in pairs.items() if first == 0)
    on_socket = 1 + sum(kind not in ("SYS", "SOC") for (first, _), kind in pairs.items() if first == 0)
    if on_socket == devices or on_socket % near or devices % on_socket:
        return _described(links.pcie_Bps, {})
    # the link between sockets is unknown; at least one device's PCIe rate, or a single device would already be limited by it
    tree = {"per_switch": near, "switches_per_socket": on_socket // near, "between_sockets": rate_text(links.pcie_Bps)}
    return _described(links.pcie_Bps, {"kind": "pcie_tree", **tree})


def summary(matrix: Matrix) -> list[tuple[str, str]]:
    """Rows of a table: (name, value)."""
    classes: dict[str, int] = {}
    for kind in matrix.pairs().values():
        classes[kind] = classes.get(kind, 0) + 1
    numa: dict[str, list[str]] = {}
    for gpu, where in matrix.numa.items():
        numa.setdefault(where, []).append(gpu)
    return [
        ("GPUs", f"{len(matrix.gpus)} {matrix.gpu}".strip()),
        ("pairs of GPUs", ", ".join(f"{count} by {kind}" for kind, count in classes.items()) or "none"),
        ("network cards", f"{len(matrix.cards)}, {len(matrix.near_cards())} behind a GPU's PCIe switch"),
        ("NUMA nodes", "; ".join(f"{where}: {', '.join(gpus)}" for where, gpus in numa.items()) or "unknown"),
    ]
