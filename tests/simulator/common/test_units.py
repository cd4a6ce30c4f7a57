from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common import units
from scaleproof.simulator.common.errors import UnitError


@pytest.mark.parametrize(
    ("text", "Bps"),
    [
        ("25 Gbit/s", 3.125e9),
        ("25Gb/s", 3.125e9),
        ("25 Gbps", 3.125e9),
        ("3 GB/s", 3e9),
        ("3 GiB/s", 3 * 2**30),
        ("1_600 Gbit/s", 2e11),
        ("1e3 MB/s", 1e9),
        (0, 0.0),
    ],
)
def test_bandwidths_are_parsed_in_bytes_per_second(text: object, Bps: float) -> None:
    assert units.parse_Bps(text) == pytest.approx(Bps)


@pytest.mark.parametrize(("text", "size_bytes"), [("25 MiB", 25 * 2**20), ("25 MB", 25e6), ("8 Mbit", 1e6), ("7 bytes", 7)])
def test_sizes_are_parsed_in_bytes(text: str, size_bytes: float) -> None:
    assert units.parse_bytes(text) == pytest.approx(size_bytes)


@pytest.mark.parametrize(("text", "seconds"), [("3 us", 3e-6), ("3 µs", 3e-6), ("2 min", 120.0), (".5 ms", 5e-4)])
def test_times_are_parsed_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_time_s(text) == pytest.approx(seconds)


def test_compute_rates_are_parsed_in_flops_per_second() -> None:
    assert units.COMPUTE_RATE.parse("312 TFLOP/s") == 312e12
    assert units.COMPUTE_RATE.parse("312 TFLOPS") == 312e12


@pytest.mark.parametrize(
    "text", ["25", 25, 2.5, "25 gbit/s", "25 Gbit", "25 GB", "fast", "", None, True, "-1 Gbit/s", "1e999 GB/s"]
)
def test_invalid_bandwidths_are_rejected(text: object) -> None:
    with pytest.raises(UnitError):
        units.parse_Bps(text)


def test_ambiguous_case_offers_bits_and_bytes() -> None:
    with pytest.raises(UnitError, match="GB/s or Gb/s"):
        units.parse_Bps("25 gb/s")


def test_bits_are_an_eighth_of_bytes() -> None:
    for prefix in ("", "k", "M", "G", "T", "Ki", "Mi"):
        assert units.parse_Bps(f"8 {prefix}bit/s") == pytest.approx(units.parse_Bps(f"1 {prefix}B/s"))


@given(st.floats(min_value=1e-9, max_value=8e5))
def test_formatted_times_parse_to_the_same_value(seconds: float) -> None:
    assert units.parse_time_s(units.format_time_s(seconds)) == pytest.approx(seconds, rel=6e-3)


@given(st.floats(min_value=1, max_value=1e15))
def test_formatted_sizes_and_rates_parse_to_the_same_value(value: float) -> None:
    assert units.parse_bytes(units.format_bytes(value)) == pytest.approx(value, rel=6e-3)
    assert units.parse_Bps(units.format_Bps(value)) == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (61.8, "61.8 s"),
        (999.6, "16.7 min"),
        (7200.0, "2.00 h"),
        (0.0, "0 ns"),
        (99.96e-6, "100 us"),
    ],
)
def test_values_are_formatted_with_three_significant_digits(seconds: float, text: str) -> None:
    assert units.format_time_s(seconds) == text


def test_counts_are_parsed() -> None:
    assert units.format_count(175.2e9) == "175 G"
    assert units.format_count(12) == "12.0"


@pytest.mark.parametrize(
    ("number", "digits", "short"),
    [
        (0.0, "0", "0"),
        (0.01234, "0.0123", "0.0123"),
        (0.9996, "1.00", "1.00"),
        (41.23, "41.2", "41.2"),
        (1_234.4, "1,234", "1,234"),
        (9_994.0, "9,994", "9,994"),
        (9_996.0, "9,996", "10.0k"),
        (308_351.0, "308,351", "308k"),
        (999_600.0, "999,600", "1.00M"),
        (1.531e12, "1,531,000,000,000", "1,531G"),
    ],
)
def test_numbers_have_three_significant_digits(number: float, digits: str, short: str) -> None:
    assert (units.format_digits(number), units.format_short(number)) == (digits, short)


def test_short_ranges_have_the_prefix_of_their_end() -> None:
    assert units.format_short_range(261_000, 364_000) == "261–364k"
    assert units.format_short_range(999_600, 1_531_000) == "1.00–1.53M"
    assert units.format_short_range(9_500, 12_000) == "9.50–12.0k"
    assert units.format_short_range(8_210, 9_640) == "8,210–9,640"


@pytest.mark.parametrize("text", ["1e-31 s", "1e300 s"])
def test_values_beyond_any_machine_are_rejected(text: str) -> None:
    """Products and quotients of such values would overflow."""
    with pytest.raises(UnitError, match="is out of range; give a time between 1e-30 and 1e"):
        units.parse_time_s(text)


def test_ranges_needs_and_parameters_have_one_unit() -> None:
    assert units.format_times_s(0.781, 0.9771) == "781-977 ms"
    assert units.format_times_s(46.0, 64.2) == "46.0-64.2 s"
    assert units.format_range("2.9 %", "14.6 %") == "2.9 to 14.6 %"
    assert units.format_need(224 * 2**30, 80 * 2**30) == "224 of 80.0 GiB"
    assert units.format_need(28.4 * 2**40, 80 * 2**30) == "29,082 of 80.0 GiB"
    assert (units.format_parameters(70.55e9), units.format_parameters(25.6e6)) == ("70.5 B", "25.6 M")
    assert tuple(map(units.format_number, (308_351.0, 34_310.2, 37.764))) == ("308,400", "34,310", "37.76")
