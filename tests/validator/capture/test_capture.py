"""Captured scripts have the FLOPs, communication and memory that theory gives, and fail in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from scaleproof.simulator.captured.reading import allocations_of
from scaleproof.simulator.captured.record import Capture, Category, EventKind, TrainingPass
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.units import parse_bytes
from scaleproof.simulator.memory.captured import LiveMemory
from scaleproof.validator.capture.capture import CaptureOptions, capture
from scaleproof.validator.capture.job import CaptureJob, DeviceProperties, Script
from tests.validator.verdicts import at_night

EXAMPLES: Final = Path(__file__).parents[3] / "examples" / "captured"
DEVICE: Final = DeviceProperties("NVIDIA H100", int(parse_bytes("80 GiB")), 132, 50 << 20, (9, 0))
LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 2, 128, 4, 512, 64, 2
SIZES: Final = [f"--{name}={value}" for name, value in (
    ("layers", LAYERS), ("width", WIDTH), ("heads", HEADS), ("vocabulary", VOCABULARY), ("length", LENGTH), ("batch", BATCH),
)]  # fmt: skip
PARAMETERS: Final = (
    (VOCABULARY + LENGTH + VOCABULARY) * WIDTH + LAYERS * (12 * WIDTH**2 + 13 * WIDTH) + 2 * WIDTH
)  # fmt: skip


def captured(script: Path, *arguments: str, ranks: int = 8, values: str = "balanced", timeout_s: float = 300) -> Capture:
    job = CaptureJob(Script(str(script), arguments), ranks, min(8, ranks), DEVICE, 3, values)
    return capture(job, CaptureOptions("h100-80gb-sxm", timeout_s=timeout_s), lambda _: None)[0]


@pytest.fixture(scope="module")
def gpt() -> Capture:
    return captured(EXAMPLES / "gpt_ddp.py", *SIZES)


def test_flops_are_those_of_theory(gpt: Capture) -> None:
    tokens = BATCH * LENGTH
    products = 2 * tokens * (12 * WIDTH**2 * LAYERS + WIDTH * VOCABULARY)
    # two products in attention's forward pass; five in its backward pass, which computes the scores again
    scores = 2 * BATCH * LENGTH**2 * WIDTH * LAYERS
    for one in gpt.classes:
        flops = one.columns["flops"][one.rows(EventKind.OPERATOR)].sum()
        assert flops == 3 * products + 7 * scores


def test_replicas_sum_each_gradient_once(gpt: Capture) -> None:
    for one in gpt.classes:
        assert one.parameters == one.local_parameters == PARAMETERS
        sums = [row for row in one.rows(EventKind.COLLECTIVE) if one.columns["phase"][row] == TrainingPass.BACKWARD]
        assert {one.text("name", row) for row in sums} == {"all_reduce"}
        assert one.columns["bytes_read"][sums].sum() == 4 * PARAMETERS
        assert {len(one.groups[one.columns["group"][row]].ranks) for row in sums} == {8}
        waited = set(one.columns["work"][one.rows(EventKind.WORK_WAIT)].tolist())
        assert set(one.columns["work"][sums].tolist()) <= waited


def test_memory_of_states_is_that_of_theory(gpt: Capture) -> None:
    one = gpt.classes[-1]
    allocations = one.rows(EventKind.ALLOCATE, in_step=False)
    at_begin = allocations[allocations < one.rows(EventKind.STEP)[0]]

    def size_bytes(rows: np.ndarray, category: Category) -> int:  # type: ignore[type-arg]
        return int(one.columns["size"][rows[one.columns["category"][rows] == category]].sum())

    assert size_bytes(at_begin, Category.PARAMETERS) == 4 * PARAMETERS
    tensors = 5 + 12 * LAYERS
    # Adam's two moments, and a number of steps per tensor
    assert size_bytes(at_begin, Category.OPTIMIZER_STATES) == 8 * PARAMETERS + 4 * tensors
    peak = LiveMemory.from_allocations(*allocations_of(one)).peak
    assert peak.holders_bytes["parameters"] == 4 * PARAMETERS
    assert peak.size_bytes == sum(peak.holders_bytes.values()) == sum(peak.lines_bytes.values())
    assert peak.size_bytes == sum(peak.modules_bytes.values())
    assert peak.size_bytes == one.peak_bytes[1]


def test_only_the_rank_that_prints_is_a_class_of_its_own(gpt: Capture) -> None:
    assert [one.ranks for one in gpt.classes] == [(range(1),), (range(1, 8),)]
    first, others = gpt.classes
    assert len(first.rows(EventKind.ITEM)) == len(others.rows(EventKind.ITEM)) + 1


def test_operators_are_of_modules_passes_and_lines(gpt: Capture) -> None:
    one = gpt.classes[-1]
    products = [row for row in one.rows(EventKind.OPERATOR) if one.columns["flops"][row]]
    modules = {one.text("module", row) for row in products}
    assert {"blocks.0.qkv", "blocks.1.mlp.2", "head"} <= modules
    assert "" not in modules
    assert {one.text("line", row).partition(":")[0] for row in products} == {"gpt_ddp.py"}
    phases = one.columns["phase"]
    by_phase = [
        sum(one.columns["flops"][row] for row in products if phases[row] == phase)
        for phase in (TrainingPass.FORWARD, TrainingPass.BACKWARD)
    ]
    assert by_phase[1] > 2 * by_phase[0] > 0
    optimizers = [row for row in one.rows(EventKind.OPERATOR) if one.text("name", row) == "aten::_fused_adamw_"]
    assert [phases[row] for row in optimizers] == [TrainingPass.OPTIMIZER]


@pytest.mark.full
def test_replicas_of_a_script_without_printing_are_one_class(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((EXAMPLES / "gpt_ddp.py").read_text().replace("dist.get_rank() == 0", "False"))
    (one,) = captured(script, *SIZES, ranks=4).classes
    assert one.ranks == (range(4),)


@pytest.mark.full
def test_router_follows_the_policy() -> None:
    (one,) = captured(EXAMPLES / "mixture_of_experts.py", ranks=8).classes
    assert {each.policy for each in one.decisions if each.operator == "aten::topk"} == {"balanced"}
    skewed = captured(EXAMPLES / "mixture_of_experts.py", ranks=8, values="zipf:1")
    by_rank = {ranks[0]: each for each in skewed.classes for ranks in each.ranks}
    policies = {each.policy for each in by_rank[0].decisions if each.operator == "aten::topk"}
    assert policies == {"zipf:1"}
    # the first ranks have the experts that are chosen most often
    both = [by_rank[rank] for rank in (0, 7)]
    flops = [float(each.columns["flops"][each.rows(EventKind.OPERATOR)].sum()) for each in both]
    assert flops[0] > 1.5 * flops[1] > 0


@pytest.mark.full
@pytest.mark.parametrize("ranks", [8, *at_night(64)])
def test_stages_of_a_pipeline_send_what_the_next_receives(ranks: int) -> None:
    capture = captured(EXAMPLES / "pipeline_1f1b.py", ranks=ranks)
    assert sorted(min(ranks for each in one.ranks for ranks in each) for one in capture.classes) == [0, 1, 2, 3]
    assert all(len(one) == ranks // 4 for one in capture.classes)
    sent = {one.played % 4: one.columns["bytes_read"][one.rows(EventKind.SEND)].sum() for one in capture.classes}
    received = {one.played % 4: one.columns["bytes_written"][one.rows(EventKind.RECEIVE)].sum() for one in capture.classes}
    assert sum(sent.values()) == sum(received.values()) > 0


PREFIX = "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\nx = torch.ones(4, device='cuda')\n"
QUICK: Final = ("crashes", "no step")
BAD: Final = {
    "crashes": ("x.view(3)\n", r"bad\.py:4: the script failed on rank 0 \(RuntimeError: shape '\[3\]' is invalid"),
    "file": ("open('data.bin')\n", r"bad\.py:4: the script needs a file that does not exist"),
    "no step": ("", r"bad\.py: the script ended without a step of an optimizer"),
    "extension": ("import fbgemm_gpu\n", r"bad\.py:4: the script imports fbgemm_gpu, which needs a GPU"),
    "stand-in": ("from flash_attn import unknown\n", r"bad\.py:4: the script uses flash_attn\.unknown, which is not in"),
    "syntax": ("def\n", r"bad\.py:4: SyntaxError"),
    "network": (
        "import urllib.request\nurllib.request.urlopen('http://localhost:9/data.tar')\n",
        r"bad\.py:5: the script needs the network",
    ),
    "graph": ("torch.cuda.CUDAGraph()\n", r"bad\.py:4: torch\.cuda\.CUDAGraph records kernels .* without CUDA graphs"),
    "one process": ("torch.nn.DataParallel(torch.nn.Linear(2, 2))\n", r"bad\.py:4: torch\.nn\.DataParallel drives"),
    "hook": (
        "x.requires_grad_().register_hook(lambda gradient: 1 // 0)\n(x * x).sum().backward()\n",
        r"bad\.py:4: the script failed on rank 0 \(ZeroDivisionError",
    ),
    "checkpoint": (
        "from torch.utils.checkpoint import checkpoint\npasses = []\ndef layer(y):\n"
        "    passes.append(y)\n    return y.exp().exp() if len(passes) == 1 else y.exp()\n"
        "checkpoint(layer, x.requires_grad_(), use_reentrant=False).sum().backward()\n",
        r"bad\.py:9: the second forward pass of torch\.utils\.checkpoint differs from the first .*; let both call the same",
    ),
    "exit": ("raise SystemExit('wrong arguments')\n", r"bad\.py:4: the script exited before its first training step"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.full) for kind in BAD])
def test_scripts_that_fail_are_explained_in_a_sentence(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    body, message = BAD[kind]
    script.write_text(PREFIX + body)
    with pytest.raises(RunError, match=message) as raised:
        captured(script, ranks=1)
    assert "\n" not in str(raised.value)


@pytest.mark.full
def test_a_script_that_never_steps_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text(PREFIX + "while True:\n    x = x * 2\n")
    begin_s = time.monotonic()
    with pytest.raises(RunError, match=r"bad\.py:[45]: no training step within 20 s on rank 0"):
        captured(script, ranks=1, timeout_s=20)
    assert time.monotonic() - begin_s < 70


@pytest.mark.full
def test_nothing_is_left_running_after_ctrl_c(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    mark = f"marker-{tmp_path.name}-{os.getpid()}"
    sleeps = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', '{mark}'])\n"
    script.write_text(PREFIX + sleeps)
    command = ["capture", "--ranks", "2", "--device", "h100-80gb-sxm", "--", "python", str(script)]
    process = subprocess.Popen([sys.executable, "-m", "scaleproof", *command], stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 120
    while not _running(mark):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not _running(mark)


def _running(mark: str) -> bool:
    """Whether a process has a text among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and b"capture" not in words:
            return True
    return False


@pytest.mark.full
def test_memory_only_names_categories_and_lines(tmp_path: Path) -> None:
    command = ["capture", "--memory-only", "--json", "--ranks", "2", "--device", "h100-80gb-sxm", "--"]
    done = subprocess.run(
        [sys.executable, "-m", "scaleproof", *command, "python", str(EXAMPLES / "gpt_ddp.py"), *SIZES],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    peaks = json.loads(done.stdout)
    assert sum(one["ranks"] for one in peaks) == 2
    assert all(one["categories"]["parameters"] == 4 * PARAMETERS for one in peaks)
    assert not list(tmp_path.iterdir())
