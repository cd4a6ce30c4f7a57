"""The command line as a whole."""

from __future__ import annotations

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
