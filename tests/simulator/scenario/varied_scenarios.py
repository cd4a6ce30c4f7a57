"""Small scenarios that together contain every kind of part, so that each field acts on one of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common import catalog
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

Fields = Mapping[str, Any]

_LINK: Final[Fields] = {"bandwidth": "50 GB/s", "latency": "20 us"}
_NETWORK: Final[Fields] = {"bandwidth": "10 Gbit/s", "latency": "100 us"}
_OWN: Final[Fields] = {
    "name": "own", "peak": {"fp32": "20 TFLOP/s", "bf16": "80 TFLOP/s"}, "memory": "40 GiB", "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5, "layer_overhead": "5 us",
}  # fmt: skip
# Files with the length of a sample in each line.
LENGTHS: Final = str(Path(__file__).with_name("lengths.txt"))
SHORT_LENGTHS: Final = str(Path(__file__).with_name("short_lengths.txt"))
_GPT: Final[Fields] = {"kind": "gpt", "layers": 4, "hidden": 512, "heads": 8, "vocabulary": 8192, "sequence": 512}
_LLAMA: Final[Fields] = {**_GPT, "kind": "llama", "feedforward": 1024}
_SCORES: Final[Fields] = {**_GPT, "flash": False}
_EXPERTS: Final[Fields] = {"count": 8, "active": 2, "feedforward": 1024}
_MIXTURE: Final[Fields] = {**_LLAMA, "experts": {**_EXPERTS, "shared": 1, "dense_layers": 1, "imbalance": 1.2}}
_CLICKS: Final[Fields] = {
    "kind": "dlrm", "dense": 4, "bottom": [32, 16], "top": [64, 1], "tables": [
        {"rows": 2000, "dim": 16, "pooling": 2, "skew": 1.2}, {"rows": 100000, "dim": 16, "count": 2},
        {"rows": 300, "dim": 16, "hot": [0.7, 0.3]},
    ],
}  # fmt: skip
_NARROW: Final[Fields] = {**_GPT, "hidden": 256, "heads": 4, "vocabulary": 512, "sequence": 64}
_CPU: Final[Fields] = {
    "name": "core", "peak": {"fp32": "100 GFLOP/s"}, "memory": "16 GiB", "memory_bandwidth": "20 GB/s",
    "kernels": {
        "generation": "cpu", "processors": 1, "launch": "2 us", "flash_forward_share": 0.3, "flash_backward_share": 0.25,
        "serial": {"backward_calls": 1.5, "attention_calls": 3, "memory_calls": 1.2, "memory_backward_calls": 1.7},
    },
}  # fmt: skip


def _cluster(
    nodes: int = 4, devices: int = 2, device: Any = "v100-16gb-sxm2", inside: Fields | None = None,
    between: Fields | None = None, node: Fields | None = None, **rest: Any,
) -> Fields:  # fmt: skip
    """inside, between: fields of the links that differ."""
    return {
        "nodes": nodes,
        "node": {"devices": devices, "link": {**_LINK, **(inside or {})}, **(node or {})},
        "network": {**_NETWORK, **(between or {})},
        "device": device,
        **rest,
    }


def _job(
    cluster: Fields | None = None, model: Any = "gpt2-small", batch: int | Fields = 16, training: Fields | None = None,
    strategy: Fields | None = None, **rest: Any,
) -> Fields:  # fmt: skip
    return {
        "model": model,
        "cluster": cluster or _cluster(),
        "strategy": strategy or {"kind": "data_parallel", "workers": 8},
        "batch": batch,
        "training": {"precision": "fp16", "optimizer": "adam", **(training or {})},
        **rest,
    }


def _network(kind: str, strategy: Fields | None = None, **fields: Any) -> Fields:
    between = {"topology": {"kind": kind, **fields}}
    return _job(_cluster(nodes=8, devices=1, between=between), strategy=strategy or {"kind": "data_parallel", "workers": 8})


def _node(kind: str, devices: int, **fields: Any) -> Fields:
    inside = {"topology": {"kind": kind, **fields}}
    return _job(_cluster(1, devices, inside=inside), strategy={"kind": "data_parallel", "workers": devices})


def _tables(**fields: Any) -> Fields:
    """A recommender with sharded tables."""
    strategy = {"kind": "data_parallel", "workers": 2, "tables": fields}
    return _job(model=_CLICKS, strategy=strategy, batch=512, training={"precision": "fp32"})


def _servers(cluster: Fields | None = None, model: Any = "resnet50", batch: int = 64, **fields: Any) -> Fields:
    strategy = {"kind": "parameter_server", "workers": 4, "servers": 2, **fields}
    training = {"precision": "fp32", "optimizer": "sgd"}
    return _job(cluster or _cluster(nodes=8, devices=1), model, batch, training, strategy)


_A100S: Final = _cluster(4, 8, "a100-80gb-sxm", {"bandwidth": "300 GB/s"}, {"bandwidth": "200 Gbit/s"})
_H100S: Final = _cluster(4, 8, "h100-80gb-sxm", {"bandwidth": "450 GB/s"}, {"bandwidth": "3200 Gbit/s"}, {"cards": 8})


def _hybrid(
    model: Any = "gpt2-medium", cluster: Fields = _A100S, training: Fields | None = None, framework: Any = None, **fields: Any
) -> Fields:
    named = {"framework": framework} if framework else {}
    return _job(cluster, model, 32, {"precision": "bf16", **(training or {})}, {"kind": "hybrid", **fields}, **named)


def _h100(model: Any = _LLAMA, training: Fields | None = None, **rest: Any) -> Fields:
    return _job(_H100S, model, 32, {"precision": "bf16", **(training or {})}, {"kind": "data_parallel", "workers": 32}, **rest)


_RAILS: Final[Fields] = {
    "kind": "rail_optimised", "nodes_per_group": 2, "spines": 2, "oversubscription": 4, "hop_latency": "1 ms",
    "routing": "hashed",
}  # fmt: skip
_VERTICES: Final = [
    *({"between": [i, "a" if i < 4 else "b"], "bandwidth": "0.5 GB/s"} for i in range(8)),
    {"between": ["a", "c"], "bandwidth": "0.2 GB/s"},
    {"between": ["c", "b"], "bandwidth": "0.2 GB/s"}, {"between": ["a", "d"], "bandwidth": "0.2 GB/s"},
    {"between": ["d", "b"], "bandwidth": "0.2 GB/s"},
]  # fmt: skip
_RATES: Final[Fields] = {
    "product_share": 0.7, "exponential_share": 0.6, "sustained_share": 0.8, "slowdowns": {192: 1.1, 256: 1.2},
    "block": "2 us", "launch": "5 us", "backward_product_share": 0.5, "backward_exponential_share": 0.3, "backward_moved": 8,
}  # fmt: skip
_RATED: Final[Fields] = {
    "base": "h100-80gb-sxm", "kernels": {"generation": "hopper", "processors": 132, "attention": {"flash-2": _RATES}},
}  # fmt: skip
_STALLS: Final[Fields] = {"base": "nanotron", "message_stall": {"nodes": 4, "delay": "50 ms", "step": "50 ms"}}
_UNEVEN: Final[Fields] = {
    "stragglers": [{"ranks": [1], "slowdown": 1.5}],
    "late": [{"ranks": [2], "delay": "1 s"}],
    "compute_jitter": 0.1,
    "message_jitter": 0.1,
    "noise": [{"after": "1 ms", "lasts": "5 ms", "period": "50 ms", "ranks": [3]}],
    "throttled": [{"ranks": [4], "slowdown": 2, "after": "10 ms", "lasts": "50 ms", "period": "200 ms"}],
    "tail": {"share": 0.05, "slowdown": 2},
    "tenants": [
        {"share": 0.5, "nodes": [1], "after": "1 ms", "lasts": "50 ms", "period": "100 ms"},
        {"flows": 2, "nodes": [0]},
    ],
}
_FAILURES: Final[Fields] = {
    "mtbf": {"gpu": "100 d", "host": "200 d", "nic": "300 d", "switch": "400 d", "job": "10 d"},
    "checkpoint": {
        "bandwidth": "1 GB/s", "node_bandwidth": "0.5 GB/s", "load_bandwidth": "2 GB/s", "asynchronous": True,
        "copy_bandwidth": "5 GB/s", "slowdown": 0.2, "size": "100 GiB", "interval": "30 min",
    },
    "detection": "5 min", "reschedule": "5 min", "initialise": "5 min", "nodes_lost": {"switch": 2, "job": 1}, "spares": 0,
    "repair": "1 d", "shortage": "shrink", "least_workers": 2, "planned": {"every": "5 d", "takes": "1 h"},
}  # fmt: skip
_MEASURED: Final = [
    {"op": "all_reduce", "ranks": 4, "latency": "50 us", "bandwidth": "5 GB/s"},
    {"op": "all_reduce", "ranks": 4, "from": "1 MiB", "latency": "50 us", "bandwidth": "6 GB/s", "cores_busy": 1},
]

VARIED: Final[Mapping[str, Fields]] = {
    "small": _job(),
    "leaf-spine": _network("leaf_spine", per_leaf=2, spines=2, oversubscription=4, routing="hashed", hop_latency="1 ms"),
    "fat-tree": _network(
        "fat_tree", per_leaf=2, leaves_per_pod=2, spines_per_pod=2, cores=2, oversubscription=2, pod_oversubscription=8,
        routing="hashed", hop_latency="1 ms",
    ),
    "torus": _network("torus", dimensions=[2, 4], hop_latency="1 ms", strategy={"kind": "pipeline", "stages": 8}),
    "dragonfly": _network(
        "dragonfly", per_router=1, routers_per_group=4, groups=2, local="0.2 GB/s", hop_latency="1 ms", **{"global": "2 GB/s"}
    ),
    "dragonfly-global": _network(
        "dragonfly", per_router=1, routers_per_group=2, groups=8, local="2 GB/s", **{"global": "0.2 GB/s"}
    ),
    "graph": _network("graph", links=_VERTICES, routes=[[3, "a", "c", "b", 4]], hop_latency="1 ms"),
    "rails": _job(
        _cluster(8, 4, node={"cards": 4}, between={"topology": _RAILS}), strategy={"kind": "data_parallel", "workers": 32},
        batch=32,
    ),
    "cube": _node("hybrid_cube_mesh", 8, links=6, hop_latency="1 ms"),
    "cube-pipeline": _job(
        _cluster(1, 8, inside={"topology": {"kind": "hybrid_cube_mesh", "hop_latency": "1 ms"}}),
        strategy={"kind": "pipeline", "stages": 8},
    ),
    "pcie": _node("pcie_tree", 8, per_switch=2, switches_per_socket=2, between_sockets="5 GB/s", hop_latency="1 ms"),
    "geforce": _job(
        _cluster(1, 4, "rtx-3090", {"topology": {"kind": "bridged_pairs", "bridge": "56 GB/s", "hop_latency": "1 ms"}}),
        strategy={"kind": "data_parallel", "workers": 4},
    ),
    "mixed": _job(
        _cluster(device=_OWN, collectives={"library": "fastest"})
        | {"nodes": [{"count": 3}, {"devices": 1, "device": {**_OWN, "name": "other", "efficiency": 0.2}}, {"count": 1}]},
        training={"precision": "bf16"}, model=_GPT,
    ),
    "links": _servers(
        _cluster(
            between={
                "overhead": "100 us", "incast": 0.5, "variability": 0.2, "duplex": "half", "transport": "sockets",
                "exceptions": [{"at": [1], "bandwidth": "5 Gbit/s"}],
            }
        ),
        batch=48, workers=3, servers=1,
    ),
    "cards": _hybrid(workers=32, cluster=_cluster(4, 8, "a100-80gb-sxm", node={"cards": 2})),
    "switches": _h100(_GPT) | {"cluster": {**_H100S, "network": {**_H100S["network"], "in_network_reduction": True}}},
    "symmetric": _job(
        _cluster(
            1, 8, "h100-80gb-sxm", {"bandwidth": "450 GB/s"},
            collectives={"nccl": {"generation": "hopper", "buffers": "symmetric"}},
        ),
        "gpt2-medium", 8, {"precision": "bf16"}, {"kind": "hybrid", "tensor": 8},
    ),
    "efa": _job(
        _cluster(
            4, 8, "a100-80gb-sxm", {"bandwidth": "300 GB/s"}, {"bandwidth": "400 Gbit/s", "transport": "efa-1"}, {"cards": 4},
            collectives={"nccl": {"generation": "ampere", "network_latency": "75 us"}, "adjust": {"launch": 1.2}},
        ),
        batch=32, training={"zero": 3}, strategy={"kind": "data_parallel", "workers": 32, "bucket": "1 MiB"},
    ),
    "owned": _job(
        _cluster(
            node={"power": "3 kW", "idle_power": "1 kW", "purchase": {"price": "100000 USD", "years": 4}},
            electricity={"price": "0.2 USD/kWh"}, pue=1.2, model_error=0.5, model_error_nodes=2,
            uncertainty={"network.bandwidth": {"low": "8 Gbit/s", "high": "11 Gbit/s", "measurements": 4}},
        )
    ),
    "rented": _job(
        _cluster(node={"price": "20 USD/h", "power": "3 kW"}, framework="horovod"), "resnet50", 32,
        convergence={"minimum_steps": 1000, "critical_batch": 512, "uncertainty": 0.1},
    ),
    "input": _job(
        model="resnet50", batch=256,
        input={"storage": {"sample": "110 KiB", "bandwidth": "20 MB/s"}, "decode": "5 ms", "cores": 2},
    ),
    "input-store": _job(
        model="resnet50", batch=256,
        input={
            "storage": {
                "sample": "110 KiB", "bandwidth": "1 GB/s", "latency": "100 ms", "read": "220 KiB", "in_flight": 2,
                "dataset": "1 GB", "page_cache": "0.2 GB",
            },
            "augment": "1 us",
        },
    ),
    "input-devices": _job(
        model="resnet50", batch=256, input={"decode": "50 ms", "decode_on": "device", "augment": "1 ms", "copied": "600 kB"},
    ),
    "input-copies": _job(model="resnet50", batch=256, input={"augment": "50 ms", "copied": "60 GB"}),
    "decoding": _job(model="resnet50", batch=256, input={"decode": "50 ms", "cores": 2}),
    "own-device": _job(
        _cluster(device=_OWN, collectives={"library": "fastest"}), training={"precision": "bf16"}, model=_GPT
    ),
    "own-measured": _job(
        _cluster(1, 4, _OWN, node={"cores": 8}, collectives={"library": "fastest", "measured": _MEASURED}),
        training={"precision": "bf16"}, strategy={"kind": "data_parallel", "workers": 4},
    ),
    "cores": _job(
        {
            "nodes": 2,
            "node": {"devices": 2, "cores": 1, "link": {"bandwidth": "5 GB/s", "latency": "40 us", "cores_busy": 0.5}},
            "network": {"bandwidth": "1 Gbit/s", "latency": "60 us", "cores_busy": 0.5},
            "device": "cpu-core",
            "shared_cores": 1.5,
        },
        "gpt-mini", 16, {"precision": "fp32", "optimizer": "sgd"}, {"kind": "data_parallel", "workers": 4},
    ),
    "measured-cores": _job(
        "cpu-2core", "gpt-mini", 24, {"precision": "fp32"}, {"kind": "data_parallel", "workers": 2}  # type: ignore[arg-type]
    ),
    "serial": _job(
        {"nodes": 1, "node": {"devices": 1, "cores": 1}, "device": _CPU}, {**_LLAMA, "head_norms": True}, 4,
        {"precision": "fp32"}, {"kind": "data_parallel"},
    ),
    "serial-gpt": _job(
        {"nodes": 1, "node": {"devices": 1, "cores": 1}, "device": _CPU}, _GPT, 4, {"precision": "fp32"},
        {"kind": "data_parallel"},
    ),
    "serial-relu": _job(
        {"nodes": 1, "node": {"devices": 1, "cores": 1}, "device": _CPU}, {**_GPT, "activation": "relu"}, 4,
        {"precision": "fp32"}, {"kind": "data_parallel"},
    ),
    "serial-images": _job(
        {"nodes": 1, "node": {"devices": 1, "cores": 1}, "device": _CPU}, "sd15-unet", 1, {"precision": "fp32"},
        {"kind": "data_parallel"},
    ),
    "serial-groups": _job(
        {"nodes": 1, "node": {"devices": 1, "cores": 1}, "device": _CPU}, "efficientnet-b0", 1, {"precision": "fp32"},
        {"kind": "data_parallel"},
    ),
    "serial-clicks": _job(
        {"nodes": 1, "node": {"devices": 1, "cores": 1}, "device": _CPU}, _CLICKS, 64, {"precision": "fp32"},
        {"kind": "data_parallel", "tables": {}},
    ),
    "zipf": _hybrid({**_GPT, "experts": {**_EXPERTS, "imbalance": {"kind": "zipf", "exponent": 0.5}}}, workers=8, expert=4),
    "dirichlet": _hybrid(
        {**_GPT, "experts": {**_EXPERTS, "imbalance": {"kind": "dirichlet", "concentration": 2}}}, workers=8, expert=4
    ),
    "multinomial": _hybrid(
        {**_GPT, "experts": {**_EXPERTS, "imbalance": {"kind": "multinomial", "tokens": 512}}}, workers=8, expert=4
    ),
    "latent": _job(
        model={**_LLAMA, "latent": {"query_rank": 256, "key_rank": 128, "width": 64, "rotary_width": 32, "value_width": 64}}
    ),
    "windows": _job(model={**_LLAMA, "window": 64, "global_every": 2}),
    "windows-gpt": _job(model={**_GPT, "window": 64, "global_every": 2}),
    "vision": _job(
        model={
            **_LLAMA, "kind": "vision_language", "window": 64, "global_every": 2,
            "vision": {
                "layers": 4, "hidden": 256, "heads": 4, "feedforward": 512, "image": 112, "window": 16, "global_blocks": 2,
                "projector": {"merge": 2, "norm": "layer", "width": 512},
            },
        }
    ),
    "lengths": _job(
        model=_LLAMA, batch={"total": 64, "lengths": {"distribution": "lognormal", "mean": 200}},
    ),
    "lengths-packed": _job(
        model=_LLAMA, batch={"total": 64, "lengths": {"distribution": "uniform", "mean": 200, "batches": "packed"}},
    ),
    "lengths-file": _job(
        model=_LLAMA,
        batch={"total": 64, "lengths": {"distribution": "file", "file": LENGTHS}},
    ),
    "learned-positions": _job(model={**_LLAMA, "positions": "learned"}),
    "recurrences": _job(
        model={
            **_LLAMA, "pattern": "M- *-", "window": 64, "gated": True, "predictions": 1,
            "recurrence": {"kind": "mamba2", "heads": 16, "value_width": 64, "width": 64, "key_heads": 4, "chunk": 64},
        }
    ),
    "recurrences-gpt": _job(
        model={**_GPT, "pattern": "M- *-", "recurrence": {"kind": "mamba", "heads": 1024, "width": 16, "rank": 32}}
    ),
    "lstm": _job(model="lstm"),
    "recorded": _job(model={"kind": "recorded", "source": "timm:vit_small_patch16_224", "image": 224}),
    "recorded-sizes": _job(model={"kind": "recorded", "source": "timm:convnext_base", "image": 224}),
    "t5": _job(model="t5-base"),
    "bert": _job(model="bert-base"),
    "alexnet": _job(model="alexnet"),
    "inception": _job(model="inception-v3"),
    "vgg": _job(model="vgg16"),
    "resnet": _job(model="resnet50", batch=256),
    "mlp": _job(model="mlp-mini"),
    "siamese": _job(model="siamese-mlp"),
    "tables": _tables(),
    "tables-plan": _tables(plan=[0, 1, 0, 1]),
    "tables-columns": _tables(shard="column"),
    "tables-host": _tables(on="host"),
    "cross": _job(model={**_CLICKS, "interaction": "dcn", "cross_layers": 2, "cross_rank": 8}, batch=512),
    "interactions": _job(
        model={
            "kind": "hstu", "layers": 2, "hidden": 64, "heads": 4, "width": 32, "value_width": 16, "sequence": 128,
            "positions": 256, "top": [32, 2], "tables": [{"rows": 100000, "dim": 64}, {"rows": 100, "dim": 64, "pooling": 2}],
        },
        batch=512, strategy={"kind": "data_parallel", "workers": 2, "tables": {"shard": "row"}},
    ),
    "uneven": _job(unevenness=_UNEVEN, steps=8),
    "random-phases": _job(
        unevenness={
            "throttled": [{"slowdown": 2, "lasts": "50 ms", "period": "200 ms", "phase": "random"}],
            "noise": [{"lasts": "5 ms", "period": "50 ms"}],
            "tenants": [{"share": 0.5, "lasts": "50 ms", "period": "100 ms"}],
        },
        steps=8,
    ),
    "failures": _job(reliability=_FAILURES),
    "events": _job(
        _cluster(8, 1), steps=20000,
        reliability={
            "events": [{"kind": "failure", "host": 3, "at": "10 min"}],
            "checkpoint": {"steps": 1000, "bandwidth": "1 GB/s"}, "detection": "15 s", "reschedule": "30 s",
        },
    ),
    "crashes": _job(
        _cluster(8, 1), steps=20000,
        reliability={
            "events": [
                {"kind": "crash", "host": 3, "at": "2 min"},
                {"kind": "link", "host": 2, "at": "9 min", "bandwidth": "1 Gbit/s"},
            ],
            "checkpoint": {"steps": 1000, "bandwidth": "1 GB/s"}, "detection": "15 s", "reschedule": "30 s",
        },
    ),
    "checkpoints": _job(
        reliability={"mtbf": {"job": "10 d"}, "checkpoint": {"steps": 1000, "bandwidth": "1 GB/s"}, "detection": "5 min"}
    ),
    "fp8": _h100(training={"precision": "fp8", "fp8_recipe": "delayed"}),
    "fp8-blocks": _h100(training={"precision": "fp8", "fp8_recipe": "blockwise"}),
    "fp4": _h100(training={"precision": "fp4", "fp4_recipe": "nvfp4"}) | {"cluster": {**_H100S, "device": "b200-180gb-sxm"}},
    "h100": _h100(training={"zero": 3}),
    "h100-narrow": _h100(_NARROW),
    "h100-ideal": _h100(framework="ideal"),
    "h100-long": _h100({**_LLAMA, "hidden": 4096, "heads": 16, "sequence": 16384}, framework="ideal"),
    "attention": _h100({**_LLAMA, "hidden": 2048, "heads": 16, "sequence": 4096}, framework="pytorch-ddp")
    | {"cluster": {**_H100S, "device": _RATED}},
    "attention-wide": _h100({**_LLAMA, "hidden": 3072, "heads": 16, "sequence": 4096}, framework="pytorch-ddp")
    | {"cluster": {**_H100S, "device": _RATED}},
    "h100-mixture": _hybrid(_MIXTURE, _H100S, workers=32, expert=8),
    "a100-ideal": _hybrid("gpt2-small", framework="ideal", workers=32),
    "b200-ideal": _h100(framework="ideal") | {"cluster": {**_H100S, "device": "b200-180gb-sxm"}},
    "amd": _job(_cluster(device="mi300x-192gb-oam"), training={"precision": "bf16"}),
    "recompute-layers": _hybrid(
        training={"recompute": {"layers": 2}, "accumulate_precision": "fp32", "reduce_precision": "fp32"},
        workers=2, stages=2, tensor=2, sequence_parallel=True, microbatches=4,
    ),
    "recompute-group": _job(training={"recompute": {"group": 2}}),
    "recompute-every": _job(training={"recompute": {"every": 2}}),
    "recompute-modules": _job(training={"recompute": {"modules": ["core_attn", "mlp"]}}),
    "recompute-products": _job(training={"recompute": {"products": "every_second"}}),
    "measured-step": _job(training={"measured_step": {"samples": 2, "time": "50 ms"}}),
    "offload": _job(training={"zero": 3, "offload": ["optimizer"]}),
    "offload-drives": _job(
        _cluster(node={"host": {"memory": "1 TB", "nvme": {"read": "1 GB/s", "write": "1 GB/s", "capacity": "1 TB"}}}),
        training={"zero": 3, "offload": ["optimizer", "parameters"], "offload_to": "nvme"},
    ),
    "adapters": _h100(
        training={"adapters": {"kind": "dora", "rank": 8, "targets": ["q_proj", "down_proj"]}, "base_precision": "nf4"}
    ),
    "gather-average": _job(strategy={"kind": "gather_average", "workers": 4}),
    "local-sgd": _job(strategy={"kind": "local_sgd", "workers": 4, "period": 4, "outer": "nesterov", "overlap": True}),
    "model-parallel": _job(model="siamese-resnet50", strategy={"kind": "model_parallel", "stages": 2}),
    "servers": _servers(),
    "servers-stale": _servers(mode="stale_synchronous", bound=2)
    | {"unevenness": {"stragglers": [{"ranks": 0, "slowdown": 3}]}},
    "servers-asynchronous": _servers(mode="asynchronous")
    | {"convergence": {"minimum_steps": 1000, "critical_batch": 512, "staleness_penalty": 0.1}},
    "servers-backups": _servers(backups=1),
    "servers-colocated": _servers(placement="colocated", overlap=True, bucket="5 MiB", shard="tensor"),
    "servers-levels": _servers(_cluster(8, 2), two_level=True),
    "servers-sparse": _servers(model=_GPT, sparse={"rows": 0.1}),
    "servers-dynamic": _servers(assignment="dynamic", units=16, mode="asynchronous"),
    "servers-rollout": _servers(rollout="10 ms"),
    "servers-host": _servers(_cluster(8, 1, node={"memory_bandwidth": "5 GB/s"})),
    "servers-tensorflow": _servers() | {"framework": "tensorflow-1-servers"},
    "servers-rpc": _servers() | {"framework": {"base": "tensorflow-1-grpc", "rpc": {"send": "1 GB/s", "receive": "0.5 GB/s"}}},
    "mixture-pieces": _hybrid(_MIXTURE, workers=8, expert=8, microbatches=4),
    "tensor-efa": _hybrid(
        workers=2, tensor=16,
        cluster=_cluster(
            4, 8, "a100-80gb-sxm", {"bandwidth": "300 GB/s"}, {"bandwidth": "400 Gbit/s", "transport": "efa-1"}, {"cards": 4},
            collectives={"nccl": {"generation": "ampere", "network_latency": "75 us"}},
        ),
    ),
    "mixture-even": _hybrid({**_GPT, "experts": _EXPERTS}, workers=8, expert=4),
    "mesh": _node("mesh", 4),
    "mixture": _hybrid(
        _MIXTURE, workers=8, expert=4, tensor=2, expert_tensor=1, sequence_parallel=True, dispatch_precision="fp8",
        combine_precision="bf16",
    ),
    "mixture-nodes": _hybrid(
        _MIXTURE, _cluster(8, 2, "a100-80gb-sxm"), workers=16, expert=8, node_limit=1, dispatcher="deepep"
    ),
    "mixture-groups": _hybrid(
        {**_LLAMA, "experts": {**_EXPERTS, "count": 16, "active": 4, "groups": 4, "active_groups": 2}},
        _cluster(8, 2, "a100-80gb-sxm"), workers=16, expert=8, dispatcher="hybridep",
    ),
    "tensor": _hybrid(
        workers=2, tensor=4, sequence_parallel=True, overlap_tensor=True, stages=2, microbatches=4, chunks=2,
        schedule="interleaved_1f1b",
    ),
    "context": _hybrid(workers=4, context=2, tensor=2),
    "zero-1": _hybrid(workers=8, training={"zero": 1}, overlap=True, overlap_gather=True, bucket="10 MiB"),
    "zero-3": _hybrid(
        workers=16, training={"zero": 3}, microbatches=2, prefetch=2, scatter="step", shard_over=8, overlap=True, reshard=False
    ),
    "order": _hybrid(
        workers=4, tensor=2, stages=2, microbatches=4, order=["workers", "tensor", "context", "stages"], overlap_sends=True,
        split_sends=True,
    ),
    "hybrid-servers": _hybrid(
        "resnet50", _cluster(6), {"precision": "fp16"}, stages=2, workers=2, servers=2, microbatches=2
    ),
    "zero-bubble": _hybrid(stages=4, microbatches=8, schedule="zb_h1", balance="time"),
    "embedding": _hybrid(_GPT, stages=2, microbatches=8, account_for_embedding=True, account_for_loss=True),
    "micro-batches": _hybrid(workers=8, micro_batch_size=2),
    "pipeline": _job(strategy={"kind": "pipeline", "stages": 4, "micro_batch_size": 2, "overlap_sends": True}),
    "pipeline-chunks": _job(
        strategy={
            "kind": "pipeline", "stages": 4, "chunks": 2, "schedule": "interleaved_1f1b", "microbatches": 4,
            "account_for_embedding": True, "account_for_loss": True,
        }
    ),
    "power-sgd": _job(strategy={"kind": "data_parallel", "workers": 8, "compression": {"kind": "power_sgd", "rank": 4}}),
    "top-k": _job(strategy={"kind": "data_parallel", "workers": 8, "compression": {"kind": "top_k", "share": 0.01}}),
    "ddp": _job(
        batch=32,
        strategy={"kind": "data_parallel", "workers": 8, "algorithm": "ring", "first_bucket": "2 MiB", "microbatches": 2},
    ),
    "fsdp": _job(
        batch=32, training={"zero": 3},
        strategy={
            "kind": "data_parallel", "workers": 8, "microbatches": 2, "prefetch": 2, "scatter": "step", "shard_over": 4,
        },
    ),
    "shares": _job(strategy={"kind": "data_parallel", "workers": 4, "shares": [2, 2, 4, 8]}),
    "hybrid-shares": _job(strategy={"kind": "hybrid", "workers": 4, "shares": [2, 2, 4, 8]}),
    "per-worker": {**_job(), "batch": {"per_worker": 2}},
    "megatron-2021": _hybrid(
        _SCORES, workers=4, tensor=2, stages=2, microbatches=4, training={"precision": "fp16"}, framework="megatron-lm-2021"
    ),
    "megatron-deepspeed": _hybrid(
        _SCORES, workers=4, tensor=2, stages=2, microbatches=4, training={"precision": "fp16", "zero": 1},
        framework="megatron-deepspeed-2022",
    ),
    "nanotron": _hybrid(_LLAMA, workers=4, tensor=2, stages=2, microbatches=4, training={"zero": 1}, framework="nanotron"),
    "stalls": _hybrid(_LLAMA, workers=4, tensor=2, stages=4, microbatches=4, framework=_STALLS),
    "stalls-replicas": _hybrid(_LLAMA, workers=32, framework=_STALLS),
    "torchtitan": _hybrid(_LLAMA, workers=16, tensor=2, training={"zero": 3}, framework="torchtitan"),
    "internevo": _hybrid(_LLAMA, workers=16, tensor=2, training={"zero": 1}, framework="internevo"),
    "hooks": _hybrid(_LLAMA, workers=16, training={"zero": 3}, framework="hf-trainer-deepspeed"),
    "connections": {
        **_hybrid("gpt2-small", workers=8, training={"precision": "fp16"}, framework="adaptdl"), "cluster": "aws-g4dn",
    },
    "sockets": {**_hybrid("gpt2-small", workers=16), "cluster": "gcp-a2-highgpu"},
}  # fmt: skip
# Shipped ones with parts that the others lack.
SHIPPED: Final = (
    "systems/horovod", "systems/tensorflow-mirrored", "systems/tensorflow-multi-worker", "systems/pytorch-pipelining",
    "elastic/netlab-host-added", "elastic/netlab-host-returns", "elastic/netlab-spot-notice", "elastic/resnet50-spot-v100",
    "elastic/netlab-rank-killed", "elastic/netlab-link-slowed",
    "what-if/megatron-175b-3d-selene",
)  # fmt: skip


def names() -> list[str]:
    """Names of all scenarios."""
    return [*VARIED, *SHIPPED]


@functools.cache
def varied(name: str) -> Scenario:
    """The scenario of a name."""
    return load(VARIED[name]) if name in VARIED else load(catalog.ROOT / f"{name}.yaml")
