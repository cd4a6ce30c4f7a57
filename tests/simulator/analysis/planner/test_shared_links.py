"""What a plan quotes is what `predict` gives of its scenarios, on clusters whose links are shared in different ways."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scaleproof.simulator.analysis.planner.record import record_of
from scaleproof.simulator.analysis.planner.search import PlanResult, plan
from scaleproof.simulator.common import yaml_file
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.load import build, load
from scaleproof.simulator.scenario.schema import Scenario
from tests.validator.verdicts import at_night, in_bulk

TOLERANCE = 1e-3
# by how much a random configuration may be faster than the best that was found, where it is not proved to be the best
FOUND = 0.02
GPT = {"kind": "gpt", "hidden": 4096, "heads": 32, "vocabulary": 50257, "sequence": 2048}
LINK = {"bandwidth": "300 GB/s", "latency": "5 us"}


def cluster(nodes: int, devices: int, bandwidth: str, cards: int = 1, **topology: Any) -> dict[str, Any]:
    """A cluster of A100. topology: of a leaf-spine network; a single switch if there is none."""
    network: dict[str, Any] = {"bandwidth": bandwidth, "latency": "20 us"}
    if topology:
        network["topology"] = {"kind": "leaf_spine", **topology}
    node = {"devices": devices, "cards": cards, "link": LINK}
    return {"nodes": nodes, "node": node, "network": network, "device": "a100-80gb-sxm"}


# model, cluster, number of GPUs and global batch
CASES: dict[str, tuple[Any, Any, int, int]] = {
    "small, uplinks 8:1": (GPT | {"layers": 4}, cluster(4, 2, "100 Gbit/s", per_leaf=2, oversubscription=8), 8, 16),
    "small, a card per node": (GPT | {"layers": 4}, cluster(4, 2, "25 Gbit/s"), 8, 16),
    "uplinks 8:1": ("llama-3-8b", cluster(8, 8, "100 Gbit/s", per_leaf=2, oversubscription=8), 64, 128),
    "one switch": ("llama-3-8b", cluster(8, 8, "100 Gbit/s"), 64, 128),
    "leaf-spine": ("llama-3-8b", cluster(8, 8, "8 x 200 Gbit/s", 8, per_leaf=2, oversubscription=1), 64, 128),
    "a card per node": (GPT | {"layers": 32}, cluster(4, 4, "25 Gbit/s"), 16, 64),
    "aws-g5": ("llama-2-7b", "aws-g5", 32, 128),
    "aws-p4d": ("llama-2-13b", "aws-p4d", 64, 128),
    "dgx-h100": ("llama-2-7b", "dgx-h100", 64, 512),
}
QUICK = [name for name in CASES if name.startswith("small")]
AT_NIGHT = ("one switch", "leaf-spine", "aws-g5", "aws-p4d")
EVERY = [*QUICK, *in_bulk(*(name for name in CASES if name not in (*QUICK, *AT_NIGHT))), *at_night(*AT_NIGHT)]


def scenario(name: str) -> Scenario:
    """The scenario of a case."""
    model, of_cluster, gpus, batch = CASES[name]
    strategy = {"kind": "hybrid", "workers": gpus}
    training = {"precision": "bf16", "optimizer": "adam"}
    parts = {"model": model, "cluster": of_cluster, "batch": batch, "strategy": strategy, "training": training}
    return build(yaml_file.parse(yaml.safe_dump(parts), "case.yaml"), Path("case.yaml"))


@lru_cache
def planned(name: str) -> PlanResult:
    return plan(scenario(name), CASES[name][2], top=3)


@pytest.mark.parametrize("name", EVERY)
def test_the_printed_scenario_predicts_what_the_plan_quotes(name: str, tmp_path: Path) -> None:
    record, found = record_of(planned(name), "0"), planned(name)
    file = tmp_path / "best.yaml"
    file.write_text(record.scenario_yaml)
    run = predict(load(file), interval=False, remedy=False)
    assert run.step_time_s == pytest.approx(record.best[0].step_time_s, rel=1e-9)
    assert run.memory_bytes_per_rank == pytest.approx(record.best[0].memory_bytes)
    assert run.fits_probability == pytest.approx(record.best[0].fits_probability)
    assert load(file).strategy == found.best[0].scenario.strategy
    assert load(file).training == found.best[0].scenario.training
    for choice, row in zip(found.best, record.best, strict=True):
        assert timed(choice.scenario).step_time_s == pytest.approx(row.step_time_s, rel=TOLERANCE)
    assert [row.step_time_s for row in record.best] == sorted(row.step_time_s for row in record.best)


@pytest.mark.parametrize("name", EVERY)
def test_no_random_configuration_is_faster_and_bounds_hold(name: str) -> None:
    found, count = planned(name), 60 if name in AT_NIGHT else 10 if name in QUICK else 20
    rows = np.flatnonzero(found.memory_bytes <= found.capacity_bytes)
    # half of them among those that are expected to be the fastest
    near = rows[np.argsort(found.expected_s[rows])][: max(count, len(rows) // 20)]
    generator = np.random.default_rng(0)
    drawn = [*generator.choice(rows, count // 2, replace=False), *generator.choice(near, count // 2, replace=False)]
    times_s = np.array([timed(found.configurations.scenario(int(row))).step_time_s for row in drawn])
    best_s = found.best[0].run.step_time_s
    assert times_s.min() >= best_s * (1 - (TOLERANCE if found.proved else FOUND))
    assert (found.configurations.times(np.array(drawn)).least_s <= times_s * (1 + TOLERANCE)).all()
