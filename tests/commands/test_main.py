"""The command line as a whole."""

from __future__ import annotations

import re

import pytest

import scaleproof

_COMMANDS = (
    "predict", "plan", "sweep", "compare", "crossover", "sensitivity", "uneven", "goodput", "collective", "model",
    "cluster diff", "schema", "list", "show", "calibrate", "import nccl-tests", "import topo", "import kineto",
    "import chakra", "measure", "runs", "reconcile", "prove", "faults", "converge", "score", "report", "timeline", "claims",
    "explore", "history",
)  # fmt: skip


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_explains_its_arguments(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        scaleproof.main([*command.split(), "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: scaleproof {command} [-h]")


def test_help_lists_every_command_once_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        scaleproof.main(["--help"])
    listed = re.findall(r"^  (\w+) +\S", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted({command.split()[0] for command in _COMMANDS})


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["predct", "resnet50-ring-p100"], "no command is called 'predct'; did you mean 'predict'?"),
        (["zzz"], "no command is called 'zzz'; the commands are predict, plan"),
        (["predict", "resnet50-ring-p100", "--workers", "8"], "write --set strategy.workers=8"),
        (["predict", "resnet50-ring-p100", "--tp", "8"], "write --set strategy.tensor=8"),
        (["predict", "resnet50-ring-p100", "--device=h100"], "write --set cluster.device=h100"),
        (["plan", "resnet50-ring-p100", "--gups", "8"], "did you mean --gpus?"),
        (["predict", "resnet50-ring-p100", "--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_a_wrong_command_or_option_gives_a_hint(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        scaleproof.main(arguments)
    assert end.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["predict", "."], ". is a folder; to see the results in it, use 'scaleproof report .'"),
        (["predict", "llama-2-7b-fsdp-scaling"], "is a study, not a scenario; use 'scaleproof sweep llama-2-7b-fsdp-scaling"),
        (["sweep", "ring-2", "--out", "out"], "'ring-2' is a scenario, not a study; use 'scaleproof predict ring-2'"),
        (["predict", "llama3-70b"], "'llama-3-70b' is a model, not a scenario; use 'scaleproof model llama-3-70b'"),
        (["predict", "ring-2", "--set", "network.bandwidth=1"], "did you mean 'cluster.network.bandwidth'?"),
        (["predict", "ring-2", "--set", "cluster.device=h100"], "did you mean 'h100-80gb-sxm', 'h100-80gb-pcie' or "),
    ],
)
def test_a_wrong_name_says_what_it_is_and_what_to_use(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaleproof.main(arguments) == 2
    printed = capsys.readouterr().err
    assert error in printed
    assert printed.count("\n") == 1
