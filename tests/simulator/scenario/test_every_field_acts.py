"""Every field of a scenario changes something that is predicted, or is listed here with the reason why not.

Fields are found in the schema and changed by their type, in small scenarios that contain them. A field that changes nothing is
a promise that is not kept: make it act, refuse it, or delete it.
"""

from __future__ import annotations

import functools
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import pytest

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.spec import Spec
from tests.simulator.scenario.field_changes import (
    Change,
    Path,
    contains_parts,
    other_values,
    parts_of,
    schema,
)
from tests.simulator.scenario.outputs import KINDS
from tests.simulator.scenario.varied_scenarios import SHORT_LENGTHS, names, varied

_MEASURE: Final = "how `scaleproof measure` trains"
_SINGLE: Final = "single kernels in a burst, as in tables of measured kernels; training sustains less"
_SERVING: Final = "kernels of serving software, as in tables of measured kernels"
_LABELLED: Final = (
    "Scenario", "Cluster", "Gpt", "Llama", "VisionLanguage", "Bert", "T5", "Mlp", "ResNet", "Vgg", "AlexNet", "InceptionV3",
    "Siamese", "Dlrm", "Hstu", "RecurrentNetwork", "RecordedModel",
)  # fmt: skip
# Fields that no prediction depends on, by class and name or for all classes, with the reason.
DESCRIPTIVE: Final[Mapping[str, str]] = {
    **{f"{owner}.name": "a label" for owner in _LABELLED},
    "*.description": "a text for readers",
    "*.source": "where numbers come from",
    "*.sources": "where numbers come from",
    "*.provenance": "when and how a cluster was calibrated",
    "*.state": "whether rates were measured, which `scaleproof device` shows",
    "*.log_error": "the error of a fit, which `scaleproof device` and tables of kernels show",
    "ResNet.dropout": "inherited: a residual network has none, as the description says",
    "Cluster.nodes": "how many there are; those that are left over take no part",
    "Device.measured": "which fields were measured, as `scaleproof device` shows",
    "Device.l2_bytes": "for information, as its description says",
    "Device.clock_Hz": "of convolutions in groups alone, in tests of kernels",
    "ProductRates.burst_s": _SINGLE,
    "ProductRates.fixed_s": _SINGLE,
    "ProductRates.correction": _SINGLE,
    "CastRates.*": _SINGLE,
    "MixtureRates.*": _SERVING,
    "Preparation.*": _SERVING,
    "Kernels.issue_s": "of captured scripts alone: in training, frameworks have the host's time",
    "Sparse.skew": "of lookups in a user's module, in tests of strategy/parameter_server",
    "Training.learning_rate": _MEASURE,
    "Adapters.alpha": "a factor on outputs",
    "Training.seed": _MEASURE,
    "Training.data": _MEASURE,
    "Training.warmup_steps": _MEASURE,
    "Reliability.most_workers": "a limit of what events may lead to, and of the hosts that `scaleproof faults` waits for",
    "Interval.nominal": "the vendor's value, for comparison",
    "Interval.measurements": "how many measurements an interval is based on",
}
# Where a field acts, if the first scenarios that have it do not show it: a scenario, a value if its type suggests none, and
# other fields of the part that must change with it.
AT: Final[Mapping[str, str | tuple[str, Any] | tuple[str, Any, Mapping[str, Any]]]] = {
    "Scenario.steps": "elastic/netlab-host-added",
    "Experts.capacity": ("mixture-even", 2.0),
    "Cluster.framework": ("rented", "pytorch-ddp"),
    "Cluster.pue": "owned",
    "Cluster.model_error_nodes": "owned",
    "Node.memory_bandwidth_Bps": "servers-host",
    "Node.used": ("zero-1", 4),
    "Node.idle_power_W": "owned",
    "Link.incast": "links",
    "Link.transport": ("efa", "infiniband"),
    "Link.cores_busy": "cores",
    "Torus.dimensions": ("torus", (8,)),
    "GraphLink.between": ("graph", (0, "b")),
    "Device.name": ("small", "K80"),
    "Device.layer_overhead_s": "own-device",
    "Device.memory_bytes": "own-device",
    "Kernels.generation_slowdown": "h100-long",
    "Kernels.exponential_gain": "b200-ideal",
    "SerialCosts.relu": "serial-relu",
    **dict.fromkeys(
        (f"SerialCosts.{name}" for name in ("convolution", "convolution_calls", "convolution_products", "group_norm", "silu")),
        "serial-images",
    ),
    "SerialCosts.grouped_products": "serial-groups",
    **dict.fromkeys((f"SerialCosts.{name}" for name in ("lookup", "lookup_row", "row_update", "pairs")), "serial-clicks"),
    "AttentionRates.*": "attention",
    "AttentionRates.slowdowns": "attention-wide",
    "AttentionRates.wide_block_rows": "attention-wide",
    "MeasuredCollective.from_bytes": ("own-measured", 1e8),
    "Nccl.network_latency_s": "tensor-efa",
    "Nccl.version": ("symmetric", "2.18"),
    "Adjust.rate_inside": "symmetric",
    "Electricity.*": "owned",
    "Interval.low": ("owned", "9 Gbit/s"),
    "Interval.high": ("owned", "20 Gbit/s"),
    "Batch.per_worker": "per-worker",
    "Training.fp8_recipe": "fp8",
    "Training.fp4_recipe": ("fp4", "mxfp4"),
    "Training.offload": ("offload", ()),
    "Training.offload_to": ("offload-drives", "host"),
    "Training.delay_update": "offload",
    "Training.state_bits": ("zero-1", 8),
    "Training.ema": ("zero-1", "bf16"),
    "Training.clip_gradients": ("zero-1", True),
    "NodeHost.memory_bytes": ("offload", 1e6),
    "NodeHost.devices_per_link": ("offload", 2),
    "Drives.capacity_bytes": ("offload-drives", 1e6),
    "Training.freeze": ("h100", ("embedding",)),
    "Training.base_precision": "adapters",
    "Training.double_quantization": "adapters",
    "Adapters.dropout": ("adapters", 0.1),
    "Adapters.modules_to_save": ("adapters", ("head",)),
    "Training.master": ("zero-1", False),
    "Recompute.modules": ("recompute-modules", ("mlp",)),
    "Perturbations.seed": "uneven",
    "Input.prefetch": ("input", 0),
    "Input.augment_s": ("decoding", 0.1),
    "Input.parse_s": ("input-devices", 0.1),
    "Input.copied_bytes": "input-copies",
    "Storage.latency_s": ("input-store", 0.2),
    "Storage.read_bytes": ("input-store", 4e5),
    "Storage.in_flight": ("input-store", 1),
    "Storage.dataset_bytes": ("input-store", 4e8),
    "Storage.page_cache_bytes": ("input-store", 4e8),
    "HostFailure.*": "events",
    "HostFailure.step": "elastic/netlab-host-returns",
    "ProcessCrash.*": "crashes",
    "ProcessCrash.step": "elastic/netlab-rank-killed",
    "LinkChange.*": "crashes",
    "LinkChange.step": "elastic/netlab-link-slowed",
    "MessageStall.*": "stalls",
    "MessageStall.step_s": "stalls-replicas",
    "Checkpoint.asynchronous": ("failures", False, {"copy_bandwidth_Bps": None, "slowdown": 0.0}),
    "ParameterServer.bound": "servers-stale",
    "ParameterServer.assignment": ("servers-dynamic", "fixed", {"units": None}),
    "DataParallel.algorithm": ("ddp", "tree"),
    "DataParallel.prefetch": "fsdp",
    "DataParallel.reshard": "fsdp",
    "DataParallel.scatter": "fsdp",
    "DataParallel.shard_over": "fsdp",
    "DataParallel.first_bucket_bytes": ("ddp", 5e7),
    "DataParallel.shares": ("shares", (4, 4, 4, 4)),
    "Hybrid.shares": ("hybrid-shares", (4, 4, 4, 4)),
    "Hstu.hidden": ("interactions", 32, {"tables": ({"rows": 100000, "dim": 32}, {"rows": 100, "dim": 32, "pooling": 2})}),
    "Gpt.global_every": ("windows-gpt", 4),
    "Llama.global_every": ("windows", 4),
    "Gpt.pattern": ("recurrences-gpt", "M- M *- -"),
    "RecordedModel.source": ("recorded", "timm:vit_base_patch16_224"),
    "RecordedModel.image": ("recorded-sizes", 288),
    "RecordedModel.contrast": ("recorded", "gathered"),
    "Llama.pattern": ("recurrences", "M- M *- -"),
    "VisionLanguage.pattern": ("vision", "*- *"),
    "Lengths.across": ("lengths-packed", True),
    "Lengths.batches": ("lengths", "packed"),
    "Lengths.file": ("lengths-file", SHORT_LENGTHS),
    "VisionLanguage.position_rows": ("vision", 1024, {"positions": "learned"}),
    "Link.peer_to_peer": ("geforce", True),
    "Link.connection_Bps": "connections",
    "Link.sockets": ("sockets", "default"),
    "Link.state": ("sockets", "untuned"),
    "Kernels.tensor_rate": ("geforce", 0.25),
    "BridgedPairs.bridge_Bps": ("geforce", 1e9),
    "NodeKind.nodes": ("mixed", (2, 3)),
    "NodeKind.devices": ("mixed", 2),
    "Tables.on": ("tables", "host"),
    "Tables.plan": ("tables-plan", (0, 0, 0, 1)),
    "Tables.balance": ("tables", "memory"),
    "Tables.replicate_below": ("tables", 500),
    "Tables.least_columns": ("tables-columns", 16),
    "Tables.cache": ("tables-host", 0.5),
    "EmbeddingTable.hot": ("tables", (0.9, 0.1)),
    "Dlrm.interaction": ("cross", "cat", {"cross_layers": 0, "cross_rank": None}),
    "Hybrid.chunks": ("tensor", 4),
    "Hybrid.account_for_embedding": "embedding",
    "Hybrid.algorithm": ("cards", "tree"),
    "Hybrid.prefetch": ("torchtitan", 0),
    "Hybrid.reshard": "zero-3",
    "Hybrid.scatter": "zero-3",
    "Hybrid.shard_over": "zero-3",
    "Hybrid.context_by": ("context", "all_gather"),
    "Hybrid.expert_tensor": "mixture",
    "Hybrid.overlap_experts": "mixture-pieces",
    "Hybrid.overlap_shared_experts": "mixture-pieces",
    "Hybrid.node_limit": ("mixture-nodes", 2),
    "Experts.groups": ("mixture-groups", 8),
    "Experts.active_groups": ("mixture-groups", 1),
    "Hybrid.order": ("order", ("tensor", "context", "workers", "stages")),
    "Hybrid.split_sends": "order",
    "Hybrid.overlap_gather": "zero-1",
}
# Fields that a class inherits and refuses, or has no use for.
REFUSED: Final = (
    "Switch.hop_latency_s", "Switch.routing", "Mesh.hop_latency_s", "Mesh.routing", "PcieTree.routing", "Dragonfly.routing",
    "BridgedPairs.routing",
)  # fmt: skip
_MOST_SCENARIOS: Final = 8
_MOST_PATHS: Final = 4
_MOST_VALUES: Final = 2
QUICK: Final = ("Batch", "Link", "Node", "Training")


@functools.cache
def places() -> Mapping[type[Spec], Mapping[str, list[tuple[Path, Spec]]]]:
    """Parts of scenarios by class and scenario, with their paths."""
    found: dict[type[Spec], dict[str, list[tuple[Path, Spec]]]] = {}
    for name in names():
        for path, part in parts_of(varied(name)):
            found.setdefault(type(part), {}).setdefault(name, []).append((path, part))
    return found


@functools.cache
def before(scenario: str, kind: int) -> str:
    return KINDS[kind](varied(scenario))


def is_seen(change: Change) -> bool | None:
    """Whether a change is seen in any output; None if it is not valid."""
    changed = change.apply(varied(change.scenario))
    if changed is None:
        return None
    try:
        return any(KINDS[kind](changed) != before(change.scenario, kind) for kind in range(len(KINDS)))
    except ScaleproofError:
        return None


def changes(owner: type[Spec], field: str) -> Iterator[Change]:
    """Changes of a field in scenarios, those that `AT` names or the first ones."""
    known, info = places().get(owner, {}), owner.model_fields[field]
    given = AT.get(f"{owner.__name__}.{field}") or AT.get(f"{owner.__name__}.*") or ()
    scenario, *rest = (given,) if isinstance(given, str) else given or (None,)
    for name in [scenario] if scenario else list(known)[:_MOST_SCENARIOS]:
        for path, part in {place[0]: place for place in (*known[name][:_MOST_PATHS], *known[name][-_MOST_PATHS:])}.values():
            others = rest[:1] if rest else other_values(getattr(part, field), info.annotation)
            yield from (Change(name, path, {field: other, **(rest[1] if len(rest) > 1 else {})}) for other in others)


def acts(owner: type[Spec], field: str) -> bool:
    """Whether a change of a field is seen; at most some valid values are tried at each path."""
    tried: Counter[tuple[str, Path]] = Counter()
    for change in changes(owner, field):
        place = change.scenario, change.path
        if tried[place] < _MOST_VALUES:
            seen = is_seen(change)
            if seen:
                return True
            tried[place] += seen is not None
    return False


def is_kind(owner: type[Spec], field: str) -> bool:
    """Whether a field names its class."""
    annotation = owner.model_fields[field].annotation
    return typing.get_origin(annotation) is Literal and len(typing.get_args(annotation)) == 1


def checked(owner: type[Spec]) -> list[str]:
    """The fields of a class that must act."""
    return [
        field
        for field, info in owner.model_fields.items()
        if not is_kind(owner, field)
        and f"{owner.__name__}.{field}" not in REFUSED
        and reason(owner, field) is None
        and not contains_parts(info.annotation)
    ]


def reason(owner: type[Spec], field: str) -> str | None:
    """Why a field need not act; None if it must."""
    names = (f"{owner.__name__}.{field}", f"{owner.__name__}.*", f"*.{field}")
    return next((DESCRIPTIVE[name] for name in names if name in DESCRIPTIVE), None)


WITHOUT_INSTANCE: Final[Mapping[str, str]] = {
    "Traced": "a user's module, in tests of model/tracing",
    "CapturedModel": "written by `scaleproof capture`, in tests of captured",
    "CapturedStrategy": "written by `scaleproof capture`, in tests of captured",
}


# Classes with fields that must act; most of them in the full tests.
OWNERS: Final = [
    pytest.param(owner, id=owner.__name__, marks=[] if owner.__name__ in QUICK else pytest.mark.full)
    for owner in schema()
    if checked(owner) and owner.__name__ not in WITHOUT_INSTANCE
]


@pytest.mark.parametrize("owner", OWNERS)
def test_every_field_of_a_class_acts(owner: type[Spec]) -> None:
    assert owner in places(), "no scenario has one; add one to varied_scenarios.py"
    idle = [field for field in checked(owner) if not acts(owner, field)]
    assert not idle, "no change of these is seen; make them act, refuse them, or list them with the reason"


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_a_class_cannot_have_are_refused(name: str) -> None:
    owner = next(owner for owner in schema() if owner.__name__ == name.split(".")[0])
    tried = [change.apply(varied(change.scenario)) for change in changes(owner, name.split(".")[1])]
    assert tried
    assert not any(tried)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in DESCRIPTIVE if "*" not in name])
def test_fields_that_are_listed_do_not_act(name: str) -> None:
    """An entry that has become wrong is to be deleted."""
    owner = next(owner for owner in schema() if owner.__name__ == name.split(".")[0])
    assert not acts(owner, name.split(".")[1])


def test_the_lists_name_fields_and_scenarios() -> None:
    known = {f"{owner.__name__}.{field}" for owner in schema() for field in owner.model_fields}
    parts = [name.split(".") for name in known]
    known |= {f"{owner}.*" for owner, _ in parts} | {f"*.{field}" for _, field in parts}
    assert {*DESCRIPTIVE, *AT, *REFUSED} <= known
    assert {at if isinstance(at, str) else at[0] for at in AT.values()} <= set(names())
    assert WITHOUT_INSTANCE.keys() <= {owner.__name__ for owner in schema()}
    assert not {owner.__name__ for owner in places()} & WITHOUT_INSTANCE.keys()
