"""Cost of perturbations for synchronous, backup, stale and asynchronous workers, compared with theory; the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from scaleproof import main
from scaleproof.commands.text.sections import by_section
from scaleproof.reports.descriptions.stragglers import describe
from scaleproof.simulator.analysis.stragglers import ALONE, TOGETHER, Uneven, uneven
from scaleproof.simulator.common.errors import FieldError, InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.schema import Scenario
from tests.simulator.strategy.parameter_server.test_program import FREE, PLAIN, servers

Make = Callable[..., Scenario]
SEPARATE_NODES = ("cluster.nodes=64", "cluster.node.devices=1")
TAIL = "tail: {share: 0.1, slowdown: 3, shape: 6}"
STRAGGLER = "stragglers: [{ranks: 2, slowdown: 2}]"


def found(small: Make, *kinds: str, workers: int = 4, bound: int = 3, more: tuple[str, ...] = ()) -> Uneven:
    """The comparison for workers whose step is compute alone."""
    given = f"unevenness={{{', '.join(kinds)}}}"
    return uneven(small(servers(workers, 1), *SEPARATE_NODES, *PLAIN, *FREE, given, *more), 1, bound)


def remaining_shares(found: Uneven, kind: str) -> dict[str, float]:
    """The remaining share of the throughput."""
    return {way: cell.of_even or 0.0 for way, cell in found.cells[kind].items()}


def test_a_straggler_slows_only_strategies_that_wait_for_it(small: Make) -> None:
    of_even = remaining_shares(found(small, STRAGGLER, workers=8), "stragglers")
    assert of_even["synchronous"] == pytest.approx(1 / 2, rel=1e-2)
    assert of_even["ring"] == pytest.approx(1 / 2, rel=1e-2)
    # the slow one's pushes are those that are dropped
    assert of_even["backups"] == pytest.approx(1, rel=1e-2)
    # once the others are as far ahead as they may be, they go as fast as it does
    assert of_even["stale"] == pytest.approx(1 / 2, rel=0.1)
    assert of_even["asynchronous"] == pytest.approx(7.5 / 8, rel=2e-2)


def test_backups_waste_their_share_if_workers_are_equal(small: Make) -> None:
    cells = found(small, STRAGGLER, workers=8).cells[ALONE]
    even, spared = cells["synchronous"].samples_per_s, cells["backups"].samples_per_s
    assert even
    assert spared == pytest.approx(even * 7 / 8, rel=1e-2)
    assert cells["backups"].dropped == pytest.approx(1 / 8, abs=0.02)


@pytest.mark.full
def test_cost_of_a_tail_decreases_with_looser_consistency(small: Make) -> None:
    of_even = remaining_shares(found(small, TAIL, more=("steps=120",)), "tail")
    assert of_even["ring"] < 0.95 * of_even["stale"] < 0.95 * of_even["asynchronous"]
    assert of_even["synchronous"] == pytest.approx(of_even["ring"], rel=0.1)
    assert of_even["backups"] > 1.2 * of_even["synchronous"]
    # each worker is slowed by its own steps alone: 1 + share (slowdown · shape / (shape − 1) − 1)
    assert of_even["asynchronous"] == pytest.approx(1 / 1.26, rel=0.1)


@pytest.mark.full
def test_a_staleness_bound_absorbs_short_slow_periods_only(small: Make) -> None:
    """Half the speed for some steps of one worker after another: who may be as far behind as that costs loses nothing."""
    modes = {"mode": "synchronous"}, {"mode": "stale_synchronous", "bound": 5}, {"mode": "asynchronous"}

    def step_s(fields: Mapping[str, object], *more: str) -> float:
        return timed(small(servers(4, 1, **fields), *SEPARATE_NODES, *PLAIN, *FREE, *more)).step_time_s

    even_s = step_s(modes[0])
    short, long = (
        [even_s / step_s(fields, f"unevenness={{throttled: [{{slowdown: 2, phase: random, {times}}}]}}") for fields in modes]
        for times in (f"lasts: {steps * even_s} s, period: {4 * steps * even_s} s" for steps in (3, 40))
    )
    for synchronous, _, asynchronous in (short, long):
        # each is slow for a quarter of the time, and gets an eighth less done
        assert asynchronous == pytest.approx(7 / 8, rel=0.03)
        assert synchronous < 0.8
    assert short[1] > 0.97 * short[2]
    assert long[1] < 0.95 * long[2]


def test_each_perturbation_is_evaluated_alone_and_with_all_others(small: Make) -> None:
    both = found(small, STRAGGLER, "noise: [{period: 10 ms, lasts: 1 ms}]", more=("steps=20",))
    assert list(both.cells) == [ALONE, "stragglers", "noise", TOGETHER]
    for way in both.ways:
        alone = min(remaining_shares(both, kind)[way] for kind in ("stragglers", "noise"))
        assert remaining_shares(both, TOGETHER)[way] <= alone * 1.02
    assert len(both.to_frame()) == 4 * 5


def test_cells_that_cannot_be_predicted_show_the_reason(small: Make) -> None:
    """The ring has no server to be slow."""
    found = uneven(small(servers(4, 1), *SEPARATE_NODES, *PLAIN, "unevenness={stragglers: [{ranks: 4, slowdown: 3}]}"))
    assert found.cells["stragglers"]["ring"].samples_per_s is None
    text = by_section(describe(found))
    assert "–" in text
    assert "ring: unevenness.stragglers.0.ranks: there is no rank 4" in text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ((servers(4, 1),), "unevenness: missing from the scenario"),
        (("unevenness.compute_jitter=0.1",), "strategy.kind: data_parallel is always synchronous"),
        ((servers(4, 1, mode="asynchronous", units=40), "unevenness.compute_jitter=0.1"), "strategy.units"),
    ],
)
def test_invalid_input_is_refused(small: Make, changes: tuple[str, ...], problem: str) -> None:
    with pytest.raises((InputError, FieldError), match=problem):
        uneven(small(*changes))


def test_counts_out_of_range_are_refused(small: Make) -> None:
    scenario = small(servers(4, 1), "unevenness.compute_jitter=0.1")
    with pytest.raises(InputError, match="--backups 4: give 1 to 3"):
        uneven(scenario, backups=4)
    with pytest.raises(InputError, match="--bound -1"):
        uneven(scenario, bound=-1)


def test_the_command_prints_the_values_of_its_json(small: Make, tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    small()
    path = f"{tmp_path}/small.yaml"
    changes = ["--set", servers(2, 1), "--set", f"unevenness={{{STRAGGLER.replace('2,', '1,')}}}", "--set", "steps=5"]
    assert main(["uneven", path, *changes, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main(["uneven", path, *changes]) == 0
    text = capsys.readouterr().out
    assert list(plain["cells"]) == [ALONE, "stragglers"]
    assert all(way in text for way in plain["ways"])
    assert "updates behind" in text
    assert {cell["framework"] for row in plain["cells"].values() for cell in row.values()} == {
        "tensorflow-1-servers", "pytorch-ddp",
    }  # fmt: skip
    assert "an allreduce, which waits for all; pytorch-ddp, by default" in text
