"""Prints the table of docs/reference/measuring.md on what is trained and what is refused: `python docs/scripts/support.py`.

Each field is given to a scenario of each kind of strategy: the scenario schema decides whether it is predicted, and the check
before a measurement whether it is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, get_args

from scaleproof.proof.gpu_check.scenarios import families
from scaleproof.simulator.cluster.device.device import Optimizer
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.parallelism.stages import LOOPED, V_SHAPED, ScheduleName
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.preflight.checks import check_trainable
from scaleproof.validator.verify.verify import check_verifiable

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
# The kinds of strategy that state how a model is divided, synchronised or scheduled, with degrees for most fields. A hybrid has
# all schedules if gradients are summed after the backward pass.
KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "data_parallel": {"workers": 2, "microbatches": 2},
    "pipeline": {"stages": 2, "microbatches": 4},
    "hybrid": {"workers": 2, "stages": 2, "microbatches": 2, "overlap": False},
    "parameter_server": {"workers": 2, "servers": 1},
    "local_sgd": {"workers": 2, "period": 2},
    "model_parallel": {"stages": 2},
    "gather_average": {"workers": 2},
}
_LETTERS: Final = dict(zip(KINDS, "DPHSLMG", strict=True))
_LENGTHS: Final = {"distribution": "lognormal", "mean": 12}
_BATCHES: Final[Sequence[dict[str, Any]]] = (
    {}, {"batches": "grouped"}, {"batches": "packed"}, {"batches": "packed", "across": True},
)  # fmt: skip
_EXPERT: Final = {"stages": 1, "expert": 2}
_COMPRESSIONS: Final = ({"kind": "fp16"}, {"kind": "bf16"}, {"kind": "power_sgd", "rank": 2}, {"kind": "top_k", "share": 0.01})
_FOLDED: Final = {"stages": 1, "tensor": 2, "sequence_parallel": True, "expert": 2}


@dataclass(frozen=True)
class Probe:
    """A field with a value. in_strategy: whether it is the strategy's, and not the training's. in_scenario: whether it is the
    scenario's own. training, model: fields that it goes with, and strategy: those of the strategies of some kinds."""

    name: str
    value: Any
    in_strategy: bool = False
    strategy: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("hybrid",)
    in_scenario: bool = False

    def label(self) -> str:
        """The field as the table names it."""
        value = _shown(self.value)
        if self.in_scenario:
            return f"`{self.name}: {value}`"
        more = "".join(f", `training.{name}: {_shown(given)}`" for name, given in self.training.items())
        experts = {f"experts.{name}": given for name, given in self.model.get("experts", {}).items()}
        usual = {"layers", "experts", *(f"experts.{name}" for name in _MIXED["experts"])}
        own = {name: given for name, given in {**self.model, **experts}.items() if name not in usual}
        more += "".join(f", `model.{name}: {_shown(given)}`" for name, given in own.items())
        return f"`{'strategy' if self.in_strategy else 'training'}.{self.name}: {value}`{more}"

    def scenario(self, kind: str) -> Scenario:
        """The scenario of that kind with the field. Raises FieldError or ValueError where it has no such field."""
        own = {self.name: self.value}
        strategy = {"kind": kind, **KINDS[kind], **(self.strategy if kind in self.kinds else {})}
        parts = {
            "name": "probe",
            "model": {**_MODEL, **self.model},
            "cluster": _CLUSTER,
            "strategy": strategy | (own if self.in_strategy else {}),
            "batch": {"total": 16},
            "training": {**self.training, **({} if self.in_strategy or self.in_scenario else own)},
        }
        return Scenario.model_validate(parts | (own if self.in_scenario else {}))


def _shown(value: Any) -> str:
    return json.dumps(value).replace('"', "")


def _strategy(name: str, value: Any, model: Mapping[str, Any] | None = None, zero: int = 0, **hybrid: Any) -> Probe:
    return Probe(name, value, True, hybrid, {"zero": zero} if zero else {}, model or {})


def _uneven(**rules: Any) -> Probe:
    return Probe("unevenness", rules, in_scenario=True)


def _schedule(name: ScheduleName) -> Probe:
    """A schedule with the numbers of chunks and microbatches that it needs."""
    chunks = 2 if name in LOOPED | V_SHAPED else 1
    more = {"chunks": chunks, "microbatches": 4, "overlap_sends": name not in ("gpipe", "looped_bfs")}
    return Probe("schedule", name, True, more, kinds=("pipeline", "hybrid"), model={"layers": 8})


PROBES: Final = (
    *(Probe("precision", name) for name in _PRECISIONS),
    *(Probe("recompute", form) for form in ("full", {"group": 2}, {"every": 2}, {"layers": 1}, "selective")),
    Probe("recompute", {"modules": ["layernorm", "mlp", "activation"]}),
    Probe("recompute", {"modules": ["moe", "shared_experts"]}, model={"experts": {**_MIXED["experts"], "shared": 1}}),
    Probe("recompute", {"products": "every_second"}),
    Probe("accumulate_precision", "fp32", training={"precision": "fp64"}),
    *(Probe("accumulate_precision", "fp32", training={"precision": "fp64", "zero": zero}) for zero in (1, 2, 3)),
    Probe("reduce_precision", "fp32", training={"precision": "fp64"}),
    Probe("reduce_precision", "fp32", training={"precision": "fp64", "zero": 3}),
    Probe("fused_accumulation", True),
    *(Probe("zero", stage) for stage in (1, 2, 3)),
    Probe("adapters", {"rank": 4}),
    Probe("freeze", ["block0"]),
    Probe("base_precision", "nf4", training={"adapters": {"rank": 4}}),
    Probe("offload", ["optimizer"]),
    Probe("offload", ["optimizer", "parameters"], training={"zero": 3}),
    Probe("offload", ["activations"]),
    Probe("delay_update", True, training={"offload": ["optimizer"]}),
    *(Probe("optimizer", name) for name in get_args(Optimizer)),
    *(Probe("optimizer", name, training={"zero": zero}) for name in ("lion", "muon") for zero in (1, 3)),
    *(Probe("state_bits", bits, training={"optimizer": "adam"}) for bits in (16, 8)),
    Probe("state_bits", 8, training={"optimizer": "adam", "zero": 3}),
    Probe("ema", "fp32"),
    Probe("clip_gradients", True),
    _strategy("scatter", "step", zero=2),
    _strategy("reshard", False, zero=3),
    _strategy("prefetch", 2, zero=3),
    _strategy("shard_over", 1, zero=3),
    _strategy("overlap_gather", True, zero=2),
    _strategy("algorithm", "ring"),
    *(_strategy("compression", way) for way in _COMPRESSIONS),
    *(_strategy("context_by", way, context=2) for way in ("ring", "all_gather", "ulysses")),
    _strategy("account_for_embedding", True, stages=5, microbatches=8),
    _strategy("account_for_loss", True, stages=5, microbatches=8),
    _strategy("overlap_tensor", True, tensor=2, sequence_parallel=True),
    _strategy("split_sends", True, tensor=2),
    _strategy("expert_tensor", 1, _MIXED, **_FOLDED),
    _strategy("overlap_experts", True, _MIXED, **_EXPERT),
    _strategy("overlap_shared_experts", True, _MIXED, **_EXPERT),
    _strategy("node_limit", 1, _MIXED, **_EXPERT, workers=8),
    *(_strategy("dispatcher", name, _MIXED, **_EXPERT) for name in ("deepep", "hybridep")),
    _strategy("dispatch_precision", "bf16", _MIXED, **_EXPERT),
    _strategy("combine_precision", "bf16", _MIXED, **_EXPERT),
    _strategy("expert", 2, _MIXED, stages=1),
    _strategy("expert", 2, {"experts": {**_MIXED["experts"], "capacity": 1.25}}, stages=1),
    _strategy("sparse", {"rows": 0.1}),
    Probe("units", 40, True, {"mode": "asynchronous"}, kinds=("parameter_server",)),
    Probe("two_level", True, True, {"overlap": True}, kinds=("parameter_server",)),
    *(_schedule(name) for name in get_args(ScheduleName)),
    _uneven(stragglers=[{"ranks": 1, "slowdown": 2}]),
    _uneven(late=[{"ranks": 1, "delay": "1 s"}]),
    _uneven(noise=[{"period": "100 ms", "lasts": "5 ms"}]),
    _uneven(throttled=[{"slowdown": 2}]),
    _uneven(compute_jitter=0.1),
    _uneven(tail={"share": 0.05, "slowdown": 2}),
    _uneven(message_jitter=0.1),
    _uneven(tenants=[{"share": 0.5}]),
    _uneven(tenants=[{"flows": 2}]),
    *(Probe("batch", {"total": 16, "lengths": {**_LENGTHS, **more}}, in_scenario=True) for more in _BATCHES),
    Probe("input", {"decode": "8 ms", "prefetch": 1}, in_scenario=True),
)  # fmt: skip


# States of a field with a kind of strategy.
_ABSENT: Final = "–"


class Support(NamedTuple):
    """Support of a field by a kind of strategy. is_emulated: whether it is run with emulated compute alone. is_checked: whether
    the GPU check trains it over NCCL. refusal: the reason why it is not run, empty if it is."""

    is_predicted: bool
    is_run: bool
    is_emulated: bool
    is_verified: bool
    is_checked: bool
    refusal: str


def support(probe: Probe, kind: str) -> Support:
    """The support of a field by a kind of strategy, as the checks before predictions and measurements decide."""
    try:
        scenario = probe.scenario(kind)
    except (FieldError, ValueError):
        return Support(False, False, False, False, False, "")
    try:
        check_trainable(scenario)
    except InputError as error:
        return Support(
            True, False, _is_trainable(scenario.model_copy(update={"compute": "paced"})), False, False, reason(str(error))
        )
    try:
        check_verifiable(scenario)
    except InputError:
        return Support(True, True, False, False, is_checked(probe, kind), "")
    return Support(True, True, False, True, is_checked(probe, kind), "")


def _is_trainable(scenario: Scenario) -> bool:
    try:
        check_trainable(scenario)
    except InputError:
        return False
    return True


def reason(message: str) -> str:
    """The reason in the message of a refusal, without the name of the scenario and what to do instead."""
    text = message.removeprefix("probe: ").rpartition(";")[0]
    return text.partition("not measured: ")[2] or text.partition(": ")[2] or text


def is_checked(probe: Probe, kind: str) -> bool:
    """Whether the GPU check trains a scenario with this kind of strategy, this field and the fields that go with it."""
    if probe.in_scenario:
        return False
    part = "strategy" if probe.in_strategy else "training"
    wanted = {part: {probe.name: probe.value}}
    for family in families([4]).values():
        given = {
            "strategy": family["strategy"],
            "training": {"optimizer": "sgd", "precision": "fp64", **family.get("training", {})},
        }
        if given["strategy"]["kind"] == kind and all(given[part].get(name) == value for name, value in wanted[part].items()):
            return True
    return False


def outcome(probe: Probe, kind: str) -> str:
    """`run`, `emulated` where compute must be, `refused`, or `–` where such a strategy has no such field."""
    found = support(probe, kind)
    return "run" if found.is_run else "emulated" if found.is_emulated else "refused" if found.is_predicted else _ABSENT


def table() -> str:
    """Fields, with the kinds of strategy that are predicted, run and verified with each."""
    head = ("field", "predicted", "run", "verified", "NCCL")
    rows = []
    for probe in PROBES:
        found = {kind: support(probe, kind) for kind in KINDS}
        predicted = [kind for kind in KINDS if found[kind].is_predicted]
        emulated = [kind for kind in predicted if found[kind].is_emulated]
        columns = [[kind for kind in predicted if chosen(found[kind])] for chosen in (_is_run, _is_verified, _is_checked)]
        cells = [_named(predicted, list(KINDS)), *(_named(column, predicted) for column in columns)]
        if emulated:
            cells[1] = (f"{cells[1]}; " if columns[0] else "") + f"emulated {_named(emulated, predicted)}"
        rows.append((probe.label(), *cells))
    return _lines(head, rows)


def reasons() -> str:
    """The fields that are not run with all kinds of strategy, each with the reasons."""
    rows = []
    for probe in PROBES:
        found = [support(probe, kind) for kind in KINDS]
        given = dict.fromkeys(one.refusal for one in found if one.refusal)
        rows += [(probe.label(), "; ".join(given))] if given else []
    return _lines(("field", "not run by all, because"), rows)


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with one row for all fields of the same outcome."""
    fields: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        fields.setdefault(tuple(cells), []).append(name)
    grouped = [("; ".join(names), *shared) for shared, names in fields.items()]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in grouped)])


def _is_run(found: Support) -> bool:
    return found.is_run


def _is_verified(found: Support) -> bool:
    return found.is_verified


def _is_checked(found: Support) -> bool:
    return found.is_checked


def _named(kinds: Sequence[str], possible: Sequence[str]) -> str:
    """Letters of kinds of strategy as in the table: all, if none of the possible ones is missing."""
    return "all" if len(kinds) == len(possible) > 0 else " ".join(_LETTERS[kind] for kind in kinds) or _ABSENT


def legend() -> str:
    """The letters of the kinds of strategy in the table."""
    return ", ".join(f"{letter} `{kind}`" for kind, letter in _LETTERS.items())


if __name__ == "__main__":
    print(f"{legend()}\n\n{table()}\n\n{reasons()}")
