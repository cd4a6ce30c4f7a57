"""Interpretation of a study: which axes are strategies, sizes, or circumstances."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scaleproof.reports.read.study import studied
from scaleproof.reports.read.study_folder import read
from tests.reports.studies import SCENARIO, write_study


def _study(folder: Path, axes: Mapping[str, Any], **more: Any) -> Any:
    return studied(read(write_study(folder, {"scenario": SCENARIO, "axes": axes, **more}, intervals=False)))


def test_parts_become_lines_workers_sizes_and_links_circumstances(swept: Path) -> None:
    study = studied(read(swept))
    assert study.lines == ["ring", "servers"]
    assert study.strategies
    assert study.across == "GPUs"
    assert [one.name for one in study.circumstances] == ["network bandwidth"]
    assert study.circumstances[0].words == ("10 Gbit/s", "40 Gbit/s")
    assert study.circumstances[0].numbers == pytest.approx((1.25e9, 5e9))
    # servers do not train
    assert study.points["gpus"].tolist() == [2, 2, 4, 4, 8, 8] * 2
    assert study.unit == "samples"
    best = study.best
    assert best is not None
    assert (best["line"], best["gpus"], best["choices"]) == ("ring", 8, ("40 Gbit/s",))
    assert best["rate_low"] < best["rate"] < best["rate_high"]
    assert study.choices[0] == ("40 Gbit/s",)


def test_without_sizes_a_circumstance_is_the_x_axis(tmp_path: Path) -> None:
    study = _study(tmp_path, {"cluster.network.latency": ["1 us", "10 us", "100 us"], "strategy.workers": [4]})
    assert study.across == "network latency"
    assert study.points["x"].tolist() == pytest.approx([1e-6, 1e-5, 1e-4])
    assert study.points["x_words"].tolist() == ["1 us", "10 us", "100 us"]
    assert study.lines == ["data parallel"] or study.lines == ["workers 4"]


@pytest.mark.parametrize(
    ("axes", "more", "lines"),
    [
        ({"training.zero": [0, 3], "strategy.workers": [2, 4]}, {}, {"DP", "ZeRO-3 (FSDP)"}),
        ({"training.recompute": ["none", "full"]}, {}, {"recompute none", "recompute full"}),
        ({"cluster": ["dgx-h100", "dgx-b200"], "cluster.node.price": ["30 USD/h", "40 USD/h"]},
         {"zip": [["cluster", "cluster.node.price"]]}, {"H100", "B200"}),
        ({"cluster": {"ours": "dgx-h100", "theirs": "dgx-b200"}, "cluster.node.price": ["30 USD/h", "40 USD/h"]},
         {"zip": [["cluster", "cluster.node.price"]]}, {"ours", "theirs"}),
        ({"strategy": {"dp-2": {"kind": "data_parallel", "workers": 2}, "dp-4": {"kind": "data_parallel", "workers": 4},
                       "pp-2": {"kind": "pipeline", "stages": 2}}}, {}, {"dp", "pp-2"}),
        ({"strategy": {"mb-2": {"kind": "pipeline", "stages": 2, "microbatches": 2},
                       "mb-4": {"kind": "pipeline", "stages": 2, "microbatches": 4}}}, {}, {"mb-2", "mb-4"}),
    ],
)  # fmt: skip
def test_alternatives_have_short_names(axes: Any, more: Any, lines: set[str], tmp_path: Path) -> None:
    study = _study(tmp_path, axes, **more)
    assert set(study.lines) == lines
    assert study.across == "GPUs"


def test_axes_are_inferred_from_columns_where_the_study_is_missing(swept: Path, tmp_path: Path) -> None:
    shutil.copytree(swept, tmp_path / "swept")
    (tmp_path / "swept/study.json").write_text(json.dumps({}))
    study = studied(read(tmp_path / "swept"))
    assert study.lines == ["ring", "servers"]
    assert [one.name for one in study.circumstances] == ["network bandwidth Bps"]
    # ranks not known as servers count as training
    assert study.points["gpus"].max() == 10
