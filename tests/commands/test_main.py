"""The command line as a whole."""

from __future__ import annotations

import re
from io import StringIO

import pytest

import scaleproof
from scaleproof.commands.output import show

_COMMANDS = (
    "predict", "plan", "sweep", "compare", "crossover", "sensitivity", "uneven", "goodput", "collective", "model",
    "cluster diff", "device", "schema", "list", "show", "calibrate", "import nccl-tests", "import topo", "import kineto",
    "import chakra", "import kernels", "capture", "diagnose", "fit", "measure", "runs", "reconcile", "prove", "faults",
    "converge", "score", "report", "timeline", "claims", "explore", "history", "completion",
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
        (["predict", "resnet50-ring-p100", "--batch", "8"], "write --set batch=8"),
        (["plan", "resnet50-ring-p100", "--memory", "70"], "argument --memory: '70' has no unit; write a size such as"),
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
        (["predict", ""], "a name is empty; give the path of a YAML file or a name from 'scaleproof list'"),
        (["predict", "."], ". is a folder; to see the results in it, use 'scaleproof report .'"),
        (["predict", "llama-2-7b-fsdp-scaling"], "is a study, not a scenario; use 'scaleproof sweep llama-2-7b-fsdp-scaling"),
        (["sweep", "ring-2", "--out", "out"], "'ring-2' is a scenario, not a study; use 'scaleproof predict ring-2'"),
        (["predict", "llama3-70b"], "needs cluster and batch; add --set cluster=dgx-h100 --set batch=512"),
        (["predict", "llama-3-70b"], "needs cluster and batch; add --set cluster=dgx-h100 --set batch=512"),
        (["predict", "ring-2", "--set", "network.bandwidth=1"], "did you mean 'cluster.network.bandwidth'?"),
        (["predict", "ring-2", "--set", "cluster.device=h100"], "did you mean 'h100-80gb-sxm', 'h100-94gb-nvl' or "),
    ],
)
def test_a_wrong_name_says_what_it_is_and_what_to_use(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scaleproof.main(arguments) == 2
    printed = capsys.readouterr().err
    assert error in printed
    assert printed.count("\n") == 1


def test_list_shows_files_of_a_kind_or_with_words_in_120_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's workers have that of the terminal
    monkeypatch.setenv("COLUMNS", "120")
    assert scaleproof.main(["list", "devices", "h100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split()[0]: line for line in lines[1:]}
    assert {"h100-80gb-pcie", "h100-80gb-sxm", "h100-96gb-hbm2e-500w"} <= found.keys()
    assert all("h100" in line.lower() for line in found.values())
    assert "80.0 GiB, 989 TFLOP/s bf16" in found["h100-80gb-sxm"]
    assert scaleproof.main(["list"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120
    assert scaleproof.main(["list", "modles"]) == 2
    assert capsys.readouterr().err == "no files with 'modles'; did you mean 'models'?\n"


def test_a_terminal_shows_out_of_memory_in_red_and_other_places_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "llama: out of memory\n  step time      1 s"
    for is_terminal, shown in ((True, "\x1b[1;31mllama: out of memory\x1b[0m"), (False, text)):
        screen = StringIO()
        monkeypatch.setattr(screen, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("sys.stdout", screen)
        monkeypatch.setenv("TERM", "xterm")
        show(text)
        assert screen.getvalue().startswith(shown)
        assert ("\x1b[" in screen.getvalue()) == is_terminal
