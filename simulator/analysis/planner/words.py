"""Configurations in words: degrees of parallelism, and layouts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scaleproof.simulator.analysis.planner.candidates import MODEL_PARALLEL
from scaleproof.simulator.common.units import format_percent

_ABBREVIATIONS: Final = {"workers": "DP", "tensor": "TP", "stages": "PP", "chunks": "VPP", "context": "CP", "expert": "EP"}


def degrees(configuration: Mapping[str, Any]) -> str:
    """Degrees of model parallelism of a configuration, such as 'TP4 PP2'; the data parallelism if there is no other."""
    if "servers" in configuration:
        return f"{configuration['servers']} {configuration['placement']} servers"
    parts = [_degree(configuration, name) for name in _ABBREVIATIONS if name in MODEL_PARALLEL]
    zero = f" ZeRO-{configuration['zero']}" if configuration.get("zero") else ""
    return " ".join(filter(None, parts)) or f"DP{configuration['workers']}{zero}"


def layout(configuration: Mapping[str, Any]) -> str:
    """A configuration such as 'DP4 TP4 PP4 VPP2, MBS 1, GA 32, ZeRO-1, recompute full'."""
    parts = [" ".join(filter(None, (_degree(configuration, name) for name in _ABBREVIATIONS))) or "1 GPU"]
    if "servers" in configuration:
        parts.append(degrees(configuration))
    parts += [f"MBS {configuration['samples']}", f"GA {configuration.get('microbatches', 1)}"]
    parts += [f"ZeRO-{configuration['zero']}"] if configuration.get("zero") else []
    parts += [f"tables by {configuration['tables']}"] if configuration.get("tables") else []
    parts += [f"recompute {recompute_words(configuration['recompute'])}"] if configuration["recompute"] != "none" else []
    parts += [configuration["dispatcher"]] if configuration.get("dispatcher") else []
    parts += ["shared experts overlap"] if configuration.get("overlap_shared_experts") else []
    parts += [f"offload {configuration['offload']}"] if configuration.get("offload") else []
    parts += [f"{blocks_words(configuration['blocks'])} blocks"] if configuration.get("blocks") else []
    parts += [f"on {configuration['nodes']}"] if configuration.get("nodes") else []
    return ", ".join(parts)


def blocks_words(blocks: Sequence[int]) -> str:
    """'2×14+4': numbers of blocks of stages."""
    runs = ((number, len(list(run))) for number, run in itertools.groupby(blocks))
    return "+".join(f"{length}×{number}" if length > 1 else f"{number}" for number, length in runs)


def fits_words(probability: float | None) -> str:
    """'92 %', the probability that a configuration fits, or a dash where it is not known."""
    return "–" if probability is None else format_percent(probability, 0)


def recompute_words(recompute: str) -> str:
    """'full', 'layers: 5' or 'layernorm, mlp' from a form of recomputation as in a scenario."""
    return recompute.strip("{}").removeprefix("modules: ").strip("[]")


def _degree(configuration: Mapping[str, Any], name: str) -> str:
    degree = configuration.get(name, 1)
    return f"{_ABBREVIATIONS[name]}{degree}" if degree > 1 else ""
