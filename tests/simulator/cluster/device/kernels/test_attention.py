"""Flash attention by blocks: waves, masks, separate pipes, shared key heads and pieces of keys."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.cluster.device.kernels.attention import (
    BEST_ATTENTION,
    AttentionRates,
    AttentionWork,
    attention_s,
    flash_s,
    generation_attention_rates,
    preparation_s,
    running,
    shipped_attention_rates,
)
from scaleproof.simulator.cluster.device.kernels.parameters import Kernels, Speed
from scaleproof.simulator.model.operators import Attention

PROCESSORS, PEAK_FLOPS, MEMORY_Bps = 100, 1e15, 3e12
# Blocks alone determine the time: no fixed times, and power, exponentials and memory far from a bound.
SHARE = 0.2
BLOCKS = {"product_share": SHARE, "exponential_share": 4.0}
HUGE = 1e30


def speed(memory_Bps: float = HUGE, rates: AttentionRates | None = None, **fields: object) -> Speed:
    data = {"generation": "hopper", "processors": PROCESSORS, "tile_share": 1, "memory_share": 1, "launch": 0, **fields}
    kernels = Kernels.model_validate(data)
    if rates is not None:
        kernels = kernels.model_copy(update={"attention": {"one": rates}})
    return Speed(kernels, PEAK_FLOPS, memory_Bps, 2)


def rates(**fields: object) -> AttentionRates:
    return AttentionRates.model_validate({**BLOCKS, **fields})


def seconds(of: AttentionRates, on: Speed | None = None, backward: bool = False, **changes: float) -> float:
    work = AttentionWork(1, 32, 32, 4096, 4096, 128, 128, 0.5)._replace(**changes)
    return float(attention_s(work, of, on or speed(), backward=backward))


def operator(**changes: object) -> Attention:
    fields = {"queries": 4096, "keys": 4096, "seen": 0.5, "heads": 32, "key_heads": 8, "width": 128, "value_width": 128}
    return Attention("attention", **{**fields, "flash": True, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("waves", [1, 2, 5])
def test_blocks_without_a_mask_take_whole_waves(waves: int) -> None:
    """One block more than whole waves takes another wave."""
    full, more = (
        seconds(rates(), seen=1.0, queries=128, heads=heads) for heads in (waves * PROCESSORS, waves * PROCESSORS + 1)
    )
    assert more / full == pytest.approx((waves + 1) / waves, rel=0.02)


def test_a_causal_mask_leaves_half_of_long_sequences() -> None:
    causal, all_keys = (seconds(rates(), seen=seen, queries=65536, keys=65536) for seen in (0.5, 1.0))
    assert causal / all_keys == pytest.approx(0.5, rel=0.03)


def test_a_single_causal_head_takes_its_longest_block() -> None:
    """With a processor for each block the last block, which sees all keys, determines the time."""
    one, many = (seconds(rates(), heads=heads, queries=PROCESSORS * 128, keys=PROCESSORS * 128) for heads in (1, 64))
    block_s = 4 * 128 * 128 * PROCESSORS * 128 / (SHARE * PEAK_FLOPS / PROCESSORS)
    assert one == pytest.approx(block_s, rel=0.05)
    assert many == pytest.approx(64 * block_s / 2, rel=0.05)


@given(
    st.sampled_from([64, 96, 128, 192, 256]), st.integers(1, 40_000), st.integers(0, 2000), st.integers(1, 64),
    st.sampled_from([0.5, 1.0]), st.booleans(),
)  # fmt: skip
def test_longer_sequences_take_longer(width: int, tokens: int, more: int, heads: int, seen: float, backward: bool) -> None:
    of = rates(block="2 us", slowdowns={192: 1.2, 256: 1.1}, wide_block_rows=64)
    shape = {"width": width, "value_width": width, "heads": heads, "key_heads": heads, "seen": seen}
    times = [
        seconds(of, speed(MEMORY_Bps), backward, queries=length, keys=length, **shape) for length in (tokens, tokens + more)
    ]
    assert times[0] <= times[1] * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(shipped_attention_rates()))
@pytest.mark.parametrize("backward", [False, True])
def test_shared_key_heads_are_never_slower(name: str, backward: bool) -> None:
    of = generation_attention_rates(name, "hopper")
    assert of is not None
    times = [seconds(of, speed(MEMORY_Bps), backward, key_heads=heads) for heads in (1, 4, 8, 32)]
    assert times == sorted(times)


def test_exponentials_bound_narrow_heads_and_products_wide_ones() -> None:
    slow = rates(exponential_share=0.1)
    narrow, wide = ({"width": width, "value_width": width} for width in (16, 256))
    assert seconds(slow, **narrow) > 3 * seconds(rates(), **narrow)
    assert seconds(slow, **wide) < 1.1 * seconds(rates(), **wide)


def test_faster_exponentials_shorten_attention_that_they_bound() -> None:
    """Narrow heads have the most exponentials per product; the backward pass has other elementwise work next to them."""
    given, twice = (speed(generation="blackwell", exponential_gain=gain) for gain in (1, 2))
    of = generation_attention_rates("cudnn", "blackwell")
    assert of is not None

    def gain(width: int, backward: bool = False) -> float:
        shape = {"width": width, "value_width": width}
        return seconds(of, given, backward, **shape) / seconds(of, twice, backward, **shape)

    assert 2 > gain(64) > gain(128) > gain(256) > 1
    assert gain(64) > gain(64, backward=True) > 1
    only = rates(product_share=2.0, exponential_share=0.01)
    assert seconds(only, given) == pytest.approx(2 * seconds(only, twice), rel=0.01)


def test_the_rate_never_exceeds_its_share_of_the_peak() -> None:
    of = rates(product_share=0.6)
    for tokens, width in itertools.product((512, 4096, 32768), (64, 128, 256)):
        flops = 2 * 32 * tokens * tokens * 0.5 * 2 * width
        shape = {"queries": tokens, "keys": tokens, "width": width, "value_width": width}
        assert seconds(of, **shape) >= flops / (0.6 * PEAK_FLOPS)
        assert seconds(of, None, True, **shape) >= 2.5 * flops / (0.6 * PEAK_FLOPS)


def test_power_bounds_sustained_attention_but_not_bursts() -> None:
    on = speed(sustained_share=0.1)
    burst, sustained, free = seconds(rates(), on._replace(burst=True)), seconds(rates(), on), seconds(rates())
    assert burst == free < sustained
    assert sustained >= 2 * 32 * 4096**2 * 0.5 * 256 / (0.1 * PEAK_FLOPS)


def test_what_fits_the_cache_is_prepared_faster() -> None:
    of = rates(preparation={"memory_share": 0.5, "cached_gain": 2, "cache": "100 MB"})
    small, large = (AttentionWork(1, heads, heads, 4096, 4096, 128, 128) for heads in (8, 800))
    moved_bytes = 2 * 2 * 3 * 8 * 4096 * 128
    assert preparation_s(small, of, speed(MEMORY_Bps)) == pytest.approx(moved_bytes / (0.5 * 2 * MEMORY_Bps))
    assert preparation_s(large, of, speed(MEMORY_Bps)) > 100 * 1.9 * preparation_s(small, of, speed(MEMORY_Bps))
    assert preparation_s(small, rates(), speed()) == 0


def test_pieces_of_keys_take_as_long_as_all_keys_and_their_merging() -> None:
    """Without fixed times: only a rank's own keys have a diagonal, of which blocks compute masked scores too."""
    on = speed(MEMORY_Bps, rates())
    whole, ring = (flash_s(operator(queries=8192, keys=65536, pieces=pieces), 1, on) for pieces in (1, 8))
    merged = 7 * 3 * 2 * 32 * 8192 * 128 / MEMORY_Bps
    assert 0.97 * whole + merged <= ring <= 1.02 * whole + merged


def test_shares_of_a_device_win_over_rates() -> None:
    on = speed(MEMORY_Bps, rates())
    with_shares = on._replace(kernels=on.kernels.model_copy(update={"flash_forward_share": 0.02, "flash_backward_share": 0.02}))
    assert running(on.kernels) is not None
    assert running(with_shares.kernels) is None
    assert flash_s(operator(), 1, with_shares) > 5 * flash_s(operator(), 1, on)


@pytest.mark.parametrize("generation", ["ampere", "ada", "hopper", "blackwell"])
def test_the_fastest_implementation_is_no_slower_than_any_that_trains(generation: str) -> None:
    best = generation_attention_rates(BEST_ATTENTION, generation)
    assert best is not None
    on = speed(MEMORY_Bps, generation=generation, launch="3 us")
    for name, of in shipped_attention_rates().items():
        if generation in of and of[generation].preparation is None:
            for tokens, width, backward in itertools.product((256, 2048, 16384), (64, 128, 256), (False, True)):
                shape = {"queries": tokens, "keys": tokens, "width": width, "value_width": width}
                assert seconds(best, on, backward, **shape) <= seconds(of[generation], on, backward, **shape) * 1.001, name


def test_a_measured_implementation_stands_for_those_that_are_not_known() -> None:
    """The device's own rates come first, then its generation's, then those of the first implementation that was measured."""
    own = rates(product_share=0.3)
    for generation, expected in (("hopper", generation_attention_rates("cudnn", "hopper")), ("cdna", own)):
        kernels = speed(generation=generation).kernels.model_copy(update={"attention": {"flash-2": own}})
        assert kernels.attention_rates("flash-2") == own
        assert kernels.attention_rates("cudnn") == expected
    assert speed(generation="cdna").kernels.attention_rates("cudnn") is None
