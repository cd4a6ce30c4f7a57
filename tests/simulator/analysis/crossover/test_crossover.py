"""Crossover maps: the fastest strategy at each point, borders, and points that cannot be trained."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleproof
from scaleproof.commands.text.sections import by_section
from scaleproof.reports.descriptions.crossover import describe
from scaleproof.simulator.analysis.alternatives import contenders
from scaleproof.simulator.analysis.crossover.axes import x_axis, y_axis
from scaleproof.simulator.analysis.crossover.crossover import SIMILAR, TOLERANCE, Crossover, Point, crossover
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.parallelism.parameter_server import ParameterServer
from scaleproof.simulator.parallelism.replicas import DataParallel
from scaleproof.simulator.predict import predict, timed
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from tests.conftest import SMALL

Make = Callable[..., Scenario]
RING = load("resnet50-ring-p100")
# Rings and servers on nodes of one device: where the network is slow, many servers carry more; where it is fast, they have to
# add up what workers of a ring add up themselves, on hosts with slow memory.
ALONE = (
    "cluster.node={devices: 1, memory_bandwidth: 1 GB/s}",
    "cluster.nodes=16",
    "batch={per_worker: 8}",
    "model={kind: gpt, layers: 2, hidden: 256, heads: 4, vocabulary: 256, sequence: 32}",
    "strategy.bucket=1 MiB",
)
BANDWIDTH = "cluster.network.bandwidth=100 Mbit/s..100 Gbit/s"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "small.yaml"
    found.write_text(SMALL)
    return found


@pytest.fixture(scope="module")
def ring_and_servers(tmp_path_factory: pytest.TempPathFactory) -> Crossover:
    found = tmp_path_factory.mktemp("map") / "small.yaml"
    found.write_text(SMALL)
    return crossover(found, BANDWIDTH, "workers=4,8", ["ring", "ps-all"], 5, ALONE)


def rate(x_Bps: float, workers: float, name: str, path: Path) -> float:
    """Samples per second by a separate prediction."""
    kind = "data_parallel, algorithm: ring" if name == "ring" else f"parameter_server, overlap: true, servers: {workers}"
    strategy = f"strategy={{kind: {kind}, workers: {workers}, bucket: 1 MiB}}"
    values = (f"cluster.network.bandwidth={x_Bps!r} B/s", strategy)
    return timed(load(path, [*ALONE, *values])).samples_per_s


def test_points_of_the_map_equal_predictions(ring_and_servers: Crossover, path: Path) -> None:
    assert len(ring_and_servers.points) == 5 * 2 * 2
    for point in ring_and_servers.points:
        assert point.samples_per_s == pytest.approx(rate(point.x, point.y, point.strategy, path))
        assert point.step_time_s == pytest.approx(8 * point.y / (point.samples_per_s or 0.0))


def test_both_strategies_are_equally_fast_at_a_border(ring_and_servers: Crossover, path: Path) -> None:
    assert {(border.y, border.below, border.above) for border in ring_and_servers.borders} == {
        (4, "ps-all", "ring"),
        (8, "ps-all", "ring"),
    }
    for border in ring_and_servers.borders:
        both = [rate(border.x, border.y, name, path) for name in (border.below, border.above)]
        assert both[0] / both[1] == pytest.approx(1, abs=SIMILAR + TOLERANCE)


def test_borders_lie_in_their_intervals_which_widen_with_uncertainty(path: Path) -> None:
    widths = []
    for deviation in (1, 20):
        share = f"{{low: {100 - deviation}%, high: {100 + deviation}%}}"
        vague = f"cluster.uncertainty={{model: {share}}}"
        (border,) = crossover(path, BANDWIDTH, "workers=8", ["ring", "ps-all"], 3, (*ALONE, vague)).borders
        assert border.low is not None
        assert border.high is not None
        assert border.low < border.x < border.high
        widths.append(border.high / max(border.low, 1.0))
    assert widths[1] > widths[0] > 1


def test_a_third_strategy_that_wins_between_two_points_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Throughputs that are powers of x: the first wins up to 1e7, the third up to 1e9, the second beyond."""
    rates = {"ring": lambda x: 1.0, "ps-1": lambda x: x / 1e8, "ps-2": lambda x: math.sqrt(x / 1e7)}

    def predicted(_: object, strategy: str, x: float, y: float) -> Point:
        rate = rates[strategy](x)
        return Point(x=x, y=y, strategy=strategy, samples_per_s=rate, step_time_s=1 / rate, fits=True)

    def grid(_: object) -> tuple[Point, ...]:
        return tuple(predicted(_, name, x_Bps, 8) for x_Bps in (1e5, 1e11) for name in rates)

    monkeypatch.setattr("scaleproof.simulator.analysis.crossover.crossover._Predictions.point", predicted)
    monkeypatch.setattr("scaleproof.simulator.analysis.crossover.crossover._Predictions.grid", grid)
    wide = "cluster.network.bandwidth=100 kB/s..100 GB/s"
    found = crossover(path, wide, "workers=8", ["ring", "ps-1", "ps-2"], 2, ALONE)
    assert [(one.below, one.above) for one in found.borders] == [("ring", "ps-2"), ("ps-2", "ps-1")]
    # the first named wins ties: in throughput by a hundredth, which is twice as much in x where it goes with its root
    for border, x_Bps in zip(found.borders, (1e7 * (1 + SIMILAR) ** 2, 1e9 / (1 + SIMILAR) ** 2), strict=True):
        assert border.x == pytest.approx(x_Bps, rel=TOLERANCE)
        assert border.low is not None
        assert border.high is not None
        assert border.low < border.x < border.high


def test_a_strategy_that_does_not_fit_never_wins_and_is_reported(path: Path) -> None:
    small = ("training.optimizer=adam", "cluster.device.memory=0.5 GiB")
    sizes = crossover(path, "cluster.network.bandwidth", "model.hidden=64,4096", ["ring"], 2, small)
    assert sizes.winners[sizes.x.values[0], 64] == "ring"
    assert sizes.winners[sizes.x.values[0], 4096] == ""
    text = by_section(describe(sizes))
    assert "ring does not fit into memory at 2 of 4 points" in text
    assert "4,096 │......" in text
    assert ".: no strategy is valid" in text


def test_small_letters_mark_a_faster_strategy_that_does_not_fit(path: Path) -> None:
    overrides = ("training.optimizer=adam", "batch={per_worker: 8}", "strategy.workers=2")
    found = crossover(path, "cluster.device.memory=1 GiB..8 GiB", "model.hidden=1024", ["ring", "ps-1"], 5, overrides)
    (border,) = found.borders
    assert (border.below, border.above, border.low) == ("ps-1", "ring", None)
    assert all(point.fits for point in found.points if found.winners[point.x, point.y] == point.strategy)
    text = by_section(describe(found))
    (row,) = [line.partition("│")[2] for line in text.splitlines() if "│" in line]
    assert re.fullmatch("b+A+", row)
    assert "lower case: a strategy that does not fit" in text


def test_invalid_points_are_recorded_with_the_violated_rule(path: Path) -> None:
    found = crossover(path, BANDWIDTH, "workers=4,5", ["ring"], 2)
    assert [bool(point.problem) for point in found.points] == [False, False, True, True]
    assert "5 workers do not divide 48 samples" in found.points[-1].problem
    assert "ring is not valid at 2 of 4 points: batch: 5 workers" in " ".join(by_section(describe(found)).split())
    with pytest.raises(InputError, match="no strategy can be trained anywhere on the map; ring, the first: batch: 5 workers"):
        crossover(path, BANDWIDTH, "workers=5", ["ring"], 2)


def test_borders_along_integer_axes_are_integers(path: Path) -> None:
    slow = (*ALONE, "cluster.network.bandwidth=700 Mbit/s")
    found = crossover(path, "workers=2..16", "cluster.network.latency", ["ring", "ps-all"], 3, slow)
    assert found.x.values == (2, 6, 16)
    assert found.borders
    for border in found.borders:
        assert border.x == int(border.x)
        assert border.low is None


def test_default_contenders_follow_from_the_scenario(small: Make) -> None:
    assert [one.name for one in contenders(small(), ())] == ["ring", "ps-1", "ps-2", "ps-half", "ps-all"]
    assert contenders(small("strategy={kind: pipeline, stages: 2}"), ())[0].name == "scenario"


def test_contenders_differ_from_the_scenario_only_in_their_own_fields(small: Make) -> None:
    scenario = small("strategy.overlap=false", "strategy.bucket=1 MiB")
    ring, tree, library, half = contenders(scenario, ["ring", "tree", "allreduce", "ps-half"])
    made = [one.strategy(scenario, {"workers": 8}) for one in (ring, tree, library, half)]
    for one, algorithm in zip(made[:3], ("ring", "tree", None), strict=True):
        assert isinstance(one, DataParallel)
        assert (one.workers, one.algorithm, one.overlap, one.bucket_bytes) == (8, algorithm, False, 2**20)
    assert isinstance(made[3], ParameterServer)
    assert (made[3].workers, made[3].servers, made[3].overlap) == (8, 4, False)


def test_each_strategy_names_its_framework(path: Path) -> None:
    x, y = "cluster.network.bandwidth=10 Gbit/s..100 Gbit/s", "workers=4,8"
    found = crossover(path, x, y, ["ring", "ring@ideal", "ps-2", "ps-2@pytorch-ddp"], 2)
    words = {name: found.framework_words(name) for name in found.strategies}
    assert words == {
        "ring": "pytorch-ddp, by default", "ring@ideal": "ideal", "ps-2": "tensorflow-1-servers, by default",
        "ps-2@pytorch-ddp": "",
    }  # fmt: skip
    refused = {point.problem for point in found.points if point.strategy == "ps-2@pytorch-ddp"}
    words = "pytorch-ddp does not support parameter server; use tensorflow-1-grpc, tensorflow-1-servers"
    assert all(words in problem for problem in refused)
    assert "pytorch-ddp, by default" in by_section(describe(found))
    assert set(found.to_frame()["framework"]) == {"pytorch-ddp", "ideal", "tensorflow-1-servers", ""}


@given(low=st.floats(1e-3, 1e3), factor=st.floats(1.01, 1e6), points=st.integers(2, 30))
def test_axis_values_are_evenly_spaced_in_logarithm(low: float, factor: float, points: int) -> None:
    axis = x_axis(RING, f"cluster.network.latency={low!r} s..{low * factor!r} s", points)
    assert len(axis.values) == points
    assert axis.values[0] == pytest.approx(low)
    assert axis.values[-1] == low * factor
    ratios = [right / left for left, right in zip(axis.values, axis.values[1:], strict=False)]
    assert max(ratios) / min(ratios) == pytest.approx(1, rel=1e-6)


def test_default_axes_surround_the_scenarios_value_within_the_cluster(small: Make) -> None:
    x, y = x_axis(small(), "cluster.network.bandwidth", 3), y_axis(small(), "workers")
    assert x.values == pytest.approx((1.25e8, 1.25e9, 1.25e10))
    assert (x.column, y.column) == ("cluster.network.bandwidth_Bps", "strategy.workers")
    assert y.values == (2, 4, 8, 16, 32)
    assert y_axis(small(), "batch.total=3,1").values == (1, 3)
    assert y_axis(small(), "model.layers").values == (1, 2, 4, 8, 16, 32)
    assert len(y_axis(small(), "cluster.network.latency").values) == 5
    assert y_axis(small("strategy={kind: pipeline, stages: 2}"), "workers").values == (2, 4, 8, 16, 32)
    assert y_axis(small("strategy={kind: hybrid, stages: 2, workers: 4}"), "workers").values == (2, 4, 8, 16)
    assert x_axis(small("cluster.nodes=1"), "", 2).field == "cluster.node.link.bandwidth"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--x", "cluster.network.bandwith"], "cluster.network has no field 'bandwith'; did you mean 'bandwidth'?"),
        (["--x", "cluster.network"], "a part of the scenario, not a number"),
        (
            ["--set", "cluster.network=null", "--set", "cluster.nodes=1", "--x", "cluster.network.bandwidth"],
            "the scenario has no cluster.network; set it first",
        ),
        (["--x", "name"], "the scenario says small there, which is not a number"),
        (["--x", "strategy.overlap"], "the scenario says true there, which is not a number"),
        (["--x", "cluster.network.bandwidth=1..2"], "'1' has no unit; write a bandwidth"),
        (["--x", "cluster.network.bandwidth=2 GB/s..1 GB/s"], "2 GB/s is not below 1 GB/s"),
        (["--x", "cluster.network.bandwidth=1 GB/s"], "'1 GB/s' is not a range; write it as FROM..TO"),
        (["--x", "cluster.network.overhead"], "give a range, as in cluster.network.overhead=FROM..TO"),
        (["--y", "cluster.network.bandwidth"], "the same field as x"),
        (["--y", "workers=two"], "'two' is not a whole number"),
        (["--y", "workers=0"], "0 is not above zero"),
        (["--y", "workers=5..7"], "no power of two lies between 5 and 7"),
        (["--points", "1"], "a map has 2 to 200 points along x"),
        (["--strategies", "rong"], "unknown strategy 'rong'; choose from scenario, allreduce, ring"),
        (["--strategies", "ps-0"], "unknown strategy 'ps-0'"),
        (["--strategies", "ring,ring"], "ring is given twice"),
        (["--y", "strategy.stages=1,2"], "strategy has no field 'stages'"),
    ],
)
def test_bad_input_gives_a_one_line_error(
    arguments: list[str], message: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaleproof.main(["crossover", str(path), *arguments]) == 2
    result = capsys.readouterr()
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert result.out == ""


def test_the_command_prints_a_map_and_writes_tables_and_a_picture(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    overrides = [word for one in ALONE for word in ("--set", one)]
    arguments = ["crossover", str(path), "--x", BANDWIDTH, "--y", "workers=8", "--strategies", "ring,ps-all", "--points", "3"]
    assert scaleproof.main([*arguments, *overrides, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "A: ring, B: ps-all" in text
    (row,) = [line for line in text.splitlines() if line.strip().startswith("8 │")]
    assert set(row.partition("│")[2]) == {"A", "B"}
    assert row.endswith("A")
    assert {one.name for one in out.iterdir()} == {"points.csv", "borders.csv", "crossover.json", "crossover.png"}
    assert (out / "points.csv").read_text().startswith("cluster.network.bandwidth_Bps,strategy.workers,strategy,")
    assert scaleproof.main([*arguments, *overrides, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["x"]["unit"] == "B/s"
    assert len(result["points"]) == 6
    assert [one["above"] for one in result["borders"]] == ["ring"]


def test_points_of_the_scenarios_own_strategy_equal_predict(path: Path) -> None:
    """The scenario's own strategy at what the scenario says is what `predict` says of it."""
    found = crossover(path, "cluster.network.bandwidth", "workers=4", ["scenario"], 3)
    (middle,) = [point for point in found.points if point.x == pytest.approx(1.25e9)]
    run = predict(load(path))
    assert (middle.samples_per_s, middle.fits) == (pytest.approx(run.samples_per_s), run.fits)
