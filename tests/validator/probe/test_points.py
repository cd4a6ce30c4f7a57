"""Tables of points are read back unchanged, and other files rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.probe import points
from scaleproof.validator.probe.points import Point

numbers = st.floats(0, 1e12)
any_point = st.builds(
    Point,
    probe=st.sampled_from(["message", "matmul"]),
    what=st.text(max_size=8),
    where=st.text(max_size=8),
    ranks=st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    group=st.text(max_size=8),
    size=numbers,
    unit=st.just("bytes"),
    seconds=st.lists(numbers, max_size=5).map(tuple),
    stopped=st.sampled_from(["narrow", "time", "failed: a rank died"]),
    cores_busy=numbers,
    numbers=st.dictionaries(st.text(max_size=5), numbers, max_size=3),
)
SENT = Point("message", "send", "rank 0 to rank 1", (0, 1), "across", 4.0, "bytes", (2e-5, 1e-5, 4e-5), "narrow")


@given(st.lists(any_point, max_size=4))
def test_tables_keep_full_precision(tmp_path_factory: pytest.TempPathFactory, written: list[Point]) -> None:
    path = tmp_path_factory.mktemp("points") / "some.points.parquet"
    points.write(written, path)
    assert points.read(path) == written


@given(any_point)
def test_points_are_unchanged_by_json(point: Point) -> None:
    assert Point.of(json.loads(json.dumps(point.plain()))) == point


def _error_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        points.read(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_files_that_are_no_table_give_a_one_line_error(tmp_path: Path) -> None:
    text = tmp_path / "cluster.yaml"
    text.write_text("nodes: 4\n")
    assert _error_of(text) == "not a Parquet file; give a table of points that calibrate wrote"
    assert _error_of(tmp_path / "none") == "No such file or directory; give a table of points that calibrate wrote"
    assert _error_of(tmp_path) == "Is a directory; give a table of points that calibrate wrote"


def test_truncated_tables_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    points.write([SENT], path)
    path.write_bytes(path.read_bytes()[:-20])
    assert _error_of(path).startswith("not a Parquet file")


def test_tables_with_missing_columns_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pd.DataFrame({"probe": ["message"], "size": [4.0]}).to_parquet(path)
    assert _error_of(path).startswith("row 1 has no what, where, ranks, group, unit, seconds, stopped, cores_busy, numbers;")


@pytest.mark.parametrize(
    "column",
    [{"size": [-1.0]}, {"seconds": [[1e-5, -1e-5]]}, {"seconds": [[float("nan")]]}, {"numbers": ["{"]}, {"size": ["4"]}],
)
def test_invalid_times_are_reported_with_their_row(tmp_path: Path, column: dict[str, object]) -> None:
    path = tmp_path / "edited.parquet"
    points.write([SENT], path)
    pd.read_parquet(path).assign(**column).to_parquet(path)
    assert _error_of(path) == "row 1 is not a valid point: sizes and seconds must be 0 or more; remove the row"
