"""Prints the tables of docs/guides/frameworks.md and docs/reference/systems.md: `python docs/scripts/tables.py`."""

from __future__ import annotations

from typing import Final

from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.frameworks import shipped
from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load

FRAMEWORKS_HEAD: Final = "| name | what it is | runs |\n|---|---|---|"
SYSTEMS_HEAD: Final = (
    "| scenario | about | strategy | framework | ranks | step | samples/s | efficiency |\n|---|---|---|---|---|---|---|---|"
)


def frameworks() -> str:
    """A row for each framework that ships."""
    rows = [f"| `{name}` | {shipped(name).description} | {supports(name)} |" for name in names()]
    return "\n".join([FRAMEWORKS_HEAD, *rows])


def supports(name: str) -> str:
    """What a framework runs, with all of ZeRO as one."""
    text = ", ".join(shipped(name).supports).replace("_", " ")
    return text.replace("zero 1, zero 2, zero 3", "ZeRO 1–3").replace("zero", "ZeRO")


def system(name: str) -> str:
    """A system's prediction. Efficiency is that of weak scaling."""
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


if __name__ == "__main__":
    print(frameworks(), "\n".join([SYSTEMS_HEAD, *map(system, catalog.names("systems"))]), sep="\n\n")
