"""Capture files: what is written is read again, and other files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scaleproof.simulator.captured.record import (
    COLUMNS,
    NONE,
    Capture,
    EventKind,
    EventWriter,
    ProcessGroup,
    RecordedRanks,
    Signature,
    compact,
)
from scaleproof.simulator.common.errors import InputError


def small() -> Capture:
    kinds = [EventKind.ALLOCATE, EventKind.STEP, EventKind.OPERATOR, EventKind.FREE]
    columns = {name: np.full(len(kinds), NONE, column.dtype) for name, column in COLUMNS.items()}
    columns["kind"][:] = kinds
    columns["name"][2] = 0
    columns["signature"][2] = 0
    signature = Signature((((2, 3), "bfloat16", True), ((3, 4), "bfloat16", False)), (((2, 4), "bfloat16", True),), {})
    groups = ProcessGroup("0", range(8)), ProcessGroup("1", (0, 3, 4))
    one = RecordedRanks(
        name="all ranks", ranks=(range(8),), played=0, why="", groups=groups,
        parameters=12, local_parameters=12, inputs=(), optimizers=(), kept_step=1, steps=3, peak_bytes=(512, 1024),
        operators_hash="ab", decisions=(), columns=columns, strings=["aten::mm"], signatures=[signature],
    )  # fmt: skip
    return Capture("train.py", ("--x",), "2.13.0", 8, 8, "h100-80gb-sxm", None, (one,))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "capture.zip"
    small().write(path)
    capture = Capture.read(path)
    one, original = capture.classes[0], small().classes[0]
    assert (capture.script, capture.arguments, capture.cluster) == ("train.py", ("--x",), None)
    assert one.groups == original.groups
    assert one.ranks == (range(8),)
    assert len(one) == 8
    assert one.signatures == original.signatures
    for name, column in original.columns.items():
        np.testing.assert_array_equal(one.columns[name], column)


def test_equal_captures_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        small().write(tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_rows_of_the_step_follow_its_mark() -> None:
    one = small().classes[0]
    assert one.rows(EventKind.ALLOCATE).tolist() == []
    assert one.rows(EventKind.ALLOCATE, in_step=False).tolist() == [0]
    (row,) = one.rows(EventKind.OPERATOR)
    assert one.text("name", row) == "aten::mm"
    assert one.text("module", row) == ""
    assert one.signature(row).inputs[0][0] == (2, 3)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"name: a scenario"])
def test_other_files_are_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "capture.zip"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a capture .* write it again with 'scaleproof capture'"):
        Capture.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.zip: No such file"):
        Capture.read(tmp_path / "missing.zip")


def test_evenly_spaced_ranks_are_a_range() -> None:
    assert compact([1, 5, 9]) == range(1, 13, 4)
    assert compact([1, 5, 8]) == (1, 5, 8)
    assert compact([7]) == range(7, 8)


def test_a_part_of_written_events_has_the_texts_that_it_refers_to() -> None:
    writer = EventWriter()
    for name in ("aten::mm", "aten::add", "aten::mm"):
        writer.add(EventKind.OPERATOR, name=name, module="", line="", signature=Signature((), (), {"name": name}))
    writer.set(2, "module", "fc")
    part = writer.part([2, 0])
    assert list(part.strings) == ["aten::mm", "fc", ""]
    assert part.columns["name"].tolist() == [0, 0]
    assert [part.strings[index] for index in part.columns["module"]] == ["fc", ""]
    # only modules may be empty
    assert part.columns["line"].tolist() == [NONE, NONE]
    assert [signature.arguments["name"] for signature in part.signatures] == ["aten::mm"]
    assert (writer.value(1, "name"), writer.value(1, "work")) == ("aten::add", None)
