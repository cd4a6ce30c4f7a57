"""A scenario of each way to train, with buckets so small that there are several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from scaleproof.simulator.scenario.schema import Scenario
from tests.validator.conftest import CLUSTER, TINY_GPT, make

_CLUSTER: Final = {**CLUSTER, "nodes": 4, "network": {"bandwidth": "10 Gbit/s", "latency": "20 us"}}
_EXPERTS: Final = {**TINY_GPT, "experts": {"count": 4, "active": 2, "feedforward": 32}}
_RESNET: Final = {"kind": "resnet", "image": 32, "classes": 10}
_SMALL: Final = {"bucket": "4 KiB", "first_bucket": "1 KiB"}
_WORKERS: Final = {"kind": "data_parallel", "workers": 2, **_SMALL}
_HYBRID: Final = {"kind": "hybrid", "workers": 2, "stages": 2, "microbatches": 2, **_SMALL}
_PAIR: Final = {"kind": "hybrid", "workers": 1, "stages": 1}
_SERVERS: Final = {"kind": "parameter_server", "workers": 2, "servers": 1}
_OVERLAPPED: Final = {"overlap": True, "bucket": "4 KiB"}
_STAGES: Final = {"kind": "pipeline", "stages": 2, "microbatches": 4}


@dataclass(frozen=True)
class Family:
    """A strategy, and further fields of training."""

    strategy: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=lambda: TINY_GPT)

    def scenario(self) -> Scenario:
        """Its scenario of few steps."""
        batch = 24 if self.strategy.get("workers") == 3 else 16
        return make(self.strategy, self.model, steps=2, batch=batch, cluster=_CLUSTER, **self.training)


FAMILIES: Final = {
    "ddp": Family(_WORKERS),
    "ddp after the backward pass": Family({**_WORKERS, "overlap": False}),
    "ddp of microbatches": Family({**_WORKERS, "microbatches": 2}),
    "ring": Family({**_WORKERS, "workers": 3, "algorithm": "ring"}),
    "fp16": Family({**_WORKERS, "compression": {"kind": "fp16"}}),
    "top-k": Family({**_WORKERS, "compression": {"kind": "top_k", "share": 0.1}}),
    "PowerSGD": Family({**_WORKERS, "compression": {"kind": "power_sgd", "rank": 2}}),
    "scaled losses": Family(_WORKERS, {"precision": "fp16", "optimizer": "adam"}),
    "ddp with offload": Family(_WORKERS, {"offload": ["optimizer"], "optimizer": "adam"}),
    "scaled losses with offload": Family(_WORKERS, {"precision": "fp16", "offload": ["optimizer"], "optimizer": "adam"}),
    "zero 1": Family(_WORKERS, {"zero": 1, "optimizer": "adam"}),
    "zero 2": Family(_WORKERS, {"zero": 2, "optimizer": "adam"}),
    "fsdp": Family({"kind": "data_parallel", "workers": 2}, {"zero": 3}),
    "fsdp of microbatches": Family({"kind": "data_parallel", "workers": 2, "microbatches": 2}, {"zero": 3}),
    "fsdp with offload": Family(
        {"kind": "data_parallel", "workers": 2}, {"zero": 3, "offload": ["optimizer", "parameters"], "optimizer": "adam"}
    ),
    "fsdp of groups": Family({"kind": "data_parallel", "workers": 4, "shard_over": 2}, {"zero": 3}),
    "local SGD": Family({"kind": "local_sgd", "workers": 2, "period": 2}),
    "gather and average": Family({"kind": "gather_average", "workers": 3}),
    "servers": Family({**_SERVERS, "servers": 2}),
    "asynchronous servers": Family({**_SERVERS, "mode": "asynchronous"}),
    "overlapped servers": Family({**_SERVERS, "servers": 2, **_OVERLAPPED}),
    "asynchronous overlapped servers": Family({**_SERVERS, "mode": "asynchronous", **_OVERLAPPED}),
    "servers of two levels": Family({**_SERVERS, "two_level": True}),
    "overlapped servers of two levels": Family({**_SERVERS, "workers": 3, "two_level": True, **_OVERLAPPED}),
    "gpipe": Family({**_STAGES, "schedule": "gpipe"}),
    "1f1b": Family({**_STAGES, "stages": 3, "schedule": "1f1b"}),
    "interleaved": Family({**_STAGES, "schedule": "interleaved_1f1b", "chunks": 2, "overlap_sends": True}),
    "zero bubble": Family({**_STAGES, "schedule": "zb_v", "chunks": 2, "overlap_sends": True}),
    "tensor": Family({**_PAIR, "tensor": 2, "sequence_parallel": True}),
    "overlapped tensor": Family({**_PAIR, "tensor": 2, "sequence_parallel": True, "overlap_tensor": True}),
    "context in a ring": Family({**_PAIR, "context": 2}),
    "context by Ulysses": Family({**_PAIR, "context": 2, "context_by": "ulysses"}),
    "experts": Family({"kind": "hybrid", "workers": 2, "expert": 2}, model=_EXPERTS),
    "hybrid": Family(_HYBRID),
    "hybrid with zero 1": Family(_HYBRID, {"zero": 1}),
    "hybrid with fsdp": Family(_HYBRID, {"zero": 3}),
    "hybrid with a server": Family({"kind": "hybrid", "workers": 2, "servers": 1}),
    "resnet": Family(_WORKERS, model=_RESNET),
}
# Those that run before each commit, and with all tests; of the others one of two is nightly.
QUICK: Final = ("fsdp", "overlapped servers", "hybrid")
ALWAYS_IN_BULK: Final = ("ddp", "asynchronous servers", "1f1b")
