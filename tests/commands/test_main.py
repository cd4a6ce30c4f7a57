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
        (["predict", "resnet50-ring-p100", "--workers", "8"], "write --set strategy.workers=VALUE"),
        (["predict", "resnet50-ring-p100", "--tp", "8"], "write --set strategy.tensor=VALUE"),
        (["predict", "resnet50-ring-p100", "--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_a_wrong_command_or_option_gives_a_hint(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        scaleproof.main(arguments)
    assert end.value.code == 2
    assert hint in capsys.readouterr().err
