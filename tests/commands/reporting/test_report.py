"""The command report takes folders, files, and names of what ships."""

from __future__ import annotations

from pathlib import Path

import pytest

import scaleproof


@pytest.mark.parametrize("arguments", [["ring-2"], ["resnet-50", "--set", "cluster=dgx-a100", "--set", "batch=64"]])
def test_a_name_that_ships_is_predicted_first(arguments: list[str], tmp_path: Path) -> None:
    assert scaleproof.main(["report", *arguments, "--out", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page" / "index.html").is_file()


def test_a_name_that_does_not_ship_is_a_missing_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["report", "ring-two-thousand"]) == 2
    assert "ring-two-thousand: no such folder" in capsys.readouterr().err
