"""Parsing and formatting of quantities with units.

Inside the project every quantity is a float in SI units (seconds, bytes, bytes per second, FLOP/s); text with units exists only
at the edges. Upper-case B is a byte and lower-case b is a bit. Quantities without a unit are errors, so that bits and bytes are
never confused.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from scaleproof.simulator.common.errors import UnitError

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}
_PREFIXES: Final = _DECIMAL | _BINARY
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Bounds in SI units, beyond any real machine: products and quotients of values outside would overflow.
_MIN: Final = 1e-30
_MAX: Final = 1e30
_QUANTITY: Final = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d].*?)?\s*")
_COUNT: Final = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE]\+?\d+)?)\s*([kKMGBT]?)\s*")
_COUNTS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
# Other currencies, and other names of US dollars.
_CURRENCY: Final = re.compile(r"(?!USD)[A-Z]{3}\b|[$€£¥]|dollars?\b|euros?\b")
_SEVERAL: Final = re.compile(r"\s*(\d{1,6})\s*[x×*]\s*(\S.*)")


def _table(*names: tuple[str, float]) -> dict[str, float]:
    """Factors by unit name, for every SI and binary prefix."""
    return {prefix + name: size * factor for name, factor in names for prefix, size in _PREFIXES.items()}


_BYTES: Final = _table(("B", 1.0), ("bit", 1 / 8), ("b", 1 / 8)) | {"byte": 1.0, "bytes": 1.0, "bits": 1 / 8}
_UNITS: Final[dict[str, tuple[dict[str, float], str]]] = {
    "time": (_SECONDS, "'3 us'"),
    "size": (_BYTES, "'25 MiB'"),
    "bandwidth": (
        {f"{unit}/s": factor for unit, factor in _BYTES.items()} | {f"{p}bps": s / 8 for p, s in _DECIMAL.items()},
        "'25 Gbit/s' or '3 GB/s'",
    ),
    "compute rate": (_table(("FLOP/s", 1.0), ("FLOPS", 1.0), ("flop/s", 1.0)), "'312 TFLOP/s'"),
    "clock rate": ({f"{prefix}Hz": size for prefix, size in _DECIMAL.items()}, "'1.98 GHz'"),
    "power": ({f"{prefix}W": size for prefix, size in _DECIMAL.items()}, "'10.2 kW'"),
    "price": ({"USD/h": 1 / 3600, "USD/hour": 1 / 3600}, "'32.77 USD/h'"),
    "price of a GPU": ({f"USD/{unit}": 1 / 3600 for unit in ("GPU-hour", "GPU-h", "GPU/h", "h/GPU")}, "'2.50 USD/GPU-hour'"),
    "amount of money": ({"USD": 1.0, "kUSD": 1e3, "MUSD": 1e6}, "'300000 USD'"),
    "price of electricity": ({"USD/kWh": 1 / 3.6e6, "USD/MWh": 1 / 3.6e9}, "'0.12 USD/kWh'"),
    "carbon intensity": ({"g/kWh": 1e-3 / 3.6e6, "kg/kWh": 1 / 3.6e6, "kg/MWh": 1 / 3.6e9}, "'480 g/kWh'"),
}


def _parse(value: object, dimension: str) -> float:
    """The SI value of text with a unit of `dimension`, or of a plain zero. Raises UnitError."""
    units, example = _UNITS[dimension]
    one = f"{'an' if dimension[0] in 'aeiou' else 'a'} {dimension}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == 0:
            return 0.0
        raise UnitError(f"{value!r} has no unit; write {one} such as {example}")
    if not isinstance(value, str):
        raise UnitError(f"expected {one} such as {example}, got {value!r}")
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise UnitError(f"cannot read {value!r}; write {one} such as {example}")
    number, unit = float(match[1].replace("_", "")), match[2]
    if unit is None:
        raise UnitError(f"{value!r} has no unit; write {one} such as {example}")
    if unit not in units and (money := _CURRENCY.match(unit)):
        raise UnitError(f"{money[0]}: prices are in US dollars; convert it, and write {one} such as {example}")
    if unit not in units:
        raise UnitError(f"{unit!r} is not a unit of {dimension}{_hint(unit, units)}; write it like {example}")
    if not math.isfinite(number):
        raise UnitError(f"{value!r} is not finite; write {one} such as {example}")
    if number < 0:
        raise UnitError(f"{value!r} is negative; {one} is zero or more")
    result = number * units[unit]
    if result and not _MIN <= result <= _MAX:
        raise UnitError(f"{value!r} is out of range; give {one} between {_MIN:g} and {_MAX:g} in SI units")
    return result


def _hint(unit: str, units: dict[str, float]) -> str:
    """' (did you mean …)' if only the case differs; for 'gb/s', which could be bits or bytes, both are offered."""
    matches = [name for name in units if name.lower() == unit.lower()]
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


def _parser(dimension: str) -> Callable[[object], float]:
    """A function that parses text with a unit of a dimension, and returns its SI value. It raises UnitError."""
    return functools.partial(_parse, dimension=dimension)


# Each is named after the SI unit of what it returns.
parse_time_s: Final = _parser("time")
parse_bytes: Final = _parser("size")
parse_flops: Final = _parser("compute rate")
parse_Hz: Final = _parser("clock rate")
parse_W: Final = _parser("power")
parse_USD_per_s: Final = _parser("price")
parse_USD_per_GPU_s: Final = _parser("price of a GPU")
parse_USD: Final = _parser("amount of money")
parse_USD_per_J: Final = _parser("price of electricity")
parse_kg_per_J: Final = _parser("carbon intensity")


def parse_Bps(value: object) -> float:
    """Bytes per second from text such as '25 Gbit/s', '3 GB/s' or '8 x 400 Gbit/s'. Raises UnitError."""
    several = _SEVERAL.fullmatch(value) if isinstance(value, str) else None
    return int(several[1]) * _parse(several[2], "bandwidth") if several else _parse(value, "bandwidth")


def is_per_GPU(value: object) -> bool:
    """Whether text is a price of a GPU, not of a node."""
    return isinstance(value, str) and "GPU" in value


def parse_count(text: str) -> float:
    """A number from text such as '15T', '300B', '1.5e12' or '1,000'. Raises UnitError."""
    match = _COUNT.fullmatch(text.replace(",", ""))
    number = float(match[1]) * _COUNTS[(match[2] or "").upper()] if match else 0.0
    if not 0 < number < _MAX:
        raise UnitError(f"cannot read {text!r} as a number above zero; write it like 15T, 300B or 1.5e12")
    return number


def _field(parse: Any, dimension: str) -> tuple[BeforeValidator, WithJsonSchema]:
    example = _UNITS[dimension][1]
    schema = {"type": ["string", "number"], "description": f"a {dimension} with its unit, such as {example}"}
    return BeforeValidator(parse), WithJsonSchema(schema)


# lower bandwidths make times overflow
_MIN_BPS: Final = 1 / 3600


def _checked_bandwidth(bandwidth_Bps: float) -> float:
    if bandwidth_Bps < _MIN_BPS:
        problem = "zero" if bandwidth_Bps <= 0 else "less than a byte an hour"
        raise UnitError(f"the bandwidth is {problem}; give a positive one such as '25 Gbit/s'")
    return bandwidth_Bps


def _checked_compute_rate(flops: float) -> float:
    if flops <= 0:
        raise UnitError("the compute rate is zero; give a positive one such as '312 TFLOP/s', or leave the precision out")
    return flops


Seconds = Annotated[float, *_field(parse_time_s, "time")]
Bytes = Annotated[float, *_field(parse_bytes, "size")]
BytesPerSecond = Annotated[float, *_field(parse_Bps, "bandwidth")]
PositiveBytesPerSecond = Annotated[BytesPerSecond, AfterValidator(_checked_bandwidth)]
FlopsPerSecond = Annotated[float, *_field(parse_flops, "compute rate")]
PositiveFlopsPerSecond = Annotated[FlopsPerSecond, AfterValidator(_checked_compute_rate)]
Hertz = Annotated[float, *_field(parse_Hz, "clock rate")]
Watts = Annotated[float, *_field(parse_W, "power")]
DollarsPerSecond = Annotated[float, *_field(parse_USD_per_s, "price")]
Dollars = Annotated[float, *_field(parse_USD, "amount of money")]
DollarsPerJoule = Annotated[float, *_field(parse_USD_per_J, "price of electricity")]
KilogramsPerJoule = Annotated[float, *_field(parse_kg_per_J, "carbon intensity")]


_TIMES: Final = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")]
_LONG_TIMES: Final = [(86400.0, "d"), (3600.0, "h"), (60.0, "min")]
# Shorter times are in seconds, as steps are reported.
_LONG_S: Final = 999.5
# Prefixes of short numbers: the smallest number that has one, its size, and the prefix.
_SHORT: Final = [(999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (9995.0, 1e3, "k")]


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    """`value` with three significant digits in the largest unit of `steps` (largest first) in which it is at least 1."""
    if value == 0:
        return f"0 {steps[-1][1]}"
    # 0.9995 of a unit would be printed as 1000 of the next smaller unit
    size, unit = next((step for step in steps if abs(value) >= step[0] * 0.9995), steps[-1])
    number = value / size
    return f"{number:.{decimals(number)}f} {unit}"


def decimals(number: float) -> int:
    """Number of digits after the point with which a number of at least 1 has three significant digits."""
    return 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2


def format_time_s(seconds: float) -> str:
    """A duration for people: '12.3 ms' from 0.0123, '61.8 s', and minutes, hours and days only from 1,000 s on."""
    return _scaled(seconds, _LONG_TIMES if abs(seconds) >= _LONG_S else _TIMES)


def format_times_s(low_s: float, high_s: float) -> str:
    """A range of durations in one unit, that of the longer: '781-977 ms'."""
    unit = format_time_s(high_s).rpartition(" ")[2]
    low, high = low_s / _SECONDS[unit], high_s / _SECONDS[unit]
    return f"{low:,.{decimals(low)}f}-{high:,.{decimals(low)}f} {unit}"


def format_bytes(size_bytes: float) -> str:
    """A size for people: '25.0 MiB' from 26214400."""
    return _scaled(
        size_bytes, [(2.0**50, "PiB"), (2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1, "B")]
    )


def format_need(need_bytes: float, capacity_bytes: float) -> str:
    """A needed and an available size in one unit, that of the latter: '224 of 80.0 GiB'."""
    available, unit = format_bytes(capacity_bytes).split()
    needed = need_bytes / _BYTES[unit]
    need = format_digits(needed) if needed >= 1 else format_bytes(need_bytes)
    return f"{need} of {available} {unit}"


def format_Bps(rate_Bps: float) -> str:
    """A bandwidth in bits per second for people, as links are sold: '25.0 Gbit/s' from 3.125e9."""
    steps = [(1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")]
    return _scaled(rate_Bps * 8, steps)


def format_energy_J(energy_J: float) -> str:
    """An energy in watt-hours for people: '1.50 kWh' from 5.4e6."""
    return _scaled(energy_J / 3600, [(1e9, "GWh"), (1e6, "MWh"), (1e3, "kWh"), (1, "Wh"), (1e-3, "mWh")])


def format_USD(amount_USD: float) -> str:
    """An amount of money: '1,234 USD', '0.0712 USD', with three significant digits below a thousand."""
    return f"{amount_USD:,.0f} USD" if amount_USD >= 999.5 else f"{amount_USD:.3g} USD"


def format_mass_kg(mass_kg: float) -> str:
    """A mass for people: '1.50 t' from 1500."""
    return _scaled(mass_kg, [(1e3, "t"), (1, "kg"), (1e-3, "g")])


def format_count(count: float) -> str:
    """A number of parameters or FLOPs: '175 G' from 1.75e11."""
    return _scaled(count, [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]).strip()


def format_parameters(count: float) -> str:
    """A number of parameters, as models are named: '70.6 B', '25.6 M'."""
    return _scaled(count, [(1e9, "B"), (1e6, "M"), (1e3, "k"), (1, "")]).strip()


def format_number(value: float) -> str:
    """A number with four significant digits: '308,400', '2,349', '37.76'."""
    return f"{float(f'{value:.4g}'):,.0f}" if value >= 999.5 else f"{value:.4g}"


def format_digits(number: float) -> str:
    """A number with three significant digits, or with all before the point: '308,351', '1,234', '56.7', '0.0123'."""
    return f"{number:,.{decimals(number)}f}" if abs(number) >= 0.9995 else f"{number:.3g}"


def format_short(number: float) -> str:
    """A number with three significant digits, from ten thousand on with a prefix: '308k', '1.53M', '1,234', '41.2'."""
    size, prefix = _short_unit(number)
    return f"{format_digits(number / size)}{prefix}"


def format_short_range(low: float, high: float) -> str:
    """A range of short numbers with one prefix, that of its end: '261–364k', '8,210–9,640'."""
    size, prefix = _short_unit(high)
    return f"{format_digits(low / size)}–{format_digits(high / size)}{prefix}"


def _short_unit(number: float) -> tuple[float, str]:
    """Size and prefix of the unit of a short number."""
    return next(((size, prefix) for least, size, prefix in _SHORT if abs(number) >= least), (1.0, ""))


def format_percent(share: float, digits: int = 1) -> str:
    """A share in per cent: '12.3 %' from 0.123."""
    return f"{100 * share:.{digits}f} %"


def format_change(change: float) -> str:
    """A relative change in per cent, with its sign: '+12.3 %', '0 %'."""
    return f"{100 * change:+.1f} %" if abs(change) >= 5e-4 else "0 %"


def format_change_s(change_s: float) -> str:
    """A change of a duration, with its sign: '+1.20 ms', '0'."""
    return f"{'+' if change_s > 0 else '-'}{format_time_s(abs(change_s))}" if abs(change_s) >= 1e-9 else "0"


def format_range(low: str, high: str, word: str = " to ") -> str:
    """A range: '2.9 to 14.6 %' from '2.9 %' and '14.6 %'. A common unit is written once, and so are equal ends."""
    number, _, unit = low.rpartition(" ")
    return low if low == high else f"{number if number and high.endswith(f' {unit}') else low}{word}{high}"


def format_interval_s(low_s: float | None, high_s: float | None) -> str:
    """An interval of seconds with both units: '900 ms to 1.20 s'; '' if an end is not known."""
    return "" if low_s is None or high_s is None else f"{format_time_s(low_s)} to {format_time_s(high_s)}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: '1 rank', '1,024 ranks'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
