"""Tables of kernels: what is read, which rows cannot be used, and what is refused."""

from __future__ import annotations

import contextlib
import csv
import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleproof.simulator.common.errors import InputError, NotFoundError
from scaleproof.validator.kernels.table import COLUMNS, SHAPES, KernelTable, check, read, write
from tests.validator.kernels.made import ATTENTION, GEMM, MIXTURE, all_shipped, written


def table(folder: Path, *rows: dict[str, str]) -> KernelTable:
    return read(written(folder / "kernels.csv", *rows))


def test_the_table_that_ships_can_be_used_as_a_whole() -> None:
    found = all_shipped()
    check(found)
    assert len(found) == 21208
    assert found.gpus == ["A100-80GB-SXM", "B200-SXM", "H100-80GB-SXM", "L40S-48GB"]
    assert sum(int(found.rows(kind).sum()) for kind in SHAPES) == len(found)
    assert found.merged()[1] == 0
    hopper = found.of_gpu("H100-80GB-SXM")
    products = hopper.products("bf16")
    assert (len(products.m), products.m.min(), products.m.max()) == (1148, 512, 32768)
    assert hopper.precisions("gemm") == ["bf16", "fp8"]
    assert products.subset(products.m > 16384).m.tolist() == [32768.0] * int((products.m > 16384).sum())


def test_a_missing_column_of_a_kinds_shape_is_named(tmp_path: Path) -> None:
    short = {name: cell for name, cell in GEMM.items() if name != "k"}
    with pytest.raises(InputError, match=r"kernels.csv:1: no column k; rows of gemm need m, n, k"):
        table(tmp_path, short)


def test_blank_cells_have_their_usual_values(tmp_path: Path) -> None:
    bare = {name: cell for name, cell in MIXTURE.items() if name not in ("moe_tp", "moe_ep", "routing")}
    found = table(tmp_path, ATTENTION | {"kv_heads": ""}, bare)
    check(found)
    assert found.attentions("bf16").kv_heads.tolist() == [32]
    assert found.implementations() == ["trtllm"]
    mixture = found.mixtures("bf16")
    assert (mixture.moe_tp[0], mixture.moe_ep[0], mixture.routing[0]) == (1, 1, "balanced")


def test_rows_without_a_gpu_have_the_one_that_is_given(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.csv", {name: cell for name, cell in GEMM.items() if name != "gpu"})
    assert read(path, "my-gpu").gpus == ["my-gpu"]
    with pytest.raises(InputError, match=r"mine.csv:2: no GPU; name it in the column gpu"):
        check(read(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GEMM | {"kind": "convolution"}, "unknown kind, got 'convolution'; give one of gemm, attention_forward, moe_forward"),
        (GEMM | {"precision": "int4"}, "unknown precision, got 'int4'; give one of fp64"),
        (GEMM | {"latency_us": "nan"}, "latency_us is not a number of microseconds above zero, got 'nan'"),
        (GEMM | {"latency_us": "inf"}, "latency_us is not a number"),
        (GEMM | {"latency_us": "0"}, "latency_us is not a number"),
        (GEMM | {"latency_us": "-3"}, "latency_us is not a number"),
        (GEMM | {"latency_us": "1e300"}, "latency_us is not a number"),
        (GEMM | {"latency_us": "soon"}, "latency_us is not a number"),
        (GEMM | {"m": ""}, "m is not a whole number above zero; correct it"),
        (GEMM | {"m": "0.5"}, "m is not a whole number above zero, got '0.5'"),
        (GEMM | {"k": "1e999"}, "k is not a whole number above zero"),
        (ATTENTION | {"head_dim": "wide"}, "head_dim is not a whole number above zero"),
        (ATTENTION | {"direction": "sideways"}, "unknown direction, got 'sideways'; give forward or backward"),
        (ATTENTION | {"kv_heads": "5"}, "kv_heads does not divide heads, got '5'"),
        (MIXTURE | {"topk": "0"}, "topk is not a whole number above zero"),
        (MIXTURE | {"routing": "random"}, "unknown routing, got 'random'; give balanced"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, row: dict[str, str], message: str) -> None:
    found = table(tmp_path, GEMM, row)
    assert found.usable.tolist() == [True, False]
    with pytest.raises(InputError) as caught:
        check(found)
    assert str(caught.value).startswith(f"{tmp_path}/kernels.csv:3: {message}")


def test_only_the_first_wrong_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        check(table(tmp_path, *[GEMM | {"m": "none"}] * 9))
    lines = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in lines[:3]] == ["2", "3", "4"]
    assert lines[3:] == ["and 6 more rows that cannot be used"]


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file"):
        read(tmp_path / "missing.csv")
    (tmp_path / "empty.csv").write_text("gpu,kind,precision,latency_us\n\n")
    with pytest.raises(InputError, match="no rows below its columns"):
        read(tmp_path / "empty.csv")
    (tmp_path / "nothing.csv").write_text("")
    with pytest.raises(InputError, match="no column kind, precision, latency_us"):
        read(tmp_path / "nothing.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="cannot be read as CSV"):
        read(tmp_path / "binary.csv")
    (tmp_path / "damaged.csv.gz").write_bytes(gzip.compress(b"gpu,kind\n" * 99)[:30])
    with pytest.raises(InputError, match="cannot be decompressed"):
        read(tmp_path / "damaged.csv.gz")
    (tmp_path / "other.csv.gz").write_text("gpu,kind\n")
    with pytest.raises(InputError, match="cannot be decompressed"):
        read(tmp_path / "other.csv.gz")


def test_repeated_shapes_count_once_with_their_median(tmp_path: Path) -> None:
    times = ["200", "100", "120"]
    found = table(tmp_path, MIXTURE, *[GEMM | {"latency_us": time} for time in times], GEMM | {"m": "512"}, ATTENTION)
    merged, repeated = found.merged()
    assert repeated == 2
    assert merged.lines.tolist() == [2, 3, 6, 7]
    assert merged.measured_s == pytest.approx(np.array([4500, 120, 190, 1300]) * 1e-6)
    even, _ = table(tmp_path, GEMM, GEMM | {"latency_us": "210"}).merged()
    assert even.measured_s == pytest.approx([200e-6])


CELLS = st.sampled_from(
    ["", "0", "1", "7", "4096", "-1", "1e9", "1e300", "nan", "inf", "gemm", "moe_forward", "bf16", "x", "a,b", "\u2028"]
)


@given(
    st.lists(st.lists(CELLS, max_size=9), max_size=6),
    st.permutations(["gpu", "kind", "precision", "m", "n", "k", "latency_us"]),
)
def test_any_cells_are_read_or_refused(rows: list[list[str]], columns: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
        try:
            found = read(path)
        except InputError:
            # without rows, and with a mixture of experts, whose columns are missing
            kind = columns.index("kind")
            assert not any(rows) or any(row[kind : kind + 1] == ["moe_forward"] for row in rows)
            return
        assert len(found) == sum(1 for row in rows if row)
        assert len(found.shape_texts()) == len(found)
        assert np.isfinite(found.measured_s[found.usable]).all()
        merged, repeated = found.merged()
        assert len(merged) + repeated == found.usable.sum()
        with contextlib.suppress(InputError):
            check(found)
            assert found.usable.all()


def test_a_written_table_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write([GEMM, ATTENTION], path)
    assert path.read_text().splitlines()[0].split(",") == [name for name in COLUMNS if name in GEMM | ATTENTION]
    found = read(path)
    check(found)
    assert found.shape_texts() == ["m=4096 n=4096 k=4096", "batch=4 seq=4096 heads=32 kv_heads=8 head_dim=128"]
