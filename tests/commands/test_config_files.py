"""The option --from: what became of keys is said on stderr, and the job is predicted, planned or printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import scaleproof
from scaleproof.commands.text.config_files import describe_config_files
from scaleproof.simulator.scenario.config_files import Line

ARGUMENTS = """
output_dir: out
per_device_train_batch_size: 4
bf16: true
max_length: 512
group_by_length: true
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "args.yaml"
    path.write_text(ARGUMENTS)
    return str(path)


def test_predict_takes_files_with_a_model(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["qwen2.5-0.5b", "--from", file, "--set", "cluster=dgx-a100", "--gpus", "2"]
    assert scaleproof.main(["predict", *job]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("args: data_parallel on 2 ranks, predicted")
    assert "framework      trl" in printed.out
    assert "per_device_train_batch_size: 4  batch.per_worker=4" in printed.err
    assert "not modelled  group_by_length: true" in printed.err


def test_show_prints_a_scenario(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["show", f"from:{file}"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"# from {file}\n#   read")
    assert yaml.safe_load(printed)["framework"] == "trl"


def test_a_scenario_or_files_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaleproof.main(["plan"]) == 2
    assert "give SCENARIO, or --from FILE" in capsys.readouterr().err


def test_keys_are_in_columns_and_ignored_ones_in_paragraphs() -> None:
    lines = [
        Line("read", "bf16: true", "training.precision=bf16"), Line("read", "max_length: 512", "model.sequence=512"),
        Line("assumed", "", "strategy.workers=1", "not given"), Line("ignored", "seed", "", "no effect"),
        Line("ignored", "output_dir", "", "no effect"),
    ]  # fmt: skip
    assert describe_config_files(["a.yaml"], lines).splitlines() == [
        "from a.yaml",
        "  read     bf16: true          training.precision=bf16",
        "           max_length: 512     model.sequence=512",
        "  assumed  strategy.workers=1  not given",
        "  ignored  no effect: seed, output_dir",
    ]
