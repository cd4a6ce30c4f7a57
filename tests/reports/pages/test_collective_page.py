"""The page of collectives, from the file that the command writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaleproof
from scaleproof.reports.pages.page import build

HEADER = "collective,gpu,n_gpus,n_nodes,gpus_per_node,instance_or_system,size_bytes,time_us_out_of_place,note\n"
ROWS = [f"{op},H100,{ranks},{ranks // 8},8,lab,{2**power},{20 + 2**power / 1e5},\n"
        for op in ("all_reduce", "all_gather") for ranks in (8, 16) for power in (10, 20, 28)]  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + "".join(ROWS))
    return path


def test_every_operation_has_a_figure_and_every_group_its_errors(table: Path, tmp_path: Path) -> None:
    assert scaleproof.main(["collective", "--measured", str(table), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
    assert "<h1>Collectives on lab, H100: 12 times, " in page
    for op in ("all-reduce", "all-gather"):
        assert (tmp_path / f"out/figures/lab-h100-{op}.png").exists()
    assert page.count('<td class="words" data-label="Group">8 ranks on 1 node</td>') == 2
    rows = (tmp_path / "out/tables/collectives.csv").read_text().splitlines()
    assert rows[0] == "system,op,group,size_bytes,predicted_s,low_s,high_s,measured_s,error"
    assert sum(not row.endswith(",,") for row in rows[1:]) == len(ROWS)


def test_a_curve_without_measured_times_has_a_page_too(tmp_path: Path) -> None:
    command = ["collective", "alltoall", "--ranks", "16", "--cluster", "dgx-h100", "--size", "1MiB", "--sweep", "--factor", "4"]
    assert scaleproof.main([*command, "--out", str(tmp_path)]) == 0
    assert "<h1>Collectives on dgx-h100.</h1>" in build(tmp_path).path.read_text(encoding="utf-8")
