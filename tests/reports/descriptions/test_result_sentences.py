"""The words of a page of reconciled runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scaleproof.reports.descriptions.result_sentences import facts, headline
from scaleproof.reports.read.results import Case, Results
from scaleproof.reports.read.verdict import verdict
from scaleproof.reports.text import percent
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.schema import Scenario

Make = Callable[..., Scenario]


def case(small: Make, name: str, error: float, disturbed: str = "") -> Case:
    """A reconciled case with an error of its prediction."""
    predicted = predict(small(), interval=False)
    provenance = {"disturbed": disturbed} if disturbed else {}
    measured = replace(predicted, origin="measured", step_time_s=predicted.step_time_s / (1 + error), provenance=provenance)
    return Case(name, "data_parallel", "data_parallel", 4, 4, predicted, measured)


def test_disturbed_runs_count_neither_in_the_headline_nor_in_the_figures(small: Make) -> None:
    quiet = [case(small, "ring", 0.02), case(small, "servers", -0.04)]
    busy = case(small, "pipeline", 0.7, "other work used 61 % of the cores during the run")
    results = Results((*quiet, busy))
    text = f"Predictions of 2 runs are off by {percent(0.03)} at the median; the worst, servers, by {percent(0.04)}"
    assert headline(Results(tuple(quiet))) == text
    assert headline(results) == f"{text}; left out: 1 run that other work disturbed"
    assert facts(results)[0] == ("2 of 3", "scenarios compared, 1 disturbed by other work")
    assert (percent(0.03), "median error") in facts(results)
    assert [verdict(one, None).grade for one in results.cases] == ["close", "close", "missing"]
    assert verdict(busy, None).words == "disturbed, not counted"


def test_where_all_runs_were_disturbed_nothing_is_said_about_predictions(small: Make) -> None:
    results = Results((case(small, "ring", 0.7, "other work"), case(small, "servers", -0.4, "other work")))
    assert headline(results) == (
        "Other work disturbed 2 measured runs, so that nothing follows about predictions; measure again on a quiet machine"
    )
    assert facts(results) == [("0 of 2", "scenarios compared, since other work disturbed all measurements")]
