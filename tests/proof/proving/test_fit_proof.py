"""Proofs of `fit`: small runs of a lab slower than described, and predictions of larger ones before and after the fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scaleproof.proof.proving.cases import ProvingCase
from scaleproof.proof.proving.figures import CaseOutcome
from scaleproof.proof.proving.fit_proof import prove_fit
from scaleproof.proof.proving.small_to_large import GIVEN_HOSTS, SmallToLarge
from scaleproof.simulator.common.errors import RankError, RunError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run

DRAW = SmallToLarge(seed=1, compute="real", hosts=5, groups=1, longest_step_s=1.3)


def in_slower_lab(case: ProvingCase) -> Run:
    """The run of a case where links carry the rate that they are limited to."""
    cluster = case.scenario.cluster
    assert cluster.network is not None
    network = cluster.network.model_copy(update={"bandwidth_Bps": case.rate_Bps})
    scenario = case.scenario.model_copy(update={"cluster": cluster.model_copy(update={"network": network})})
    return replace(timed(scenario), origin="measured", provenance={})


def median_error(outcomes: tuple[CaseOutcome, ...]) -> float:
    errors = sorted(abs(outcome.error or 0.0) for outcome in outcomes)
    return errors[len(errors) // 2]


@pytest.mark.full
def test_given_runs_are_on_a_few_hosts_and_unseen_ones_on_more() -> None:
    given, unseen = DRAW.given(), list(DRAW.unseen())
    assert [case.scenario.strategy.training_ranks for case in given] == list(GIVEN_HOSTS)
    assert len({case.family for case in given}) == len(GIVEN_HOSTS)
    assert {case.scenario.strategy.training_ranks for case in unseen} == {5}
    assert [case.scenario.name for case in DRAW.given()] == [case.scenario.name for case in given]


@pytest.mark.full
def test_a_fit_to_small_runs_of_a_slower_lab_brings_predictions_of_larger_ones_closer(tmp_path: Path) -> None:
    reported: list[CaseOutcome] = []
    proof = prove_fit(DRAW, tmp_path, {}, in_slower_lab, reported.append)

    assert len(reported) == len(GIVEN_HOSTS) + len(proof.after)
    assert median_error(proof.after) < 0.7 * median_error(proof.before)
    # measured runs that are known are not measured again
    known = {outcome.name: outcome for outcome in reported}
    again = prove_fit(DRAW, tmp_path, known, never, reported.append)
    assert [outcome.predicted_s for outcome in again.after] == [outcome.predicted_s for outcome in proof.after]


def test_a_given_run_that_fails_ends_the_proof(tmp_path: Path) -> None:
    def failing(case: ProvingCase) -> Run:
        raise RankError("rank 1 died")

    with pytest.raises(RunError, match=r"nothing can be fitted: .*rank 1 died"):
        prove_fit(DRAW, tmp_path, {}, failing, lambda outcome: None)


def never(case: ProvingCase) -> Run:
    raise AssertionError(f"{case.scenario.name} was measured already")
