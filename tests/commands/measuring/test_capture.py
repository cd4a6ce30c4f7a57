"""The command capture: where its file is written, what it says of samples, and the command that continues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import scaleproof

SCRIPT = """
import torch

model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(32, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.full
def test_the_next_command_works_and_samples_are_those_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    start = ["capture", "--ranks", "1", "--cluster", "dgx-a100"]
    # a name without a suffix gets the one by which predict knows a capture
    assert scaleproof.main([*start, "--out", "mine", "--", "python", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "32 samples a step: the first dimension of Linear's input 32 × 64" in out
    (command,) = re.findall("next: scaleproof (.*)", out)
    assert command == "predict mine.zip"
    assert scaleproof.main(command.split()) == 0
    assert "for 32 samples" in capsys.readouterr().out
    assert scaleproof.main([*start, "--samples", "8", "--out", "given.zip", "--", "python", "train.py"]) == 0
    assert "8 samples a step: as given" in capsys.readouterr().out
    assert scaleproof.main(["predict", "given.zip"]) == 0
    assert "for 8 samples" in capsys.readouterr().out
