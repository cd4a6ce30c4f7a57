"""The page of claims, from the file that the command writes; and damaged files of any page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scaleproof
from scaleproof.reports.pages.page import build
from scaleproof.simulator.common.errors import InputError


def test_claims_have_a_page_with_their_verdicts(tmp_path: Path) -> None:
    assert scaleproof.main(["claims", "batches-hide-it", "--out", str(tmp_path)]) == 0
    page = build(tmp_path).path.read_text(encoding="utf-8")
    assert "<h1>Larger batches hide communication: true only for samples a worker" in page
    assert "data:image/png" in page
    assert (tmp_path / "tables/claims.csv").read_text().startswith("name,claim,predicted,measured")


def test_many_claims_are_listed_with_their_verdicts_instead_of_in_the_bar(tmp_path: Path) -> None:
    claims = [{"name": f"c{i}", "claim": f"Claim {i}.", "predicted": {"verdict": "holds"}} for i in range(20)]
    for number, has_list in ((20, True), (3, False)):
        (tmp_path / "claims.json").write_text(json.dumps(claims[:number]))
        page = build(tmp_path).path.read_text(encoding="utf-8")
        assert ('<a href="#c2">Claim 2.</a><span>True</span>' in page) == has_list
        assert ('<a href="#c2">c2</a>' in page) != has_list


@pytest.mark.parametrize("name", ["claims.json", "collectives.json", "crossover.json", "events.json", "fit.json"])
def test_files_that_cannot_be_read_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{")
    with pytest.raises(InputError, match=f"{name}: cannot be read"):
        build(tmp_path)
