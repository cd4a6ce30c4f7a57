"""Evaluation of claims: where they hold, and the borders between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaleproof.proof.claims.claim import Claim, names, read
from scaleproof.proof.claims.evaluate import TOLERANCE, evaluate
from scaleproof.simulator.common.errors import InputError, ScenarioError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from tests.proof.claims.example import CLAIM, claim
from tests.validator.verdicts import in_bulk

# Verdicts of shipped claims. A change of the model that changes one needs a review.
VERDICTS = {
    "a-fraction-each": "does not hold",
    "asynchrony-is-faster": "holds",
    "asynchrony-is-stale": "holds when",
    "batches-hide-it": "holds when",
    "branches-suit-it": "holds",
    "compression-on-slow-networks": "holds when",
    "data-parallelism-needs-room": "holds when",
    "horovod-is-a-server": "does not hold",
    "hybrids-for-large-models": "holds when",
    "inside-one-machine": "holds when",
    "later-layers-wait": "holds",
    "never-parallel": "does not hold",
    "one-server-is-full": "holds when",
    "parameters-dominate": "does not hold",
    "pipelining-mends-it": "holds when",
    "rings-scale-linearly": "holds when",
    "servers-divide-the-model": "does not hold",
    "servers-reach-half": "holds when",
    "shards-need-weights": "holds when",
    "then-the-network-is": "holds",
    "trials-side-by-side": "holds when",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("claims")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    found: list[Run] = []
    evaluate(
        claim(folder, axis={"name": "x", "values": [1]}), forecast=lambda scenario: found.append(timed(scenario)) or found[0]
    )  # type: ignore[func-returns-value]
    return found[0]


def step_forecast(run: Run, border: float, below: float, above: float) -> Any:
    """A prediction whose efficiency changes at a bandwidth."""

    def forecast(scenario: Scenario) -> Run:
        network = scenario.cluster.network
        assert network is not None
        share = below if network.bandwidth_Bps * 8 / 1e9 < border else above
        return replace(run, breakdown_s=dict(run.breakdown_s) | {"compute": share * run.step_time_s})

    return forecast


@given(border=st.floats(1.1, 99), rises=st.booleans())
def test_borders_between_real_numbers_are_found_to_the_tolerance(folder: Path, run: Run, border: float, rises: bool) -> None:
    shares = (0.2, 0.9) if rises else (0.9, 0.2)
    found = evaluate(claim(folder), forecast=step_forecast(run, border, *shares))
    assert found.verdict == "holds when"
    assert found.borders is not None
    assert found.borders == pytest.approx((border,), rel=TOLERANCE)
    assert ("≥" if rises else "≤") in found.condition


@given(border=st.integers(2, 64), rises=st.booleans())
def test_borders_of_whole_numbers_are_exact(folder: Path, run: Run, border: int, rises: bool) -> None:
    axis = {"name": "speed", "set": {"cluster.network.bandwidth": "$x Gbit/s"}, "from": 1, "to": 64, "whole": True}
    shares = (0.2, 0.9) if rises else (0.9, 0.2)
    found = evaluate(claim(folder, axis=axis), forecast=step_forecast(run, border, *shares))
    assert found.condition == (f"speed ≥ {border}" if rises else f"speed ≤ {border - 1}")


def test_a_claim_can_hold_between_two_borders(folder: Path, run: Run) -> None:
    def forecast(scenario: Scenario) -> Run:
        assert scenario.cluster.network is not None
        share = scenario.cluster.network.bandwidth_Bps * 8 / 1e11
        return replace(run, breakdown_s=dict(run.breakdown_s) | {"compute": share * run.step_time_s})

    found = evaluate(claim(folder, test={"of": "ring", "at_least": 0.04, "at_most": 0.16}), forecast=forecast)
    assert found.borders == pytest.approx((4, 16), rel=TOLERANCE)
    assert found.condition.startswith("bandwidth ")
    assert " between " in found.condition
    (stretch,) = found.stretches
    assert (stretch.begin, stretch.end) == found.borders


@given(low=st.floats(0.1, 0.8), width=st.floats(1.05, 1.2), rises=st.booleans())
@example(low=0.5002052641848211, width=1.0546875, rises=False)
def test_a_band_narrower_than_the_spacing_of_points_is_found(
    folder: Path, run: Run, low: float, width: float, rises: bool
) -> None:
    def forecast(scenario: Scenario) -> Run:
        assert scenario.cluster.network is not None
        share = scenario.cluster.network.bandwidth_Bps * 8 / 1e11
        return replace(
            run, breakdown_s=dict(run.breakdown_s) | {"compute": (share if rises else 0.01 / share) * run.step_time_s}
        )

    axis = CLAIM["axis"] | {"points": 2}
    high = low * width
    found = evaluate(claim(folder, axis=axis, test={"of": "ring", "at_least": low, "at_most": high}), forecast=forecast)
    assert found.verdict == "holds when"
    assert found.borders is not None
    expected = (low * 100, high * 100) if rises else (1 / high, 1 / low)
    assert found.borders == pytest.approx(expected, rel=TOLERANCE)
    assert len(found.stretches) == 1
    assert [point.holds for point in found.points] == [False, True, False], "a table shows the stretch"


@pytest.mark.parametrize(("share", "verdict"), [(0.9, "holds"), (0.1, "does not hold")])
def test_a_claim_can_hold_everywhere_or_nowhere(folder: Path, run: Run, share: float, verdict: str) -> None:
    found = evaluate(claim(folder), forecast=step_forecast(run, 1e6, share, share))
    assert (found.verdict, found.condition, found.borders) == (verdict, "", ())


def test_listed_values_have_no_borders_and_are_listed(folder: Path, run: Run) -> None:
    axis = {"name": "bandwidth", "unit": "Gbit/s", "set": {"cluster.network.bandwidth": "$x Gbit/s"}, "values": [1, 10, 100]}
    found = evaluate(claim(folder, axis=axis), forecast=step_forecast(run, 5, 0.1, 0.9))
    assert found.borders is None
    assert found.condition == "bandwidth 10 Gbit/s or 100 Gbit/s; not 1 Gbit/s"


def test_only_points_where_the_claim_applies_count(folder: Path, run: Run) -> None:
    where = {"of": "one worker", "at_least": 0.5}
    telling = {"of": "ring", "at_least": 0.5, "where": where}
    found = evaluate(claim(folder, test=telling), forecast=step_forecast(run, 5, 0.1, 0.9))
    assert found.verdict == "holds"
    assert len(found.telling) < len(found.points)
    with pytest.raises(InputError, match="nowhere on the axis"):
        evaluate(claim(folder, test=telling), forecast=step_forecast(run, 5, 0.1, 0.2))


def test_invalid_scenarios_are_reported_with_their_override(folder: Path) -> None:
    with pytest.raises(ScenarioError, match="100 ranks for 8 devices"):
        evaluate(claim(folder, lines={"ring": {"strategy.workers": 100}}))


@pytest.mark.parametrize("name", [*names()[::3], *in_bulk(*(name for name in names() if name not in names()[::3]))])
def test_shipped_claims_have_the_expected_verdicts(name: str) -> None:
    found: Claim = read(name)
    result = evaluate(found)
    assert result.verdict == VERDICTS[name]
    assert (result.condition != "") == (result.verdict == "holds when")


def test_measured_claims_are_predicted_too() -> None:
    for name in ("later-layers-wait", "trials-side-by-side", "never-parallel"):
        found = read(name)
        assert found.netlab is not None
        assert evaluate(found, found.netlab).verdict == VERDICTS[name]
