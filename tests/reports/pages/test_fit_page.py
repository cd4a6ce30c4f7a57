"""The page of a fit, from the file that the command writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaleproof
from scaleproof.reports.pages.page import build
from tests.validator.fitting.tables import LAYOUTS, REFERENCE, table

# the fit takes a quarter of a minute
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, truth = tmp_path_factory.mktemp("fit"), {"kernel_scale": 1.2}
    given = table(place / "given.csv", truth, LAYOUTS[:2])
    checked = table(place / "checked.csv", truth, ({"tp": 1, "pp": 1, "dp": 16, "micro_batch": 2}, LAYOUTS[2]))
    command = ["fit", str(given), "--check", str(checked), "--scenario", REFERENCE, "--target", "32", "--page", str(place)]
    assert scaleproof.main(command) == 0
    return place


@pytest.mark.full
def test_it_shows_predictions_by_scale_constants_choice_and_next_run(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "<h1>ultrascale-0072 on 32 GPUs: " in page
    for heading in (
        "Predicted against measured",
        "What the runs taught",
        "The choice among measured layouts",
        "Measure next, of ",
    ):
        assert heading in page
    assert page.count("<small>extrapolated</small>") == 2
    assert {path.name for path in (folder / "figures").glob("*.png")} == {"scale.png", "constants.png"}


@pytest.mark.full
def test_its_tables_have_all_runs_and_constants(folder: Path) -> None:
    runs = (folder / "tables/runs.csv").read_text(encoding="utf-8").splitlines()
    assert len(runs) == 5
    assert [line.split(",")[1] for line in runs[1:]] == ["True", "True", "False", "False"]
    assert (folder / "tables/constants.csv").read_text(encoding="utf-8").splitlines()[1].startswith("kernel_scale,1,")


def test_report_writes_the_page_again(folder: Path) -> None:
    before = (folder / "index.html").read_text(encoding="utf-8")
    assert build(folder).path.read_text(encoding="utf-8") == before
