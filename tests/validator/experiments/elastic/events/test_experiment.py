"""Real training along events: what cannot be run is refused before, and what is run has the right state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaleproof import main
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.experiments.elastic.events.experiment import Experiment
from scaleproof.validator.launch.launch import run_on_ranks
from tests.validator.experiments.elastic.events import asking

# A small model whose steps take 80 ms, so that hosts change within them.
SMALL = (
    "model={kind: mlp, layers: 3, inputs: 64, hidden: 64, outputs: 4}",
    "cluster={nodes: 4, node: {devices: 1}, network: {bandwidth: 1 Gbit/s, latency: 60 us}, device: cpu-core}",
    "training={optimizer: adam}",
)


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


@pytest.mark.full
@pytest.mark.parametrize(
    ("events", "batch", "hosts"),
    [
        ("[{kind: failure, host: 2, step: 12}, {kind: join, host: 2, step: 24}]", "{total: 12}", [3, 2, 3]),
        (
            "[{kind: join, host: 3, step: 5}, {kind: interruption, host: 3, step: 60, notice: 20 s}]",
            "{per_worker: 4}",
            [3, 4, 3],
        ),
    ],
    ids=["fails and returns", "added and interrupted"],
)
def test_training_continues_rightly_after_each_change(events: str, batch: str, hosts: list[int], tmp_path: Path) -> None:
    job = [*SMALL, f"batch={batch}", "strategy.workers=3", "steps=90", "compute=paced"]
    reliability = f"{{checkpoint: {{steps: 10, bandwidth: 1 GB/s}}, events: {events}}}"
    outcome = Experiment(load("netlab-ddp-after", [*job, f"reliability={reliability}"]), "local").run(tmp_path, lambda _: None)
    assert [stretch.hosts for stretch in outcome.measured.stretches] == hosts
    assert outcome.state.is_right, outcome.state.words
    assert outcome.state.equal
    assert len(outcome.state.losses) == 90
    changes = outcome.measured.changes
    assert [change.handed_over for change in changes] == ["failure" not in one for one in events.split("}, {")]
    assert [change.lost_steps > 0 for change in changes] == [not change.handed_over for change in changes]
    assert json.loads(json.dumps(outcome.plain()))["measured"]["steps"] == 90
