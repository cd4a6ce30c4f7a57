"""Commands that start a script, as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.capture.command_line import parse
from scaleproof.validator.capture.job import Script


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --lr 1",
        "python3.11 -u train.py --lr 1",
        "python -W error train.py --lr 1",
        "/usr/bin/python3 train.py --lr 1",
        "train.py --lr 1",
        "torchrun --nproc_per_node 8 --nnodes 2 train.py --lr 1",
        "python -m torch.distributed.run --nproc-per-node=8 train.py --lr 1",
        "accelerate launch --multi_gpu train.py --lr 1",
    ],
)
def test_the_script_and_its_arguments_are_found(command: str) -> None:
    assert parse(command.split()).script == Script("train.py", ("--lr", "1"))


def test_torchrun_says_how_many_ranks_there_are() -> None:
    started = parse(["torchrun", "--nproc_per_node", "8", "--nnodes", "2", "train.py"])
    assert (started.ranks, started.ranks_per_node) == (16, 8)
    assert parse(["torchrun", "train.py"]).ranks is None


def test_a_module_is_run_as_one() -> None:
    assert parse(["python", "-m", "package.train", "--lr", "1"]).script == Script(
        "package.train", ("--lr", "1"), is_module=True
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "give the command that starts the script after --"),
        ("python", "the command has no script"),
        ("python missing.py", "missing.py: no such script"),
        ("python -m", "-m needs the name of a module"),
        ("torchrun --no-such-option train.py", "torchrun does not accept"),
    ],
)
def test_other_commands_are_refused(command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(command.split())
