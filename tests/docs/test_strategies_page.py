"""docs/reference/strategies.md: its pictures are of today, its tables name every field, its schedules are all."""

from __future__ import annotations

import itertools
import json
import re
import runpy
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from PIL import Image

from scaleproof.reports.timeline.step import typical_step
from scaleproof.simulator.common.units import format_time_s
from scaleproof.simulator.parallelism.stages import ScheduleName
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "strategies.md").read_text()
PICTURES = ROOT / "docs" / "pictures"
COMMANDS: list[list[str]] = runpy.run_path(str(ROOT / "docs" / "scripts" / "pictures.py"))["commands"]()
SECTIONS: dict[str, str] = dict(re.findall(r"^## [^\n]*`(\w+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
DEFAULTS = {"0 s": 0.0, "25 MiB": 25 * 2.0**20}


def drawn(command: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a command's picture says that it shows, and what it would show if it was drawn now."""
    timeline, name, *options = command
    assert timeline == "timeline"
    overrides = [value for option, value in itertools.pairwise(options) if option == "--set"]
    with Image.open(ROOT / options[options.index("--out") + 1]) as picture:
        shown = json.loads(picture.info["Description"])
    step = typical_step(predict(load(name, overrides)))
    assert step is not None
    return shown, step.facts()


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: Path(command[-1]).stem)
def test_pictures_show_current_predictions(command: list[str]) -> None:
    shown, now = drawn(command)
    redraw = "draw them again: python docs/scripts/pictures.py"
    assert shown["strategy"] == now["strategy"], redraw
    assert shown["step_ms"] == pytest.approx(now["step_ms"], rel=1e-6), redraw
    assert shown["kinds"].keys() == now["kinds"].keys(), redraw
    for kind, sums in now["kinds"].items():
        assert shown["kinds"][kind] == pytest.approx(sums, rel=1e-6), redraw


def test_every_picture_is_shown_and_every_command_has_one() -> None:
    shown = set(re.findall(r"!\[[^\]]+\]\(../pictures/([\w.-]+)\)", PAGE))
    assert shown == {path.name for path in PICTURES.iterdir()}
    assert {f"docs/pictures/{name}" for name in shown} == {command[-1] for command in COMMANDS}


def test_pictures_are_small() -> None:
    sizes = [path.stat().st_size for path in PICTURES.iterdir()]
    assert max(sizes) < 100_000
    assert sum(sizes) < 1_500_000


def test_every_schedule_has_a_picture_and_a_formula() -> None:
    for schedule in get_args(ScheduleName):
        assert f"--out docs/pictures/{schedule.replace('_', '-')}.png" in PAGE
        assert re.search(rf"^\|[^|]*`{schedule}`", SECTIONS["pipeline"], re.MULTILINE)


def rows(kind: str) -> dict[str, Any]:
    """The fields that a family's table names, with their defaults."""
    found: dict[str, Any] = {}
    _, _, table = SECTIONS[kind].partition("| field | default | is |\n|---|---|---|\n")
    for names, defaults in re.findall(r"^\| ([^|]*) \| ([^|]*) \|", table, re.MULTILINE):
        values = (DEFAULTS.get(text, yaml.safe_load(text)) for text in re.findall(r"`([^`]*)`", defaults))
        found |= dict(zip(re.findall(r"`(\w+)`", names), values, strict=True))
    return found


@pytest.mark.parametrize("kind", SECTIONS)
def test_tables_name_every_field_with_its_default(kind: str) -> None:
    strategy = KINDS.find(kind)
    assert strategy is not None
    fields = {field.alias or name: field.default for name, field in strategy.model_fields.items() if name != "kind"}
    redraw = rows(kind)
    if kind == "hybrid":
        redraw |= rows("data_parallel") | rows("pipeline") | {"overlap": False}
    assert redraw == {name: list(default) if isinstance(default, tuple) else default for name, default in fields.items()}


def test_every_family_has_a_section() -> None:
    assert sorted(SECTIONS) == sorted(KINDS.names())


# --- statements of the page about times, with one GPU per node, links without latency and nothing else that takes time


def seconds(strategy: str, *more: str) -> tuple[float, float]:
    """Exposed communication of a step, and the time in which a link carries S in one direction (S/B)."""
    kept = (
        "framework=ideal", "cluster.node.devices=1", "cluster.network.latency=0", "cluster.collectives={library: fastest}",
        "cluster.node.memory_bandwidth=1 EB/s", "batch={per_worker: 4}",
    )  # fmt: skip
    scenario = load("resnet50-ring-p100", [*kept, f"strategy={strategy}", *more])
    run = timed(scenario)
    compute_s = run.breakdown_s["compute"] + run.breakdown_s["slowest_rank"]
    assert scenario.cluster.network is not None
    return run.step_time_s - compute_s, 4.0 * scenario.model.parameters() / scenario.cluster.network.bandwidth_Bps


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_gathering_takes_n_times_as_long_as_a_ring(workers: int) -> None:
    assert "2·(n−1)·S/B, n times as long as a ring. Two workers take 2·S/B already, and a ring of two S/B" in flat(PAGE)
    gather_s, whole_s = seconds(f"{{kind: gather_average, workers: {workers}}}")
    ring_s, _ = seconds(f"{{kind: data_parallel, workers: {workers}, algorithm: ring, overlap: false, bucket: 64 GiB}}")
    assert gather_s == pytest.approx(2 * (workers - 1) * whole_s, rel=0.02)
    assert ring_s == pytest.approx(2 * (workers - 1) / workers * whole_s, rel=0.01)


@pytest.mark.parametrize(("workers", "servers"), [(4, 1), (4, 2), (4, 8), (2, 1)])
def test_servers_take_the_stated_time_of_the_busier_link(workers: int, servers: int) -> None:
    assert "at least 2·max(1, n/k)·S/B a step where each has its own link" in flat(PAGE)
    numbers = f"kind: parameter_server, workers: {workers}, servers: {servers}"
    synchronous_s, whole_s = seconds(f"{{{numbers}}}")
    assert synchronous_s == pytest.approx(2 * max(1, workers / servers) * whole_s, rel=0.02)
    asynchronous_s, _ = seconds(f"{{{numbers}, mode: asynchronous}}")
    assert asynchronous_s >= 0.98 * min(2.0, workers / servers) * whole_s
    assert asynchronous_s < synchronous_s * 1.001


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_colocated_servers_of_all_nodes_carry_as_much_as_a_ring(workers: int) -> None:
    assert "each link carries 2·(n−1)/n·S in each direction, as in a ring" in flat(PAGE)
    numbers = f"kind: parameter_server, workers: {workers}, servers: {workers}, placement: colocated"
    servers_s, whole_s = seconds(f"{{{numbers}}}")
    assert servers_s == pytest.approx(2 * (workers - 1) / workers * whole_s, rel=0.02)


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ("`expert: 4` (`expert_tensor: 4`)", ("expert=4",)),
        ("`expert: 8, expert_tensor: 1`", ("expert=8", "expert_tensor=1")),
        ("... `overlap_experts: true`", ("expert=8", "expert_tensor=1", "overlap_experts=true")),
    ],
)
def test_the_table_of_experts_has_todays_predictions(row: str, options: tuple[str, ...]) -> None:
    given = "tensor=4", "sequence_parallel=true", "workers=4", "microbatches=64", *options
    scenario = load("mixtral-8x7b-experts-h100", [*(f"strategy.{one}" for one in given), "batch.per_worker=64"])
    run = predict(scenario, interval=False)
    assert run.memory_bytes is not None
    step, exposed, parameters = (
        format_time_s(run.step_time_s), format_time_s(run.breakdown_s["exposed_communication"]),
        f"{run.memory_bytes['parameters'] / 2**30:.1f} GiB",
    )  # fmt: skip
    assert f"| {row} | {step} | {exposed} | {parameters} |" in PAGE


def flat(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())
