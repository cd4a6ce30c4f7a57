"""Facts about the shipped clusters and models that the page needs before one is chosen."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster.device.device import Precision
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.common.part_reference import resolve_file
from scaleproof.simulator.model import T5

# the first that a device has is taken where the chosen one is not among them
_USUAL: Final[tuple[Precision, ...]] = ("bf16", "fp16", "tf32", "fp32", "fp64")
# models whose layers can be divided among ranks
_TRANSFORMERS: Final = ("vision_language", "gpt", "llama", "bert", "t5")
# of these, those whose attention is one kernel unless the file says otherwise, as that of recorded models is
_DECODERS: Final = ("gpt", "llama", "vision_language")
# Models that have attention in one kernel unless they say otherwise, and cannot be divided by tensor parallelism.
_UNDIVIDED: Final = ("recorded", "hstu")
# that every other model has
_FEW_BLOCKS: Final = 4


class ClusterFacts(NamedTuple):
    """Facts about a shipped cluster."""

    name: str
    description: str
    nodes: int
    devices: int
    has_network: bool
    generation: str
    precisions: tuple[Precision, ...]

    @property
    def precision(self) -> Precision:
        """The default precision of its device."""
        return next(name for name in (*_USUAL, *self.precisions) if name in self.precisions)


class ModelFacts(NamedTuple):
    """Facts about a shipped model. heads: None if tensor parallelism is not possible; key_heads: of keys and values. sequences:
    tokens read and written. experts: whether it has experts; scores: whether attention stores its scores; flash: whether
    attention is one kernel. blocks: number of layers that stages can be cut between.
    """

    name: str
    description: str
    heads: int | None
    key_heads: int
    sequences: tuple[int, ...]
    experts: bool
    scores: bool
    flash: bool
    blocks: int

    def divides(self, ranks: int, sequences_too: bool) -> bool:
        """Whether N ranks can share its layers."""
        if ranks == 1 or self.heads is None or max(ranks, self.key_heads) % min(ranks, self.key_heads):
            return ranks == 1
        return not any(number % ranks for number in (self.heads, *(self.sequences if sequences_too else ())))


@functools.cache
def clusters() -> Mapping[str, ClusterFacts]:
    """Facts by name."""
    return {name: _cluster(name, _read("cluster", name)) for name in catalog.names("clusters")}


@functools.cache
def models() -> Mapping[str, ModelFacts]:
    """Facts by name."""
    found = {}
    for name in catalog.names("models"):
        data = _read("model", name)
        heads = data["heads"] if data["kind"] in _TRANSFORMERS else None
        usual = {"target_sequence": T5.model_fields["target_sequence"].default} if data["kind"] == "t5" else {}
        sequences = tuple((usual | data)[field] for field in ("sequence", "target_sequence") if field in usual | data)
        scores = heads is not None and data.get("flash") is False
        has_attention = heads is not None or data["kind"] in _UNDIVIDED
        flash = has_attention and bool(data.get("flash", data["kind"] in (*_DECODERS, *_UNDIVIDED)))
        experts = bool(data.get("experts"))
        blocks, key_heads = data.get("layers", _FEW_BLOCKS), data.get("key_heads") or heads or 1
        found[name] = ModelFacts(name, _said(data), heads, key_heads, sequences, experts, scores, flash, blocks)
    return found


def _read(part: str, name: str) -> dict[str, Any]:
    path = catalog.find_part(part, name)
    found = yaml_file.read(path)
    if part == "cluster":
        resolve_file(found, "cluster", path.parent)
    assert isinstance(found.data, dict), "what ships is a mapping"
    return found.data


def _cluster(name: str, data: dict[str, Any]) -> ClusterFacts:
    device = data["device"]
    generation = "cpu" if "cores" in data["node"] else str(device.get("kernels", {}).get("generation", ""))
    return ClusterFacts(
        name, _said(data), data.get("nodes", 1), data["node"].get("devices", 1), "network" in data,
        generation, tuple(device["peak"]),
    )  # fmt: skip


def _said(data: dict[str, Any]) -> str:
    return " ".join(str(data.get("description", "")).split())
