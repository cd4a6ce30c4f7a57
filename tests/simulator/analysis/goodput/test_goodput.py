"""Goodput of scenarios: effects of their fields, output of the command, and rejected input."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

import scaleproof
from scaleproof.commands.text.sections import described
from scaleproof.reports.descriptions import goodput as descriptions
from scaleproof.simulator.analysis.goodput import Goodput, goodput
from scaleproof.simulator.analysis.goodput.elastic_sizes import ElasticSizes
from scaleproof.simulator.analysis.goodput.rates import counts, failure_rates
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.errors import FieldError, InputError, ScenarioError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.reliability import COMPONENTS
from scaleproof.simulator.scenario.schema import Scenario
from tests.conftest import SMALL
from tests.simulator.programs import ONLY_COMPUTE

Make = Callable[..., Scenario]
DAY_S = 86400.0


def describe(result: Goodput) -> str:
    return described(descriptions.describe(result))


FAILING = (
    "strategy.workers=24",
    "reliability.mtbf={gpu: 100 d, host: 50 d}",
    "reliability.checkpoint={bandwidth: 10 MB/s}",
    "reliability.detection=5 min",
    "reliability.reschedule=0 s",
    "reliability.initialise=5 min",
)
SPARES = ("reliability.spares=1", "reliability.repair=12 h")
SHRINKING = ("reliability.spares=0", "reliability.repair=12 h", "reliability.shortage=shrink")


def found(make: Make, *sets: str, days: float = 10, samples: int = 30) -> Any:
    return goodput(make(*FAILING, *sets), days, samples)


def test_failure_rates_of_components_add_up(small: Make) -> None:
    """24 GPUs on six nodes of four."""
    job = failure_rates(small(*FAILING))
    assert job.counts == {"gpu": 24, "host": 6, "nic": 6, "switch": 1, "job": 1}
    assert job.times.failures_per_s == pytest.approx((24 / 100 + 6 / 50) / DAY_S)
    assert job.chances.node.per_s * 6 == pytest.approx(job.times.failures_per_s)


@pytest.mark.parametrize(
    ("topology", "switches"),
    [
        ("{kind: switch}", 1),
        ("{kind: leaf_spine, per_leaf: 2, spines: 3}", 3 + 3),
        ("{kind: fat_tree, per_leaf: 2, leaves_per_pod: 2, spines_per_pod: 2, cores: 5}", 3 + 2 * 2 + 5),
        ("{kind: fat_tree, per_leaf: 2, leaves_per_pod: 8, spines_per_pod: 2, cores: 5}", 3 + 2),
        ("{kind: rail_optimised, nodes_per_group: 4, spines: 2}", 2 * 2 + 2),
        ("{kind: dragonfly, per_router: 2, routers_per_group: 2, groups: 4, local: 1 GB/s, global: 1 GB/s}", 3),
        ("{kind: torus, dimensions: [2, 4]}", 0),
    ],
)
def test_only_switches_between_the_jobs_nodes_can_fail(small: Make, topology: str, switches: int) -> None:
    cards = "cluster.node.cards=2"
    assert counts(small("strategy.workers=24", cards, f"cluster.network.topology={topology}"))["switch"] == switches


def test_single_node_jobs_have_no_network_failures(small: Make) -> None:
    assert counts(small())["nic"] == counts(small())["switch"] == 0
    with pytest.raises(FieldError, match=r"reliability\.mtbf\.switch: there are no switches"):
        goodput(small("reliability={mtbf: {switch: 1 d}, checkpoint: {bandwidth: 1 GB/s}}"))


def test_a_checkpoint_contains_parameters_and_optimizer_states(small: Make) -> None:
    parameters = sum(layer.parameters for layer in small().model.build_layers())
    plain, adam = (failure_rates(small(*FAILING, f"training.optimizer={name}")).saving.size_bytes for name in ("sgd", "adam"))
    assert plain == 4 * parameters
    assert adam == 12 * parameters
    assert failure_rates(small(*FAILING, "training.optimizer=adam", "training.zero=3")).saving.size_bytes == adam


def test_checkpoint_time_follows_the_slower_of_storage_and_nodes(small: Make) -> None:
    def stall_s(checkpoint: str) -> float:
        return failure_rates(small(*FAILING, f"reliability.checkpoint={checkpoint}")).saving.stall_s

    assert stall_s("{size: 6 GB, bandwidth: 1 GB/s}") == pytest.approx(6)
    assert stall_s("{size: 6 GB, bandwidth: 1 GB/s, node_bandwidth: 1 MB/s}") == pytest.approx(1000)
    assert stall_s("{size: 6 GB, node_bandwidth: 1 GB/s}") == pytest.approx(1)
    assert stall_s("{size: 6 GB, bandwidth: 1 GB/s, asynchronous: true, copy_bandwidth: 10 GB/s}") == pytest.approx(0.1)


def test_restart_time_includes_loading_the_checkpoint(small: Make) -> None:
    sets = (*FAILING, "reliability.reschedule=1 min", "reliability.checkpoint={size: 6 GB, bandwidth: 1 GB/s}")
    assert failure_rates(small(*sets)).times.restart_s == pytest.approx(60 + 300 + 6)
    assert failure_rates(small(*sets, "reliability.checkpoint.load_bandwidth=3 GB/s")).times.restart_s == pytest.approx(362)


@pytest.mark.parametrize(
    "sets", [(), SPARES, (*SHRINKING, *ONLY_COMPUTE), ("reliability.planned={every: 1 d, takes: 10 min}",)]
)
def test_time_shares_add_up_to_the_days(small: Make, sets: tuple[str, ...]) -> None:
    result = found(small, *sets)
    parts = result.parts()
    assert parts.index[0] == "useful"
    assert parts["share"].sum() == pytest.approx(1, abs=1e-9)
    assert parts["days"].sum() == pytest.approx(10)
    assert ((parts["share_low"] <= parts["share_high"]) & (parts["share"] >= 0)).all()
    assert result.ratio_interval[0] <= result.ratio <= result.ratio_interval[1]
    assert result.goodput_samples_per_s == pytest.approx(result.ratio * result.samples_per_s)
    assert Goodput.model_validate_json(result.to_json()) == result


def test_closed_form_and_simulation_agree(small: Make) -> None:
    result = found(small, days=50, samples=200)
    assert result.ratio == pytest.approx(result.expected, abs=2e-3)
    assert result.failures == pytest.approx(50 * 0.36, rel=0.1)


def test_the_interval_may_be_given_in_steps(small: Make) -> None:
    step_s = timed(small("strategy.workers=24")).step_time_s
    result = found(small, "reliability.checkpoint.steps=100")
    assert result.interval_s == pytest.approx(100 * step_s)
    assert not result.is_optimum
    assert result.ratio < found(small).ratio


def test_no_other_interval_is_better_than_the_optimum(small: Make) -> None:
    best = found(small, samples=200)
    simulated = {one.rule: one.simulated for one in best.choices}
    assert simulated["simulated"] == pytest.approx(max(simulated.values()), abs=2e-4)
    assert simulated["closed form"] == pytest.approx(simulated["simulated"], abs=5e-4)
    for interval in ("1 min", "3 h"):
        assert found(small, f"reliability.checkpoint.interval={interval}").expected < best.expected


def test_speed_of_fewer_workers_equals_its_prediction(small: Make) -> None:
    """24 workers on six nodes; with five nodes there are 20, of which 48 samples allow 16."""
    sizes = ElasticSizes(small(*FAILING, *SHRINKING))
    assert list(sizes.workers(np.array([7, 6, 5, 4, 1, 0]))) == [24, 24, 16, 16, 4, 0]
    fewer = timed(small("strategy.workers=16")).samples_per_s
    assert sizes.speed(16) == pytest.approx(fewer / timed(small("strategy.workers=24")).samples_per_s)
    each = ElasticSizes(small(*FAILING, *SHRINKING, "batch={per_worker: 2}"))
    assert list(each.workers(np.array([5, 1]))) == [20, 4]
    least = ElasticSizes(small(*FAILING, *SHRINKING, "batch={per_worker: 2}", "reliability.least_workers=8"))
    assert list(least.workers(np.array([2, 1]))) == [8, 0]


@pytest.mark.parametrize(("repair", "in_repair"), [("12 h", 0.18), ("30 d", 10.8), ("10000 d", 3600.0)])
def test_enough_spares_are_a_poisson_quantile(small: Make, repair: str, in_repair: float) -> None:
    result = found(small, "reliability.spares=0", f"reliability.repair={repair}", samples=1)
    assert result.in_repair == pytest.approx(in_repair)
    assert result.enough_spares == pytest.approx(poisson.ppf(0.99, in_repair), abs=1)


@pytest.mark.parametrize(
    ("sets", "problem"),
    [
        (("reliability=null",), "reliability: missing; start from one that ships"),
        (("reliability.mtbf.gpu=0",), "reliability.mtbf.gpu: zero"),
        (("reliability.mtbf.gpu=1 ns",), "reliability.mtbf.gpu: less than a millisecond"),
        (("reliability.mtbf.gpu=1e20 d",), "reliability.mtbf.gpu: more than 30 million years"),
        (("reliability.mtbf.gpu=-1 d",), "reliability.mtbf.gpu: '-1 d' is negative"),
        (("reliability.mtbf={}",), "nothing fails; give at least one of gpu, host"),
        (("reliability.mtbf.disk=1 d",), "reliability.mtbf.disk: unknown key"),
        (("reliability.checkpoint={}",), "give bandwidth of the storage"),
        (("reliability.checkpoint.interval=often",), "reliability.checkpoint.interval: cannot read 'often'"),
        (("reliability.checkpoint.interval=0",), "reliability.checkpoint.interval: zero"),
        (("reliability.checkpoint.interval=11 d",), "reliability.checkpoint.interval: 11.0 d, longer than the run"),
        (("reliability.checkpoint.interval=1 h", "reliability.checkpoint.steps=3"), "interval or steps, not both"),
        (("reliability.checkpoint.size=100 TiB",), "reliability.checkpoint.size: 100 TiB is more than the memory"),
        (("reliability.checkpoint.asynchronous=true",), "give copy_bandwidth"),
        (("reliability.checkpoint.slowdown=0.5",), "need asynchronous checkpoints"),
        (
            ("reliability.checkpoint={bandwidth: 1 kB/s, asynchronous: true, copy_bandwidth: 1 GB/s, interval: 1 min}",),
            "still being written",
        ),
        (
            ("reliability.checkpoint={bandwidth: 1 B/s, asynchronous: true, copy_bandwidth: 1 GB/s}",),
            "reliability.checkpoint.bandwidth: a checkpoint is written in 15.5 d",
        ),
        (("reliability.spares=3",), "spares run out; give repair"),
        (("reliability.shortage=shrink",), "give spares"),
        ((*SHRINKING, "reliability.least_workers=25"), "reliability.least_workers: the job has 24 workers"),
        ((*SHRINKING, "strategy={kind: pipeline, stages: 4, microbatches: 4}"), "pipeline cannot continue with fewer workers"),
    ],
)
def test_invalid_input_is_refused_with_one_line(small: Make, sets: tuple[str, ...], problem: str) -> None:
    with pytest.raises((FieldError, ScenarioError)) as caught:
        goodput(small(*FAILING, *sets), 10)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("days", "samples"), [(0, 10), (-1, 10), (math.inf, 10), (math.nan, 10), (1e-12, 10), (1e13, 10), (1, 0), (1, 10**6)]
)
def test_invalid_days_and_samples_are_rejected(small: Make, days: float, samples: int) -> None:
    with pytest.raises(InputError):
        goodput(small(*FAILING), days, samples)


def test_computing_time_does_not_grow_with_days(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.simulator.analysis.goodput._MOST_INTERRUPTIONS", 500)
    result = found(small, days=1e9, samples=20)
    assert result.simulated_days < 1e6
    assert result.ratio == pytest.approx(result.expected, abs=2e-3)
    assert result.failures == pytest.approx(0.36e9, rel=0.05)
    assert "are simulated" in describe(result)


def test_a_note_reports_zero_progress(small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scaleproof.simulator.analysis.goodput._MOST_INTERRUPTIONS", 500)
    result = found(small, "reliability.mtbf={gpu: 10 s}", "reliability.checkpoint.interval=1 min", days=54, samples=10)
    assert result.simulated_days < 1
    assert result.ratio == 0.0
    assert result.expected == pytest.approx(0.0, abs=1e-12)
    assert "no progress" in describe(result)


lasting = st.sampled_from(["1 ms", "3 s", "10 min", "2 d", "30000000 d"])
saving = st.fixed_dictionaries(
    {"bandwidth": st.sampled_from(["1 B/s", "10 MB/s", "1 EB/s"])},
    optional={"interval": lasting, "size": st.sampled_from(["1 B", "6 GB"])},
)


def test_times_that_are_not_given_are_those_that_sites_see(small: Make) -> None:
    """Minutes until NCCL's time-out and until a job runs again; the output says that they are assumed."""
    bare = ("strategy.workers=24", "reliability={mtbf: {gpu: 100 d}, checkpoint: {bandwidth: 10 MB/s}}")
    result = goodput(small(*bare), 10, 30)
    assert result.assumed_s == {"detection": 600, "reschedule": 300, "initialise": 300}
    assert result.times.detection_s == 600
    assert result.times.restart_s == pytest.approx(600 + result.saving.load_s)
    text = " ".join(describe(result).split())
    assert "assumed detection 600 s, reschedule 300 s, initialise 300 s" in text
    own = goodput(small(*bare, "reliability.detection=1 min"), 10, 30)
    assert list(own.assumed_s) == ["reschedule", "initialise"]
    assert "assumed" not in describe(found(small))


@pytest.mark.parametrize("name", catalog.names("reliability"))
def test_shipped_failures_are_valid_on_any_cluster(small: Make, name: str) -> None:
    """Also of one GPU, which has no network card and no switch."""
    for workers in (1, 24):
        result = goodput(small(f"strategy.workers={workers}", f"reliability={name}"), 10, 30)
        assert 0.5 < result.ratio < 1
        assert set(result.assumed_s) == {"detection", "reschedule", "initialise"}


def test_failures_of_a_published_run_may_be_given_by_name(small: Make) -> None:
    named = small("strategy.workers=24", "reliability=llama-3-h100").reliability
    assert named is not None
    # 268 of 16,384 GPUs in 54 days
    assert named.mtbf_s()["gpu"] == pytest.approx(54 * 16384 / 268 * DAY_S, rel=1e-3)
    changed = small("reliability={base: llama-3-h100, detection: 1 min, mtbf: {gpu: 1 d}}").reliability
    assert changed is not None
    assert (changed.detection_s, changed.mtbf_s()["gpu"], changed.mtbf_s()["host"]) == (60, DAY_S, named.mtbf_s()["host"])
    with pytest.raises(FieldError, match="--set reliability=llama-3-h100"):
        goodput(small())


sharing = st.fixed_dictionaries(
    {"asynchronous": st.just(True), "copy_bandwidth": st.sampled_from(["1 B/s", "1 GB/s"])},
    optional={"slowdown": st.sampled_from([0, 0.5, 0.999999])},
)
supplies = st.fixed_dictionaries(
    {"spares": st.sampled_from([0, 3, 10**6]), "repair": lasting, "shortage": st.sampled_from(["wait", "shrink"])},
    optional={"least_workers": st.integers(1, 30)},
)
sections = st.fixed_dictionaries(
    {
        "mtbf": st.dictionaries(st.sampled_from(COMPONENTS), lasting, min_size=1),
        "checkpoint": st.builds(dict.__or__, saving, st.just({}) | sharing),
    },
    optional={
        "detection": lasting,
        "initialise": lasting,
        "nodes_lost": st.fixed_dictionaries({"switch": st.integers(0, 100_000)}),
        "planned": st.fixed_dictionaries({"every": lasting, "takes": lasting}),
    },
)


@given(st.builds(dict.__or__, sections, st.just({}) | supplies), st.sampled_from([1e-3, 1.0, 30.0, 1e4, 1e12]))
def test_any_input_gives_a_result_or_a_one_line_error(section: dict[str, Any], days: float) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr("scaleproof.simulator.analysis.goodput._MOST_INTERRUPTIONS", 20)
        path = Path(folder) / "scenario.yaml"
        path.write_text(SMALL.replace("workers: 4", "workers: 24") + yaml.safe_dump({"reliability": section}))
        try:
            result = goodput(load(path), days, 3)
        except InputError:
            return
    assert 0 <= result.ratio <= 1.5
    assert 0 <= result.expected <= 1 + 1e-9
    assert sum(share for share, _, _ in result.shares.values()) == pytest.approx(1, abs=1e-9)
    assert "\n" in describe(result)
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_cluster_with_prices_gives_a_cost(small: Make) -> None:
    result = found(small, *SPARES, "cluster.node.price=10 USD/h")
    assert result.cost_USD == pytest.approx(7 * 240 * 10)
    tokens = result.goodput_samples_per_s * 32 * 10 * DAY_S
    assert result.cost_USD_per_million == pytest.approx(7 * 240 * 10 / tokens * 1e6)
    assert "1 spare node" in describe(result)


def test_the_command_prints_text_json_and_one_line_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    sets = [word for field in FAILING for word in ("--set", field)]
    assert scaleproof.main(["goodput", str(path), "--days", "5", "--samples", "20", *sets]) == 0
    assert "where it goes  useful" in capsys.readouterr().out
    assert scaleproof.main(["goodput", str(path), "--days", "5", "--samples", "20", "--json", *sets]) == 0
    assert json.loads(capsys.readouterr().out)["days"] == 5
    assert scaleproof.main(["goodput", str(path)]) == 2
    assert capsys.readouterr().err.startswith("reliability: missing")
    for days in ("0", "-1", "nan", "many"):
        with pytest.raises(SystemExit):
            scaleproof.main(["goodput", str(path), "--days", days])


def test_speeds_between_predicted_worker_counts_are_interpolated(small: Make) -> None:
    sizes = ElasticSizes(small("batch={per_worker: 2}", *FAILING, *SHRINKING, "strategy.workers=32", *ONLY_COMPUTE))
    speeds = [sizes.speed(workers) for workers in range(1, 33)]
    assert sizes._samples_per_s.cache_info().currsize < 20
    assert speeds == sorted(speeds)
    exact = timed(small("batch={per_worker: 2}", "strategy.workers=27", *ONLY_COMPUTE)).samples_per_s
    assert speeds[26] == pytest.approx(exact / sizes.samples_per_s, rel=0.02)
