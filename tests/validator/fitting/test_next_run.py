"""The run to measure next: theory of one more measurement, and the layouts that it is chosen from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.scenario.load import load
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting.fitted_constants import CONSTANTS, Posterior, fitted
from scaleproof.validator.fitting.next_run import deviation_after, layout_key, ranked
from scaleproof.validator.fitting.observations import observed
from tests.validator.fitting.tables import LAYOUTS, REFERENCE, table


def posterior(covariance: np.ndarray) -> Posterior:
    count = len(covariance)
    return Posterior(CONSTANTS[:count], np.zeros(count), covariance, 0.05, 1.0, 1, 1)


def test_the_variance_after_one_more_run_is_that_of_a_gaussian() -> None:
    covariance = np.array([[1.0, 0.3], [0.3, 0.5]])
    target, run, noise = np.array([0.2, 0.4]), np.array([0.5, -0.1]), 0.05
    after = np.linalg.inv(np.linalg.inv(covariance) + np.outer(run, run) / noise**2)
    assert deviation_after(posterior(covariance), target, run, noise) == pytest.approx(np.sqrt(target @ after @ target))


def test_a_run_that_shares_nothing_with_the_target_teaches_nothing_about_it() -> None:
    known = posterior(np.eye(2))
    target = np.array([0.3, 0.0])
    assert deviation_after(known, target, np.array([0.0, 1.0]), 0.05) == pytest.approx(0.3)
    exact, rough = (deviation_after(known, target, target, noise) for noise in (0.05, 0.2))
    assert exact < rough < 0.3


@pytest.mark.full
def test_candidates_are_unmeasured_layouts_on_few_gpus_the_best_first(tmp_path: Path) -> None:
    runs = observed([table(tmp_path / "runs.csv", {}, LAYOUTS[:1])], REFERENCE, [], ImportNotes())
    found = ranked(fitted(runs), load(REFERENCE), runs)
    assert len(found) > 5
    assert {one.scenario.strategy.training_ranks for one in found} <= {1, 2, 4, 8}
    assert layout_key(runs[0].scenario) not in {layout_key(one.scenario) for one in found}
    deviations = [one.deviation for one in found]
    assert deviations == sorted(deviations)
    larger = ranked(fitted(runs), load(REFERENCE), runs, most_gpus=32)
    assert max(one.scenario.strategy.training_ranks for one in larger) == 32
