from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports import nccl_tests
from scaleproof.validator.calibration.imports.nccl_tests import Machines
from tests.validator.calibration.imports.logs import FILES, SIZES, nccl_log

NODE = ["one"] * 8
TWO = ["one"] * 4 + ["two"] * 4


def _log(folder: Path, text: str, name: str = "job.out") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_size_of_a_log_is_a_point_of_its_group(tmp_path: Path) -> None:
    found = nccl_tests.read([_log(tmp_path, nccl_log("all_reduce", TWO, 30e-6, 200e9))])
    assert [point.size for point in found.points] == SIZES
    assert found.machines == Machines("NVIDIA H100 80GB HBM3", 2, 4)
    assert not found.notes.lines()
    last = found.points[-1]
    assert (last.probe, last.what, last.group, last.unit) == ("collective", "all_reduce", "8 ranks on 2 nodes", "bytes")
    assert last.ranks == tuple(range(8))
    assert last.seconds == pytest.approx([30e-6 + 2**30 / 200e9, 1.02 * (30e-6 + 2**30 / 200e9)], rel=1e-4)
    assert last.numbers == {"nodes": 2, "wrong": 0, "iterations": 20}


@pytest.mark.parametrize(
    "prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", "[prterun-a-7@1,0]<stdout>: ", "2026-01-02T03:04:05.6Z "]
)
def test_prefixes_of_launchers_are_ignored(prefix: str, tmp_path: Path) -> None:
    plain = nccl_tests.read([_log(tmp_path, nccl_log("alltoall", NODE, 1e-5, 1e11))])
    prefixed = nccl_tests.read([_log(tmp_path, nccl_log("alltoall", NODE, 1e-5, 1e11, prefix=prefix))])
    assert prefixed.points == plain.points


def test_columns_of_older_releases_are_read(tmp_path: Path) -> None:
    found = nccl_tests.read([FILES / "old.log"])
    assert [point.what for point in found.points] == ["all_gather"] * 3
    assert found.points[0].seconds == pytest.approx([113.9e-6, 112.0e-6])
    assert [line.partition("old.log:")[2] for line in found.notes.lines()] == [
        "16: 2 results were wrong; their times are used, find the cause"
    ]


def test_unknown_columns_are_reported_and_known_ones_used(tmp_path: Path) -> None:
    text = nccl_log("all_reduce", NODE, 1e-5, 1e11)
    lines = [
        line + "  jitter" if "algbw" in line else line + "   0.5" if line.startswith("  ") else line
        for line in text.splitlines()
    ]
    found = nccl_tests.read([_log(tmp_path, "\n".join(lines))])
    assert len(found.points) == len(SIZES)
    assert "unknown columns: jitter; the others are used" in found.notes.lines()[0]


def test_unreadable_lines_are_reported_with_their_number(tmp_path: Path) -> None:
    lines = nccl_log("all_reduce", NODE, 1e-5, 1e11).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  "))
    lines[first] = " ".join(lines[first].split()[:7])
    lines[first + 1] = lines[first + 1].replace("float", "sharks")
    path = _log(tmp_path, "\n".join(lines[: first + 5]))
    found = nccl_tests.read([path])
    assert len(found.points) == 3
    assert found.notes.lines() == [
        f"{path}:{first + 1}: 7 columns where this table has 13; line left out",
        f"{path}:{first + 2}: 'sharks' is not a type of nccl-tests; line left out",
        f"{path}: ends without 'Avg bus bandwidth', as if cut off; the lines before are used",
    ]


@pytest.mark.parametrize(
    ("op", "cut", "why"),
    [
        ("all_reduce", "# Collective", None),
        ("reduce_scatter", "# Collective", None),
        ("all_gather", "# Collective", "unknown collective"),
        ("all_reduce", "#  Rank", "no '# Rank' lines"),
    ],
)
def test_an_unnamed_collective_is_identified_by_its_bandwidths(op: Op, cut: str, why: str | None, tmp_path: Path) -> None:
    text = nccl_log(op, NODE, 1e-5, 1e11)
    path = _log(tmp_path, "\n".join(line for line in text.splitlines() if not line.startswith(cut)))
    if why is None:
        assert {point.what for point in nccl_tests.read([path]).points} == {op}
    else:
        with pytest.raises(InputError, match=why) as error:
            nccl_tests.read([path])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["all_gather.log", "all_gather_perf.log", "alltoall.16.txt", "reduce-scatter.log", "sendrecv2.log"]
)
def test_the_name_of_a_file_gives_the_collective(name: str, tmp_path: Path) -> None:
    lines = nccl_log("all_gather", NODE, 1e-5, 1e11).splitlines()
    path = _log(tmp_path, "\n".join(line for line in lines if not line.startswith("# Collective")), name)
    (op,) = {point.what for point in nccl_tests.read([path]).points}
    assert op.replace("_", "") in name.replace("_", "").replace("-", "")


def test_a_table_without_times_is_reported(tmp_path: Path) -> None:
    text = nccl_log("all_reduce", NODE, 1e-5, 1e11)
    found = nccl_tests.read([_log(tmp_path, text.replace("time", "span"))])
    assert len(found.points) == len(SIZES)
    assert "no column is called 'time'; nccl-tests' usual columns are assumed" in found.notes.lines()[0]


def test_the_positive_one_of_two_times_is_used(tmp_path: Path) -> None:
    lines = nccl_log("all_reduce", NODE, 1e-5, 1e11).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  "))
    words = lines[first].split()
    lines[first] = "  " + " ".join([*words[:5], "-3.1", *words[6:]])
    path = _log(tmp_path, "\n".join(lines))
    found = nccl_tests.read([path])
    assert len(found.points[0].seconds) == 1
    assert f"{path}:{first + 1}: one of two times is not above zero; the other is used" in found.notes.lines()


@pytest.mark.parametrize("text", ["", "osu_allreduce\n# Size  Latency(us)\n8   12.1\n16  12.5\n", "hello\n" * 100])
def test_a_log_of_another_tool_gives_a_one_line_error(text: str, tmp_path: Path) -> None:
    path = _log(tmp_path, text)
    with pytest.raises(InputError) as error:
        nccl_tests.read([path])
    assert (
        str(error.value)
        == f"{path}: no time of a collective found; expected a log of nccl-tests, such as all_reduce_perf prints"
    )


def test_binary_and_missing_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b"\x7fELF\0\0\0")
    with pytest.raises(InputError, match="not text; expected a log of nccl-tests"):
        nccl_tests.read([path])
    with pytest.raises(InputError, match="No such file"):
        nccl_tests.read([tmp_path / "nowhere.log"])


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=200))
def test_no_line_of_a_log_gives_a_traceback(tmp_path_factory: pytest.TempPathFactory, line: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.log"
    path.write_text(nccl_log("all_reduce", NODE, 1e-5, 1e11) + line, encoding="utf-8", errors="replace")
    assert len(nccl_tests.read([path]).points) >= len(SIZES)
