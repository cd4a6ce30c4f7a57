"""Scripts whose ranks wait for ever end in a sentence with line, call and remedy, long before the limit of time."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import RunError
from tests.validator.capture.test_capture import captured

BEGIN = """
import os, threading, time
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
number, floats = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.zeros(8, device="cuda")
BEFORE
for _ in range(4):
    layer(torch.randn(2, 8, device="cuda")).sum().backward()
    WITHIN
    optimizer.step()
    optimizer.zero_grad()
"""

pytestmark = pytest.mark.full


def script_with(tmp_path: Path, before: str, within: str = "pass") -> Path:
    """A script that does something before its training, and in each step."""
    script = tmp_path / "train.py"
    script.write_text(BEGIN.replace("BEFORE", before).replace("WITHIN", within))
    return script


def said(tmp_path: Path, before: str = "pass", within: str = "pass", timeout_s: float = 300) -> str:
    """The sentence in which the capture of a script ends."""
    script = script_with(tmp_path, before, within)
    begin_s = time.monotonic()
    with pytest.raises(RunError) as raised:
        captured(script, ranks=4, timeout_s=timeout_s)
    assert time.monotonic() - begin_s < 150
    return str(raised.value)


@pytest.mark.parametrize(
    ("before", "within", "line", "call"),
    [
        pytest.param("pass", "rank or dist.barrier()", 13, "calls all_reduce 1 instead of 0 times until", id="barrier"),
        pytest.param(
            "rank or dist.all_reduce(floats)", "pass", 10, "calls all_reduce 1 instead of 0 times until",
            id="before training", marks=pytest.mark.nightly,
        ),
        pytest.param(
            "rank or dist.all_gather_object([None] * ranks, 1)", "pass", 10,
            "calls all_gather_object 1 instead of 0 times until", id="objects", marks=pytest.mark.nightly,
        ),
        pytest.param(
            "pass", "rank or dist.recv(floats, src=1)", 13, r"a message \(1 to 0\) 1 instead of 0 times in a training step",
            id="message", marks=pytest.mark.nightly,
        ),
    ],
)  # fmt: skip
def test_calls_that_other_ranks_of_a_group_do_not_make_are_named(
    before: str, within: str, line: int, call: str, tmp_path: Path
) -> None:
    text = said(tmp_path, before, within)
    assert text.startswith(f"train.py:{line}: rank 0 ")
    assert re.search(call, text), text
    assert "let all ranks of a group make the same calls" in text


@pytest.mark.parametrize(
    ("before", "within", "line", "call"),
    [
        pytest.param(
            "pass", "dist.recv(number, (rank - 1) % ranks); dist.send(number, (rank + 1) % ranks)", 13, "waits for rank",
            id="circle",
        ),
        pytest.param(
            "while dist.distributed_c10d._get_default_store().get('state') != b'x': pass", "pass", 10, "state'",
            id="store", marks=pytest.mark.nightly,
        ),
    ],
)  # fmt: skip
def test_what_is_waited_for_is_named(before: str, within: str, line: int, call: str, tmp_path: Path) -> None:
    text = said(tmp_path, before, within)
    assert text.startswith(f"train.py:{line}: ")
    assert call in text
    assert "leave the" in text


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("before", "within", "line", "call"),
    [
        pytest.param("pass", "rank or threading.Event().wait()", 13, "/threading.py:", id="event"),
        pytest.param("while not os.path.exists('/nowhere'): time.sleep(0.2)", "pass", 10, "time.sleep(0.2)", id="file"),
    ],
)
def test_waits_for_other_things_than_ranks_last_until_the_limit_of_time(
    before: str, within: str, line: int, call: str, tmp_path: Path
) -> None:
    text = said(tmp_path, before, within, timeout_s=90)
    assert re.match(rf"train\.py:{line}: .* within 90 s on rank \d, which is at this line, where it is in ", text), text
    assert call in text


@pytest.mark.nightly
@pytest.mark.parametrize("idle", ["time.sleep(60)", "__import__('subprocess').run(['sleep', '60'])"], ids=["sleep", "program"])
def test_a_script_may_be_idle(idle: str, tmp_path: Path) -> None:
    (one,) = captured(script_with(tmp_path, idle), ranks=4).classes
    assert one.steps >= 3
