"""Prints the table of docs/reference/measuring.md on what is trained and what is refused: `python docs/scripts/support.py`.

Each field is given to a scenario of each kind of strategy: the scenario schema decides whether it is predicted, and the check
before a measurement whether it is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.launch.preflight.checks import check_trainable

_MIXED: Final = {"experts": {"count": 4, "active": 2, "feedforward": 64}}
_MODEL: Final = {"kind": "gpt", "layers": 4, "hidden": 64, "heads": 4, "vocabulary": 256, "sequence": 32}
_PRECISIONS: Final = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
_CLUSTER: Final = {
    "nodes": 16,
    "network": {"bandwidth": "10 Gbit/s", "latency": "20 us"},
    "node": {"devices": 4, "cores": 2, "link": {"bandwidth": "2 GB/s", "latency": "50 us"}},
    "device": {
        "name": "any",
        "peak": dict.fromkeys(_PRECISIONS, "50 GFLOP/s"),
        "memory": "8 GiB",
        "memory_bandwidth": "10 GB/s",
    },
}
# The kinds of strategy that state how a model is divided, synchronised or scheduled, with degrees for most fields.
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "data_parallel": {"workers": 2, "microbatches": 2},
    "pipeline": {"stages": 2, "microbatches": 4},
    "hybrid": {"workers": 2, "stages": 2, "microbatches": 2},
    "parameter_server": {"workers": 2, "servers": 1},
    "local_sgd": {"workers": 2, "period": 2},
    "model_parallel": {"stages": 2},
    "gather_average": {"workers": 2},
}
_EXPERT: Final = {"stages": 1, "expert": 2}
_FOLDED: Final = {"stages": 1, "tensor": 2, "sequence_parallel": True, "expert": 2}


@dataclass(frozen=True)
class Probe:
    """A field with a value. in_strategy: whether it is the strategy's, and not the training's. training, model: fields that it
    goes with, and strategy: those of the strategy of one kind."""

    name: str
    value: Any
    in_strategy: bool = False
    strategy: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "hybrid"

    def label(self) -> str:
        """The field as the table names it."""
        value = json.dumps(self.value).replace('"', "")
        more = "".join(f", `training.{name}: {given}`" for name, given in self.training.items())
        return f"`{'strategy' if self.in_strategy else 'training'}.{self.name}: {value}`{more}"

    def scenario(self, kind: str) -> Scenario:
        """The scenario of that kind with the field. Raises FieldError or ValueError where it has no such field."""
        own = {self.name: self.value}
        strategy = {"kind": kind, **KINDS[kind], **(self.strategy if kind == self.kind else {})}
        parts = {
            "name": "probe",
            "model": {**_MODEL, **self.model},
            "cluster": _CLUSTER,
            "strategy": strategy | (own if self.in_strategy else {}),
            "batch": {"total": 16},
            "training": {**self.training, **({} if self.in_strategy else own)},
        }
        return Scenario.model_validate(parts)


def _strategy(name: str, value: Any, model: Mapping[str, Any] | None = None, zero: int = 0, **hybrid: Any) -> Probe:
    return Probe(name, value, True, hybrid, {"zero": zero} if zero else {}, model or {})


PROBES: Final = (
    *(Probe("precision", name) for name in _PRECISIONS),
    *(Probe("recompute", form) for form in ("full", {"group": 2}, {"every": 2}, {"layers": 1}, "selective")),
    Probe("recompute", {"modules": ["layernorm", "mlp", "activation"]}),
    Probe("recompute", {"modules": ["moe", "shared_experts"]}, model={"experts": {**_MIXED["experts"], "shared": 1}}),
    Probe("recompute", {"products": "every_second"}),
    Probe("accumulate_precision", "fp32", training={"precision": "bf16"}),
    Probe("accumulate_precision", "fp32", training={"precision": "bf16", "zero": 2}),
    Probe("reduce_precision", "fp32", training={"precision": "bf16"}),
    Probe("reduce_precision", "fp32", training={"precision": "bf16", "zero": 3}),
    Probe("fused_accumulation", True),
    *(Probe("zero", stage) for stage in (1, 2, 3)),
    Probe("offload", ["optimizer"]),
    *(Probe("optimizer", name) for name in ("sgd", "momentum", "adam", "lamb", "adafactor")),
    _strategy("scatter", "step", zero=2),
    _strategy("reshard", False, zero=3),
    _strategy("prefetch", 2, zero=3),
    _strategy("shard_over", 1, zero=3),
    _strategy("overlap_gather", True, zero=2),
    _strategy("algorithm", "ring"),
    _strategy("compression", {"kind": "fp16"}),
    *(_strategy("context_by", way, context=2) for way in ("ring", "all_gather", "ulysses")),
    _strategy("account_for_embedding", True, stages=5, microbatches=8),
    _strategy("account_for_loss", True, stages=5, microbatches=8),
    _strategy("overlap_tensor", True, tensor=2, sequence_parallel=True),
    _strategy("split_sends", True, tensor=2),
    _strategy("expert_tensor", 1, _MIXED, **_FOLDED),
    _strategy("overlap_experts", True, _MIXED, **_EXPERT),
    _strategy("node_limit", 1, _MIXED, **_EXPERT, workers=8),
    _strategy("deduplicated", True, _MIXED, **_EXPERT),
    _strategy("dispatch_precision", "bf16", _MIXED, **_EXPERT),
    _strategy("combine_precision", "bf16", _MIXED, **_EXPERT),
    _strategy("sparse", {"rows": 0.1}),
    Probe("units", 40, True, {"mode": "asynchronous"}, kind="parameter_server"),
)  # fmt: skip


def outcome(probe: Probe, kind: str) -> str:
    """`run`, `refused`, or `–` where such a strategy has no such field."""
    try:
        scenario = probe.scenario(kind)
    except (FieldError, ValueError):
        return "–"
    try:
        check_trainable(scenario)
    except InputError:
        return "refused"
    return "run"


def table() -> str:
    """Fields, with the kinds of strategy that are trained with each and those that refuse to be."""
    rows = []
    for probe in PROBES:
        found = {kind: outcome(probe, kind) for kind in KINDS}
        kinds = {word: [f"`{kind}`" for kind in KINDS if found[kind] == word] for word in ("run", "refused")}
        cells = ("all" if len(names) == len(KINDS) else ", ".join(names) or "–" for names in kinds.values())
        rows.append(f"| {probe.label()} | {' | '.join(cells)} |")
    return "\n".join(["| field | trained | refused |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())
