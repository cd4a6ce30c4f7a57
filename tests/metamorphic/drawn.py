"""Scenarios drawn at random, in which model, cluster, strategy and training fit together."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import load
from tests.validator.verdicts import at_night, in_bulk

Fields = dict[str, Any]

CLUSTERS: Final = (
    "aws-g4dn", "aws-g5", "aws-p3", "aws-p4d", "azure-nd-mi300x-v5", "b200-cluster", "dgx-a100", "dgx-h100", "dgx1", "ec2",
    "gb200-nvl72", "gce", "gcp-n1-v100", "p100-25gbe", "rtx-pro-6000-server", "selene-a100",
)  # fmt: skip
CONVNETS: Final = ("alexnet", "inception-v3", "resnet50", "vgg16")
# Blocks of seeds, so that few scenarios are drawn before a commit and many at night.
BLOCKS: Final = (0, *in_bulk(*range(1, 4)), *at_night(*range(4, 10)))
_MOST_RANKS: Final = 64
# Of ten drawn scenarios about seven are valid.
_MOST_TRIES: Final = 200


def seeds(block: int, scenarios: int) -> range:
    return range(block * scenarios, (block + 1) * scenarios)


def drawn(seed: int, *kinds: str, **changes: Any) -> Fields:
    """Fields of a valid scenario, the same for the same arguments.

    kinds: of strategies, any if none is given. changes: fields that replace drawn ones, such as `cluster="dgx-h100"`.
    """
    source = random.Random(seed)
    for _ in range(_MOST_TRIES):
        fields = _scenario(source, source.choice(kinds or tuple(_STRATEGIES))) | changes
        if is_valid(fields):
            return fields
    raise AssertionError(f"seed {seed}: none of {_MOST_TRIES} scenarios of {kinds} with {changes} is valid")


def is_valid(fields: Fields, overrides: Mapping[str, Any] | None = None) -> bool:
    """Whether a scenario with these fields and overrides is accepted."""
    try:
        load(fields, overrides or {})
    except InputError:
        return False
    return True


def _scenario(source: random.Random, kind: str) -> Fields:
    model = _model(source, kind)
    strategy = _STRATEGIES[kind](source) | {"kind": kind}
    where: Any = source.choice(CLUSTERS) if source.random() < 0.6 else _cluster(source)
    microbatches = strategy.get("microbatches", 1)
    training: Fields = {
        "precision": source.choice(("fp32", "bf16", "fp16")),
        "optimizer": source.choice(("sgd", "momentum", "adam")),
    }
    if kind in ("data_parallel", "hybrid"):
        training["zero"] = source.choice((0, 0, 1, 2, 3))
    if kind in ("data_parallel", "hybrid", "pipeline"):
        training["recompute"] = source.choice(("none", "none", "full"))
    return {
        "model": model,
        "cluster": where,
        "strategy": strategy,
        "batch": {"per_worker": microbatches * source.choice((1, 2, 4, 8))},
        "training": training,
    }


def _model(source: random.Random, kind: str) -> Fields | str:
    families = ["gpt", "llama", "gpt", "llama", "mixture", "bert", "t5"]
    if kind in ("data_parallel", "parameter_server", "gather_average", "local_sgd", "model_parallel"):
        families.append("convnet")
    family = source.choice(families)
    if family == "convnet":
        return source.choice(CONVNETS)
    heads = source.choice((4, 8, 16))
    fields: Fields = {
        "kind": "llama" if family == "mixture" else family,
        "layers": source.choice((4, 8, 12)),
        "hidden": heads * source.choice((64, 128)),
        "heads": heads,
    }
    if family == "t5":
        return fields | {"feedforward": 4 * fields["hidden"]}
    fields |= {"sequence": source.choice((128, 512, 2048))}
    if family != "bert":
        fields |= {"vocabulary": source.choice((8192, 32000, 50257))}
    if family == "mixture":
        fields |= {"experts": {"count": source.choice((8, 16)), "active": 2, "feedforward": 2 * fields["hidden"]}}
    elif family == "llama":
        fields |= {"key_heads": heads // source.choice((1, 4))}
    return fields


def _cluster(source: random.Random) -> Fields:
    devices = source.choice((1, 2, 4, 8))
    network = {"bandwidth": f"{source.choice((10, 25, 100, 400))} Gbit/s", "latency": f"{source.choice((5, 20, 50))} us"}
    if source.random() < 0.3:
        ratio = source.choice((1, 2, 8))
        network["topology"] = {"kind": "leaf_spine", "per_leaf": 2, "oversubscription": ratio}  # type: ignore[assignment]
    device: Any = source.choice(("a100-80gb-sxm", "h100-80gb-sxm", "v100-16gb-sxm2", "l40s", None))
    if device is None:
        peaks = {"fp32": "40 TFLOP/s", "bf16": "300 TFLOP/s", "fp16": "300 TFLOP/s"}
        device = {"name": "mine", "peak": peaks, "efficiency": 0.5, "memory": "80 GiB", "memory_bandwidth": "2 TB/s"}
    return {
        "nodes": 8,
        "node": {
            "devices": devices,
            "cards": source.choice((1, devices)),
            "link": {"bandwidth": f"{source.choice((12, 50, 300))} GB/s", "latency": "5 us"},
        },
        "network": network,
        "device": device,
    }


def _data_parallel(source: random.Random) -> Fields:
    return {
        "workers": source.choice((1, 2, 4, 8, 16, 32)),
        "overlap": source.random() < 0.7,
        "microbatches": source.choice((1, 1, 2, 4)),
    }


def _hybrid(source: random.Random) -> Fields:
    tensor, stages = source.choice((1, 1, 2, 4)), source.choice((1, 1, 2, 4))
    workers = source.choice((1, 2, 4))
    fields: Fields = {"workers": workers, "tensor": tensor, "stages": stages, "microbatches": stages * source.choice((1, 2, 4))}
    if tensor > 1:
        fields |= {"sequence_parallel": source.random() < 0.5, "overlap_tensor": source.random() < 0.3}
    if source.random() < 0.2:
        fields["context"] = 2
    if source.random() < 0.3:
        fields["expert"] = source.choice((2, workers))
    if stages > 1 and source.random() < 0.3:
        fields |= {"schedule": "interleaved_1f1b", "chunks": 2}
    return fields | {"overlap": source.random() < 0.5}


def _pipeline(source: random.Random) -> Fields:
    stages = source.choice((1, 2, 4))
    fields: Fields = {"stages": stages, "microbatches": stages * source.choice((1, 2, 4))}
    schedule = source.choice(("gpipe", "1f1b", "1f1b", "interleaved_1f1b", "zb_h1"))
    return fields | {"schedule": schedule} | ({"chunks": 2} if schedule == "interleaved_1f1b" else {})


def _servers(source: random.Random) -> Fields:
    mode = source.choice(("synchronous", "synchronous", "asynchronous", "stale_synchronous"))
    return {
        "workers": source.choice((1, 2, 4)),
        "servers": source.choice((1, 2, 4)),
        "mode": mode,
        "placement": source.choice(("dedicated", "colocated")),
        "overlap": source.random() < 0.3,
        **({"bound": source.choice((0, 1, 4))} if mode == "stale_synchronous" else {}),
    }


def _local_sgd(source: random.Random) -> Fields:
    return {"workers": source.choice((1, 2, 4, 8)), "period": source.choice((1, 2, 8))}


def _workers(source: random.Random) -> Fields:
    return {"workers": source.choice((1, 2, 4, 8, 16))}


def _stages(source: random.Random) -> Fields:
    return {"stages": source.choice((1, 2, 4))}


_STRATEGIES: Final[dict[str, Callable[[random.Random], Fields]]] = {
    "data_parallel": _data_parallel,
    "hybrid": _hybrid,
    "pipeline": _pipeline,
    "parameter_server": _servers,
    "local_sgd": _local_sgd,
    "gather_average": _workers,
    "model_parallel": _stages,
}
