"""The file of a fit is a framework like any other: every command predicts with it, with the posterior's intervals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import ScenarioError
from scaleproof.simulator.common.yaml_file import parse
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.dump import dump
from scaleproof.simulator.scenario.load import build, load
from scaleproof.validator.calibration.imports.reading import ImportNotes
from scaleproof.validator.fitting import fit_file
from scaleproof.validator.fitting.constants import constant_named
from scaleproof.validator.fitting.fit_file import with_posterior
from scaleproof.validator.fitting.fitted_constants import Posterior, fitted
from scaleproof.validator.fitting.observations import observed
from tests.validator.fitting.tables import LAYOUTS, REFERENCE, step_s, table

TRUTH = {"kernel_scale": 1.15, "node.link.bandwidth": 0.75}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Posterior]:
    folder = tmp_path_factory.mktemp("fit")
    runs = observed([table(folder / "runs.csv", TRUTH)], REFERENCE, [], ImportNotes())
    posterior = fitted(runs)
    fit_file.write(folder / "mine.yaml", posterior, runs, load(REFERENCE))
    return folder / "mine.yaml", posterior


@pytest.mark.full
def test_a_scenario_with_the_file_is_the_one_of_the_posterior(written: tuple[Path, Posterior]) -> None:
    path, posterior = written
    loaded, direct = load(REFERENCE, [f"framework={path}"]), with_posterior(load(REFERENCE), posterior)
    assert loaded.framework.name == "mine"
    run, expected = timed(loaded, interval=True), timed(direct, interval=True)
    assert run.step_time_s == pytest.approx(expected.step_time_s, rel=2e-3)
    assert run.prediction_interval_s == pytest.approx(expected.prediction_interval_s, rel=0.02)


@pytest.mark.full
def test_other_layouts_are_predicted_with_narrower_intervals(written: tuple[Path, Posterior]) -> None:
    path, _ = written
    layout = {"tp": 2, "pp": 2, "dp": 2, "micro_batch": 4}
    overrides = [f"{name}={value}" for name, value in layout.items()]
    before = timed(load(REFERENCE, overrides), interval=True)
    after = timed(load(REFERENCE, [*overrides, f"framework={path}"]), interval=True)
    true_s = step_s(layout, TRUTH)
    assert abs(after.step_time_s / true_s - 1) < 0.5 * abs(before.step_time_s / true_s - 1)
    assert before.prediction_interval_s is not None
    assert after.prediction_interval_s is not None
    low, high = after.prediction_interval_s
    assert low < true_s < high
    assert high / low < before.prediction_interval_s[1] / before.prediction_interval_s[0]


def test_what_runs_did_not_teach_keeps_the_clusters_interval() -> None:
    """A posterior as wide as its prior is no knowledge, however narrow that prior is."""
    reference = load(REFERENCE, ["cluster=gb300-nvl72"])
    constants = tuple(constant_named(name) for name in ("kernel_scale", "network.bandwidth"))
    nothing = Posterior(constants, np.zeros(2), np.eye(2), noise=0.08, model_error=1.0, runs=1, nodes=1)
    assert with_posterior(reference, nothing).cluster.uncertainty == reference.cluster.uncertainty
    kernels = with_posterior(reference, replace(nothing, covariance=np.diag([0.25, 1.0]))).cluster
    assert QUANTITIES["device"].deviation(kernels) == pytest.approx(0.5 * constants[0].prior.factor, rel=0.01)
    assert list(kernels.uncertainty) == ["device"]
    assert not with_posterior(reference, nothing).framework_is_default


def test_sources_name_the_runs(written: tuple[Path, Posterior]) -> None:
    framework = load(REFERENCE, [f"framework={written[0]}"]).framework
    assert "runs.csv:2" in framework.sources["fit"]
    assert "90 % interval" in framework.sources["kernel_scale"]


def test_the_cluster_changes_only_under_its_name(written: tuple[Path, Posterior]) -> None:
    path, posterior = written
    fit, other = load(REFERENCE, [f"framework={path}"]), load(REFERENCE, [f"framework={path}", "cluster=dgx-h100"])
    assert fit.cluster.model_error == pytest.approx(posterior.model_error, rel=1e-3)
    assert fit.cluster.uncertainty["device"].measurements == len(LAYOUTS)
    assert other.cluster == load(REFERENCE, ["cluster=dgx-h100"]).cluster
    assert other.framework == fit.framework


def test_later_overrides_of_the_cluster_win(written: tuple[Path, Posterior]) -> None:
    loaded = load(REFERENCE, [f"framework={written[0]}", "cluster.model_error=2"])
    assert loaded.cluster.model_error == 2


def test_fitted_scenarios_can_be_written_and_read(written: tuple[Path, Posterior]) -> None:
    loaded = load(REFERENCE, [f"framework={written[0]}"])
    again = build(parse(dump(loaded), "again.yaml"), Path("again.yaml"))
    assert again == loaded


@pytest.mark.full
def test_a_fit_of_a_fit_keeps_what_it_has(written: tuple[Path, Posterior], tmp_path: Path) -> None:
    runs = observed([table(tmp_path / "runs.csv", TRUTH)], REFERENCE, [f"framework={written[0]}"], ImportNotes())
    again = fitted(runs)
    scenario = load(REFERENCE, [f"framework={written[0]}"])
    fit_file.write(tmp_path / "twice.yaml", again, runs, scenario)
    twice = load(REFERENCE, [f"framework={tmp_path / 'twice.yaml'}"])
    assert twice.framework.kernel_scale == pytest.approx(scenario.framework.kernel_scale, rel=0.03)


def test_wrong_changes_of_a_cluster_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("base: nanotron\ncluster: aws-p5\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"framework.cluster: expected a mapping with the name of a cluster"):
        load(REFERENCE, [f"framework={path}"])
