"""The data of a control: a list of options, each with the settings that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Control = dict[str, Any]
Option = dict[str, Any]

# how many there may be of something, as people buy it
COUNTS: Final = sorted({base << power for base in (1, 3) for power in range(16)})


def choice(
    field: str, label: str, words: str, options: Iterable[Option], now: object, *, term: str = "", search: bool = False
) -> Control:
    """A list of options with `now` selected; `now` is added first if it is missing.

    words: a help text below the list. term: what the label means, shown as a tooltip. search: whether the list is long.
    """
    listed = list(options)
    if all(one["says"] != str(now) for one in listed):
        listed.insert(0, {"says": str(now), "label": f"{now} (as it is)", "sets": []})
    return {"kind": "search" if search else "choice", "field": field, "label": label, "help": words, "term": term,
            "options": listed, "value": str(now)}  # fmt: skip


def option(says: object, label: str, *sets: str, hint: str = "", reason: str = "", offer: str = "") -> Option:
    """An option. hint: its description. reason: why it needs more than its name says; it is then applied by a button with the
    text `offer`."""
    extra = {"hint": hint, "reason": reason, "offer": offer}
    return {"says": str(says), "label": label, "sets": list(sets)} | {name: text for name, text in extra.items() if text}


def fact(field: str, label: str, value: str, term: str) -> Control:
    """A quantity that follows from the other controls."""
    return {"kind": "fact", "field": field, "label": label, "value": value, "help": "", "term": term}
