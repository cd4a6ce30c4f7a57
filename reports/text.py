"""Numbers and names in words, as pages and figures print them."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from scaleproof.simulator.common.units import decimals, format_digits, format_time_s

NOTHING: Final = "–"
# entries of a breakdown whose names do not explain themselves
_CAUSES: Final = {"slowest_rank": "waiting for the slowest device"}
# time from which axes are in seconds
_LONG_S: Final = 10.0
_SPACE: Final = "\N{NARROW NO-BREAK SPACE}"


def family_name(family: str) -> str:
    """'data parallel' from 'data_parallel'."""
    return spaced(family) or "unnamed family"


def spaced(name: str) -> str:
    """'exposed communication' from 'exposed_communication'."""
    return name.replace("_", " ")


def cause_words(cause: str) -> str:
    """'waiting for the slowest device' from the entry `slowest_rank` of a breakdown."""
    return _CAUSES.get(cause, spaced(cause))


def verdict_words(verdict: str, condition: str) -> str:
    """A verdict with its condition of a claim for readers, such as 'Depends: true only for workers ≥ 8'."""
    words = {"holds": "True", "does not hold": "False"}
    return words.get(verdict, f"Depends: true only for {condition}")


def when(created: str) -> str:
    """'2026-01-31 12:00 UTC' from an ISO date and time; other text as it is."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment:%Y-%m-%d %H:%M} {moment:%Z}".strip()


def signed_milliseconds(seconds: float | None) -> str:
    """Milliseconds with a plus sign above zero."""
    return ("+" if seconds is not None and seconds > 0 else "") + milliseconds(seconds)


def milliseconds(seconds: float | None) -> str:
    """Three significant digits from 1 ms on, without the unit: '123', '45.6', '7.89', '0.123'."""
    if seconds is None:
        return NOTHING
    value = seconds * 1e3
    digits = 3 if 0.0005 <= abs(value) < 0.9995 else decimals(value)
    return f"{value:,.{digits}f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """'12.3 ms'; a dash for None."""
    return NOTHING if seconds is None else format_time_s(seconds)


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit of an axis that ends at some time, and the number of units in a second: milliseconds up to ten seconds."""
    return ("ms", 1e3) if longest_s < _LONG_S else ("s", 1.0)


def rate(per_second: float | None) -> str:
    """A rate without its unit, three significant digits or all before the point: '1,234', '56.7'; a dash for None."""
    return NOTHING if per_second is None else format_digits(per_second)


def ratio(value: float) -> str:
    """'3.99x'."""
    return f"{value:.3g}x"


def percent(share: float) -> str:
    """'6.2 %' below ten, '14 %' from there; whole numbers without decimals."""
    value = share * 100
    text = f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
    return f"{text.removesuffix('.0')}{_SPACE}%".replace("-", "−")


def with_narrow_spaces(text: str) -> str:
    """Text of the console with the narrow spaces of pages before signs of per cent."""
    return text.replace(" %", f"{_SPACE}%")


def percent_range(low: float, high: float) -> str:
    """'10–39 %'."""
    first, last = percent(low), percent(high)
    return last if first == last else f"{first.removesuffix(f'{_SPACE}%')}–{last}"


def signed_percent(share: float | None) -> str:
    """The same with its sign: '+4.1 %', '−14 %'; a dash for None."""
    if share is None:
        return NOTHING
    return ("+" if share > 0 else "") + percent(share)
