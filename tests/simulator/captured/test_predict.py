"""Predictions of captured scripts, which are scenarios like any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from scaleproof.reports.descriptions.runs import out_of_memory
from scaleproof.simulator.analysis.planner.search import plan
from scaleproof.simulator.analysis.study.study import read as read_study
from scaleproof.simulator.analysis.study.sweep import sweep
from scaleproof.simulator.captured.record import EventKind
from scaleproof.simulator.captured.script import CapturedScript
from scaleproof.simulator.common.communication import Dimension
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from tests.simulator.captured.records import data_parallel as data_parallel_capture
from tests.simulator.captured.scripts import data_parallel, events_of, launch, moving


@contextmanager
def captured(script: CapturedScript) -> Iterator[str]:
    """The name of a capture file with a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scaleproof.simulator.captured.reading.read", lambda path, known=None: script)
        yield "train.zip"


def test_a_capture_file_is_a_scenario_on_the_cluster_that_it_was_captured_for() -> None:
    with captured(data_parallel(workers=16)) as file:
        scenario = load(file)
        run = predict(scenario)
    assert (scenario.strategy.kind, run.ranks, run.samples, run.tokens) == ("captured", 16, 64, 64 * 2048)
    assert (scenario.cluster.name, run.framework) == ("dgx-h100", "pytorch-ddp")
    assert sum(run.breakdown_s.values()) == pytest.approx(run.step_time_s)
    assert run.prediction_interval_s is not None
    assert run.prediction_interval_s[0] < run.step_time_s < run.prediction_interval_s[1]


def test_memory_is_that_of_the_allocations() -> None:
    with captured(data_parallel()) as file:
        run = predict(load(file), interval=False)
    assert run.memory_bytes is not None
    assert run.capture is not None
    assert (run.memory_bytes["parameters"], run.memory_bytes["activations"]) == (32 * 2**20, 64 * 2**20)
    assert run.memory_bytes["optimizer_states"] == 128 * 2**20
    assert run.capture.modules_bytes == {"fc": 224 * 2**20}
    assert run.capture.lines_bytes["train.py:9"] == 64 * 2**20
    assert run.fits


def test_a_slower_network_is_predicted_without_another_capture() -> None:
    with captured(data_parallel(workers=16)) as file:
        fast, slow = (
            predict(load(file, {"cluster.network.bandwidth": rate}), interval=False) for rate in ("400 GB/s", "4 GB/s")
        )
    assert slow.step_time_s > 1.5 * fast.step_time_s


def test_another_device_and_another_number_of_workers_need_no_other_capture() -> None:
    with captured(data_parallel(workers=16)) as file:
        h100, b200 = (
            predict(load(file, {"cluster.device": name}), interval=False) for name in ("h100-80gb-sxm", "b200-180gb-sxm")
        )
        more = predict(load(file, {"strategy.workers": 64, "cluster.nodes": 8}), interval=False)
        gpus = predict(load(file, {"gpus": 64}), interval=False)
    assert b200.step_time_s < h100.step_time_s
    assert (more.ranks, more.samples, gpus.ranks, gpus.samples) == (64, 256, 64, 256)
    assert more.step_time_s == pytest.approx(gpus.step_time_s)
    assert more.model_flops == 4 * (h100.model_flops or 0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"batch.per_worker": 8}, "captur.* it again with another batch"),
        ({"training.precision": "fp16"}, "captured with bf16"),
        ({"training.optimizer": "sgd"}, "captured with adam"),
        ({"training.recompute": "full"}, "captured with none"),
    ],
)
def test_what_the_script_decides_needs_another_capture(overrides: dict[str, object], message: str) -> None:
    with captured(data_parallel()) as file, pytest.raises(InputError, match=message):
        load(file, overrides)


def test_shards_of_another_number_of_workers_need_another_capture() -> None:
    with captured(data_parallel(shards=True)) as file, pytest.raises(InputError, match="shard parameters"):
        load(file, {"gpus": 16})


def test_copies_and_updates_of_hosts_take_their_rates() -> None:
    size = 10**9
    script = data_parallel(workers=2)
    (one,) = script.classes
    copy = {"kind": EventKind.COPY, "operator": len(one.operators), "dimension": Dimension.FROM_HOST, "size_bytes": float(size)}
    update = {"kind": EventKind.HOST_UPDATE, "phase": Phase.OPTIMIZER, "size": size}
    waits = {"kind": EventKind.SYNCHRONIZE, "other_stream": 0, "phase": Phase.BACKWARD}
    events = events_of([copy, launch(0), launch(1, Phase.BACKWARD), waits, update])
    offloaded = replace(one, operators=[*one.operators, moving("host to device", 2.0 * size)], events=events)
    with captured(replace(script, classes=(offloaded,))) as file:
        link_s, rate_s = (
            [predict(load(file, {f"cluster.node.host.{field}": value}), interval=False).step_time_s for value in values]
            for field, values in (("link", ("20 GB/s", "10 GB/s", "5 GB/s")), ("adam_rate", (4e9, 2e9, 1e9)))
        )
        run = predict(load(file), interval=False)
    assert [slow - fast for fast, slow in pairwise(link_s)] == pytest.approx([0.05, 0.1], rel=1e-3)
    # an update takes twice the time at half the rate
    more, most = (slow - fast for fast, slow in pairwise(rate_s))
    assert most == pytest.approx(2 * more, rel=1e-3)
    assert more > size / 2e9 - size / 4e9
    assert sum(part.size_bytes for part in run.communication if part.dimension == "from host") == size
    assert any("offloading: assumed are" in warning for warning in run.warnings)


def test_an_operator_of_unknown_cost_is_named_and_widens_the_interval() -> None:
    with captured(data_parallel()) as file:
        known = predict(load(file))
    with captured(data_parallel(more=[moving("lib::scan", 1e9)])) as file:
        unknown = predict(load(file))
    assert known.capture is not None
    assert unknown.capture is not None
    assert known.capture.unknown == 0
    assert unknown.capture.unknown > 0.05
    assert unknown.capture.unknown_names == ("lib::scan",)
    assert any("lib::scan" in warning for warning in unknown.warnings)
    assert known.prediction_interval_s is not None
    assert unknown.prediction_interval_s is not None
    widths = [(run.prediction_interval_s or (0.0, 0.0))[1] / run.step_time_s for run in (known, unknown)]
    assert widths[1] > widths[0]
    parts = unknown.capture.measured + unknown.capture.extrapolated + unknown.capture.unknown
    assert parts == pytest.approx(1.0)


def test_a_script_that_does_not_fit_gets_advice_that_is_not_refused() -> None:
    with captured(data_parallel()) as file:
        run = predict(load(file, {"cluster.device.memory": "1 GiB"}))
    assert run.fits is False
    assert not run.fit_by
    text = out_of_memory(run)
    assert "the script decides what would help: capture it again with a smaller batch" in text
    assert "scaleproof plan" not in text


def test_a_slow_rank_slows_the_ranks_that_wait_for_it() -> None:
    with captured(data_parallel(workers=16)) as file:
        even = predict(load(file), interval=False)
        uneven = predict(load(file, {"unevenness.stragglers": [{"ranks": [9], "slowdown": 2.0}]}), interval=False)
    # compute takes twice as long, the sum of gradients does not
    assert 1.7 * even.step_time_s < uneven.step_time_s < 2 * even.step_time_s


def test_plans_need_a_described_model() -> None:
    with captured(data_parallel()) as file, pytest.raises(InputError, match="one division of its model"):
        plan(load(file))


@pytest.mark.full
def test_a_study_of_a_capture_file_has_axes_like_any_other(tmp_path: Path) -> None:
    data_parallel_capture(16).write(tmp_path / "train.zip")
    axes = {"cluster.network.bandwidth": ["10 GB/s", "400 GB/s"], "strategy.workers": [16, 64]}
    study = read_study({"scenario": str(tmp_path / "train.zip"), "axes": axes})
    points = sweep(study, tmp_path / "out")
    assert points["error"].isna().all()
    slow, _, fast, more = points.sort_values("point")["samples_per_s"]
    assert slow < fast < more
