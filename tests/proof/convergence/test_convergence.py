"""Measured convergence: steps to a target under noise, runs that count, saved trials, and losses of real runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleproof
from scaleproof.proof.convergence.convergence import (
    Setting,
    Trial,
    check,
    chosen,
    scenario_of,
    settings,
    steps_to,
)
from scaleproof.proof.convergence.fit import FittedConvergence
from scaleproof.proof.convergence.record import Record, piece
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.convergence import Convergence
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.measure import measure
from scaleproof.validator.record.async_run import by_update
from scaleproof.validator.record.steps import warmup_steps
from tests.validator.conftest import CLUSTER, MakeScenario

SERVERS = {"kind": "parameter_server", "workers": 2, "servers": 1}
TRUTH = Convergence(minimum_steps=60, critical_batch=12, staleness_penalty=0.8)
TEXT = "the quick brown fox jumps over the lazy dog; " * 40


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def problem(make_scenario: MakeScenario, text: Path) -> Scenario:
    return make_scenario(SERVERS, batch=16, steps=40, data=str(text), learning_rate=0.5)


@given(st.integers(1, 80), st.integers(0, 5))
def test_a_falling_loss_reaches_its_target_at_the_crossing(step: int, later: int) -> None:
    losses = [3.0] * (step - 1) + [1.0] + [0.5] * (20 + step + later)
    assert steps_to(losses, 1.0) == step
    assert steps_to(losses, 2.9) == step
    assert steps_to(losses, 0.4) is None


def test_noise_does_not_bias_the_crossing() -> None:
    """The mean of many crossings is where the loss without noise crosses, to a step in a hundred."""
    steps = np.arange(400)
    generator = np.random.default_rng(0)
    found = [steps_to((4.0 - steps / 100 + 0.3 * generator.standard_normal(400)).tolist(), 3.0) for _ in range(200)]
    assert np.mean([one for one in found if one is not None]) == pytest.approx(100, abs=4)
    assert None not in found


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [3.0, float("nan"), 0.1, 0.1],
        [3.0, float("inf"), 0.1, 0.1],
        # single low losses, and a crossing too close to the end
        [*[3.0] * 50, 0.1, *[3.0] * 148, 0.1],
        [*[3.0] * 95, *[1.0] * 5],
    ],
)
def test_a_loss_that_diverges_or_is_low_for_a_moment_never_reaches_the_target(losses: list[float]) -> None:
    assert steps_to(losses, 1.0) is None


def test_settings_are_of_batches_workers_and_bounds(problem: Scenario) -> None:
    found = settings(problem, [4, 8], [2, 3], [0])
    assert [str(one) for one in found] == [
        "synchronous, batch 4", "synchronous, batch 8", "asynchronous, 2 workers", "asynchronous, 3 workers",
        "stale synchronous, 2 workers, bound 0", "stale synchronous, 3 workers, bound 0",
    ]  # fmt: skip
    assert [one.batch for one in found] == [4, 8, 8, 8, 8, 8]
    for one in found:
        trained = scenario_of(problem, one, 0.25, 3)
        assert trained.strategy.workers == one.workers
        assert (trained.training.learning_rate, trained.training.seed) == (0.25, 3)
        updates = trained.steps * (1 if one.mode == "synchronous" else one.workers)
        assert problem.steps <= updates < problem.steps + one.workers
        each = trained.total_samples if one.mode == "synchronous" else trained.samples_per_worker
        assert each == one.batch


def test_invalid_problems_are_rejected(make_scenario: MakeScenario, problem: Scenario) -> None:
    with pytest.raises(InputError, match="nothing can be learned from random data"):
        check(make_scenario(SERVERS))
    with pytest.raises(InputError, match="learned from emulated compute"):
        check(problem.model_copy(update={"compute": "paced"}))
    with pytest.raises(InputError, match="give a scenario whose strategy is parameter_server"):
        settings(make_scenario({"kind": "data_parallel", "workers": 2}), [4], [], [])
    with pytest.raises(InputError, match="2 workers do not divide 5 samples"):
        settings(problem, [4, 5], [], [])
    with pytest.raises(InputError, match="devices"):
        scenario_of(problem, Setting("asynchronous", 1000, 8), 0.1, 0)


def trial(rate: float, seed: int, updates: int | None, workers: int = 2) -> Trial:
    return Trial("asynchronous", workers, 8, None, rate, seed, updates, 1.0)


def test_the_learning_rate_with_most_and_fastest_successes_is_selected() -> None:
    fast_but_lost = [trial(1.0, 0, 40), trial(1.0, 1, None)]
    slow = [trial(0.1, 0, 400), trial(0.1, 1, 380)]
    best = [trial(0.3, 0, 120), trial(0.3, 1, 130)]
    never = [trial(0.1, 0, None, workers=4), trial(0.3, 0, None, workers=4)]
    found = chosen([*fast_but_lost, *slow, *best, *never])
    one, none = found.values()
    assert (one.rate, one.missed, one.is_at_the_end) == (0.3, 0, False)
    assert [run.steps for run in one.runs] == [120, 130]
    assert none.runs == ()
    assert chosen(slow)[slow[0].setting].is_at_the_end is False


def outcome(losses: dict[str, float]) -> dict[str, Any]:
    return {"losses": losses, "notes": {}}


def test_losses_of_updates_are_in_the_order_of_pushes(make_scenario: MakeScenario) -> None:
    """Worker 0 takes its steps first. Of each update the loss is that of the one push that it comes from."""
    scenario = make_scenario({**SERVERS, "mode": "asynchronous"})
    order = [0, 0, 1, 0, 1, 0, 1, 1]
    log = [
        entry
        for worker in order
        for entry in (["add", 0, worker], ["add", 1, worker], ["update", 0, -1], ["answer", 0, worker])
    ]
    workers = [outcome({"1": 10.0, "2": 11.0}), outcome({"1": 20.0, "2": 21.0})]
    reported = by_update(scenario, [*workers, {"losses": {}, "notes": {"log": log}}])
    # each worker's first two steps are of the warm-up; shares of a mean over two workers
    assert warmup_steps(scenario) == 2
    assert reported == (20.0, 22.0, 40.0, 42.0)


def test_the_loss_of_an_update_is_the_mean_over_its_pushes(make_scenario: MakeScenario) -> None:
    """The first round is of workers 0 and 1; worker 2 comes too late, and its loss counts for nothing."""
    scenario = make_scenario({**SERVERS, "workers": 3, "backups": 1}, batch=12)
    rounds = [["add", 0, 0], ["add", 0, 1], ["update", 0, -1], ["drop", 0, 2]]
    workers = [outcome({"1": value}) for value in (1.0, 2.0, 9.0)]
    assert by_update(scenario, [*workers, {"losses": {}, "notes": {"log": rounds * 3}}]) == (4.5,)
    assert by_update(make_scenario(SERVERS), workers) == ()


@pytest.mark.full
def test_measured_runs_have_the_loss_of_each_update(problem: Scenario) -> None:
    """All pushes after the warm-up count once, in whatever order: both means are over the same losses."""
    free = measure(scenario_of(problem, Setting("asynchronous", 2, 8), 0.5, 0))
    assert len(free.update_losses) == 2 * len(free.losses) == problem.steps
    assert np.mean(free.update_losses) == pytest.approx(np.mean(free.losses))
    # the text repeats one sentence, which is learned
    assert np.mean(free.update_losses[-10:]) < np.mean(free.update_losses[:10]) - 0.3
    in_step = measure(scenario_of(problem, Setting("synchronous", 2, 8), 0.5, 0))
    assert in_step.update_losses == ()
    assert len(in_step.losses) == problem.steps


def test_trials_are_saved_and_resumed(problem: Scenario, tmp_path: Path) -> None:
    record = Record.opened(tmp_path / "out", problem, 2.0, "local", resume=False)
    record.add(trial(0.3, 0, 120))
    again = Record.opened(tmp_path / "out", problem, 2.0, "local", resume=True)
    assert again.trials == record.trials
    assert again.has(Setting("asynchronous", 2, 8), 0.3, 0)
    assert not again.has(Setting("asynchronous", 2, 8), 0.3, 1)
    with pytest.raises(InputError, match="contains trials already"):
        Record.opened(tmp_path / "out", problem, 2.0, "local", resume=False)
    with pytest.raises(InputError, match="another scenario, target or place"):
        Record.opened(tmp_path / "out", problem, 1.9, "local", resume=True)
    damaged = ("", "[]", '{"asked": 1, "trials": [{}]}', (tmp_path / "out" / "trials.json").read_text().replace("120", '"x"'))
    for text in damaged:
        (tmp_path / "out" / "trials.json").write_text(text)
        with pytest.raises(InputError, match="cannot be read"):
            Record.opened(tmp_path / "out", problem, 2.0, "local", resume=True)


def test_the_printed_section_is_accepted_by_scenarios(problem: Scenario, tmp_path: Path) -> None:
    fitted = FittedConvergence(TRUTH.model_copy(update={"uncertainty": 0.0712349}), {}, 0.1, ())
    path = tmp_path / "small.yaml"
    cluster = json.dumps(CLUSTER)
    path.write_text(f"model: gpt-mini\ncluster: {cluster}\nstrategy: {json.dumps(SERVERS)}\nbatch: 16\n{piece(fitted)}\n")
    found = load(path).convergence
    assert found is not None
    assert found.model_dump() == {**TRUTH.model_dump(), "uncertainty": 0.07123}


@pytest.fixture
def file(text: Path, tmp_path: Path) -> Path:
    path = tmp_path / "problem.yaml"
    model = "{kind: gpt, layers: 1, hidden: 16, heads: 2, vocabulary: 128, sequence: 8}"
    training = f"{{data: {text}, learning_rate: 0.5}}"
    rest = f"strategy: {json.dumps(SERVERS)}\nbatch: {{per_worker: 8}}\nsteps: 400\ntraining: {training}\n"
    path.write_text(f"model: {model}\ncluster: {json.dumps(CLUSTER)}\n{rest}")
    return path


def trained_by(truth: Convergence) -> Callable[..., Run]:
    """What `measure` would return if training followed the model, each rate but 0.5 needing twice as long."""

    def measured(scenario: Scenario, *_: Any) -> Run:
        strategy: Any = scenario.strategy
        free = strategy.mode != "synchronous"
        behind = strategy.workers - 1.0 if free else 0.0
        batch = scenario.samples_per_worker if free else scenario.total_samples
        steps = round(truth.steps(batch, behind) * (1 if scenario.training.learning_rate == 0.5 else 2))
        steps -= warmup_steps(scenario) * (strategy.workers if free else 1)
        losses = tuple([3.0] * (steps - 1) + [1.0] * (800 - steps))
        servers: Any = SimpleNamespace(version_staleness=SimpleNamespace(mean=behind)) if free else None
        reported: dict[str, Any] = {"update_losses" if free else "losses": losses}
        return Run("measured", scenario.name, "parameter_server", 3, 2, 16, 1.0, (1.0,), {}, {}, servers=servers, **reported)

    return measured


OPTIONS = ["--target", "2", "--batches", "4,8,16,32", "--workers", "2,4"]


def test_the_command_recovers_the_parameters_of_simulated_training(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scaleproof.validator.measure.measure", trained_by(TRUTH))
    out = str(tmp_path / "out")
    assert scaleproof.main(["converge", str(file), *OPTIONS, "--out", out, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    found = reported["convergence"]
    assert found["minimum_steps"] == pytest.approx(60, rel=0.02)
    assert found["critical_batch"] == pytest.approx(12, rel=0.03)
    assert found["staleness_penalty"] == pytest.approx(0.8, rel=0.03)
    assert found["uncertainty"] < 0.03
    assert len(reported["held_out"]) == 6
    assert len(reported["trials"]) == 6 * 3
    kept = (tmp_path / "out" / "convergence.yaml").read_text()
    assert kept.splitlines()[-1].startswith("convergence: {minimum_steps: ")
    # saved trials are not repeated
    monkeypatch.setattr("scaleproof.validator.measure.measure", None)
    assert scaleproof.main(["converge", str(file), *OPTIONS, "--out", out, "--resume"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == kept.splitlines()[-1]
    assert "asynchronous, 4 workers" in text
    assert max(map(len, text.splitlines())) <= 110


def test_trials_finished_before_an_interruption_are_kept(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(range(7))

    def measured(scenario: Scenario, *_: Any) -> Run:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return trained_by(TRUTH)(scenario)

    monkeypatch.setattr("scaleproof.validator.measure.measure", measured)
    arguments = ["converge", str(file), *OPTIONS, "--out", str(tmp_path / "out")]
    assert scaleproof.main(arguments) == 130
    assert f"7 trials are in {tmp_path / 'out'}; --resume continues" in capsys.readouterr().err
    monkeypatch.setattr("scaleproof.validator.measure.measure", trained_by(TRUTH))
    assert scaleproof.main([*arguments, "--resume"]) == 0
    resumed = capsys.readouterr().out
    assert scaleproof.main([*arguments[:-2]]) == 0
    assert capsys.readouterr().out == resumed


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--target", "2", "--set", "training.data=null"], "nothing can be learned from random data"),
        (["--target", "2", "--resume"], "name its folder with --out DIR"),
        (["--target", "2", "--batches", "5"], "do not divide 5 samples"),
        (["--target", "2", "--workers", "5000"], "devices"),
    ],
)
def test_errors_of_the_command_are_one_line(
    arguments: list[str], reported: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaleproof.main(["converge", str(file), *arguments]) == 2
    error = capsys.readouterr().err
    assert reported in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("option", ["--batches=0", "--batches=4,x", "--bounds=-1", "--rates=0", "--target=nan", "--seeds=0"])
def test_invalid_options_are_rejected(option: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scaleproof.main(["converge", str(file), "--target", "2", option])
    assert "expected" in capsys.readouterr().err or option == "--seeds=0"


@pytest.mark.nightly
def test_real_training_by_batch_and_staleness_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few runs each: larger batches need fewer updates, gradients that are behind more."""
    options = ["--target", "2.5", "--batches", "4,16,64", "--workers", "4", "--rates", "0.25,0.5", "--set", "steps=800"]
    assert scaleproof.main(["converge", str(file), *options, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    steps = {one["mode"] + str(one["batch"]): np.mean([run["steps"] for run in one["runs"]]) for one in reported["settings"]}
    assert steps["synchronous4"] > steps["synchronous64"]
    assert steps["asynchronous8"] > steps["synchronous16"]
    assert reported["convergence"]["staleness_penalty"] > 0
