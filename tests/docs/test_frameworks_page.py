"""docs/guides/frameworks.md: its table has all frameworks that ship, and what it says of defaults is so."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from scaleproof.simulator.frameworks.files import names
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "guides" / "frameworks.md").read_text()
SCRIPT = runpy.run_path(str(DOCS / "scripts" / "tables.py"))
GPUS = ("model=llama-2-7b", "cluster=dgx-h100", "training.precision=bf16")
PICTURES = ("model=resnet50", "cluster=dgx-h100", "training.precision=bf16")
# rows of the table of defaults: what the page says, and scenarios that are so
DEFAULTS = {
    "processors of a CPU": [("model=resnet50", "cluster=netlab-500mbit", "strategy={kind: data_parallel, workers: 2}")],
    "a TPU": [("cluster=tpu-v4-pod", "model=llama-2-7b", "training.precision=bf16")],
    "parameter servers": [(*PICTURES, "strategy={kind: parameter_server, workers: 8, servers: 2}")],
    "a transformer whose layers are divided (tensor, context, expert or pipeline parallelism), ZeRO 0 or 1": [
        (*GPUS, "strategy={kind: hybrid, workers: 2, tensor: 4}"),
        (*GPUS, "strategy={kind: pipeline, stages: 4, microbatches: 8}", "batch=64"),
    ],
    "all else, ZeRO 0": [
        (*GPUS,),
        (*GPUS, "strategy={kind: hybrid, workers: 8}"),
        (*PICTURES, "strategy={kind: pipeline, stages: 4, microbatches: 8}", "batch=64"),
    ],
    "all else, ZeRO 1 or 2": [(*GPUS, "training.zero=1"), (*GPUS, "training.zero=2")],
    "all else, ZeRO 3": [(*GPUS, "training.zero=3")],
}


def scenario(overrides: tuple[str, ...]) -> Scenario:
    base = ["strategy={kind: data_parallel, workers: 8}", "batch={per_worker: 8}"]
    return load("resnet50-ring-p100", [*base, *overrides])


def test_the_table_lists_all_shipped_frameworks() -> None:
    assert f"\n{SCRIPT['frameworks']()}\n" in PAGE, "print it again: python docs/scripts/tables.py"
    assert len(re.findall(r"^\| `", PAGE, re.MULTILINE)) == len(names())


@pytest.mark.parametrize("case", DEFAULTS)
def test_default_frameworks_equal_the_table(case: str) -> None:
    found = re.search(rf"^\| {re.escape(case)} \| (\S+)", PAGE, re.MULTILINE)
    assert found
    assert {scenario(one).framework.name for one in DEFAULTS[case]} == {found[1]}


def test_examples_of_the_page_are_valid_scenarios() -> None:
    examples = re.findall(r"^framework: (\{.*\})$", PAGE, re.MULTILINE)
    assert examples
    for example in examples:
        changed = scenario((*GPUS, "strategy={kind: hybrid, workers: 2, tensor: 4}", f"framework={example}"))
        assert changed.framework.name.endswith(", changed")
