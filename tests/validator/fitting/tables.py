"""Tables of runs whose true constants are known: step times that the simulator predicts with other constants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.fitting.constants import constant_named

# Llama-style 1.34B on 16 H100 of aws-p5, in nanotron.
REFERENCE = "published:ultrascale-0072"
LAYOUTS = (
    {"tp": 1, "pp": 1, "dp": 8, "micro_batch": 2},
    {"tp": 2, "pp": 1, "dp": 4, "micro_batch": 4},
    {"tp": 4, "pp": 2, "dp": 2, "micro_batch": 2},
    {"tp": 8, "pp": 1, "dp": 2, "micro_batch": 8},
    {"tp": 1, "pp": 4, "dp": 4, "micro_batch": 1},
)


def step_s(layout: Mapping[str, object], truth: Mapping[str, float]) -> float:
    """Seconds of a step of a layout, where constants have other values."""
    scenario = load(REFERENCE, [f"{name}={value}" for name, value in layout.items()])
    for name, value in truth.items():
        scenario = constant_named(name).changed(scenario, value)
    return timed(scenario).step_time_s


def table(path: Path, truth: Mapping[str, float], layouts: tuple[Mapping[str, object], ...] = LAYOUTS) -> Path:
    """Writes a table of runs with these true constants."""
    lines = [",".join([*layouts[0], "step_time"])]
    lines += [",".join([*map(str, layout.values()), f"{step_s(layout, truth):.6f} s"]) for layout in layouts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
