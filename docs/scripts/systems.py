"""Prints the table of docs/reference/systems.md, as it is forecast today: `python docs/scripts/systems.py`."""

from __future__ import annotations

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load

HEAD = "| scenario | about | strategy | framework | ranks | step | samples/s | efficiency |\n|---|---|---|---|---|---|---|---|"


def row(name: str) -> str:
    """One system. Efficiency is that of weak scaling."""
    scenario = load(name)
    run = predict(scenario, interval=False)
    weak = (run.efficiency or {}).get("weak")
    cells = (
        f"`{name}`",
        catalog.summary("systems", name),
        f"`{run.strategy}`",
        f"`{run.framework}`{', by default' if run.framework_is_default else ''}",
        str(run.ranks),
        format_time_s(run.step_time_s),
        f"{run.samples_per_s:,.0f}" if run.samples_per_s >= 100 else f"{run.samples_per_s:.3g}",
        "–" if weak is None else f"{weak:.0%}".replace("%", " %"),
    )
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """All that ship."""
    return "\n".join([HEAD, *map(row, catalog.names("systems"))])


if __name__ == "__main__":
    print(table())
