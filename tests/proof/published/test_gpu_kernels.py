"""Published kernel times are predicted set by set, and rows that cannot be predicted are skipped with a reason."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest

import scaleproof
from scaleproof.proof.published.gpu_kernels import predict_table
from scaleproof.proof.published.score import score, tables_at
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.kernels.table import shipped
from tests.validator.kernels.made import ATTENTION, GEMM, MIXTURE, all_shipped, sampled, written


def test_all_rows_that_ship_are_predicted_in_seconds() -> None:
    begin_s = time.perf_counter()
    predictions = predict_table(shipped())
    assert time.perf_counter() - begin_s < 20
    assert len(predictions) == len(all_shipped())
    skipped = Counter(one.skipped for one in predictions if one.skipped)
    assert all(reason.startswith("no device ships for the GPU") for reason in skipped)
    assert {one.set_name for one in predictions if not one.skipped} >= {
        f"{gpu} {kind} bf16"
        for gpu in ("A100-80GB-SXM", "B200-SXM", "H100-80GB-SXM")
        for kind in ("gemm", "attention_forward", "moe_forward")
    }


def test_predictions_are_in_the_order_of_the_rows_with_their_intervals(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ATTENTION, GEMM, MIXTURE, GEMM | {"m": "512", "latency_us": "30"})
    predictions = predict_table(path)
    assert [one.set_name.split()[1] for one in predictions] == ["attention_forward", "gemm", "moe_forward", "gemm"]
    assert [one.measured for one in predictions] == pytest.approx([1300e-6, 190e-6, 4500e-6, 30e-6])
    assert [one.id for one in predictions[1::2]] == ["gemm m=4096 n=4096 k=4096", "gemm m=512 n=4096 k=4096"]
    for one in predictions:
        assert one.interval is not None
        assert 0 < one.interval[0] < one.predicted < one.interval[1]


def test_backward_passes_are_predicted_next_to_forward_passes(tmp_path: Path) -> None:
    backward = ATTENTION | {"direction": "backward", "implementation": "flash-2", "latency_us": "3900"}
    rows = [ATTENTION | {"direction": "", "implementation": "flash-2"}, backward]
    forward, longer = predict_table(written(tmp_path / "t.csv", *rows))
    assert [one.set_name.split()[1:] for one in (forward, longer)] == [
        ["attention_forward", "bf16", "flash-2"],
        ["attention_forward", "bf16", "flash-2", "backward"],
    ]
    assert longer.predicted / forward.predicted == pytest.approx(2.5 * 0.339 / 0.298, rel=0.1), "by the shares of products"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "B900"}, "no device ships for the GPU B900"),
        ({"precision": "nvfp4"}, "H100-80GB-SXM has no peak rate in nvfp4"),
        ({"kind": "convolution"}, "unknown kind"),
        ({"precision": "int4"}, "unknown precision"),
        ({"latency_us": "nan"}, "latency_us is not a number of microseconds above zero"),
        ({"latency_us": ""}, "latency_us is not a number of microseconds above zero"),
        ({"m": "many"}, "m is not a whole number above zero"),
    ],
)
def test_rows_that_cannot_be_predicted_are_skipped_with_a_reason(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    good, skipped = predict_table(written(tmp_path / "t.csv", GEMM, GEMM | change))
    assert (good.skipped, skipped.skipped) == ("", reason)


def test_a_table_in_a_wrong_unit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sampled(tmp_path / "ms.csv", "H100-80GB-SXM", 20, 1e-3)
    with pytest.raises(InputError, match=r"ms.csv:\d+: gemm m="):
        predict_table(path)
    assert scaleproof.main(["score", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "times must be in microseconds: multiply those in milliseconds by 1,000" in line


def test_kernels_count_in_totals_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "t.csv", GEMM, ATTENTION, GEMM | {"latency_us": "0"})
    found = score(path)
    assert (found.totals["all"].rows, found.totals["all"].scored) == (3, 2)
    assert found.totals["all"].coverage90 is not None
    layers = tables_at([Path("layer_times.csv")])[0]
    assert scaleproof.main(["score", str(path), str(layers), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["totals"]["all"]["rows"] == 10


def test_a_table_without_a_column_names_it(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", {name: cell for name, cell in GEMM.items() if name != "latency_us"})
    with pytest.raises(InputError, match="not a table that can be scored: to be one of gpu_kernels it lacks latency_us"):
        score(path)
