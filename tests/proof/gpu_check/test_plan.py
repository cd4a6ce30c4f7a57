"""The plan of a GPU check covers all scenarios, and its limit all parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.proof.gpu_check import plan, scenarios
from scaleproof.proof.gpu_check.plan import Plan

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial" / "gpu-cluster.md").read_text()
ROWS = {
    plan.CALIBRATE: "calibrate", plan.DEVICE: "fit a device", plan.FIRST: "first models", plan.FAMILIES: "every family",
    plan.SHARED: "ranks that share", plan.REST: "the rest", plan.PAGE: "pages",
}  # fmt: skip


def planned(devices: int) -> Plan:
    return Plan.of(scenarios.FULL, "NVIDIA H100 80GB HBM3", devices, "../cluster.yaml", "")


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (1, [plan.FIRST, plan.SHARED, plan.REST]),
        (2, [plan.FIRST, plan.FAMILIES, plan.SHARED, plan.REST]),
        (3, [plan.FIRST, plan.FAMILIES, plan.SHARED, plan.REST]),
        (4, [plan.FIRST, plan.FAMILIES, plan.REST]),
        (8, [plan.FIRST, plan.FAMILIES, plan.REST]),
    ],
)
def test_parts_are_those_of_the_machine_and_fit_into_its_limit(devices: int, names: list[str]) -> None:
    machines = planned(devices)
    assert [part.name for part in machines.parts] == [plan.CALIBRATE, plan.DEVICE, *names, plan.PAGE]
    assert machines.expected_s == sum(part.expected_s for part in machines.parts)
    assert all(part.expected_s > 0 for part in machines.parts)
    assert machines.expected_s < machines.limit_s <= 1.25 * machines.expected_s + 300
    lines = list(machines.lines(machines.limit_s, []))
    assert "not measured on GPUs yet" in lines[0]
    assert "once is enough" in "".join(lines)
    assert "later run" not in "".join(lines)


def test_a_short_limit_is_said_to_need_several_runs() -> None:
    eight = planned(8)
    limit_s = eight.expected_s / 2.5
    lines = list(eight.lines(limit_s, []))
    assert "run it 3 times; each continues the one before" in "".join(lines)
    assert [line.split("  ")[1] for line in lines if line.endswith("later run")] == [plan.FAMILIES, plan.REST]


def row(words: str) -> list[str]:
    """Cells of the row of the page's table that begins with some words."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {words}"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_the_page_shows_the_plan_of_each_machine() -> None:
    plans = [planned(devices) for devices in (1, 2, 3, 4, 8)]
    for name, words in ROWS.items():
        parts = [{part.name: part.expected_s for part in one.parts}.get(name) for one in plans]
        assert row(words) == ["–" if seconds is None else minutes(seconds) for seconds in parts]
    assert row("in all") == [minutes(one.expected_s) for one in plans]
    assert row("limit") == [minutes(one.limit_s) for one in plans]


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
