"""Layer times on a CPU core without overlap: calls, arithmetic and bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster.device.device import Device
from scaleproof.simulator.cluster.device.kernels.cpu_core import KINDS, SerialCosts, backward_work, forward_work, weights_work
from scaleproof.simulator.cluster.device.kernels.parameters import Kernels, Speed
from scaleproof.simulator.cluster.device.kernels.passes import passes_s, weights_s
from scaleproof.simulator.common.spec import slower
from scaleproof.simulator.model import Dlrm, Gpt, Mlp
from scaleproof.simulator.model.layers import Layer
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound
from scaleproof.simulator.model.recommender.lookups import Looked, Lookup, LookupDistribution
from scaleproof.simulator.model.recommender.placement import EmbeddingTable

MLP = Mlp(layers=3, inputs=8, hidden=16, outputs=4)
GPT = Gpt(layers=2, hidden=32, heads=4, vocabulary=64, sequence=16)
LAYERS = [*MLP.build_layers(), *GPT.build_layers()]
FREE = dict.fromkeys(("backward_calls", "memory_calls", "memory_backward_calls", "attention_calls", *KINDS), 0.0)


def core(launch: str = "10 us", /, **given: float) -> Kernels:
    return Kernels.model_validate(
        {
            "generation": "cpu", "processors": 1, "tile_share": 0.5, "memory_share": 1.0, "launch": launch,
            "flash_forward_share": 0.25, "flash_backward_share": 0.125, "serial": FREE | given,
        }
    )  # fmt: skip


def speed(kernels: Kernels) -> Speed:
    return Speed(kernels, peak_flops=1e9, memory_Bps=1e9, element_bytes=4)


def test_product_time_is_call_plus_arithmetic_plus_bytes() -> None:
    operators = (Matmul("linear", rows=2, columns=3, inner=5),)
    forward_s, backward_s = passes_s(speed(core(product=2.0, backward_calls=3.0)), operators, (), 10)
    elements = 20 * 5 + 5 * 3 + 20 * 3
    one_s = 2 * 20 * 3 * 5 / 0.5e9 + 2 * 4 * elements / 1e9
    assert forward_s == pytest.approx(10e-6 + one_s)
    assert backward_s == pytest.approx(2 * (30e-6 + one_s))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gelu", "gelu"), ("relu", "relu"), ("embedding", "embedding"), ("loss", "loss"), ("other", "residual"),
        ("norm", "norm"), ("norm", "batch norm"), ("rms_norm", "rms norm"), ("rms_norm", "head norms"), ("rotary", "rotary"),
        ("gated", "swiglu"), ("gated", "geglu"), ("norm", "native_layer_norm"), ("group_norm", "native_group_norm"),
        ("silu", "silu"),
    ],
)  # fmt: skip
def test_memory_bound_operators_take_their_factor_times_memory_time(kind: str, name: str) -> None:
    operators = (MemoryBound(name, read=100, written=50, backward_read=200, backward_written=100),)
    backward_kind = "rms_norm_backward" if kind == "rms_norm" else kind
    seconds = passes_s(speed(core("0 s", **{kind: 3.0, backward_kind: 3.0})), operators, (), 10)
    assert seconds == pytest.approx((3 * 1500 * 4e-9, 3 * 3000 * 4e-9))


def test_the_backward_pass_of_an_rms_norm_has_a_factor_of_its_own() -> None:
    operators = (MemoryBound("rms norm", read=100, written=50, backward_read=200, backward_written=100),)
    seconds = passes_s(speed(core("0 s", rms_norm=1.0, rms_norm_backward=5.0)), operators, (), 10)
    assert seconds == pytest.approx((1500 * 4e-9, 5 * 3000 * 4e-9))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("rms norm", "norm"), ("native_group_norm", "norm"), ("rotary", "residual"), ("swiglu", "residual"),
        ("silu", "residual"),
    ],
)  # fmt: skip
def test_operators_that_were_not_measured_cost_what_similar_ones_cost(name: str, other: str) -> None:
    costs = FREE | {"norm": 2.0, "other": 3.0}
    absent = ("rms_norm", "rms_norm_backward", "group_norm", "rotary", "gated", "silu")
    costs = {kind: cost for kind, cost in costs.items() if kind not in absent}
    kernels = core().model_copy(update={"serial": SerialCosts(**costs)})
    own, similar = (passes_s(speed(kernels), (MemoryBound(one, 100, 50, 200, 100),), (), 10) for one in (name, other))
    assert own == pytest.approx(similar)


def test_flash_attention_skips_masked_parts_and_recomputes_scores() -> None:
    whole = Attention("attention", 4, 4, 16, 16, 8, 8, seen=1.0, flash=True)
    half = Attention("attention", 4, 4, 16, 16, 8, 8, seen=0.5, flash=True)
    forward_s, backward_s = passes_s(speed(core("0 s")), (whole,), (), 1)
    assert (forward_s, backward_s) == pytest.approx((whole.forward_flops / 0.25e9, 2.5 * whole.forward_flops / 0.125e9))
    assert passes_s(speed(core("0 s")), (half,), (), 1)[0] == pytest.approx(forward_s / 2)


def test_plain_attention_is_two_products_and_a_softmax_pass() -> None:
    work = forward_work((Attention("attention", 4, 4, 16, 16, 8, 8),), 3)
    assert work["calls"] == 3
    assert work["flops"] == 2 * 3 * 4 * 16 * 16 * 16
    assert work["other"] == 2 * 3 * 4 * 16 * 16


def test_a_convolution_reads_each_value_once() -> None:
    convolution = Convolution("conv", inputs=3, outputs=8, kernel=(3, 3), positions=64, input_elements=192)
    work = forward_work((convolution,), 2)
    assert work["convolution"] == (192 + 64 * 8) * 2 + convolution.weights
    assert work["convolution flops"] == 2 * convolution.forward_flops
    depthwise = Convolution("conv", inputs=8, outputs=8, kernel=(3, 3), positions=64, input_elements=512, groups=8)
    assert forward_work((depthwise,), 2)["grouped convolution flops"] == 2 * depthwise.forward_flops


def test_flash_attention_computes_each_seen_score_in_each_pass() -> None:
    half = Attention("attention", 4, 4, 16, 16, 8, 8, seen=0.5, flash=True)
    seconds = passes_s(speed(core("0 s", score=2.0))._replace(peak_flops=1e30), (half,), (), 3)
    assert seconds == pytest.approx([2 * 3 * 4 * 16 * 16 / 2 * 4e-9] * 2)


def test_each_lookup_finds_its_row_and_changes_it() -> None:
    """Tables of workers' own are updated by row; gradients of whole tables are filled with zeros, and embeddings' are added."""
    part = Looked(LookupDistribution(50, 1.0), width=16, pooling=4.0)
    own = Lookup("lookup", 32, 32, 32, 32, (part, part), workers=2, optimizer="sgd")
    forward, backward = forward_work((own,), 10), backward_work((own,), 10)
    rows = 10 * 2 * 2 * 4
    assert (forward["lookup_row"], forward["lookup"], forward["memory calls"]) == (rows, rows * 16, 2)
    assert (backward["lookup_row"], backward["row_update"], backward["memory backward calls"]) == (rows, rows * 16, 6)
    assert forward["other"] == 4 * 32 * 10, "outputs are joined for their workers, and divided by table"
    whole = replace(own, optimizer=None, workers=1)
    assert backward_work((whole,), 10)["embedding"] == rows / 2 * 16 + 2 * 50 * 16
    assert not forward_work((whole,), 10)["other"]


def test_an_interaction_of_all_pairs_has_products_and_chosen_elements() -> None:
    tables = (EmbeddingTable(rows=10, dim=8, count=3),)
    pairs, joined = (
        forward_work(Dlrm(tables=tables, dense=2, bottom=(8,), top=(1,), interaction=how).build_layers()[1].operators, 5)
        for how in ("dot", "cat")
    )
    assert (pairs["flops"], pairs["pairs"]) == (5 * 2 * 4 * 4 * 8, 5 * (32 + 6 + 8))
    assert joined == {"memory calls": 1, "other": 5 * 2 * 32}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.signature)
def test_weight_gradients_are_a_part_of_the_backward_pass(layer: Layer) -> None:
    part, whole = weights_work(layer.operators, 4), backward_work(layer.operators, 4)
    assert all(part[name] <= whole[name] for name in part)
    kernels = core(backward_calls=2.0, product=1.0)
    assert weights_s(speed(kernels), layer.operators, 4) <= passes_s(speed(kernels), layer.operators, layer.kept, 4)[1]


@given(st.floats(0.1, 10), st.integers(1, 64))
def test_a_slowdown_scales_all_times(slowdown: float, samples: int) -> None:
    """Costs of calls and bytes are relative to the launch time and the memory bandwidth."""
    given = core("10 us", **dict.fromkeys(FREE, 1.5))
    device = Device.model_validate(
        {"name": "core", "peak": {"fp32": "1 GFLOP/s"}, "memory": "1 GB", "memory_bandwidth": "1 GB/s", "kernels": given}
    )
    worse = slower(device, slowdown)
    for layer in LAYERS:
        seconds = [slowdown * one for one in device.layer_s(layer, samples, "fp32")]
        assert worse.layer_s(layer, samples, "fp32") == pytest.approx(seconds)


def test_only_matrix_factors_are_packed() -> None:
    many, one = (forward_work((Matmul("linear", rows=1, columns=3, inner=5),), samples) for samples in (4, 1))
    assert many["packed"] == 4 * 5 + 5 * 3
    assert one["packed"] == 0
    assert passes_s(speed(core("0 s", packed=2.0)), (Matmul("linear", 1, 3, 5),), (), 4)[0] == pytest.approx(
        2 * 4 * 35 / 1e9 + 2 * 60 / 0.5e9
    )


def test_call_costs_depend_on_operator_and_pass() -> None:
    kernels = core(backward_calls=2.0, memory_calls=3.0, memory_backward_calls=4.0, attention_calls=5.0)
    device = speed(kernels)._replace(peak_flops=1e30, memory_Bps=1e30)
    operators = (
        Matmul("linear", 1, 3, 5), MemoryBound("relu", 1, 1, 1, 1), Attention("attention", 1, 1, 4, 4, 2, 2, flash=True),
    )  # fmt: skip
    assert passes_s(device, operators, (), 1) == pytest.approx((10e-6 * (1 + 3 + 1 + 5), 10e-6 * (2 * 2 + 4 + 2 + 5)))
