"""The option --gpus of commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scaleproof.commands.main import main

MEGATRON = "megatron-175b-3d-selene"


def test_predict_reports_what_the_number_of_gpus_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "resnet50-ring-p100", "--gpus", "128", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["ranks"] == 128
    assert output.err == (
        "note: 128 GPUs: strategy.workers 128 (was 32), cluster.nodes 32 (was 16); p100-25gbe has 64 GPUs, 16 nodes are added\n"
    )


def test_the_number_of_gpus_is_applied_after_other_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", MEGATRON, "--gpus", "512", "--set", "strategy.tp=16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 512
    assert main(["predict", MEGATRON, "--gpus", "512", "--set", "strategy.dp=4"]) == 2
    assert "512 GPUs contradict strategy.workers, which is also given (4 workers of 64)" in capsys.readouterr().err
    assert main(["predict", MEGATRON, "--gpus", "128", "--set", "batch.per_worker=64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 2 * 64


def test_compare_brings_both_to_equal_gpus_and_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", MEGATRON, "resnet50-ring-p100"]) == 0
    assert "A and B differ in scale: 512 and 32 GPUs, 256 and 2,048 samples a step; --gpus 512" in capsys.readouterr().out
    assert main(["compare", MEGATRON, "resnet50-ring-p100", "--gpus", "64"]) == 0
    output = capsys.readouterr()
    assert "differ in scale" not in output.out
    assert "note: B on 64 GPUs: strategy.workers 64 (was 32), global batch 256 (was 2,048)" in output.err


def test_sweep_takes_a_scenario_with_numbers_of_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scaleproof.simulator.analysis.study.store import table

    assert main(["sweep", "resnet50-ring-p100", "--gpus", "32,128,100", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert "nodes are added for 128 and 100 GPUs" in output.err
    assert "at GPUs 128" in output.out
    points = table(tmp_path)
    assert points["gpus"].tolist() == [32, 128, 100]
    assert points["ranks"].tolist()[:2] == [32, 128]
    assert "nearest possible: 64 and 128 GPUs" in points["error"][2]


def test_gpus_and_workers_are_not_both_axes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("scenario: resnet50-ring-p100\naxes: {strategy.workers: [2, 4]}\n")
    assert main(["sweep", str(study), "--gpus", "32", "--out", str(tmp_path / "out")]) == 2
    assert "determines the workers; leave one of both out" in capsys.readouterr().err


def test_crossover_compares_strategies_on_numbers_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crossover", "resnet50-ring-p100", "--gpus", "16,32", "--points", "2", "--strategies", "ring,ps-all"]) == 0
    assert "by cluster.network.bandwidth and GPUs" in capsys.readouterr().out


def test_the_option_is_hinted_at_where_a_command_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sensitivity", MEGATRON, "--gpus", "64"])
    assert "write --set gpus=64" in capsys.readouterr().err


def test_sweep_names_the_cheapest_point_where_it_is_not_the_fastest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "scenario: mixtral-8x7b-experts-h100\n"
        "axes:\n"
        "  cluster: {H100: dgx-h100, B200: b200-cluster}\n"
        "  cluster.node.price: [2.50 USD/GPU-hour, 4.50 USD/GPU-hour]\n"
        "zip: [[cluster, cluster.node.price]]\n"
    )
    assert main(["sweep", str(study), "--gpus", "128", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "tokens/s at cluster B200" in printed
    # 2.50 USD / (2,800 tokens/s * 3,600 s)
    cost = re.search(r"cheapest: (\S+) USD per million tokens at cluster H100", printed)
    assert cost
    assert float(cost[1]) == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("gpus", [["--set", "strategy.workers=64"], ["--set", "gpus=64"], ["--gpus", "64"]])
def test_a_remedy_can_be_added_to_the_command_and_keeps_the_gpus(gpus: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["predict", "llama-3-70b", "--set", "cluster=dgx-h100", "--set", "batch=512", *gpus]
    assert main(command) == 3
    shown = " ".join(capsys.readouterr().out.split())
    remedy = re.search(r"fits with: ((?:--set \S+ )+)", shown)
    assert remedy
    assert main([*command, *remedy[1].split(), "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert (run["ranks"], run["samples"], run["fits"]) == (64, 512, True)


def test_two_numbers_of_gpus_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", MEGATRON, "--gpus", "512", "--set", "gpus=1024"]) == 2
    assert "--gpus 512 and --set gpus=1024 contradict each other; leave out one of both" in capsys.readouterr().err


def test_a_precision_that_nobody_chose_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["predict", "llama-2-7b-fsdp-a100", "--json"]
    assert main(chosen) == 0
    assert "precision" not in capsys.readouterr().err
    assert main([*chosen, "--set", "training={zero: 3, optimizer: adam, recompute: full}"]) == 0
    assert "note: the scenario names no precision: fp32; for mixed precision, add" in capsys.readouterr().err
