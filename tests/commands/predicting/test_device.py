"""The command device: facts, rates, figures with measured kernels, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scaleproof
from scaleproof.simulator.common import catalog
from tests.validator.kernels.made import GEMM, sampled, written


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert scaleproof.main(["device", *arguments]) == 0
    return capsys.readouterr().out


def test_facts_name_their_origin(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "h100-80gb-sxm").splitlines()
    assert lines[0] == "H100-80GB-SXM: NVIDIA H100 80 GB on NVLink (SXM5)"
    facts = {line.strip().partition("  ")[0]: line for line in lines[3 : lines.index("", 3)]}
    assert facts["peak bf16, fp16"].split()[-4:] == ["989", "TFLOP/s", "data", "sheet"]
    assert facts["power limit"].endswith("data sheet")
    assert facts["launch of a kernel"].endswith("assumed")
    assert "source" in lines


def test_rates_grow_with_the_size_of_products(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(shown(capsys, "a100-80gb-sxm", "--json"))
    line = next(line for line in plain["products"] if line["precision"] == "bf16")
    rates = [rate["burst"] for rate in line["rates"]]
    assert rates[0] < rates[2] < 312e12
    for rate in line["rates"]:
        assert rate["low"] < rate["burst"] < rate["high"]
        assert rate["sustained"] <= rate["burst"] * 1.02
    assert all(line["rates"][0]["size"] == 512 for line in plain["attention"])


@pytest.mark.parametrize("name", catalog.names("devices"))
def test_every_device_that_ships_is_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "matrix products m = n = k in a short burst" in shown(capsys, name)


def test_the_device_of_a_cluster_file_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "share of the peak" in shown(capsys, str(catalog.ROOT / "clusters" / "cpu-2core.yaml"))


def test_figures_show_measured_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = sampled(tmp_path / "a100.csv", "A100-80GB-SXM", 40)
    shown(capsys, "a100-80gb-sxm", "--out", str(tmp_path / "out"), "--table", str(table))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"device.json"} | {
        f"{name}.{form}" for name in ("roofline", "products", "attention") for form in ("png", "svg")
    }
    assert json.loads((tmp_path / "out" / "device.json").read_text())["name"] == "A100-80GB-SXM"


def test_devices_without_measured_kernels_have_figures_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "t4", "--out", str(tmp_path))
    assert (tmp_path / "roofline.svg").stat().st_size > 0
    assert (tmp_path / "attention.svg").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["h100-80gb"], "no device is called 'h100-80gb'; did you mean"),
        (["missing.yaml"], "missing.yaml: no such file"),
        (["h100-80gb-sxm", "--table", "t.csv"], "--table: its kernels are drawn in the figures; also give --out DIR"),
        (["h100-80gb-sxm", "--table", "t.csv", "--out", "o"], "t.csv: kernels of T4, but none of H100-80GB-SXM"),
        (["h100-80gb-sxm", "--table", "fast.csv", "--out", "o"], "fast.csv:2: gemm m=4096 n=4096 k=4096 in 0.19 us is"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "t.csv", GEMM | {"gpu": "T4"})
    written(tmp_path / "fast.csv", GEMM | {"latency_us": "0.19"})
    assert scaleproof.main(["device", *arguments]) == 2
    assert message in capsys.readouterr().err
