from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster.device.kernels.parameters import Kernels, Speed
from scaleproof.simulator.cluster.device.kernels.passes import passes_s
from scaleproof.simulator.cluster.device.kernels.products import TILES, products_s
from scaleproof.simulator.model.operators import Attention, Convolution, Matmul, MemoryBound, Operator, SavedActivation

FREE = {"processors": 100, "tile_share": 1.0, "memory_share": 1.0, "launch": 0}
FLOPS, BANDWIDTH_Bps = 100e12, 2e12
HUGE = 1e30  # a bandwidth that makes bytes free


def speed(memory_Bps: float = HUGE, flops: float = FLOPS, size: int = 2, winograd: bool = False, **fields: object) -> Speed:
    kernels = Kernels.model_validate({"generation": "ampere", **FREE, **fields})
    return Speed(kernels, flops, memory_Bps, size, winograd)


def product_s(on: Speed, m: int, n: int, k: int, batch: int = 1) -> float:
    size = on.element_bytes * batch
    return float(products_s(on, m, n, k, batch, size * (m * k + k * n), size * m * n))


def forward_s(on: Speed, *operators: Operator, samples: float = 1, kept: tuple[SavedActivation, ...] = ()) -> float:
    return passes_s(on, operators, kept, samples)[0]


def backward_s(on: Speed, *operators: Operator, samples: float = 1, kept: tuple[SavedActivation, ...] = ()) -> float:
    return passes_s(on, operators, kept, samples)[1]


def attention(flash: bool, causal: bool = True, width: int = 128) -> Attention:
    return Attention("attention", 16, 16, 2048, 2048, width, width, 0.5 if causal else 1.0, flash)


SIDES = st.integers(1, 20_000)


@given(
    SIDES,
    SIDES,
    SIDES,
    st.integers(1, 64),
    st.sampled_from(sorted(TILES)),
    st.floats(0.1, 1),
    st.just(0.0) | st.floats(1e-12, 1e-3),
)
def test_no_product_is_faster_than_the_peak_or_than_its_bytes(
    m: int, n: int, k: int, batch: int, generation: str, share: float, burst_s: float
) -> None:
    on = speed(BANDWIDTH_Bps, generation=generation, tile_share=share, sustained_share=share, burst=0)
    moved = 2 * batch * (m * k + k * n + m * n)
    bound_s = max(2 * m * n * k * batch / (share * FLOPS), moved / BANDWIDTH_Bps)
    assert product_s(on, m, n, k, batch) >= bound_s * (1 - 1e-9)
    burst = speed(BANDWIDTH_Bps, generation=generation, tile_share=share, sustained_share=share, burst=f"{burst_s} s")
    assert product_s(burst, m, n, k, batch) <= product_s(on, m, n, k, batch) * (1 + 1e-9)


def test_full_waves_of_the_largest_tiles_reach_the_sustained_peak() -> None:
    on = speed(tile_share=0.8, sustained_share=1.0)
    busy = 2 * 256 * 128 * 100 * 8192 / FLOPS
    # where power would sustain the peak, the norm of the two bounds lies little above the tighter one
    assert product_s(on, 256 * 10, 128 * 10, 8192) == pytest.approx(busy / 0.8, rel=0.05)


def test_one_tile_more_than_a_wave_takes_nearly_another_wave() -> None:
    """Nearly, since smaller tiles, which are slower, fill a second wave better."""
    sides = [256 * tiles for tiles in (50, 51, 100)]
    one, more, two = (product_s(speed(processors=50, burst="1 s"), side, 128, 64) for side in sides)
    assert two == pytest.approx(2 * one)
    assert 1.8 * one < more < two


def test_the_power_limit_slows_long_products_more_than_short_ones() -> None:
    on, cool = speed(sustained_share=0.5, burst="100 us"), speed()
    slower = [product_s(on, side, 4096, 4096) / product_s(cool, side, 4096, 4096) for side in (256, 4096, 4 * 65536)]
    assert all(a < b for a, b in pairwise(slower))
    assert slower[-1] == pytest.approx(2, rel=0.12)  # the norm of two equal bounds is a little more than either


def test_a_power_of_two_is_no_slower_than_a_head_of_108() -> None:
    """108 elements are padded as 128 are, and their rows do not start where tensor cores read."""
    assert product_s(speed(), 2048, 2048, 108, 32) > product_s(speed(), 2048, 2048, 128, 32)


def test_misaligned_rows_only_slow_tensor_cores() -> None:
    times = [product_s(speed(burst="1 s"), 4096, 4096, 4096 - off) for off in (0, 8, 4, 2, 1)]
    assert times[0] == pytest.approx(times[1])
    assert all(a < b for a, b in pairwise(times[1:]))
    # without copies that do not wait, which rows of an odd length leave none of
    assert times[4] / times[1] == pytest.approx(2.5, rel=0.05)
    full, off = (product_s(speed(burst="1 s", size=4, winograd=True), 4096, 4096, 4096 - off) for off in (0, 1))
    assert off == pytest.approx(full)


def test_thin_products_are_bound_by_memory() -> None:
    on = speed(BANDWIDTH_Bps, flops=1e15, memory_share=0.8)
    assert product_s(on, 16, 8192, 8192) == pytest.approx(2 * 8192 * (8192 + 32) / (0.8 * BANDWIDTH_Bps), rel=0.01)


def test_few_tiles_of_a_long_inner_dimension_are_split() -> None:
    """Alone, two tiles would leave 98 processors idle."""
    alone_s = 2 * 256 * 256 * 2**20 / FLOPS * 50
    assert product_s(speed(), 256, 256, 2**20) < alone_s / 7


def test_launch_times_add_up() -> None:
    linear = Matmul("linear", 1, 64, 64)
    plain, launched = (speed(launch=each) for each in (0, "5 us"))
    assert forward_s(launched, linear, linear) - forward_s(plain, linear, linear) == pytest.approx(10e-6)
    assert backward_s(launched, linear) - backward_s(plain, linear) == pytest.approx(10e-6)


def test_a_slow_host_limits_only_small_layers() -> None:
    on = speed(issue="10 us")
    small, large = (tuple(Matmul("linear", rows, 256, 256) for _ in range(3)) for rows in (1, 2**22))
    assert forward_s(on, *small) == pytest.approx(30e-6)
    assert backward_s(on, *small) == pytest.approx(60e-6)
    assert forward_s(on, *large) == forward_s(speed(), *large)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from([0.5, 1, 7]))
def test_memory_bound_operators_take_the_time_of_their_bytes(read: int, written: int, samples: float) -> None:
    on = speed(BANDWIDTH_Bps, memory_share=0.5)
    norm = MemoryBound("norm", read, written, 2 * read, written)
    assert forward_s(on, norm, samples=samples) == pytest.approx(2 * (read + written) * samples / 1e12)
    assert backward_s(on, norm, samples=samples) == pytest.approx(2 * (2 * read + written) * samples / 1e12)


def test_flash_attention_moves_no_scores_and_skips_masked_parts() -> None:
    on = speed(BANDWIDTH_Bps, flash_forward_share=0.5, flash_backward_share=0.5)
    flash = forward_s(on, attention(True), samples=8)
    assert flash == pytest.approx(attention(True).forward_flops * 8 / 2 / (0.5 * FLOPS))
    assert forward_s(on, attention(True, causal=False), samples=8) == pytest.approx(2 * flash)
    assert backward_s(on, attention(True), samples=8) == pytest.approx(2.5 * flash)
    assert forward_s(on, attention(False), samples=8) > flash


def test_a_flash_head_of_108_takes_as_long_as_one_of_128() -> None:
    narrow, wide = (forward_s(speed(BANDWIDTH_Bps), attention(True, width=width), samples=8) for width in (108, 128))
    assert narrow == wide


def test_plain_attention_reads_and_writes_its_scores() -> None:
    """In addition to the two products: softmax reads and writes them, dropout too, with a mask of a byte."""
    plain, mask = attention(False), (SavedActivation("mask", attention(False).scores, 1, "attention"),)
    slow = speed(1e9, flops=1e30, memory_share=1.0)
    score_s = plain.scores / 1e9
    operands = 2 * 2 * 16 * 2048 * 128 * 2 / 1e9  # queries, keys, values and what comes out
    assert forward_s(slow, plain) == pytest.approx((2 + 2 + 4) * score_s + operands)
    assert forward_s(slow, plain, kept=mask) - forward_s(slow, plain) == pytest.approx(5 * score_s)
    assert backward_s(slow, plain, kept=mask) - backward_s(slow, plain) == pytest.approx(5 * score_s)


def conv(side: int, stride: int = 1, kernel: int = 3, groups: int = 1) -> Convolution:
    positions = (side // stride) ** 2
    return Convolution("conv", 256, 256, (kernel, kernel), positions, 256 * side * side, groups)


def test_a_convolution_reads_each_value_once() -> None:
    slow = speed(1e9, flops=1e30)
    elements = 2 * 256 * 56 * 56 * 4 + 256 * 256 * 9
    assert forward_s(slow, conv(56), samples=4) == pytest.approx(2 * elements / 1e9)
    assert backward_s(slow, conv(56), samples=4) == pytest.approx(2 * 2 * elements / 1e9)
    without = replace(conv(56), input_gradient=False)
    assert backward_s(slow, without, samples=4) == pytest.approx(2 * elements / 1e9)


def test_depthwise_convolutions_take_the_time_of_bytes_or_of_threads() -> None:
    small = Convolution("c", 256, 256, (3, 3), 56 * 56, 256 * 56 * 56, 256)
    wide = replace(small, kernel=(7, 7))
    on = speed(1e12)._replace(direct_flops=1e12)
    moved_s = (2 * 2 * small.input_elements * 8 + 2 * small.weights) / 1e12
    # 16 bits and a small window: as fast as bytes move; else a thread computes an output
    assert forward_s(on, small, samples=8) == pytest.approx(moved_s)
    assert forward_s(on, wide, samples=8) == pytest.approx(moved_s + 8 * wide.forward_flops / 1e12, rel=1e-3)
    single = speed(1e12, size=4)._replace(direct_flops=1e12)
    assert forward_s(single, small, samples=8) == pytest.approx(2 * moved_s + 8 * small.forward_flops / 1e12, rel=1e-3)
    # groups wide enough for matrix products use them
    grouped = replace(wide, groups=2)
    assert forward_s(on, grouped, samples=8) == pytest.approx(forward_s(speed(1e12), grouped, samples=8))


def test_winograd_saves_multiplications_of_dense_3x3_convolutions_of_stride_1() -> None:
    """Five ninths in one kernel, forward and for the input's gradients; three quarters for those of weights."""
    direct, on = (speed(size=4, winograd=way) for way in (False, True))
    unpadded = replace(conv(56), input_elements=256 * 58 * 58)
    for dense in (conv(56), unpadded):
        direct_s = forward_s(direct, dense, samples=64)
        assert direct_s / forward_s(on, dense, samples=64) == pytest.approx(2.25, rel=0.1)
        weights_s = backward_s(on, replace(dense, input_gradient=False), samples=64)
        assert direct_s / weights_s == pytest.approx(4, rel=0.1)
        assert backward_s(on, dense, samples=64) == pytest.approx(weights_s + forward_s(on, dense, samples=64), rel=0.05)
    for other in (conv(56, stride=2), conv(56, kernel=5), conv(56, groups=4), conv(8, stride=2)):
        assert forward_s(on, other, samples=64) >= 64 * other.forward_flops / FLOPS
        assert backward_s(on, other, samples=64) >= 2 * 64 * other.forward_flops / FLOPS


def test_transforms_of_winograd_move_bytes() -> None:
    """A transform reads 16 values of a tensor and writes 36, which products read; without arithmetic direct ones are faster."""
    dense = replace(conv(56), input_gradient=False)
    moved = 2 * 256 * 56 * 56 * 64 * 4
    slow = backward_s(speed(1e12, flops=1e14, size=4, winograd=True), dense, samples=64)
    assert slow > (1 + 36 / 16) * moved / 1e12
    free = backward_s(speed(1e12, flops=1e30, size=4, winograd=True), dense, samples=64)
    assert free == pytest.approx(moved / 1e12, rel=0.01)


def test_products_without_tensor_cores_have_narrow_tiles_and_short_iterations() -> None:
    single, half = speed(size=4, winograd=True), speed()
    assert product_s(half, 200 * 128, 32, 4096) > 1.05 * product_s(single, 200 * 128, 32, 4096)
    assert product_s(half, 200 * 128, 4096, 8) == pytest.approx(product_s(half, 200 * 128, 4096, 64), rel=0.2)
    assert product_s(single, 200 * 128, 4096, 8) < product_s(single, 200 * 128, 4096, 64) / 6


@pytest.mark.parametrize("generation", sorted(TILES))
def test_large_products_in_32_bits_are_near_the_peak_on_each_generation(generation: str) -> None:
    on = speed(size=4, winograd=True, generation=generation)
    assert 1 <= product_s(on, 8192, 8192, 8192) * FLOPS / (2 * 8192**3) < 1.5


def test_the_gradient_of_a_broadcast_factor_moves_all_elements_three_times_more() -> None:
    on = speed(1e12)
    scaled = MemoryBound("mul", 1000 + 10, 1000, 2000 + 10, 1000)
    plain = replace(scaled, name="add")
    for other in (replace(scaled, read=2000), replace(scaled, read=1000), plain):
        assert other.backward_moved == other.backward_read + other.backward_written
    assert backward_s(on, scaled) - backward_s(on, plain) == pytest.approx(3 * 1000 * 2 / 1e12)


EXPERTS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def grouped(loads: tuple[float, ...], rows: int, count: int) -> Matmul:
    return Matmul("expert up", rows, 2048, 1024, count, loads=loads)


@given(st.integers(1, 512), st.integers(1, 16), st.sampled_from(["ampere", "hopper", "tpu"]))
def test_a_grouped_product_with_equal_loads_takes_the_usual_time(rows: int, count: int, generation: str) -> None:
    on, rows = speed(BANDWIDTH_Bps, generation=generation), 8 * rows
    for seconds in (forward_s, backward_s):
        assert seconds(on, grouped((1.0,) * count, rows, count)) == pytest.approx(seconds(on, grouped((), rows, count)))


@given(EXPERTS)
def test_time_of_a_grouped_product_follows_from_its_experts_tiles(each: list[int]) -> None:
    """On one processor: as long as all products of whole tiles one after another, forward and for both gradients."""
    on = speed(processors=1, generation="tpu")
    rows = [128 * count for count in each]
    mean = sum(rows) / len(rows)
    operator = Matmul("expert up", round(mean), 256, 512, len(rows), loads=tuple(one / mean for one in rows))
    alone = [Matmul("up", one, 256, 512) for one in rows]
    for seconds in (forward_s, backward_s):
        assert seconds(on, operator) == pytest.approx(sum(seconds(on, one) for one in alone), rel=0.02)


def test_operators_without_backward_bytes_have_no_backward_kernel() -> None:
    on = speed(BANDWIDTH_Bps, launch="3 us")
    index = MemoryBound("sort by expert", 1000, 2000, 0, 0)
    assert forward_s(on, index) > 3e-6
    assert backward_s(on, index) == 0
