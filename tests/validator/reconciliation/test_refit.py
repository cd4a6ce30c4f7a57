"""Refitting recovers a cluster's quantities from runs, and leaves quantities unchanged that runs do not determine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scaleproof.commands.measuring.reconcile import describe_refit
from scaleproof.simulator.cluster.quantities import DEVIATIONS, slowed
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.reconciliation.reconcile import ReconciledCase
from scaleproof.validator.reconciliation.refit import Refit, refit, update

CLUSTER: dict[str, Any] = {
    "name": "lab",
    "nodes": 8,
    "node": {"devices": 1},
    "network": {"bandwidth": "500 Mbit/s", "latency": "60 us"},
    "device": {"name": "cpu", "peak": {"fp32": "50 GFLOP/s"}, "memory": "8 GiB", "memory_bandwidth": "10 GB/s"},
}
MODEL = {"kind": "mlp", "layers": 4, "inputs": 256, "hidden": 512, "outputs": 64}
WORKERS = ((1, 512), (2, 64), (2, 512), (4, 64), (4, 1024), (8, 256))


def scenario(workers: int, samples: int, compute: str = "real", cluster: Mapping[str, Any] = CLUSTER) -> Scenario:
    parts = {"model": MODEL, "strategy": {"kind": "data_parallel", "workers": workers, "overlap": False}}
    name = f"ring-{workers}-{samples}"
    return Scenario.model_validate({"name": name, "cluster": cluster, "batch": {"total": samples}, "compute": compute, **parts})


def measured(one: Scenario, slowdown_interval: Mapping[str, float], off: float = 0.0) -> Run:
    """The scenario on a cluster slowed by given factors, with a common error given as a logarithm."""
    run, factor = timed(one.model_copy(update={"cluster": slowed(one.cluster, slowdown_interval)})), float(np.exp(off))
    parts = {name: seconds * factor for name, seconds in run.breakdown_s.items()}
    return replace(run, origin="measured", step_time_s=run.step_time_s * factor, breakdown_s=parts)


def runs(slowdown_interval: Mapping[str, float], noise: float = 0.0, seed: int = 0) -> list[tuple[Scenario, Run]]:
    draw = np.random.default_rng(seed)
    scenarios = [scenario(*one) for one in WORKERS]
    return [(one, measured(one, slowdown_interval, float(draw.normal(0, noise)))) for one in scenarios]


def refitted(found: list[tuple[Scenario, Run]]) -> Refit:
    return refit(found[0][0].cluster, found)


def slowdown_interval(found: Refit) -> dict[str, float]:
    return {one.quantity: one.slowdown for one in found.changes}


def test_the_refit_recovers_quantities_within_noise() -> None:
    truth, noise = {"network.bandwidth": 1.3, "device": 1.25}, 0.015
    found = refitted(runs(truth, noise))

    assert found.improves
    assert found.median_after < 2 * noise < found.median_before
    for one in found.changes:
        off = np.log(one.slowdown / truth[one.quantity])
        assert abs(off) < 3 * max(noise, one.deviation), one


def test_noise_alone_does_not_change_the_cluster() -> None:
    assert not refitted(runs({}, 0.02, seed=1)).improves


def test_one_outlier_run_does_not_affect_the_refit() -> None:
    found = runs({"network.bandwidth": 1.3}, 0.005)
    one, run = found[3]
    found[3] = (one, replace(run, step_time_s=4 * run.step_time_s))

    assert slowdown_interval(refitted(found))["network.bandwidth"] == pytest.approx(1.3, rel=0.05)


def test_undetermined_quantities_are_unchanged() -> None:
    found = refitted([(one, measured(one, {"device": 1.3})) for one in (scenario(1, 64), scenario(1, 256), scenario(1, 512))])

    assert set(slowdown_interval(found)) == {"device"}
    assert found.cluster.network == scenario(1, 64).cluster.network
    assert "network.bandwidth" not in found.cluster.uncertainty


def test_emulated_runs_do_not_change_the_device() -> None:
    paced = [scenario(*one, compute="paced") for one in WORKERS]
    found = refitted([(one, measured(one, {"network.bandwidth": 1.3})) for one in paced])

    assert set(slowdown_interval(found)) == {"network.bandwidth"}


def test_intervals_combine_the_posterior_and_errors_of_held_out_runs() -> None:
    noise = 0.02
    found = refitted(runs({"network.bandwidth": 1.3}, noise))
    change = next(one for one in found.changes if one.quantity == "network.bandwidth")
    given = found.cluster.uncertainty

    assert change.deviation < 0.05
    assert given["network.bandwidth"].measurements == len(WORKERS)
    assert given["network.bandwidth"].low == change.low
    reach = np.log(float(given["model"].high.removesuffix(" %")) / 100)
    errors = np.array(list(found.errors_after.values()))
    assert reach == pytest.approx(DEVIATIONS * np.sqrt(np.mean(np.log1p(errors) ** 2)), abs=2e-3)


def test_runs_of_one_scenario_are_held_out_as_a_group() -> None:
    one, other = scenario(1, 512), scenario(4, 64)
    found = refitted([(one, measured(one, {"device": 1.3}, off)) for off in (0.0, 0.01)] + [(other, measured(other, {}))])

    assert list(found.errors_after) == ["ring-1-512", "ring-1-512 (2)", "ring-4-64"]
    # with the third run alone, which depends little on the device, predictions do not improve
    assert abs(found.errors_after["ring-1-512"]) > 0.15


def test_runs_of_other_clusters_are_skipped_and_named() -> None:
    other = scenario(2, 128, cluster={**CLUSTER, "name": "other", "network": {"bandwidth": "1 Gbit/s", "latency": "60 us"}})
    here = scenario(2, 96)
    alone = replace(measured(here, {}), provenance={"on": "local"})
    found = refit(here.cluster, [*runs({}), (other, measured(other, {})), (here, alone)])

    assert set(found.left_out) == {"ring-2-128", "ring-2-96"}
    assert "another cluster (other)" in found.left_out["ring-2-128"]
    assert len(found.errors_before) == len(WORKERS)
    assert "not used: ring-2-128" in describe_refit(found, Path("lab.yaml"))


@pytest.mark.parametrize(
    ("count", "what"),
    [(0, "0 measured runs are too few"), (2, "2 measured runs are too few"), (-3, "3 measured runs of the same scenario")],
)
def test_too_few_or_too_similar_runs_give_a_one_line_error(count: int, what: str) -> None:
    found = runs({})[:count] if count >= 0 else [runs({})[0]] * -count

    with pytest.raises(InputError, match=what) as error:
        refit(scenario(1, 512).cluster, found, "lab.yaml")
    assert str(error.value).startswith("lab.yaml: ")
    assert "\n" not in str(error.value)


def cases(found: list[tuple[Scenario, Run]]) -> list[ReconciledCase]:
    failed = ReconciledCase(scenario(8, 64), timed(scenario(8, 64)), None, "rank 3 died")
    return [failed, *(ReconciledCase(one, timed(one), run) for one, run in found)]


def test_an_update_writes_the_file_and_predicts_better(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text("# our lab\n" + yaml.safe_dump(CLUSTER, sort_keys=False))
    found = runs({"network.bandwidth": 1.4, "device": 1.2}, 0.01)
    done = update(path, cases(found))
    cluster = load_cluster(path)

    assert done.improves
    assert path.read_text().startswith("# our lab\n")
    assert "from 6 runs, median error" in cluster.provenance["updated"]
    assert cluster.network is not None
    assert cluster.network.bandwidth_Bps == pytest.approx(62.5e6 / 1.4, rel=0.05)
    assert cluster.uncertainty == done.cluster.uncertainty
    for one, run in found:
        again = timed(one.model_copy(update={"cluster": cluster}))
        assert again.step_time_s == pytest.approx(run.step_time_s, rel=0.05)
    text = describe_refit(done, path)
    assert "network.bandwidth" in text
    assert text.endswith("updated")

    written = path.read_text()
    again = [(one.model_copy(update={"cluster": cluster}), run) for one, run in found]
    assert not update(path, cases(again)).improves
    assert path.read_text() == written


def test_the_file_is_unchanged_if_held_out_runs_are_not_predicted_better(tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(yaml.safe_dump(CLUSTER, sort_keys=False))
    before = path.read_text()
    done = update(path, cases(runs({}, 0.02)))

    assert path.read_text() == before
    assert describe_refit(done, path).endswith("not significantly better predicted")
    assert done.plain()["improves"] is False
