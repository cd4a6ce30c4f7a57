"""Formatting of numbers and findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from scaleproof.reports import text
from scaleproof.reports.descriptions import result_sentences
from scaleproof.reports.read.results import Case, Results, read
from scaleproof.reports.read.verdict import verdict
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.bottleneck import bound
from scaleproof.simulator.run.files import save
from scaleproof.simulator.scenario.load import load
from tests.reports.example import CASES, make_run

_NARROW = "\N{NARROW NO-BREAK SPACE}"


def _case(error: float, name: str = "a") -> Case:
    row = (name, "pipeline", 2, 0, 0.1, error)
    return Case(name, "pipeline", "", 2, 2, make_run("predicted", row), make_run("measured", row))


def test_headline_gives_the_median_and_the_largest_error(eight: Path) -> None:
    expected = median(abs(case[5]) for case in CASES)
    assert result_sentences.headline(read(eight)) == (
        f"Predictions of 8 runs are off by {expected * 100:.1f}{_NARROW}% at the median; the worst, server-4, by 14{_NARROW}%"
    )


def test_headline_without_a_comparison() -> None:
    case = replace(_case(0.0), measured=None)
    assert result_sentences.headline(Results((case,))) == "a: 320 samples/s on 2 ranks; compute-bound"
    assert "none of them both predicted and measured" in result_sentences.headline(Results((case, case)))
    assert "Nothing to show" in result_sentences.headline(Results())


def test_a_run_out_of_memory_has_no_efficiency_and_a_time_under_a_condition() -> None:
    run = replace(_case(0.0).runs[0], fits=False)
    words = [meaning for _, meaning in result_sentences.facts(Results((replace(_case(0.0), predicted=run, measured=None),)))]
    assert words[0].endswith(", if memory sufficed")
    assert "weak scaling efficiency" not in words
    fitting = Results((replace(_case(0.0), measured=None),))
    assert "weak scaling efficiency" in [meaning for _, meaning in result_sentences.facts(fitting)]


def test_facts_count_cases_within_the_allowed_error() -> None:
    results = Results((_case(0.02), _case(-0.06), _case(0.3), replace(_case(0), measured=None, failure="died")), max_error=0.1)
    numbers = [number for number, _ in result_sentences.facts(results)]
    assert numbers == ["3 of 4", f"6{_NARROW}%", f"+2{_NARROW}%", "2 of 3"]
    assert result_sentences.facts(Results()) == []


@pytest.mark.parametrize(
    ("error", "max_error", "grade"),
    [(0.09, None, "close"), (-0.11, None, "fair"), (0.26, None, "off"), (0.09, 0.05, "off"), (0.09, 0.5, "close")],
)
def test_verdict_grades_the_size_of_the_error(error: float, max_error: float | None, grade: str) -> None:
    assert verdict(_case(error), max_error).grade == grade


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "–"),
        (1.2345, "1,234"),
        (0.1, "100"),
        (0.0999, "99.9"),
        (0.00999, "9.99"),
        (0.0001234, "0.123"),
        (0.0, "0.00"),
        (-0.0042, "−4.20"),
    ],
)
def test_milliseconds_have_three_digits(seconds: float | None, expected: str) -> None:
    assert text.milliseconds(seconds) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(0.062, "+6.2 %"), (-0.144, "−14 %"), (0.0, "0 %"), (0.25, "+25 %"), (None, "–"), (0.0997, "+10 %")]
)
def test_signed_percent(share: float | None, expected: str) -> None:
    assert text.signed_percent(share) == expected.replace(" ", _NARROW)


def test_the_headline_of_a_saved_run_says_what_predict_says(tmp_path: Path) -> None:
    """The host limits small kernels on a fast GPU."""
    model = "model={kind: gpt, layers: 4, hidden: 256, heads: 4, vocabulary: 1000, sequence: 128}"
    scenario = load("llama-2-7b-fsdp-a100", (model, "cluster=dgx-h100", "batch=64", "framework=pytorch-ddp", "training.zero=0"))
    run = predict(scenario, interval=False)
    save(run, tmp_path / "predicted")
    assert bound(run) == "Host-bound"
    assert result_sentences.headline(read(tmp_path)).endswith("; host-bound")
