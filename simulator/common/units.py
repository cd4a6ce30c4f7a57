"""Parsing and formatting of quantities with units.

Inside the project every quantity is a float in SI units (seconds, bytes, bytes per second, FLOP/s); text with units exists only
at the edges. Upper-case B is a byte and lower-case b is a bit. Quantities without a unit are errors, so that bits and bytes are
never confused.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from scaleproof.simulator.common.errors import UnitError

# Factors to the SI unit, by prefix or unit.
_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
# Bounds in SI units, beyond any real machine: products and quotients of values outside would overflow.
_MIN: Final = 1e-30
_MAX: Final = 1e30
_QUANTITY: Final = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d].*?)?\s*")
_COUNT: Final = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE]\+?\d+)?)\s*([kKMGBT]?)\s*")
# Other currencies, and other names of US dollars.
_CURRENCY: Final = re.compile(r"(?!USD)[A-Z]{3}\b|[$€£¥]|dollars?\b|euros?\b")
_SEVERAL: Final = re.compile(r"\s*(\d{1,6})\s*[x×*]\s*([^x×*]+)")


def _prefixed(units: Mapping[str, float], prefixes: Mapping[str, float] = _DECIMAL) -> dict[str, float]:
    """Factors to the SI unit of units with each prefix, by name."""
    return {prefix + name: size * factor for name, factor in units.items() for prefix, size in prefixes.items()}


_BYTES: Final = _prefixed({"B": 1.0, "bit": 1 / 8, "b": 1 / 8}, _DECIMAL | _BINARY) | {"byte": 1.0, "bytes": 1.0, "bits": 1 / 8}
_BYTES_PER_S: Final = {f"{unit}/s": factor for unit, factor in _BYTES.items()} | _prefixed({"bps": 1 / 8})


def decimals(number: float) -> int:
    """Number of digits after the point with which a number of at least 1 has three significant digits."""
    return 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2


def _formatter(units: Mapping[str, float]) -> Callable[[float], str]:
    """A function that formats a value with three significant digits, in the largest unit in which it is at least 1.

    units: factors to the SI unit by name, the largest first.
    """

    *_, smallest = units

    def formatted(value: float) -> str:
        # 0.9995 of a unit would be printed as 1000 of the next smaller unit
        unit = next((name for name, factor in units.items() if abs(value) >= factor * 0.9995), smallest)
        number = value / units[unit]
        return (f"{number:.{decimals(number)}f} {unit}" if value else f"0 {smallest}").strip()

    return formatted


# a size: 25.0 MiB from 26214400
format_bytes: Final = _formatter({unit: _BYTES[unit] for unit in ("PiB", "TiB", "GiB", "MiB", "KiB", "B")})
# a bandwidth in bits per second, as links are sold: 25.0 Gbit/s from 3.125e9
format_Bps: Final = _formatter({unit: _BYTES_PER_S[unit] for unit in ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s", "bit/s")})
# an energy in watt-hours: 1.50 kWh from 5.4e6
format_energy_J: Final = _formatter({"GWh": 3.6e12, "MWh": 3.6e9, "kWh": 3.6e6, "Wh": 3600.0, "mWh": 3.6})
# a mass: 1.50 t from 1500
format_mass_kg: Final = _formatter({"t": 1e3, "kg": 1.0, "g": 1e-3})
# a number of tokens or FLOPs: 175 G from 1.75e11
format_count: Final = _formatter({prefix: _DECIMAL[prefix] for prefix in ("E", "P", "T", "G", "M", "k", "")})
# a number of parameters, as models are named: 70.6 B, 25.6 M
format_parameters: Final = _formatter({"B": 1e9, "M": 1e6, "k": 1e3, "": 1.0})
_format_short_time_s: Final = _formatter({unit: _SECONDS[unit] for unit in ("s", "ms", "us", "ns")})
_format_long_time_s: Final = _formatter({unit: _SECONDS[unit] for unit in ("d", "h", "min")})


def format_time_s(seconds: float) -> str:
    """A duration for people: '12.3 ms' from 0.0123, '61.8 s', and minutes, hours and days only from 1,000 s on."""
    return _format_long_time_s(seconds) if abs(seconds) >= 999.5 else _format_short_time_s(seconds)


def format_times_s(low_s: float, high_s: float) -> str:
    """A range of durations in one unit, that of the longer: '781-977 ms'."""
    unit = format_time_s(high_s).rpartition(" ")[2]
    low, high = low_s / _SECONDS[unit], high_s / _SECONDS[unit]
    return f"{low:,.{decimals(low)}f}-{high:,.{decimals(low)}f} {unit}"


def format_need(need_bytes: float, capacity_bytes: float) -> str:
    """A needed and an available size in one unit, that of the latter: '224 of 80.0 GiB'."""
    available, unit = format_bytes(capacity_bytes).split()
    needed = need_bytes / _BYTES[unit]
    need = format_digits(needed) if needed >= 1 else format_bytes(need_bytes)
    return f"{need} of {available} {unit}"


def format_USD(amount_USD: float) -> str:
    """An amount of money: '1,234 USD', '0.0712 USD', with three significant digits below a thousand."""
    return f"{amount_USD:,.0f} USD" if amount_USD >= 999.5 else f"{amount_USD:.3g} USD"


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
    steps = ((999.5e6, 1e9, "G"), (999.5e3, 1e6, "M"), (9995.0, 1e3, "k"))
    return next(((size, prefix) for least, size, prefix in steps if abs(number) >= least), (1.0, ""))


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


# Significant digits that people write, and those that identify a double precision number.
_FEW_DIGITS: Final = 6
_MOST_DIGITS: Final = 17
# Numbers outside this range are written in another unit, if possible.
_HANDY: Final = (1.0, 1000.0)
# Whole numbers below are written with all their digits.
_MOST_WHOLE: Final = 1e15


@dataclass(frozen=True, eq=False)
class Unit:
    """The units of a quantity, whose value is in SI units: how its text is read, and how it is written.

    quantity: its name. factors: to the SI unit, by name. example: for messages. format: text for people. names: units that
    people write, the usual one first. symbol: of the SI unit, or of the only one that people write. has_multiples: whether
    '8 x 400 Gbit/s' is valid too.
    """

    quantity: str
    factors: Mapping[str, float]
    example: str
    format: Callable[[float], str]
    symbol: str
    names: tuple[str, ...]
    has_multiples: bool = False

    def parse(self, value: object) -> float:
        """The SI value of text with a unit, or of a plain zero. Raises UnitError."""
        one = f"{'an' if self.quantity[0] in 'aeiou' else 'a'} {self.quantity}"
        wanted = f"{one} such as {self.example}"
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UnitError(f"expected {wanted}, got {value!r}")
        if value == 0:
            return 0.0
        if self.has_multiples and isinstance(value, str) and (several := _SEVERAL.fullmatch(value)):
            return int(several[1]) * self.parse(several[2])
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None and isinstance(value, str):
            raise UnitError(f"cannot read {value!r}; write {wanted}")
        if match is None or match[2] is None:
            raise UnitError(f"{value!r} has no unit; write {wanted}")
        number, unit = float(match[1].replace("_", "")), match[2]
        if unit not in self.factors and (money := _CURRENCY.match(unit)):
            raise UnitError(f"{money[0]}: prices are in US dollars; convert it, and write {wanted}")
        if unit not in self.factors:
            # for 'gb/s', which could be bits or bytes, both are offered
            meant = " or ".join(name for name in self.factors if name.lower() == unit.lower())
            hint = f" (did you mean {meant}?)" if meant else ""
            raise UnitError(f"{unit!r} is not a unit of {self.quantity}{hint}; write it like {self.example}")
        if not math.isfinite(number):
            raise UnitError(f"{value!r} is not finite; write {wanted}")
        if number < 0:
            raise UnitError(f"{value!r} is negative; {one} is zero or more")
        result = number * self.factors[unit]
        if result and not _MIN <= result <= _MAX:
            raise UnitError(f"{value!r} is out of range; give {one} between {_MIN:g} and {_MAX:g} in SI units")
        return result

    def exactly(self, value: float) -> str:
        """The shortest text that parses to exactly this number, such as '25 Gbit/s' for 3.125e9."""
        if value == 0:
            return f"0 {self.symbol}"
        texts = (text for text in self._texts(value) if self._reads(text, value))
        return next(texts, f"{value / self.factors[self.symbol]!r} {self.symbol}")

    def _reads(self, text: str, value: float) -> bool:
        """Whether text parses to exactly this number. Rounded text may be out of range."""
        try:
            return self.parse(text) == value
        except UnitError:
            return False

    def _texts(self, value: float) -> Iterator[str]:
        """Candidate texts, the shortest first; units outside the handy range only after all short texts in it."""
        numbers = {name: value / self.factors[name] for name in self.names}
        handy = {name: number for name, number in numbers.items() if _HANDY[0] <= number < _HANDY[1]}
        every = dict(sorted(numbers.items(), key=lambda item: (item[1] < _HANDY[0], item[1])))
        for some, most_digits in ((handy, _FEW_DIGITS), (every, _MOST_DIGITS)):
            for digits, (name, number) in itertools.product(range(1, most_digits + 1), some.items()):
                for near in (number, *_neighbours(number, digits)):
                    yield f"{_decimal(near, digits)} {name}"


def _neighbours(number: float, digits: int) -> tuple[float, ...]:
    """The adjacent floating-point numbers, if the digits distinguish them: the division may have missed by one."""
    return (math.nextafter(number, 0), math.nextafter(number, math.inf)) if digits == _MOST_DIGITS else ()


def _decimal(number: float, digits: int) -> str:
    """A number rounded to `digits` significant digits, without an exponent for common sizes."""
    rounded = float(f"{number:.{digits - 1}e}")
    return f"{rounded:.0f}" if rounded.is_integer() and rounded < _MOST_WHOLE else repr(rounded)


def _counted(symbol: str) -> Callable[[float], str]:
    return lambda rate: f"{format_count(rate)}{symbol}"


_BYTE_RATES: Final = ("GB/s", "TB/s", "MB/s", "kB/s", "B/s")
_BANDWIDTH: Final = ("bandwidth", _BYTES_PER_S, "'25 Gbit/s' or '3 GB/s'")
_PER_KWH: Final = 3.6e6

TIME: Final = Unit("time", _SECONDS, "'3 us'", format_time_s, "s", ("s", "ms", "us", "ns", "h", "min", "d"))
SIZE: Final = Unit("size", _BYTES, "'25 MiB'", format_bytes, "B", ("MiB", "GiB", "KiB", "MB", "GB", "kB", "TiB", "TB", "B"))
# links are sold in bits, memory in bytes
BANDWIDTH: Final = Unit(*_BANDWIDTH, format_Bps, "B/s", ("Gbit/s", "Mbit/s", "kbit/s", *_BYTE_RATES), has_multiples=True)
MEMORY_BANDWIDTH: Final = Unit(*_BANDWIDTH, _counted("B/s"), "B/s", _BYTE_RATES, has_multiples=True)
COMPUTE_RATE: Final = Unit(
    "compute rate", _prefixed({"FLOP/s": 1.0, "FLOPS": 1.0, "flop/s": 1.0}, _DECIMAL | _BINARY), "'312 TFLOP/s'",
    _counted("FLOP/s"), "FLOP/s", ("TFLOP/s", "GFLOP/s", "PFLOP/s", "MFLOP/s", "FLOP/s"),
)  # fmt: skip
CLOCK_RATE: Final = Unit("clock rate", _prefixed({"Hz": 1.0}), "'1.98 GHz'", _counted("Hz"), "Hz", ("GHz", "MHz", "kHz", "Hz"))
POWER: Final = Unit("power", _prefixed({"W": 1.0}), "'10.2 kW'", "{:g} W".format, "W", ("W", "kW", "MW"))
MONEY: Final = Unit("amount of money", {"USD": 1.0, "kUSD": 1e3, "MUSD": 1e6}, "'300000 USD'", format_USD, "USD", ("USD",))
PRICE: Final = Unit(
    "price", {"USD/h": 1 / 3600, "USD/hour": 1 / 3600}, "'32.77 USD/h'",
    lambda price: f"{price * 3600:g} USD/h", "USD/h", ("USD/h",),
)  # fmt: skip
GPU_PRICE: Final = Unit(
    "price of a GPU", dict.fromkeys(("USD/GPU-hour", "USD/GPU-h", "USD/GPU/h", "USD/h/GPU"), 1 / 3600), "'2.50 USD/GPU-hour'",
    lambda price: f"{price * 3600:g} USD/GPU-hour", "USD/GPU-hour", ("USD/GPU-hour",),
)  # fmt: skip
ELECTRICITY_PRICE: Final = Unit(
    "price of electricity", {"USD/kWh": 1 / _PER_KWH, "USD/MWh": 1e-3 / _PER_KWH}, "'0.12 USD/kWh'",
    lambda price: f"{price * _PER_KWH:g} USD/kWh", "USD/kWh", ("USD/kWh",),
)  # fmt: skip
CARBON_INTENSITY: Final = Unit(
    "carbon intensity", {"g/kWh": 1e-3 / _PER_KWH, "kg/kWh": 1 / _PER_KWH, "kg/MWh": 1e-3 / _PER_KWH}, "'480 g/kWh'",
    lambda mass: f"{mass * 1e3 * _PER_KWH:g} g/kWh", "g/kWh", ("g/kWh",),
)  # fmt: skip
parse_time_s: Final = TIME.parse
parse_bytes: Final = SIZE.parse
parse_Bps: Final = BANDWIDTH.parse


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


def _field(unit: Unit) -> tuple[Unit, BeforeValidator, WithJsonSchema]:
    """The unit of a field, what parses it, and what describes it in the JSON schema."""
    description = f"a {unit.quantity} with its unit, such as {unit.example}"
    return unit, BeforeValidator(unit.parse), WithJsonSchema({"type": ["string", "number"], "description": description})


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


Seconds = Annotated[float, *_field(TIME)]
Bytes = Annotated[float, *_field(SIZE)]
PositiveBytesPerSecond = Annotated[float, *_field(BANDWIDTH), AfterValidator(_checked_bandwidth)]
MemoryBytesPerSecond = Annotated[float, *_field(MEMORY_BANDWIDTH)]
PositiveMemoryBytesPerSecond = Annotated[MemoryBytesPerSecond, AfterValidator(_checked_bandwidth)]
PositiveFlopsPerSecond = Annotated[float, *_field(COMPUTE_RATE), AfterValidator(_checked_compute_rate)]
Hertz = Annotated[float, *_field(CLOCK_RATE)]
Watts = Annotated[float, *_field(POWER)]
DollarsPerSecond = Annotated[float, *_field(PRICE)]
Dollars = Annotated[float, *_field(MONEY)]
DollarsPerJoule = Annotated[float, *_field(ELECTRICITY_PRICE)]
KilogramsPerJoule = Annotated[float, *_field(CARBON_INTENSITY)]
