"""The peak memory of a captured rank: what is allocated then, by category, module and line of the script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from scaleproof.simulator.captured.record import Category, EventKind, RecordedRanks


class PeakMemory(NamedTuple):
    """Allocated bytes at the peak of a step, by what they hold, by module, and by line ('' for what belongs to none); and the
    line whose allocation reached it. setup_bytes: the most before the step, such as in the first one."""

    size_bytes: int
    setup_bytes: int
    categories: Mapping[str, int]
    modules: Mapping[str, int]
    lines: Mapping[str, int]
    last_line: str
    last_bytes: int


def peak_memory(one: RecordedRanks) -> PeakMemory:
    """The peak of a class's step, without what the allocator rounds and keeps."""
    rows = one.rows(EventKind.ALLOCATE, EventKind.FREE, in_step=False)
    columns = one.columns
    sizes: dict[int, int] = {}
    changes = []
    for row in rows.tolist():
        number = int(columns["allocation"][row])
        if columns["kind"][row] == EventKind.ALLOCATE:
            sizes[number] = int(columns["size"][row])
            changes.append(sizes[number])
        else:
            changes.append(-sizes.pop(number, 0))
    total = np.cumsum(changes) if changes else np.zeros(1, np.int64)
    at = int(np.argmax(total))
    live: dict[int, int] = {}
    for row in rows[: at + 1].tolist():
        number = int(columns["allocation"][row])
        if columns["kind"][row] == EventKind.ALLOCATE:
            live[number] = row
        else:
            live.pop(number, None)
    categories, modules, lines = Counter[str](), Counter[str](), Counter[str]()
    for row in live.values():
        size = int(columns["size"][row])
        categories[Category(int(columns["category"][row])).label] += size
        modules[one.text("module", row)] += size
        lines[one.text("line", row)] += size
    by_category, by_module, by_line = (dict(each.most_common()) for each in (categories, modules, lines))
    if not len(rows):
        return PeakMemory(0, 0, by_category, by_module, by_line, "", 0)
    last = int(rows[at])
    return PeakMemory(
        int(total[at]), one.peak_bytes[0], by_category, by_module, by_line, one.text("line", last), int(columns["size"][last])
    )
