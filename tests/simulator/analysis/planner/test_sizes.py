"""Plans of several numbers of GPUs: what is written, what is planned again, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaleproof import main
from scaleproof.reports.descriptions.plan_sentences import against_runner_up, headline, tie_sentence
from scaleproof.reports.pages.page import build
from scaleproof.simulator.analysis.planner import sizes
from scaleproof.simulator.analysis.planner.record import PlanRecord
from scaleproof.simulator.analysis.planner.sizes import plan_sizes, read_plans
from scaleproof.simulator.analysis.planner.words import layout
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.predict import timed
from scaleproof.simulator.scenario.load import load

OPTIONS: dict[str, Any] = {"top": 3}
SCENARIO = load("llama-2-7b-fsdp-a100", ["batch=64", "strategy.workers=8", "cluster.nodes=1"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans")
    # 97 workers do not divide the global batch
    plan_sizes(SCENARIO, [8, 16, 97], OPTIONS, path)
    return path


@pytest.fixture(scope="module")
def plans(folder: Path) -> list[PlanRecord]:
    found, notes = read_plans(folder)
    assert not notes
    return found


def test_each_size_keeps_the_global_batch_and_gets_the_nodes_it_needs(plans: list[PlanRecord]) -> None:
    assert [plan.gpus for plan in plans] == [8, 16, 97]
    assert {plan.samples for plan in plans} == {64}
    assert [plan.added_nodes for plan in plans] == [0, 1, 12]
    assert "no configuration trains 64 samples" in plans[2].problem


def test_the_best_scenario_of_a_size_predicts_the_planned_time(plans: list[PlanRecord], folder: Path) -> None:
    for plan in plans[:2]:
        again = load(str(folder / f"best-{plan.gpus}.yaml"))
        assert again.total_samples == plan.samples
        assert timed(again).step_time_s == pytest.approx(plan.best[0].step_time_s, rel=1e-9)
        assert sum(plan.memory_bytes.values()) == pytest.approx(plan.best[0].memory_bytes, rel=1e-6)


def test_finished_sizes_are_not_planned_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "plan", lambda *_, **__: pytest.fail("planned again"))
    assert [plan.gpus for plan in plan_sizes(SCENARIO, [8, 16], OPTIONS, folder)] == [8, 16]
    with pytest.raises(InputError, match="another scenario, other options"):
        plan_sizes(SCENARIO, [8], OPTIONS | {"top": 4}, folder)


def test_an_interrupted_plan_keeps_finished_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sizes.plan

    def interrupted(scenario: Any, gpus: int, **options: Any) -> Any:
        if gpus == 16:
            raise KeyboardInterrupt
        return real(scenario, gpus, **options)

    monkeypatch.setattr(sizes, "plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plan_sizes(SCENARIO, [8, 16], OPTIONS, tmp_path)
    assert [plan.gpus for plan in read_plans(tmp_path)[0]] == [8]
    assert (tmp_path / "best-8.yaml").is_file()


def test_without_any_plan_the_problems_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no configuration trains 64 samples per step on 97 ranks"):
        plan_sizes(SCENARIO, [97], OPTIONS)


def test_the_headline_is_about_the_largest_size(plans: list[PlanRecord]) -> None:
    text = headline(plans)
    assert text.startswith("16 GPUs: ")
    assert " tokens/s (" in text
    assert "x of 8 GPUs; " in text
    assert headline(plans[2:]) == "No plan fits on 97 GPUs."


def test_a_folder_of_plans_becomes_a_page(folder: Path) -> None:
    built = build(folder)
    page = built.path.read_text(encoding="utf-8")
    assert not built.is_empty
    for text in (
        "linear scaling",
        "Pareto front",
        "best-16.yaml",
        "with a probability of",
        "Faster but too large",
        "97 GPUs: no plan",
    ):
        assert text in page, text
    assert (folder / "tables" / "ranking.csv").read_text().count("\n") == 1 + sum(
        len(plan.best) for plan in read_plans(folder)[0]
    )


def test_totals_of_a_whole_run_are_on_the_page_and_change_without_another_plan(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in folder.glob("*-8.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(sizes, "plan", lambda *_, **__: pytest.fail("planned again"))
    for tokens, text in ((1e9, "1.00 B tokens"), (2e12, "2.00 T tokens")):
        (plan,) = plan_sizes(SCENARIO, [8], OPTIONS, tmp_path, tokens=tokens)
        assert plan.training is not None
        assert plan.training.time_s.value == pytest.approx(plan.training.steps * plan.best[0].step_time_s)
        assert text in build(tmp_path).path.read_text(encoding="utf-8")


def test_unreadable_plans_are_notes_of_the_page(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plan-8.json").write_bytes((folder / "plan-8.json").read_bytes())
    (tmp_path / "plan-9.json").write_text("{}")
    assert "plan-9.json cannot be read" in build(tmp_path).path.read_text(encoding="utf-8")


@pytest.mark.full
def test_the_command_plans_several_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "llama-2-7b-fsdp-a100", "--set", "batch=64", "--gpus", "16,8", "--top", "2"]
    assert main([*command, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "global batch 64 at each number of GPUs" in out
    rows = out.partition("best plan\n")[2].partition("\n\n")[0].splitlines()
    assert [row.split()[0] for row in rows] == ["8", "16"]
    assert (tmp_path / "index.html").is_file()
    assert main([*command, "--json"]) == 0
    assert [plan["gpus"] for plan in json.loads(capsys.readouterr().out)["plans"]] == [8, 16]
    with pytest.raises(SystemExit):
        main([*command[:5], "0,8"])
    assert "expected a whole number of at least 1" in capsys.readouterr().err


def test_words_of_plans(plans: list[PlanRecord]) -> None:
    configuration = {"workers": 4, "tensor": 2, "stages": 2, "samples": 1, "microbatches": 8, "zero": 1}
    assert layout(configuration | {"recompute": "{modules: [mlp]}"}) == "DP4 TP2 PP2, MBS 1, GA 8, ZeRO-1, recompute mlp"
    best, *_ = plans[0].best
    rows = [best, *(best.model_copy(update={"best_is_better": share}) for share in (0.6, 0.6, 0.8, 0.6))]
    tied = plans[0].model_copy(update={"best": rows})
    sure = "with a probability of 60 %"
    assert list(tie_sentence(tied)) == [f"Nos. 2, 3 and 5 are a tie with No. 1: it is faster {sure}"]
    by_cost = tied.model_copy(update={"objective": "cost"})
    assert list(tie_sentence(by_cost)) == [f"Nos. 2, 3 and 5 are a tie with No. 1: it is cheaper {sure}"]
    assert against_runner_up(by_cost.model_copy(update={"runner_up": rows[1]})).endswith(f" is cheaper {sure}")
    likely = best.model_copy(update={"best_is_better": 0.8})
    assert " is cheaper than " in against_runner_up(by_cost.model_copy(update={"runner_up": likely}))
