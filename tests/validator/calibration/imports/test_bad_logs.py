"""Bad logs of nccl-tests: what is refused or noted, and that each message gives the file, the line and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports import nccl_tests
from tests.validator.calibration.imports.logs import SIZES, nccl_log

NODE = ["one"] * 8
_UNITS = re.compile(r"^#\s+\(B\).*\n", re.MULTILINE)


def _log(folder: Path, text: str, name: str = "a.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _text(latency_s: float = 1e-5, Bps: float = 1e11) -> str:
    return nccl_log("all_reduce", NODE, latency_s, Bps)


def _first_row(lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if re.match(r"\s+\d", line))


def test_a_head_with_a_damaged_name_is_noted(tmp_path: Path) -> None:
    found = nccl_tests.read([_log(tmp_path, _text().replace(" type ", " type. ", 1))])
    assert any("no column is called 'type'" in line for line in found.notes.lines())
    assert len(found.points) == len(SIZES)


def test_contradictory_times_are_named_with_file_line_and_both_values(tmp_path: Path) -> None:
    logs = [_log(tmp_path, _text(), "a.log"), _log(tmp_path, _text(4e-5), "b.log")]
    row = _first_row(_text().splitlines()) + 1
    with pytest.raises(InputError) as error:
        nccl_tests.read(logs)
    assert str(error.value).startswith(
        f"{logs[0]}:{row} and {logs[1]}:{row}: all_reduce, 8 ranks on 1 nodes, 1.00 KiB: 10.1 us and 40.4 us"
    )
    assert "leave one of the logs out, or keep the median of all with --median" in str(error.value)


def test_the_median_of_contradictory_times_is_kept_on_request_only(tmp_path: Path) -> None:
    logs = [_log(tmp_path, _text(latency_s), f"{number}.log") for number, latency_s in enumerate((1e-5, 1.1e-5, 9e-5))]
    found = nccl_tests.read(logs, keep_median=True)
    assert found.points[0].median_s == pytest.approx(1.1e-5, rel=0.05)
    assert any("they contradict one another; the median is used, as --median says" in line for line in found.notes.lines())


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22603", "2.26.3"),
        ("# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=2708", "2.7.8"),
        ("NCCL version 2.19.3+cuda12.2", "2.19.3"),
        ("RCCL version : 2.22.3-HEAD:9a3d4d2", "2.22.3"),
    ],
)
def test_the_release_of_the_library_is_read(line: str, version: str, tmp_path: Path) -> None:
    other = "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807"
    assert nccl_tests.read([_log(tmp_path, _text().replace(other, line))]).library == version


def test_logs_of_several_releases_are_refused(tmp_path: Path) -> None:
    logs = [_log(tmp_path, _text(), "a.log"), _log(tmp_path, _text().replace("library=22807", "library=21903"), "b.log")]
    with pytest.raises(InputError, match=r"a\.log:1: 2\.28\.7, .*b\.log:1: 2\.19\.3.*import the logs of each release"):
        nccl_tests.read(logs)
    found = nccl_tests.read(logs, keep_median=True)
    assert found.library == ""
    assert "several releases of the library" in found.notes.lines()[0]


def test_one_rank_is_refused(tmp_path: Path) -> None:
    path = _log(tmp_path, nccl_log("all_reduce", ["one"], 1e-5, 1e11))
    with pytest.raises(InputError, match="one rank, which moves no data"):
        nccl_tests.read([path])


@pytest.mark.parametrize("columns", ["N/A", "removed"])
def test_times_in_place_alone_are_used_with_a_note(columns: str, tmp_path: Path) -> None:
    lines = _text().splitlines()
    for number, line in enumerate(lines):
        words = line.split()
        if re.match(r"\s+\d", line):
            left = ["N/A"] * 4 if columns == "N/A" else []
            lines[number] = "  " + " ".join([*words[:5], *left, *words[9:]])
        elif columns == "removed":
            lines[number] = line.replace("out-of-place", "").replace("  time   algbw   busbw  #wrong", "", 1)
    found = nccl_tests.read([_log(tmp_path, "\n".join(lines))])
    assert found.points[0].seconds == pytest.approx([1.02 * (1e-5 + 1024 / 1e11)], rel=1e-2)
    assert "no time out of place; the one in place is used" in found.notes.lines()[0]


def test_a_line_whose_times_differ_between_places_uses_the_one_out_of_place(tmp_path: Path) -> None:
    lines = _text().splitlines()
    first = _first_row(lines)
    words = lines[first].split()
    lines[first] = "  " + " ".join([*words[:9], "90.00", "0.01", "0.02", "0"])
    path = _log(tmp_path, "\n".join(lines))
    found = nccl_tests.read([path])
    assert found.points[0].seconds == pytest.approx([1.001e-5], rel=1e-2)
    assert found.notes.lines() == [f"{path}:{first + 1}: 10.0 us out of place, 90.0 us in place; the one out of place is used"]


def test_without_a_line_of_units_bandwidths_show_them(tmp_path: Path) -> None:
    found = nccl_tests.read([_log(tmp_path, _UNITS.sub("", _text()))])
    assert len(found.points) == len(SIZES)


def test_a_table_of_unknown_units_is_refused(tmp_path: Path) -> None:
    text = _UNITS.sub("", nccl_log("all_reduce", NODE, 1e-5, 1e11, sizes=[8, 16, 32]))
    with pytest.raises(InputError, match=r"a\.log:\d+: the unit of these times is unknown .* give the log with its header"):
        nccl_tests.read([_log(tmp_path, text)])


def test_a_table_in_other_units_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.log:\d+: times in ms; nccl-tests prints microseconds"):
        nccl_tests.read([_log(tmp_path, _text().replace("(us)", "(ms)"))])
    slower = "\n".join(
        " ".join([*line.split()[:5], str(float(line.split()[5]) / 1000), *line.split()[6:]])
        if re.match(r"\s+\d", line)
        else line
        for line in _text().splitlines()
    )
    with pytest.raises(InputError, match="GB/s if the time is in us, but algbw is"):
        nccl_tests.read([_log(tmp_path, slower.replace("#        (B)", "#"))])


def test_wrong_results_are_noted_with_their_line(tmp_path: Path) -> None:
    lines = _text().splitlines()
    first = _first_row(lines)
    lines[first] = lines[first][:-1] + "3"
    path = _log(tmp_path, "\n".join(lines))
    (note,) = nccl_tests.read([path]).notes.lines()
    assert note == f"{path}:{first + 1}: 3 results of this size were wrong; its time is used, find the cause"


def test_rccl_tests_are_read(tmp_path: Path) -> None:
    text = nccl_log("all_gather", NODE, 1e-5, 1e11, gpu="AMD Instinct MI300X")
    text = text.replace("# nThread 1 nGpus 1 minBytes 1024", "# nThread: 1 nGpus: 1 minBytes: 1024")
    text = text.replace(
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807", "rccl-tests: Version develop:ae3e635"
    )
    found = nccl_tests.read([_log(tmp_path, text + text.replace("all_gather_perf", "reduce_scatter_perf"))])
    assert {point.what for point in found.points} == {"all_gather", "reduce_scatter"}
    assert found.machines.gpu == "AMD Instinct MI300X"


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9, 0.99])
def test_of_a_truncated_log_the_whole_lines_are_used(share: float, tmp_path: Path) -> None:
    text = _text()
    found = nccl_tests.read([_log(tmp_path, text[: int(share * len(text))])])
    whole = nccl_tests.read([_log(tmp_path, text, "whole.log")])
    assert found.points == whole.points[: len(found.points)]
