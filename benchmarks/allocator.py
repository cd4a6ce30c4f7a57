"""Reserved or total memory of published runs compared with the memory model, which adds a share for fragmentation, and with the
replica of PyTorch's caching allocator.

Errors are means of relative errors and of their absolute values, by set, of runs whose figure depends on reserved memory.

Run: python benchmarks/allocator.py
"""

from __future__ import annotations

from collections import defaultdict
from statistics import mean

from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_change, format_percent
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.allocator import allocator_use
from scaleproof.simulator.published.tables import folder, read_table
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

TITLES = ("set", "runs", "share of fragmentation", "", "fixed segments", "", "expandable segments", "")


def errors(scenario: Scenario, measured_bytes: float) -> list[float]:
    """Relative errors by the memory model, and by the allocator with fixed and with expandable segments."""
    reports = scenario.framework.memory.reports
    uses = [memory(scenario).worst, *(allocator_use(scenario, expandable=segments) for segments in (False, True))]
    return [getattr(use, reports) / measured_bytes - 1 for use in uses]


def main() -> None:
    """Prints a row for each set."""
    by_set: dict[str, list[list[float]]] = defaultdict(list)
    _, published = read_table(folder() / "transformer_training.csv")
    for row in published:
        try:
            scenario = load(f"published:{row['id']}") if row["memory_GiB"] else None
        except ScaleproofError:
            continue
        if scenario is not None and scenario.framework.memory.reports != "allocated_bytes":
            by_set[row["source_set"]].append(errors(scenario, float(row["memory_GiB"]) * 2**30))
    rows: list[tuple[str, ...]] = [TITLES]
    for name, found in by_set.items():
        columns = [(format_change(mean(column)), format_percent(mean(map(abs, column)))) for column in zip(*found, strict=True)]
        rows.append((name, str(len(found)), *(text for column in columns for text in column)))
    print("\n".join(table(rows, "<>")))


if __name__ == "__main__":
    main()
