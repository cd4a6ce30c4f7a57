"""The ledger records every part; neither failures nor the time limit stop the others."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from scaleproof.simulator.common.errors import RunError
from scaleproof.validator.calibration.gpu_check.ledger import Ledger, NotRunError


def ledger(folder: Path, limit_s: float = 60.0) -> tuple[Ledger, list[str]]:
    reported: list[str] = []
    return Ledger(folder, "a label", time.monotonic() + limit_s, reported.append), reported


def kept(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def fail() -> None:
    raise ValueError("no\nmore of it")


def test_finished_parts_are_printed_and_saved_at_once(tmp_path: Path) -> None:
    own, reported = ledger(tmp_path)

    assert own.part("first", lambda: [1, 2], lambda found: f"{len(found)} numbers", sum) == [1, 2]

    [part] = kept(tmp_path)["parts"]
    assert kept(tmp_path)["label"] == "a label"
    assert (part["part"], part["state"], part["words"], part["result"]) == ("first", "done", "2 numbers", 3)
    assert reported[0].endswith("2 numbers")


def test_a_failed_part_gives_one_line_and_the_next_runs(tmp_path: Path) -> None:
    own, reported = ledger(tmp_path)

    assert own.attempt("first", fail, str) is None
    assert own.attempt("second", lambda: 2, str) == 2

    assert [part["state"] for part in kept(tmp_path)["parts"]] == ["failed", "done"]
    assert reported[0].endswith("failed: ValueError: no")
    assert (own.failed(), own.not_run()) == (["first"], [])
    with pytest.raises(RunError, match="ValueError: no"):
        own.part("third", fail, str)


def test_no_part_begins_after_the_time_limit(tmp_path: Path) -> None:
    own, reported = ledger(tmp_path, limit_s=0.0)

    with pytest.raises(NotRunError):
        own.part("late", fail, str)

    assert reported[0].endswith("not run: out of time")
    assert (own.failed(), own.not_run()) == ([], ["late"])
