from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from scaleproof.simulator.analysis.collective.time import collective_time
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES, Precision
from scaleproof.simulator.common import catalog
from scaleproof.simulator.parallelism.compression import AnyCompression, Compression
from scaleproof.simulator.scenario.read import load_cluster

PARSER: TypeAdapter[Compression] = TypeAdapter(AnyCompression)
TENSORS = st.lists(st.integers(1, 10**8), min_size=1, max_size=20)
RESNET = [9408, *[36864] * 6, *[147456] * 8, *[589824] * 12, *[2359296] * 6, 2048000, *[512] * 60]


def compression(kind: str, **fields: float) -> Compression:
    return PARSER.validate_python({"kind": kind, **fields})


ALL = [compression("fp16"), compression("bf16"), compression("power_sgd", rank=4), compression("top_k", share=0.01)]


def cluster(name: str) -> Cluster:
    return load_cluster(catalog.ROOT / "clusters" / f"{name}.yaml")


def sent_bytes(method: Compression, tensors: list[int], element_bytes: int = 4) -> float:
    """Compression seconds of one worker."""
    return sum(wire.size_bytes for wire in method.wire(tensors, element_bytes))


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@given(TENSORS)
def test_a_cast_halves_fp32_and_keeps_16_bits(kind: str, tensors: list[int]) -> None:
    cast, device = compression(kind), cluster("dgx1").device
    assert sent_bytes(cast, tensors, 4) == 2 * sum(tensors)
    assert sent_bytes(cast, tensors, 2) == 2 * sum(tensors)
    assert cast.work_s(tensors, 8, device, "fp32") > 0
    assert cast.work_s(tensors, 8, device, "fp16") == 0


@pytest.mark.parametrize(("side", "rank"), [(256, 1), (1024, 4), (4096, 32)])
def test_power_sgd_sends_two_factors_of_each_matrix(side: int, rank: int) -> None:
    left, right = compression("power_sgd", rank=rank).wire([side * side], 4)
    assert left == right
    assert left.op == "all_reduce"
    assert left.size_bytes == 4 * side * rank


@given(TENSORS, st.integers(1, 64), st.sampled_from([2, 4]))
def test_power_sgd_never_sends_more_than_the_gradient(tensors: list[int], rank: int, element_bytes: int) -> None:
    method = compression("power_sgd", rank=rank)
    assert sent_bytes(method, tensors, element_bytes) <= sum(tensors) * element_bytes
    alone = sum(sent_bytes(method, [tensor], element_bytes) for tensor in tensors)
    assert sent_bytes(method, tensors, element_bytes) == pytest.approx(alone)


def test_matrices_of_the_same_shape_share_their_kernels() -> None:
    method, device = compression("power_sgd", rank=4), cluster("dgx1").device
    equal_s = method.work_s([2**16] * 10, 8, device, "fp32")
    assert equal_s < 10 * method.work_s([2**16], 8, device, "fp32")
    assert equal_s > method.work_s([2**16], 8, device, "fp32")


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_top_k_sends_values_with_positions_to_everyone(element_bytes: int) -> None:
    (wire,) = compression("top_k", share=0.01).wire([1000, 20, 50_000], element_bytes)
    assert wire.op == "all_gather"
    assert wire.size_bytes == (10 + 1 + 500) * (element_bytes + 4)
    assert wire.collective_bytes(8) == 8 * wire.size_bytes


@given(st.integers(2, 512))
def test_top_k_adds_up_what_every_worker_sends(workers: int) -> None:
    method, device = compression("top_k", share=0.01), cluster("dgx1").device
    times_s = [method.work_s([10**7], n, device, "fp32") for n in (1, workers, 2 * workers - 1)]
    assert times_s[0] < times_s[1]
    assert times_s[2] - times_s[1] == pytest.approx(times_s[1] - times_s[0])


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.kind)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_work_is_at_least_reading_the_gradients(method: Compression, precision: Precision) -> None:
    device = cluster("dgx1").device
    work_s = method.work_s(RESNET, 8, device, precision)
    compressed = sum(tensor for tensor in RESNET if tensor > 1000) * ELEMENT_BYTES[precision]
    if work_s:
        assert compressed / device.memory_bandwidth_Bps < work_s < 1
    else:
        assert sent_bytes(method, RESNET, ELEMENT_BYTES[precision]) == sum(RESNET) * ELEMENT_BYTES[precision]


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.kind)
def test_compression_pays_on_slow_networks_only(method: Compression) -> None:
    """One bucket over 16 machines with a K80: compression pays at 1.25 Gbit/s and 50 us, device time included, and not at
    1 Tbit/s and 5 us. (With latencies of 50 us the all-reduce of a fast network is mostly latency, of which an all-gather has
    half.)"""

    def saved_s(gbit: float, latency_s: float) -> float:
        slow = cluster("aws-p2-xlarge")
        assert slow.network is not None
        network = slow.network.model_copy(update={"bandwidth_Bps": gbit * 1e9 / 8, "latency_s": latency_s, "transport": None})
        on = slow.model_copy(update={"network": network})
        messages = method.wire(RESNET, 4)
        sent_s = sum(collective_time(wire.op, wire.collective_bytes(16), 16, on) for wire in messages)
        plain_s = collective_time("all_reduce", 4 * sum(RESNET), 16, on)
        return plain_s - sent_s - method.work_s(RESNET, 16, on.device, "fp32")

    assert saved_s(1.25, 50e-6) > 0
    assert saved_s(1000, 5e-6) < 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "power_sgd", "rank": 0}, "greater than or equal to 1"),
        ({"kind": "top_k", "share": 0}, "greater than 0"),
        ({"kind": "top_k", "share": 1.5}, "less than or equal to 1"),
        ({"kind": "fp16", "rank": 3}, "not permitted"),
        ({"kind": "gzip"}, "does not match any of the expected tags"),
        ({"kind": "top_k", "share": math.nan}, "finite"),
    ],
)
def test_impossible_values_are_rejected(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PARSER.validate_python(fields)
