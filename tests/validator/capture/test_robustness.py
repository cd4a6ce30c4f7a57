"""Scripts that use PyTorch in less common ways are captured, and nothing that they had before is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from scaleproof.simulator.captured.reading import script_of_capture
from scaleproof.simulator.captured.record import Capture, EventKind, RecordedRanks
from scaleproof.simulator.common.communication import Dimension
from tests.validator.capture.test_capture import captured

SCRIPTS: Final = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.full


def collectives(one: RecordedRanks) -> list[str]:
    """Names of the collectives of a step."""
    return [one.text("name", row) for row in one.rows(EventKind.COLLECTIVE).tolist()]


def only(capture: Capture) -> RecordedRanks:
    """The one class of ranks of a capture without warnings."""
    assert capture.warnings == ()
    (one,) = capture.classes
    return one


def test_functions_take_their_documented_arguments() -> None:
    # the script checks it
    assert only(captured(SCRIPTS / "documented_names.py", ranks=1)).steps > 2


def test_copies_of_buffers_count_as_memory_and_flops_of_any_overload_are_counted() -> None:
    one = only(captured(SCRIPTS / "copied_storages.py", ranks=1))
    parameters = 16 * 27 + 16 + 32 + 10 * (16 * 30 * 30 + 1)
    # the model, its average, gradients, and 1,000 x 1,000 numbers
    assert one.peak_bytes[1] > 4 * (3 * parameters + 1_000_000)
    rows = [row for row in one.rows(EventKind.OPERATOR).tolist() if one.signature(row).outputs[0][0] == (8, 64)]
    assert 2.0 * 8 * 32 * 64 in one.columns["flops"][rows]


def test_stores_barriers_and_groups_wait_for_nobody() -> None:
    one = only(captured(SCRIPTS / "stores_and_groups.py", ranks=4, timeout_s=120))
    assert collectives(one) == ["all_reduce"]


def test_loops_end_that_floats_decide() -> None:
    capture = captured(SCRIPTS / "decided_loops.py", ranks=4, timeout_s=120)
    assert {"all_gather", "reduce_scatter"} <= set(collectives(capture.classes[0]))


def test_less_common_parts_are_captured() -> None:
    names = collectives(captured(SCRIPTS / "less_common.py", ranks=2).classes[0])
    # statistics of the norm; its gradients, those of the model, and which parameters were used; updated parameters
    # and gradients in half precision, by a hook that PyTorch has in C++
    assert (names.count("all_gather"), names.count("all_reduce")) == (1, 4)
    assert "broadcast" in names


def test_sparse_gradients_and_known_masks_are_captured() -> None:
    capture = captured(SCRIPTS / "sparse_gradients.py", ranks=4)
    assert collectives(capture.classes[0]) == ["alltoall"]
    assert not [one for one in capture.classes[0].decisions if one.operator == "aten::masked_select"]


def test_saved_files_exist_for_the_script_alone(tmp_path: Path) -> None:
    real = tmp_path / "real.pt"
    real.write_bytes(b"of an earlier training")
    capture = captured(SCRIPTS / "saved_files.py", str(tmp_path), ranks=2)
    assert any("loads a checkpoint" in warning for warning in capture.warnings)
    assert real.read_bytes() == b"of an earlier training"
    # nothing is left but a link, which has no name of its own for the capture
    assert {path.name for path in tmp_path.iterdir()} <= {"real.pt", "link.pt"}


def test_ranks_that_sum_gradients_are_replicas_whatever_else_they_gather(tmp_path: Path) -> None:
    script = tmp_path / "contrastive.py"
    script.write_text(
        "import torch, torch.distributed as dist, torch.distributed.nn\n"
        "dist.init_process_group('nccl')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 512).cuda())\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(4):\n"
        "    features = model(torch.randn(16, 256, device='cuda'))\n"
        "    (features @ torch.cat(torch.distributed.nn.all_gather(features)).T).mean().backward()\n"
        "    optimizer.step()\n"
    )
    script_ = script_of_capture(captured(script, ranks=4), "contrastive")
    events = script_.classes[0].events
    assert {events.dimension[row] for row in events.rows(EventKind.COLLECTIVE)} == {Dimension.DATA}
    assert script_.replicas.count == 4
