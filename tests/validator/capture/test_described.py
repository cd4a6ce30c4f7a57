"""What captures record is what scenarios describe: bytes of kernels and of collectives, and code of compiled blocks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from scaleproof.simulator.captured.record import EventKind, RecordedRanks
from scaleproof.simulator.predict import predict
from scaleproof.simulator.scenario.load import load
from scaleproof.validator.capture.backend.schemas import moved_bytes, schema_of
from tests.validator.capture.test_capture import captured
from tests.validator.verdicts import at_night

SCRIPTS: Final = Path(__file__).parent / "scripts"
PARAMETERS: Final = 1024 * 1024 + 1024 * 2048
MIB: Final = 2**20


def moved(name: str, inputs: list[Any], outputs: list[Any]) -> int:
    """Bytes that an operator reads and writes."""
    return sum(moved_bytes(f"aten::{name}", inputs, outputs))


def test_kernels_move_what_they_read_and_write() -> None:
    rows, short = torch.empty(8, 4096), torch.empty(8, 512)
    size, targets, scalar = 4 * rows.numel(), torch.empty(8, dtype=torch.int64), torch.empty(())
    # a loss reads one score of each row, and its gradient writes all of them
    assert moved("nll_loss_forward", [rows, targets], [scalar, scalar]) < size / 100
    assert moved("nll_loss_backward", [scalar, rows, targets], [rows]) == pytest.approx(size, rel=0.01)
    # long rows of a softmax are read twice, short ones stay in registers
    assert moved("_log_softmax", [rows], [rows]) == 3 * size
    assert moved("_log_softmax", [short], [short]) == 2 * 4 * short.numel()
    # gradients of a norm's weights read the gradient and the input again
    weights = torch.empty(4096)
    assert moved("native_layer_norm_backward", [rows, rows], [rows, weights, weights]) == pytest.approx(5 * size, rel=0.3)
    assert moved("native_layer_norm_backward", [rows, rows], [rows]) == 3 * size
    # what is only written is not read
    assert moved("_foreach_copy_", [rows, short], [rows]) == size + 4 * short.numel()


def test_fused_optimizers_write_gradients_only_to_unscale_them() -> None:
    adam = schema_of(torch.ops.aten._fused_adamw_.default)
    lists = [["weights"], ["gradients"], ["averages"], ["squares"], [], []]
    assert adam.writes(lists, {}) == [["weights"], ["averages"], ["squares"], []]
    assert ["gradients"] in adam.writes(lists, {"grad_scale": 1.0})


def sent_bytes(one: RecordedRanks, name: str) -> int:
    """Bytes of a class's collectives of a kind in its step."""
    return sum(
        int(one.columns["bytes_written"][row]) for row in one.rows(EventKind.COLLECTIVE) if one.text("name", row) == name
    )


@pytest.mark.full
@pytest.mark.parametrize("buffer", [0, MIB])
def test_zero_1_broadcasts_parameters_and_ddp_broadcasts_buffers(buffer: int, tmp_path: Path) -> None:
    capture = captured(SCRIPTS / "zero_redundancy.py", str(buffer), ranks=4)
    for one in capture.classes:
        assert sent_bytes(one, "all_reduce") == 4 * PARAMETERS
        # DistributedDataParallel broadcasts the buffers of its module in each forward pass
        assert sent_bytes(one, "broadcast") == 4 * (PARAMETERS + buffer)
    capture.write(tmp_path / "zero.zip")
    parts = {
        one.label: one for one in predict(load(tmp_path / "zero.zip", {"cluster": "dgx-h100"}), interval=False).communication
    }
    broadcast = parts["DP broadcast"]
    assert broadcast.size_bytes == 4 * (PARAMETERS + buffer)
    # waiting for them counts as communication, not as a bubble
    assert broadcast.exposed_s > 0


def pairs_of_the_benchmark() -> ModuleType:
    """The benchmark of captured against described training."""
    path = Path(__file__).parents[3] / "benchmarks" / "captured_against_described.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("GPT, DDP, fp32", 4),
        ("GPT, ZeRO 1, bf16 by autocast", 16),
        ("GPT, 1F1B, bf16", 8),
        ("Llama, FSDP2, bf16, compiled", 16),
        ("Llama, FSDP2 and TP with sequence parallelism, bf16", 16),
        ("Llama with 32 experts, EP, bf16", 8),
        *at_night(
            ("GPT, DDP, bf16 by autocast", 4),
            ("Llama, FSDP2, bf16", 16),
            ("Llama, FSDP2 without resharding (ZeRO 2), bf16", 4),
        ),
    ],
)
def test_captured_training_is_predicted_as_its_scenario_is(name: str, layers: int, tmp_path: Path) -> None:
    """Time is within 3 %, tensors are within 4 %, and FLOPs and bytes of each kind of collective are equal.

    With few layers what is once a step weighs more: tensors that ranks own whole, two gathered blocks that scenarios count
    where none is, and collectives that nothing hides.
    """
    benchmark = pairs_of_the_benchmark()
    (pair,) = (one for one in benchmark.PAIRS if one.name == name)
    arguments, model = f"{pair.arguments} --layers {layers}".strip(), pair.scenario["model"] | {"layers": layers}
    smaller = pair._replace(arguments=arguments, scenario=pair.scenario | {"model": model})
    ratios = {quantity: ratio for quantity, _, _, ratio in benchmark.rows(smaller, tmp_path)}
    assert ratios["step time"] == pytest.approx(1.0, abs=0.03)
    assert ratios["tensors at the peak"] == pytest.approx(1.0, abs=0.04)
    equal = ratios.keys() - {"step time", "tensors at the peak", "peak memory", "peak memory, replayed"}
    assert {quantity: ratios[quantity] for quantity in equal} == pytest.approx(dict.fromkeys(equal, 1.0), abs=1e-3)


@pytest.mark.nightly
def test_equal_compiled_blocks_share_their_code() -> None:
    script = Path(__file__).parents[3] / "benchmarks" / "scripts" / "torchtitan_llama.py"
    sizes = ("--width", "128", "--heads", "2", "--key-heads", "2", "--hidden", "256", "--vocabulary", "512", "--length", "64")
    # more blocks than Dynamo compiles a function for
    (one,) = captured(script, "--layers", "10", *sizes, "--compile", ranks=2).classes
    modules = {one.text("module", row) for row in one.rows(EventKind.OPERATOR)}
    assert {f"layers.{number}.feed_forward.w2" for number in range(10)} <= modules
