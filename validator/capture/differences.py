"""What distinguishes the step of a rank class from that of another one, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from scaleproof.simulator.captured.record import VALUE_READ, EventKind, RecordedRanks, Signature

# Most operators that are listed.
_LISTED: Final = 3
_COMPARED: Final = (
    EventKind.OPERATOR, EventKind.COPY, EventKind.COLLECTIVE, EventKind.SEND, EventKind.RECEIVE, EventKind.ITEM,
)  # fmt: skip


def with_differences(classes: Sequence[RecordedRanks]) -> tuple[RecordedRanks, ...]:
    """Classes, each with what distinguishes it from the largest."""
    largest = max(classes, key=len)
    return tuple(
        one if one is largest else replace(one, why=", ".join(filter(None, (one.why, difference(one, largest)))))
        for one in classes
    )


def difference(one: RecordedRanks, other: RecordedRanks) -> str:
    """How the step of a class differs from that of another one: numbers of operators, or the first one with other tensors."""
    own, others = _calls(one), _calls(other)
    counts, other_counts = (Counter(name for name, _, _ in calls) for calls in (own, others))
    changed = [name for name in counts | other_counts if counts[name] != other_counts[name]]
    if changed:
        listed = ", ".join(f"{counts[name]} instead of {other_counts[name]} {name}" for name in changed[:_LISTED])
        more = f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else ""
        return f"{listed}{more}, compared with {other.name}"
    first = next(((a, b) for a, b in zip(own, others, strict=True) if a[:2] != b[:2]), None)
    if first is None:
        return f"waits and streams differ from those of {other.name}"
    (name, tensors, line), (instead, known, _) = first
    at = f" at {line}" if line else ""
    if name != instead:
        return f"{name} instead of {instead}{at}, compared with {other.name}"
    return f"{name} of {tensors} instead of {known}{at}, compared with {other.name}"


def _calls(one: RecordedRanks) -> list[tuple[str, str, str]]:
    """Name, shapes and line of each operator and communication of a step."""
    rows = one.rows(*_COMPARED).tolist()
    return [(_name(one.text("name", row)), _tensors(one.signature(row)), one.text("line", row)) for row in rows]


def _name(operator: str) -> str:
    """A name without its namespace."""
    return "reads of values" if operator == VALUE_READ else operator.rpartition("::")[2]


def _tensors(signature: Signature) -> str:
    return ", ".join("×".join(map(str, shape)) or "one" for shape, _, _ in signature.inputs)
