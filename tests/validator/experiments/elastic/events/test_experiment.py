"""Real training along events: what cannot be run is refused before, and what is run has the right state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaleproof import main
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.experiments.elastic.events.experiment import Experiment
from scaleproof.validator.experiments.elastic.events.outcome import ElasticOutcome
from scaleproof.validator.launch.launch import run_on_ranks
from tests.validator.experiments.elastic.events import asking


@pytest.mark.parametrize(
    ("name", "overrides", "why"),
    [
        ("netlab-spot-notice", ["reliability.events=[{kind: failure, host: 0, step: 9}]"], "host 0 has torchrun's store"),
        (
            "netlab-spot-notice",
            ["strategy.workers=8", "cluster.node={devices: 2, link: {bandwidth: 1 GB/s, latency: 5 us}}"],
            "each host has one rank",
        ),
        ("netlab-spot-notice", ["batch.total=100"], "100 samples are not divisible among 3 hosts; give batch.per_worker"),
        (
            "netlab-host-added",
            ["reliability.checkpoint={interval: 9 s, bandwidth: 1 GB/s}"],
            "give the steps between checkpoints",
        ),
        ("netlab-host-added", ["reliability.events=[{kind: join, host: 3, step: 2}]", "steps=3"], "steps: 3 is too few"),
        ("netlab-host-added", ["training={zero: 2}"], "cannot be restored"),
        ("netlab-ddp-after", [], "reliability.events: missing"),
    ],
)
def test_what_cannot_be_run_is_refused(name: str, overrides: list[str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Experiment(load(name, overrides), "netlab")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["netlab-host-returns", "--only", "rank"], "--only is for faults without a scenario"),
        (["--on", "local"], "--on local needs a scenario with reliability.events"),
        (["netlab-host-added", "--set", "reliability.events=[{kind: join, host: 77, step: 9}]"], "there is no host 77"),
    ],
)
def test_the_command_says_what_to_change(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", *arguments]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.full
def test_all_ranks_hand_over_when_one_is_asked() -> None:
    assert run_on_ranks(asking.ask_one, 3, 1) == [[False, True]] * 3


def run_along(events: str, batch: str, folder: Path) -> ElasticOutcome:
    """Three processes of this machine whose steps take 0.35 s, so that hosts change within them also on a busy machine."""
    reliability = f"reliability={{checkpoint: {{steps: 10, bandwidth: 1 GB/s}}, events: {events}}}"
    scenario = load("netlab-ddp-after", ["strategy.workers=3", f"batch={batch}", "steps=70", reliability])
    outcome = Experiment(scenario, "local").run(folder, lambda _: None)
    assert outcome.state.is_right, outcome.state.words
    assert len(outcome.state.losses) == 70
    assert json.loads(json.dumps(outcome.plain()))["measured"]["steps"] == 70
    return outcome


@pytest.mark.full
def test_training_goes_on_rightly_as_a_host_fails_and_comes_back(tmp_path: Path) -> None:
    events = "[{kind: failure, host: 2, step: 6}, {kind: join, host: 2, step: 8}]"
    measured = run_along(events, "{total: 24}", tmp_path).measured
    assert [stretch.hosts for stretch in measured.stretches] == [3, 2, 3]
    failed, joined = measured.changes
    assert (failed.done_step, failed.resumed_step) == (6, 0), "nothing was saved before"
    assert joined.handed_over
    assert joined.lost_steps == 0


@pytest.mark.nightly
def test_training_goes_on_rightly_with_other_batches_as_a_host_is_added_and_interrupted(tmp_path: Path) -> None:
    events = "[{kind: join, host: 3, step: 2}, {kind: interruption, host: 3, step: 60, notice: 20 s}]"
    measured = run_along(events, "{per_worker: 8}", tmp_path).measured
    assert [stretch.samples for stretch in measured.stretches] == [24, 32, 24]
    assert [change.handed_over for change in measured.changes] == [True, True]
    assert [change.lost_steps for change in measured.changes] == [0, 0]
